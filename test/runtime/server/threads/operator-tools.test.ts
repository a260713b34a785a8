/**
 * Tests MCP servers behind `acm: memtool`. A script gives the model's answers, the built-in model's engine computes every prompt. A real
 * server that hangs, dies and answers megabytes carries the calls out.
 */
import { beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { builtinModel } from '../../../../src/runtime/cli/builtin.js'
import type { ChatMessage, ToolDefinition } from '../../../../src/runtime/chat/message.js'
import type { EngineRequest } from '../../../../src/runtime/engine/engine.js'
import { LlamaEngine } from '../../../../src/runtime/engine/llama.js'
import { type ScriptedReply, SpokenEngine } from '../../../../src/lab/taught-engine.js'
import { openNative } from '../../../../src/runtime/native/binding.js'
import type { Native } from '../../../../src/runtime/native/types.js'
import type { Ask, AskEvent } from '../../../../src/runtime/server/ask.js'
import { ThreadService } from '../../../../src/runtime/server/service.js'
import { hosting } from '../../mcp/support/hosting.js'
import { oddServer } from '../../mcp/support/odd-server.js'
import { TEST_GPU } from '../../../support/device.js'

const call = (name: string, args: object = {}): ScriptedReply => ({ calls: [{ name, arguments: { ...args } }] })
const search = (...keywords: string[]) => call('search_tools', { keywords })
const named = (list: readonly ToolDefinition[] = []) => list.map(({ name }) => name)

let native: Native
beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
})

async function talking(script: (ScriptedReply | 'say')[], servers: Readonly<Record<string, object>> = { odd: oddServer() }) {
  const { host, happened } = await hosting(servers, ['search_tools', 'remove_tools'])
  const asked: EngineRequest[] = []
  const service = await ThreadService.open({
    models: [
      {
        name: 'm',
        slots: 1,
        load: async () => {
          const engine = await LlamaEngine.load(native, builtinModel(), { threads: 1, batchThreads: 1, slots: 1 })
          return new SpokenEngine(engine, (request) => {
            asked.push(request)
            const next = script.shift() ?? null
            return next === 'say' ? { content: request.messages.at(-1)!.content } : next
          })
        },
      },
    ],
    operatorTools: host,
  })
  onTestFinished(() => service.close())
  const messages: ChatMessage[] = []
  const ask = async (content: ChatMessage | string, options: Partial<Ask> = {}) => {
    messages.push(typeof content === 'string' ? { role: 'user', content } : content)
    const running = service.ask({
      ...{ tenant: 't', messages: [...messages], tools: [], toolChoice: 'auto', acm: 'memtool', sampling: { temperature: 0 } },
      ...options,
    })
    const events: AskEvent[] = []
    for await (const event of running) events.push(event)
    const answer = await running.answer
    messages.push(answer.message)
    return { answer, events, inside: events.flatMap((event) => (event.type === 'acm' ? [event] : [])) }
  }
  const view = () => service.threads.get('t', service.threads.list('t')[0]!.id)
  return { ask, asked, service, host, happened, script, view }
}

const SPLICED = { recomputed: 0, isApproximate: true, isShort: true }

