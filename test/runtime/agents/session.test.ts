import { describe, expect, it } from 'vitest'
import type { AgentEvent } from '../../../src/runtime/agents/tool-loop.js'
import { plain, systemPrompts, sculptor } from '../../../src/runtime/agents/sculptor.js'
import { Session } from '../../../src/runtime/agents/session.js'
import type { ClientTool } from '../../../src/runtime/agents/toolbox.js'
import { contextTools } from '../../../src/runtime/context/tools.js'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { EngineAround, type EngineRequest, type Generation, generationOf } from '../../../src/runtime/engine/engine.js'
import { ScriptedEngine, type Script } from '../../support/scripted.js'
import type { ScriptedReply } from '../../../src/lab/taught-engine.js'

const id = conversationId('turn')
const STREAM = `The start. ${'old news. '.repeat(400)}The newest: seven. The end. What is newest?`

/** Returns the fragment ids in the latest message of the request, where a model would read them. */
const idsIn = (request: EngineRequest) => request.messages.at(-1)?.content.match(/\bf[0-9a-f]{5}\b/gu) ?? []
const cut = (count: number): ScriptedReply => ({
  calls: [{ name: 'fragment_context', arguments: { start_marker: 'The start.', end_marker: 'The end.', num_fragments: count } }],
})
const foldAllButLast = (request: EngineRequest): ScriptedReply => ({
  calls: idsIn(request)
    .slice(0, -1)
    .map((name) => ({ name: 'fold_fragment', arguments: { fragment_id: name } })),
})
const loop =
  (count: number): Script =>
  (request, step) =>
    step === 0 ? cut(count) : step === 1 ? foldAllButLast(request) : { content: 'Seven.' }
const search: ScriptedReply = { calls: [{ name: 'search_context', arguments: { query: 'newest' } }] }

