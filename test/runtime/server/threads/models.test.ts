/** Tests when models are loaded and unloaded: on demand, for a while, and one instead of another when memory is short. */
import { describe, expect, it, vi } from 'vitest'
import { KvfoldError } from '../../../../src/runtime/core/errors.js'
import { definedFields } from '../../../../src/runtime/core/json.js'
import { ScriptedEngine } from '../../../support/scripted.js'
import { ThreadService } from '../../../../src/runtime/server/service.js'
import { serving } from '../support/serving.js'
import type { ModelSource } from '../../../../src/runtime/server/threads/models.js'

/** Models that take one unit of memory each. */
function shop(memory: number, names: readonly string[]) {
  const loaded = new Set<string>()
  const history: string[] = []
  let gate: Promise<void> = Promise.resolve()
  let exit: Promise<void> = Promise.resolve()
  let entry: () => Promise<unknown> = () => Promise.resolve()
  const models = names.map((name): ModelSource => ({
    name,
    slots: 1,
    load: async () => {
      await Promise.resolve()
      const isFull = loaded.size >= memory
      await entry()
      if (isFull) throw new KvfoldError('memory/insufficient', `No room for ${name}.`)
      loaded.add(name)
      history.push(`+${name}`)
      const engine = new ScriptedEngine(async () => {
        await gate
        return { content: `I am ${name}.` }
      })
      const dispose = engine.dispose.bind(engine)
      engine.dispose = async () => {
        await exit
        loaded.delete(name)
        history.push(`-${name}`)
        return dispose()
      }
      return engine
    },
  }))
  return {
    ...{ models, loaded, history, hold: (until: Promise<void>) => (gate = until) },
    /** Lets no engine end before this. */
    stay: (until: Promise<void>) => (exit = until),
    /** Runs while an engine loads, after the look at the memory. */
    meanwhile: (run: () => Promise<unknown>) => (entry = run),
  }
}

const ask = (service: ThreadService, model?: string, signal?: AbortSignal) =>
  service.ask({
    tenant: 't',
    messages: [{ role: 'user', content: 'Who are you?' }],
    tools: [],
    toolChoice: 'auto',
    ...definedFields({ model, signal }),
  }).answer

const pause = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds))