describe("tools of the operator's MCP servers", () => {
  it('are searched for, called inside and removed; the response continues after the result, and nothing is recomputed', async () => {
    const { ask, asked, view, script } = await talking([
      search('say'),
      call('odd_say', { text: 'The crow is black.' }),
      'say',
      { content: '{"remove": ["odd_say"]}' },
      { content: 'Gone.' },
    ])
    const first = await ask('What is said?', { memToolMode: 'hybrid' })
    expect(first.answer.message).toEqual({ role: 'assistant', content: 'The crow is black.' })
    expect(first.answer.finish).toBe('stop')
    expect(first.inside.map(({ call: { name }, failed }) => [name, failed])).toEqual([
      ['search_tools', false],
      ['odd_say', false],
    ])
    expect(first.inside[1]!.result).toBe('The crow is black.')
    // The list at the top has only the search, whatever was found.
    expect(asked.map(({ tools }) => named(tools))).toEqual([['search_tools'], ['search_tools'], ['search_tools']])
    expect(named(asked[1]!.unlisted)).toContain('odd_say')
    expect(view().found.find(({ name }) => name === 'odd_say')).toEqual({ name: 'odd_say', loaded: true })
    expect(
      view()
        .ledger.slice(1)
        .map(({ recomputed }) => recomputed),
    ).toEqual([0, 0])

    await ask('Thanks.', { memToolMode: 'hybrid' })
    expect(script).toEqual([])
    expect(view().found.find(({ name }) => name === 'odd_say')).toEqual({ name: 'odd_say', loaded: false })
    expect(named(asked.at(-1)!.unlisted)).not.toContain('odd_say')
  })

  it.each(['exact', 'splice'] as const)(
    'cost what follows them when removed under exact, and nothing under splice: %s',
    async (contract) => {
      const { ask, view } = await talking([
        search('say', 'count'),
        call('odd_say', { text: 'A crow. '.repeat(50) }),
        { content: 'Said.' },
        { content: '{"remove": ["odd_count"]}' },
        { content: 'Gone.' },
      ])
      await ask('Say it.', { contract })
      const before = view().found.filter(({ loaded }) => loaded).length
      await ask('Thanks.', { contract })
      expect(view().found.filter(({ loaded }) => loaded)).toHaveLength(before - 1)
      const { recomputed, approximate, submitted } = view().ledger.at(-1)!
      if (contract === 'exact') expect(recomputed).toBeGreaterThan(300)
      else expect({ recomputed, isApproximate: approximate > 300, isShort: submitted < 60 }).toEqual(SPLICED)
    },
  )

  it("are offered beside the client's tools, which win over equal names and whose calls go to the client", async () => {
    const own = (name: string): ToolDefinition => ({
      name,
      description: `What ${name} does here`,
      parameters: { type: 'object' },
    })
    const { ask, asked } = await talking([search('say here'), call('odd_say', { text: 'x' }), 'say', call('odd_count'), 'say'])
    const tools = [own('odd_say'), own('paint')]
    const { answer, inside } = await ask('Say it.', { tools })
    expect(inside.map(({ call: { name } }) => name)).toEqual(['search_tools'])
    expect(answer.finish).toBe('tool-calls')
    expect(answer.message.toolCalls?.map(({ name }) => name)).toEqual(['odd_say'])
    expect(asked[1]!.unlisted!.find(({ name }) => name === 'odd_say')!.description).toBe('What odd_say does here')
    const result = { role: 'tool', content: 'painted', toolCallId: answer.message.toolCalls![0]!.id, name: 'odd_say' } as const
    expect((await ask(result, { tools })).answer.message.content).toBe('painted')
  })

  it('are not offered to requests without memtool', async () => {
    const { ask, asked, view } = await talking([{ content: 'Hello.' }])
    await ask('Hello?', { acm: 'tools' })
    expect(named(asked[0]!.tools)).not.toContain('search_tools')
    expect(asked[0]!.unlisted).toBeUndefined()
    expect(view().found).toEqual([])
  })

  it('that hang, die or answer megabytes are reported to the model, and the next call works', async () => {
    const { ask, happened, service } = await talking(
      [
        search('hang', 'huge', 'die', 'say'),
        call('impatient_hang'),
        call('odd_huge'),
        call('odd_die'),
        call('odd_say', { text: 'still here' }),
        'say',
      ],
      { odd: { ...oddServer(), outputLimit: 500 }, impatient: { ...oddServer(), timeout: 200 } },
    )
    const { answer, inside } = await ask('Try all of them.')
    expect(inside.map(({ failed }) => failed)).toEqual([false, true, false, true, false])
    expect(inside[1]!.result).toContain('gave no answer to hang within 0.2 s')
    expect(inside[2]!.result).toContain('[Cut here: these are the first 500 of 5242880 characters.')
    expect(inside[3]!.result).toContain('the server odd ended during the call')
    expect(answer.message.content).toBe('still here')
    await happened('restarted', 'odd')
    expect(service.status().toolServers).toEqual(
      ['odd', 'impatient'].map((name) => ({ name, state: 'ready', problem: null, tools: 6 })),
    )
  })
})