describe('sculptor', () => {
  it('tells the length of a long message, the same in every step; without the tools it adds nothing', async () => {
    const engine = new ScriptedEngine(loop(5))
    const session = sculptor({ engine, id, prompt: 'pi-llm' })
    const outcome = await session.ask(STREAM)
    const note = `\n\n[This message has about ${Math.round(STREAM.length / 1000)} thousand characters.]`
    const last = 'The newest: seven. The end. What is newest?'
    expect(engine.requests).toHaveLength(3)
    for (const request of engine.requests) expect(engine.prompt(request)).toContain(last + note)
    for (const { ledger } of outcome.steps.slice(1, 2)) expect(ledger.recomputed).toBe(0)
    expect(session.conversation.messages[1]).toEqual({ role: 'user', content: STREAM })

    const bare = new ScriptedEngine([{ content: 'Seven.' }])
    await plain({ engine: bare, id }).ask(STREAM)
    expect(bare.prompt(bare.requests[0]!)).toBe(`<user>\n${STREAM}<end>\n<assistant>\n`)
  })

  it('fragments, folds and answers; the folded text is gone from the answering step', async () => {
    const engine = new ScriptedEngine(loop(5))
    const session = sculptor({ engine, id, prompt: 'pi-llm' })
    const outcome = await session.ask(STREAM)
    expect(outcome).toMatchObject({ answer: 'Seven.', end: 'stop', calls: 5, refusedCalls: 0 })
    expect(outcome.steps.map(({ calls }) => calls.length)).toEqual([1, 4, 0])
    expect(outcome.contextAfter).toBeLessThan(outcome.contextBefore * 0.5)
    expect([outcome.contextBefore, outcome.contextAfter]).toEqual([outcome.ledger[0]?.shown, outcome.ledger[2]?.shown])

    const last = engine.requests[2]!
    expect(last.edits).toHaveLength(4)
    expect(engine.prompt(last)).toContain('The newest: seven. The end. What is newest?')
    expect(engine.prompt(last).match(/old news/gu)!.length).toBeLessThan(100)
    expect(last.messages.map(({ role }) => role)).toEqual([
      'system',
      'user',
      'assistant',
      'tool',
      'assistant',
      'tool',
      'tool',
      'tool',
      'tool',
    ])
    expect(last.messages[1]?.content).toBe(STREAM)
    expect(session.conversation.messages.at(-1)).toEqual({ role: 'assistant', content: 'Seven.' })
  })

  it('sends its prompt and the six tools in every step, and requires a call in the first', async () => {
    const engine = new ScriptedEngine(loop(3))
    await sculptor({ engine, id, generation: { maxTokens: 9, sampling: { temperature: 0 } } }).ask(STREAM)
    expect(engine.requests.map(({ toolChoice }) => toolChoice)).toEqual(['required', 'auto', 'auto'])
    for (const request of engine.requests) {
      expect(request.tools).toEqual(contextTools.map(({ definition }) => definition))
      expect(request.messages[0]).toEqual({ role: 'system', content: systemPrompts.general })
      expect(request).toMatchObject({ conversation: id, maxTokens: 9, sampling: { temperature: 0 } })
    }
  })

  it("leaves the first step to the model on request, and accepts the caller's system message", async () => {
    const engine = new ScriptedEngine([{ content: 'Hello.' }])
    await sculptor({ engine, id, firstStep: 'auto', system: 'Mine.' }).ask('Hi')
    expect(engine.requests[0]).toMatchObject({ toolChoice: 'auto', messages: [{ content: 'Mine.' }, { content: 'Hi' }] })
  })

  it('pays once for the edits of one step, and computes only new messages when it reads', async () => {
    // The ids are in the fourth message, the result of the first call.
    const foldAll = ({ messages }: EngineRequest): ScriptedReply => ({
      calls: (messages[3]?.content.match(/\bf[0-9a-f]{5}\b/gu) ?? []).map((name) => ({
        name: 'fold_fragment',
        arguments: { fragment_id: name },
      })),
    })
    const script = [() => cut(4), () => search, foldAll, () => ({ content: 'Done.' })]
    const engine = new ScriptedEngine((request, step) => script[step]?.(request) ?? {})
    const { ledger, steps } = await sculptor({ engine, id }).ask(STREAM)
    expect(steps[2]?.calls).toHaveLength(4)
    expect(ledger.map(({ recomputed }) => recomputed > 0)).toEqual([false, false, false, true])
    for (const entry of ledger) {
      expect(entry.reused + entry.recomputed + entry.fresh).toBe(entry.shown)
      expect(entry.recomputed + entry.fresh + entry.side).toBe(entry.submitted)
    }
    expect(engine.requests).toHaveLength(4)
  })

  it('reports events as they happen', async () => {
    const events: AgentEvent[] = []
    await sculptor({ engine: new ScriptedEngine(loop(2)), id }).ask(STREAM, { onEvent: (event) => events.push(event) })
    const told = events.map((event) => (event.type === 'engine' ? `engine ${event.event.type}` : event.type))
    expect(told.filter((type) => !type.startsWith('engine'))).toEqual([
      ...['step', 'ledger', 'call', 'result'],
      ...['step', 'ledger', 'call', 'result'],
      ...['step', 'ledger'],
    ])
    expect(told.slice(0, 3)).toEqual(['step', 'engine plan', 'engine prefill'])
    expect(told.slice(-3)).toEqual(['engine tokens', 'engine text', 'ledger'])
    expect(events.at(-1)).toMatchObject({ step: 2 })
  })

  it('tells the model the error of a call, and continues', async () => {
    const engine = new ScriptedEngine([
      {
        calls: [
          { name: 'fold_fragment', malformed: '{"fragment_id": ' },
          { name: 'fold', arguments: {} },
          { name: 'fold_fragment', arguments: { fragment_id: 'f00000' } },
        ],
      },
      { content: 'Sorry.' },
    ])
    const { steps, answer } = await sculptor({ engine, id }).ask('Hi')
    expect(steps[0]?.calls.map(({ text, failed, modifies }) => [text, failed, modifies])).toEqual([
      ['Error: the arguments of fold_fragment are not a JSON object: "{\\"fragment_id\\": ". Write the call again.', true, false],
      [
        'Error: there is no tool "fold". The tools are fragment_context, fold_fragment, restore_fragment, summarize_fragment, search_context and get_search_detail.',
        true,
        false,
      ],
      ['Error: There is no fragment "f00000". There are no fragments yet: call fragment_context first.', true, false],
    ])
    expect(answer).toBe('Sorry.')
    expect(
      engine.requests[1]?.messages.filter(({ role }) => role === 'tool').map(({ toolCallId, name }) => [toolCallId, name]),
    ).toEqual([
      ['call_1', 'fold_fragment'],
      ['call_2', 'fold'],
      ['call_3', 'fold_fragment'],
    ])
  })

  it('lets the model answer after exactly the allowed number of calls', async () => {
    const engine = new ScriptedEngine((_, step) => (step < 20 ? search : { content: 'Enough.' }))
    const outcome = await sculptor({ engine, id }).ask('The newest')
    expect(outcome).toMatchObject({ answer: 'Enough.', end: 'stop', calls: 20, refusedCalls: 0 })
    expect(engine.requests.map(({ toolChoice }) => toolChoice)).not.toContain('none')
  })

  it('refuses calls beyond the limit, and then requires an answer', async () => {
    const three: ScriptedReply = { calls: [search.calls![0]!, search.calls![0]!, search.calls![0]!] }
    const engine = new ScriptedEngine((request) =>
      request.toolChoice === 'none' ? { content: 'Fine.', calls: search.calls! } : three,
    )
    const session = sculptor({ engine, id })
    const outcome = await session.ask('The newest')
    expect(outcome).toMatchObject({ answer: 'Fine.', calls: 20, refusedCalls: 1, end: 'stop' })
    expect(outcome.steps).toHaveLength(8)
    expect(outcome.steps[6]?.calls[2]).toMatchObject({
      failed: true,
      text: 'Error: the 20 calls of this turn are used up. Answer now from what you see.',
    })
    expect(engine.requests.at(-1)).toMatchObject({ toolChoice: 'none', tools: contextTools.map(({ definition }) => definition) })
    expect(session.conversation.messages.at(-1)).toEqual({ role: 'assistant', content: 'Fine.' })
  })

  it('answers every call of a step whose summary fails, so that the conversation can go on', async () => {
    const engine = new ScriptedEngine((request, step) => {
      if (request.kind === 'summary') throw new Error('the machine went away')
      if (step === 0) return cut(2)
      const summarise = { name: 'summarize_fragment', arguments: { fragment_id: idsIn(request)[0], focus: 'news' } }
      return { calls: [...search.calls!, summarise, ...search.calls!] }
    })
    const session = sculptor({ engine, id })
    await expect(session.ask(STREAM)).rejects.toThrow('the machine went away')
    const { messages } = session.conversation
    const last = messages.findLastIndex(({ role }) => role === 'assistant')
    const results = messages.slice(last + 1)
    expect(results.map(({ role, toolCallId }) => [role, toolCallId])).toEqual(
      messages[last]!.toolCalls!.map((call) => ['tool', call.id]),
    )
    expect(results.map(({ content }) => content.includes('not carried out'))).toEqual([false, true, true])
  })

  it('puts the cost of a summary on the ledger', async () => {
    const engine = new ScriptedEngine((request, step) =>
      request.kind === 'summary'
        ? { content: 'Old news.' }
        : step === 0
          ? cut(2)
          : step === 1
            ? { calls: [{ name: 'summarize_fragment', arguments: { fragment_id: idsIn(request)[0], focus: 'news' } }] }
            : { content: 'Seven.' },
    )
    const session = sculptor({ engine, id })
    const { ledger, steps } = await session.ask(STREAM)
    expect(ledger.map(({ kind }) => kind)).toEqual(['answer', 'answer', 'summary', 'answer'])
    expect(steps[1]?.side).toHaveLength(1)
    expect(session.ledger).toEqual(ledger)
    expect(engine.prompt(engine.requests.at(-1)!)).toContain('them: Old news.]')
  })

  it("runs the caller's tools, and tells the model when they fail", async () => {
    const weather: ClientTool = {
      definition: { name: 'weather', description: 'The weather.', parameters: { type: 'object', properties: {} } },
      execute: (args) => {
        if (args['place'] === undefined) throw new Error('no place')
        return 'Rain.'
      },
    }
    const engine = new ScriptedEngine([
      { calls: [{ name: 'weather', arguments: { place: 'here' } }, { name: 'weather' }] },
      { content: 'It rains.' },
    ])
    const { steps } = await sculptor({ engine, id, clientTools: [weather] }).ask('Weather?')
    expect(steps[0]?.calls.map(({ text }) => text)).toEqual(['Rain.', 'Error: weather failed: no place'])
    expect(engine.requests[0]?.tools?.map(({ name }) => name)).toEqual([
      ...contextTools.map(({ definition }) => definition.name),
      'weather',
    ])
    const clash = { ...weather, definition: { ...weather.definition, name: 'fold_fragment' } }
    expect(() => sculptor({ engine, id, clientTools: [clash] })).toThrow('Two tools are called fold_fragment')
  })
})