/** A promise that is pending until `release` is called. */
function gated(): { readonly open: Promise<void>; readonly release: () => void } {
  let release = (): void => undefined
  const open = new Promise<void>((resolve) => (release = resolve))
  return { open, release }
}

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

  it('that are leaving still have their memory, so the next one is loaded when they have left', async () => {
    const { models, stay, history } = shop(1, ['a', 'b'])
    const service = await ThreadService.open({ models })
    await ask(service, 'a')
    let release = (): void => undefined
    void stay(new Promise((resolve) => (release = resolve)))
    const leaving = service.unload('a')
    const answer = ask(service, 'b')
    // A refusal would come within this time.
    await Promise.race([answer, new Promise((resolve) => setTimeout(resolve, 20))])
    expect(history).toEqual(['+a'])
    release()
    expect((await answer).model).toBe('b')
    expect(await leaving).toBe(true)
    expect(history).toEqual(['+a', '-a', '+b'])
    await service.close()
  })

  it('that leave while another one finds no memory make room for it', async () => {
    const { models, meanwhile, history } = shop(1, ['a', 'b'])
    const service = await ThreadService.open({ models })
    await ask(service, 'a')
    meanwhile(() => service.unload('a'))
    expect((await ask(service, 'b')).model).toBe('b')
    expect(history).toEqual(['+a', '-a', '+b'])
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

  it('stay for a month if asked, though no timer of Node is that long', async () => {
    const { models, history } = shop(2, ['a'])
    const day = 24 * 3600 * 1000
    const service = await ThreadService.open({ models, keepAliveMs: 30 * day })
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
    try {
      await ask(service)
      await vi.advanceTimersByTimeAsync(29 * day)
      expect(history).toEqual(['+a'])
      await vi.advanceTimersByTimeAsync(2 * day)
      expect(history).toEqual(['+a', '-a'])
    } finally {
      vi.useRealTimers()
      await service.close()
    }
  })

  it('whose only client leaves while they load are unloaded after a while, too', async () => {
    const { models, meanwhile, history } = shop(1, ['a'])
    const service = await ThreadService.open({ models, keepAliveMs: 30 })
    const loading = gated()
    meanwhile(() => loading.open)
    const leaving = new AbortController()
    const left = ask(service, 'a', leaving.signal)
    await pause(20)
    leaving.abort()
    await expect(left).rejects.toMatchObject({ code: 'engine/cancelled' })
    loading.release()
    await expect.poll(() => history, { timeout: 5000 }).toEqual(['+a', '-a'])
    await service.close()
  })

  it('may fail to end when they were idle: the server goes on and loads them again', async () => {
    const { models, stay, history } = shop(2, ['a'])
    const service = await ThreadService.open({ models, keepAliveMs: 30 })
    await ask(service)
    const failed = Promise.reject(new Error('The disk is gone.'))
    failed.catch(() => undefined)
    void stay(failed)
    await new Promise((resolve) => setTimeout(resolve, 80))
    void stay(Promise.resolve())
    expect((await ask(service)).message.content).toBe('I am a.')
    expect(history).toEqual(['+a', '+a'])
    await service.close()
  })

  it('are at most so many at once: one more waits until one is unused, and a busy one does not keep it out', async () => {
    const { models, hold, history, loaded } = shop(3, ['a', 'b', 'c'])
    const service = await ThreadService.open({ models, most: 1 })
    let release = (): void => undefined
    void hold(new Promise((resolve) => (release = resolve)))
    const slow = ask(service, 'a')
    await new Promise((resolve) => setTimeout(resolve, 20))
    // The first waits for a; the second gives up; the third came after the first, so that a does not stay loaded for it.
    const waiting = ask(service, 'b')
    const leaving = new AbortController()
    const left = service.ask({
      ...{
        tenant: 't',
        model: 'c',
        messages: [{ role: 'user' as const, content: 'Hi' }],
        tools: [],
        toolChoice: 'auto' as const,
      },
      signal: leaving.signal,
    }).answer
    await new Promise((resolve) => setTimeout(resolve, 20))
    const later = ask(service, 'a')
    await expect(service.unload('a')).rejects.toMatchObject({ code: 'model/busy' })
    leaving.abort()
    await expect(left).rejects.toMatchObject({ code: 'engine/cancelled' })
    expect([...loaded]).toEqual(['a'])
    release()
    expect((await Promise.all([slow, waiting, later])).map(({ model }) => model)).toEqual(['a', 'b', 'a'])
    expect(history).toEqual(['+a', '-a', '+b', '-b', '+a'])
    expect(await service.unload('a')).toBe(true)
    expect(await service.unload('a')).toBe(false)
    await service.close()
  })

  describe('that a client waits for no longer', () => {
    const calls: Readonly<Record<string, (service: ThreadService, thread: string, signal: AbortSignal) => Promise<unknown>>> = {
      embed: (service, _, signal) => service.embed({ tenant: 't', model: 'b', inputs: ['x'], signal }),
      load: (service, _, signal) => service.load('b', signal),
      tokenize: (service, _, signal) => service.tokenize('b', 'x', { signal }),
      detokenize: (service, _, signal) => service.detokenize('b', [1], signal),
      prompt: (service, _, signal) => service.prompt({ model: 'b', messages: [], tools: [], signal }),
      count: (service, _, signal) => service.count('b', [], [], { signal }),
      fragment: ({ threads }, id, signal) => threads.fragment('t', id, { startMarker: 'Who', endMarker: '?' }, signal),
      fold: ({ threads }, id, signal) => threads.fold('t', id, 'f00000', {}, undefined, signal),
      restore: ({ threads }, id, signal) => threads.restore('t', id, 'f00000', signal),
      summarize: ({ threads }, id, signal) => threads.summarize('t', id, 'f00000', 'all', { signal }),
      search: ({ threads }, id, signal) => threads.search('t', id, { query: 'x' }, signal),
      detail: ({ threads }, id, signal) => threads.detail('t', id, 's00000', undefined, signal),
      refresh: ({ threads }, id, signal) => threads.refresh('t', id, { signal }),
    }

    it.each(Object.keys(calls))('is not loaded, and the busy one stays (%s)', async (name) => {
      const { models, hold, history } = shop(2, ['a', 'b'])
      const service = await ThreadService.open({ models: models.map((model) => ({ ...model, slots: 2 })), most: 1 })
      const { thread } = await ask(service, 'b')
      const answering = gated()
      void hold(answering.open)
      const slow = ask(service, 'a')
      await pause(20)
      const leaving = new AbortController()
      const left = calls[name]!(service, thread, leaving.signal)
      const outcome = expect(left).rejects.toMatchObject({ code: 'engine/cancelled' })
      await pause(20)
      leaving.abort()
      await outcome
      const later = ask(service, 'a')
      await pause(20)
      answering.release()
      await Promise.all([slow, later])
      expect(history).toEqual(['+b', '-b', '+a'])
      await service.close()
    })

    it('does not keep its look at attention waiting', async () => {
      const { models } = shop(2, ['a'])
      const loading = gated()
      const loadForAttention = () => loading.open.then(() => new ScriptedEngine([]))
      const service = await ThreadService.open({ models: models.map((model) => ({ ...model, loadForAttention })) })
      const { thread } = await ask(service)
      const leaving = new AbortController()
      const left = service.threads.attention('t', thread, { signal: leaving.signal })
      const outcome = expect(left).rejects.toMatchObject({ code: 'engine/cancelled' })
      await pause(20)
      leaving.abort()
      await outcome
      loading.release()
      await service.close()
    })

    it.each([
      ['GET', '/props?model=b', undefined],
      ['GET', '/tokenizer_info?model=b', undefined],
      ['POST', '/api/show', { model: 'b' }],
      ['POST', '/api/generate', { model: 'b' }],
      ['POST', '/v1/embeddings', { model: 'b', input: 'x' }],
      ['POST', '/tokenize', { model: 'b', content: 'x' }],
      ['POST', '/detokenize', { model: 'b', tokens: [1] }],
      ['POST', '/apply-template', { model: 'b', messages: [{ role: 'user', content: 'Hi' }] }],
      ['POST', '/v1/messages/count_tokens', { model: 'b', messages: [{ role: 'user', content: 'Hi' }] }],
      ['POST', '/v1/responses/input_tokens', { model: 'b', input: 'Hi' }],
      ['POST', '/v1/chat/completions/input_tokens', { model: 'b', messages: [{ role: 'user', content: 'Hi' }] }],
      ['POST', '/v1/completions', { model: 'b', prompt: [1], echo: true }],
    ])('is not loaded (%s %s)', async (method, path, body) => {
      const { models, hold, history } = shop(2, ['a', 'b'])
      const served = await serving({ service: { models: models.map((model) => ({ ...model, slots: 2 })), most: 1 } })
      const answering = gated()
      void hold(answering.open)
      const slow = ask(served.service, 'a')
      await pause(20)
      const leaving = new AbortController()
      const sent = body === undefined ? {} : { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }
      const left = fetch(served.url + path, { method, signal: leaving.signal, ...sent })
      const outcome = expect(left).rejects.toThrow('aborted')
      await pause(50)
      leaving.abort()
      await outcome
      await pause(50)
      answering.release()
      await slow
      await pause(20)
      expect(history).toEqual(['+a'])
      await served.close()
    })
  })

  it('that several requests wait for are loaded once for all of them, also while another waits', async () => {
    const { models, history } = shop(2, ['a', 'b'])
    const service = await ThreadService.open({ models: models.map((model) => ({ ...model, slots: 3 })), most: 1 })
    const answers = await Promise.all(['a', 'b', 'a', 'b', 'a'].map((name) => ask(service, name)))
    expect(answers.map(({ model }) => model)).toEqual(['a', 'b', 'a', 'b', 'a'])
    expect(history).toEqual(['+a', '-a', '+b'])
    await service.close()
  })

  it('of a folder come and go with their files, and stay loaded as long as a request says', async () => {
    const { models, history } = shop(3, ['a', 'b', 'c'])
    const [fixed, ...inFolder] = models
    let there = inFolder.slice(0, 1)
    const service = await ThreadService.open({ models: [fixed!], folder: () => there })
    expect(service.models().map(({ name }) => name)).toEqual(['a', 'b'])
    there = inFolder
    // A name that is unknown makes it look again at once.
    expect((await ask(service, 'c')).model).toBe('c')
    service.keep('c', 20)
    await new Promise((resolve) => setTimeout(resolve, 60))
    expect(history).toEqual(['+c', '-c'])
    service.keep('b', 0)
    await ask(service, 'b')
    await new Promise((resolve) => setTimeout(resolve, 20))
    expect(history.slice(2)).toEqual(['+b', '-b'])
    // It holds until the model is unloaded. Unloading one that is not loaded changes nothing.
    service.keep('b', 0)
    expect(await service.unload('b')).toBe(false)
    await ask(service, 'b')
    await new Promise((resolve) => setTimeout(resolve, 20))
    expect(history.slice(4)).toEqual(['+b'])
    service.keep('b', Infinity)
    await new Promise((resolve) => setTimeout(resolve, 20))
    expect(history.slice(4)).toEqual(['+b'])
    there = []
    await expect(ask(service, 'd')).rejects.toMatchObject({ code: 'model/not-found' })
    // A loaded one stays until it is unloaded.
    expect(service.models().map(({ name }) => name)).toEqual(['a', 'b'])
    await service.unload('b')
    await expect(ask(service, 'd')).rejects.toMatchObject({ code: 'model/not-found' })
    expect(service.models().map(({ name }) => name)).toEqual(['a'])
    await service.close()
  })

  it('of an empty folder are none, and the default of a folder is the one in memory', async () => {
    const { models } = shop(2, ['a', 'b'])
    let there: ModelSource[] = []
    const service = await ThreadService.open({ models: [], folder: () => there })
    await expect(ask(service)).rejects.toMatchObject({ message: expect.stringContaining('empty') as string })
    there = models
    await ask(service, 'b')
    expect((await ask(service)).model).toBe('b')
    await service.close()
  })

  it('need distinct names', async () => {
    await expect(ThreadService.open({ models: shop(1, ['a', 'a']).models })).rejects.toMatchObject({ code: 'engine/bad-request' })
    await expect(ThreadService.open({ models: [] })).rejects.toMatchObject({ code: 'engine/bad-request' })
  })
})
