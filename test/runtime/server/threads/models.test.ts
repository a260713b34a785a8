/** Tests when models are loaded and unloaded: on demand, for a while, and one instead of another when memory is short. */
import { describe, expect, it } from 'vitest'
import { KvfoldError } from '../../../../src/runtime/core/errors.js'
import { ScriptedEngine } from '../../../support/scripted.js'
import { ThreadService } from '../../../../src/runtime/server/service.js'
import type { ModelSource } from '../../../../src/runtime/server/threads/models.js'

/** Models that take one unit of memory each. */
function shop(memory: number, names: readonly string[]) {
  const loaded = new Set<string>()
  const history: string[] = []
  let gate: Promise<void> = Promise.resolve()
  const models = names.map((name): ModelSource => ({
    name,
    slots: 1,
    load: async () => {
      await Promise.resolve()
      if (loaded.size >= memory) throw new KvfoldError('memory/insufficient', `No room for ${name}.`)
      loaded.add(name)
      history.push(`+${name}`)
      const engine = new ScriptedEngine(async () => {
        await gate
        return { content: `I am ${name}.` }
      })
      const dispose = engine.dispose.bind(engine)
      engine.dispose = () => {
        loaded.delete(name)
        history.push(`-${name}`)
        return dispose()
      }
      return engine
    },
  }))
  return { models, loaded, history, hold: (until: Promise<void>) => (gate = until) }
}

const ask = (service: ThreadService, model?: string) =>
  service.ask({
    tenant: 't',
    messages: [{ role: 'user', content: 'Who are you?' }],
    tools: [],
    toolChoice: 'auto',
    ...(model === undefined ? {} : { model }),
  }).answer

describe('models', () => {
  it('are loaded on demand, the first one by default', async () => {
    const { models, history } = shop(2, ['a', 'b'])
    const service = await ThreadService.open({ models })
    expect(service.models().map(({ name, state, loaded }) => [name, state, loaded])).toEqual([
      ['a', 'unloaded', null],
      ['b', 'unloaded', null],
    ])
    expect((await ask(service)).message.content).toBe('I am a.')
    const answers = await Promise.all([ask(service, 'b'), ask(service, 'b'), ask(service, 'a')])
    expect(answers.map(({ model }) => model)).toEqual(['b', 'b', 'a'])
    expect(history).toEqual(['+a', '+b'])
    await expect(ask(service, 'c')).rejects.toMatchObject({
      code: 'model/not-found',
      message: expect.stringContaining('a, b') as string,
    })
    await service.close()
    expect(history).toEqual(['+a', '+b', '-a', '-b'])
  })

  it('have other names, too, and one may accept any name', async () => {
    const { models } = shop(2, ['a', 'b'])
    const [a, b] = models as [(typeof models)[0], (typeof models)[0]]
    const service = await ThreadService.open({ models: [a, { ...b, aliases: ['gpt', '*'] }] })
    const asked = ['a', 'b', 'gpt', 'whatever', undefined].map(async (name) => (await ask(service, name)).model)
    expect(await Promise.all(asked)).toEqual(['a', 'b', 'b', 'b', 'a'])
    await service.close()
    const strict = await ThreadService.open({ models: [a, { ...b, aliases: ['gpt'] }] })
    await expect(ask(strict, 'whatever')).rejects.toMatchObject({ message: expect.stringContaining('a, b, gpt') as string })
    await strict.close()
    await expect(ThreadService.open({ models: [a, { ...b, aliases: ['a'] }] })).rejects.toThrow('Two models are called a.')
  })

  it('are unloaded when memory is short, the least recently used first, and threads outlive that', async () => {
    const { models, history, loaded } = shop(2, ['a', 'b', 'c'])
    const service = await ThreadService.open({ models })
    const first = await ask(service, 'a')
    await new Promise((resolve) => setTimeout(resolve, 5))
    await ask(service, 'b')
    await ask(service, 'c')
    expect(history).toEqual(['+a', '+b', '-a', '+c'])
    const on = service.ask({
      tenant: 't',
      model: 'a',
      messages: [{ role: 'user', content: 'Who are you?' }, first.message, { role: 'user', content: 'Still?' }],
      tools: [],
      toolChoice: 'auto',
    })
    expect((await on.answer).thread).toBe(first.thread)
    expect([...loaded].sort()).toEqual(['a', 'c'])
    // An operation on a thread also loads its model.
    await ask(service, 'b')
    await service.threads.fragment('t', first.thread, { startMarker: 'Who', endMarker: '?', numFragments: 1 })
    expect(loaded.has('a')).toBe(true)
    await service.close()
  })

  it('that are in use are not unloaded, so the request fails for lack of memory', async () => {
    const { models, hold, loaded } = shop(1, ['a', 'b'])
    const service = await ThreadService.open({ models })
    let release = (): void => undefined
    void hold(new Promise((resolve) => (release = resolve)))
    const slow = ask(service, 'a')
    await new Promise((resolve) => setTimeout(resolve, 20))
    await expect(ask(service, 'b')).rejects.toMatchObject({ code: 'memory/insufficient' })
    expect([...loaded]).toEqual(['a'])
    release()
    expect((await slow).message.content).toBe('I am a.')
    expect((await ask(service, 'b')).message.content).toBe('I am b.')
    await service.close()
  })

  it('are unloaded when they were idle for a while', async () => {
    const { models, history } = shop(2, ['a'])
    const service = await ThreadService.open({ models, keepAliveMs: 30 })
    await ask(service)
    await new Promise((resolve) => setTimeout(resolve, 10))
    await ask(service)
    expect(history).toEqual(['+a'])
    await new Promise((resolve) => setTimeout(resolve, 80))
    expect(history).toEqual(['+a', '-a'])
    expect((await ask(service)).message.content).toBe('I am a.')
    await service.close()
  })

  it('need distinct names', async () => {
    await expect(ThreadService.open({ models: shop(1, ['a', 'a']).models })).rejects.toMatchObject({ code: 'engine/bad-request' })
    await expect(ThreadService.open({ models: [] })).rejects.toMatchObject({ code: 'engine/bad-request' })
  })
})