describe('plain', () => {
  it('sends the same as a bare run, and nothing else', async () => {
    const engine = new ScriptedEngine([{ content: 'Hello.' }])
    const outcome = await plain({ engine, id, generation: { maxTokens: 5 } }).ask('Hi')
    expect(engine.requests).toEqual([{ conversation: id, messages: [{ role: 'user', content: 'Hi' }], maxTokens: 5 }])
    expect(engine.prompt(engine.requests[0]!)).toBe('<user>\nHi<end>\n<assistant>\n')
    expect(outcome).toMatchObject({ answer: 'Hello.', calls: 0, end: 'stop' })
    expect(outcome.contextBefore).toBe(outcome.contextAfter)
  })

  it('ignores calls, because it offers no tools', async () => {
    const engine = new ScriptedEngine([{ content: 'Hm.', calls: [{ name: 'fold_fragment' }], reasoning: 'Why not.' }])
    const session = plain({ engine, id })
    expect(await session.ask('Hi')).toMatchObject({ answer: 'Hm.', calls: 0, end: 'stop' })
    expect(session.conversation.messages.at(-1)).toEqual({ role: 'assistant', content: 'Hm.', reasoning: 'Why not.' })
  })
})

describe('Session', () => {
  it('holds a conversation over turns, with edits by people in between', async () => {
    const engine = new ScriptedEngine([{ content: 'One.' }, { content: 'Two.' }])
    const session = plain({ engine, id })
    await session.ask('First question, a long one.')
    const made = session.conversation.fragment({ startMarker: 'First', endMarker: 'one.', numFragments: 1 })
    if (!made.ok) throw new Error(made.message)
    expect(session.conversation.fold(made.fragments[0]!.id).ok).toBe(true)
    const { ledger } = await session.ask('Second question.')
    expect(engine.prompt(engine.requests[1]!)).toBe(
      `<user>\n[folded ${made.fragments[0]!.id}: 27 characters, restore_fragment shows them]<end>\n<assistant>\nOne.<end>\n<user>\nSecond question.<end>\n<assistant>\n`,
    )
    expect(ledger[0]).toMatchObject({ step: 1 })
    expect(session.ledger).toHaveLength(2)
  })

  it('summarises on request of a person, and records it on the ledger', async () => {
    const engine = new ScriptedEngine([{ content: 'One.' }, { content: 'A question.' }])
    const session = plain({ engine, id })
    await session.ask('First question, a long one.')
    const made = session.conversation.fragment({ startMarker: 'First', endMarker: 'one.', numFragments: 1 })
    if (!made.ok) throw new Error(made.message)
    expect((await session.summarize(made.fragments[0]!.id, 'gist')).ok).toBe(true)
    expect(session.ledger.map(({ kind }) => kind)).toEqual(['answer', 'summary'])
  })

  it('keeps the text so far when a turn is cancelled in the middle of an answer', async () => {
    const controller = new AbortController()
    const engine = new ScriptedEngine((_, step) => {
      if (step === 0) controller.abort()
      return step === 0 ? { content: 'Half an', calls: [{ name: 'search_context' }] } : { content: 'Again.' }
    })
    const session = sculptor({ engine, id })
    const outcome = await session.ask('Hi', { signal: controller.signal })
    expect(outcome).toMatchObject({ end: 'cancelled', answer: 'Half an', calls: 0, ledger: [{ kind: 'cancelled' }] })
    expect(session.conversation.messages.at(-1)).toEqual({ role: 'assistant', content: 'Half an', cut: true })
  })

  it('gives every call a result when a turn is cancelled between calls', async () => {
    const controller = new AbortController()
    const slow: ClientTool = {
      definition: { name: 'slow', description: 'Slow.', parameters: { type: 'object' } },
      execute: () => {
        controller.abort()
        return 'Done.'
      },
    }
    const engine = new ScriptedEngine([{ calls: [{ name: 'slow' }, { name: 'slow' }] }])
    const session = sculptor({ engine, id, clientTools: [slow] })
    const outcome = await session.ask('Hi', { signal: controller.signal })
    expect(outcome).toMatchObject({ end: 'cancelled', calls: 1 })
    expect(session.conversation.messages.slice(-2).map(({ content }) => content)).toEqual([
      'Done.',
      'Error: cancelled before it was carried out.',
    ])
    expect(engine.requests).toHaveLength(1)
  })

  it('loses nothing when the engine fails, and resumes', async () => {
    const engine = new ScriptedEngine([{ content: 'One.' }, { content: 'Better.' }], { context: 60 })
    const session = new Session({ engine, id, contextTools: false })
    await expect(session.ask(`Begin ${'word '.repeat(80)}end.`)).rejects.toMatchObject({ code: 'context/full' })
    const made = session.conversation.fragment({ startMarker: 'Begin', endMarker: 'end.', numFragments: 1 })
    if (!made.ok) throw new Error(made.message)
    session.conversation.fold(made.fragments[0]!.id)
    expect((await session.resume()).answer).toBe('Better.')
    expect(session.conversation.messages).toHaveLength(2)
  })

  it('runs one turn at a time', async () => {
    const session = plain({ engine: new ScriptedEngine([{ content: 'One.' }]), id })
    const first = session.ask('Hi')
    await expect(session.ask('Hi')).rejects.toBeInstanceOf(KvfoldError)
    expect((await first).answer).toBe('One.')
    expect(session.conversation.messages).toHaveLength(2)
  })

  it('reports a turn that reached the token limit as such', async () => {
    const session = plain({ engine: new ScriptedEngine([{ content: 'On and', finish: 'length' }]), id })
    expect(await session.ask('Hi')).toMatchObject({ end: 'length', answer: 'On and' })
  })
})

describe('the events of a turn', () => {
  it('are heard at the moment the engine sends them, with no queue in between', async () => {
    const heard: string[] = []
    class Sender extends EngineAround {
      respond(request: EngineRequest): Generation {
        const running = this.engine.respond(request)
        return generationOf((stream) =>
          running.each((event) => {
            heard.push(`${event.type} sent`)
            stream.push(event)
          }),
        )
      }
    }
    const engine = new Sender(new ScriptedEngine(() => ({ content: 'Seven.' })))
    await plain({ engine, id }).ask('Which?', {
      onEvent: (event) => {
        if (event.type === 'engine') heard.push(`${event.event.type} heard`)
      },
    })
    const types = ['plan', 'prefill', 'tokens', 'text']
    expect(heard).toEqual(types.flatMap((type) => [`${type} sent`, `${type} heard`]))
  })
})
