/** The record of a sample: every prompt and reply can be read back from it, and its sums equal the engine's. */
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { sculptor } from '../../src/runtime/agents/sculptor.js'
import type { ChatMessage, Edit } from '../../src/runtime/chat/message.js'
import { builtinModel } from '../../src/runtime/cli/builtin.js'
import { invariant } from '../../src/runtime/core/errors.js'
import { conversationId } from '../../src/runtime/core/ids.js'
import { span } from '../../src/runtime/core/span.js'
import type { EngineEvent, EngineRequest, Generation } from '../../src/runtime/engine/engine.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { ScriptedEngine } from '../support/scripted.js'
import { type RecordedConversation, runLog } from '../../src/lab/log.js'
import { Recorder } from '../../src/lab/recorder.js'
import { openNative } from '../../src/runtime/native/binding.js'

const id = conversationId('one')
const user = (content: string): ChatMessage => ({ role: 'user', content })

async function all(running: Generation): Promise<readonly EngineEvent[]> {
  const events: EngineEvent[] = []
  for await (const event of running) events.push(event)
  return events
}

/** Returns all steps with their prompts' messages, in the order of the requests. */
const shown = (talks: readonly RecordedConversation[]) =>
  talks
    .flatMap(({ messages, steps }) => steps.map((step) => ({ ...step, contents: messages.slice(0, step.messages) })))
    .sort((one, other) => one.place! - other.place!)

/** Throws when the log would refuse the record. */
function valid(recorder: Recorder) {
  const { talks } = recorder
  const read = runLog.read({
    ...{
      kind: 'sample',
      task: 0,
      agent: 'plain',
      contract: 'exact',
      index: 0,
      id: 'x',
      cell: {},
      truth: null,
      answer: '',
      end: 'stop',
    },
    score: { points: 0, outcome: 'wrong', details: {} },
    ...{ calls: [], refusedCalls: 0, details: {}, talks, ...recorder.cost() },
  })
  invariant(read.ok, JSON.stringify(read))
  return read.value
}

describe('Recorder', () => {
  it('keeps every message once, and a reply only where no later step shows it', async () => {
    const engine = new ScriptedEngine([{ content: 'First.' }, { content: 'Second.' }, { content: 'Aside.' }])
    const recorder = new Recorder(engine)
    const messages = [user('Hello.')]
    const first = await recorder.respond({ conversation: id, messages }).reply
    messages.push(first.message, user('More.'))
    await recorder.respond({ conversation: id, messages }).reply
    await recorder.respond({ conversation: id, messages: [user('Something else.')] }).reply

    expect(recorder.talks.map((talk) => talk.messages)).toEqual([
      [user('Hello.'), { role: 'assistant', content: 'First.' }, user('More.')],
      [user('Something else.')],
    ])
    expect(recorder.talks.map(({ steps }) => steps.map(({ place, messages: many, said }) => [place, many, said]))).toEqual([
      [
        [0, 1, undefined],
        [1, 3, 'Second.'],
      ],
      [[2, 1, 'Aside.']],
    ])
    expect(recorder.done).toHaveLength(3)
    valid(recorder)
  })

  it('records the reply itself, with its call syntax, when the conversation continued without its calls', async () => {
    const engine = new ScriptedEngine([{ content: 'So.', calls: [{ name: 'x', arguments: { a: 1 } }] }, { content: 'End.' }])
    const recorder = new Recorder(engine)
    await recorder.respond({ conversation: id, messages: [user('Hello.')] }).reply
    await recorder.respond({ conversation: id, messages: [user('Hello.'), { role: 'assistant', content: 'So.' }, user('And?')] })
      .reply
    expect(recorder.talks[0]?.steps[0]?.said).toBe('So.\n<tool_call>\n{"name":"x","arguments":{"a":1}}\n</tool_call>')
  })

  it('records messages as they were at the request, even if the caller changes the list later', async () => {
    const engine = new ScriptedEngine(() => ({ content: 'Yes.' }))
    const recorder = new Recorder(engine)
    const messages = [user('One.')]
    const running = recorder.respond({ conversation: id, messages })
    messages.push(user('Two.'))
    await running.reply
    expect(recorder.talks[0]?.messages).toEqual([user('One.')])
  })

  it('has failed and cancelled steps, and no steps that still run', async () => {
    const stop = new AbortController()
    stop.abort()
    let go: () => void = () => undefined
    const wait = new Promise<void>((resolve) => {
      go = resolve
    })
    const engine = new ScriptedEngine(
      async (_, step) => {
        if (step === 1) await wait
        return { content: 'word word' }
      },
      { context: 8 },
    )
    const recorder = new Recorder(engine)
    const cancelled = await recorder.respond({ conversation: id, messages: [user('a')], signal: stop.signal }).reply
    expect(cancelled.finish).toBe('cancelled')
    const running = recorder.respond({ conversation: conversationId('two'), messages: [user('b')] })
    const failing = recorder.respond({ conversation: id, messages: [user('c c c c c c c c c')], contract: 'splice' })
    await expect(failing.reply).rejects.toMatchObject({ code: 'context/full' })
    await expect(all(failing)).rejects.toMatchObject({ code: 'context/full' })

    expect(shown(recorder.talks).map(({ place, finish, error }) => [place, finish, error])).toEqual([
      [0, 'cancelled', undefined],
      [2, 'failed', 'context/full'],
    ])
    expect(shown(recorder.talks)[1]?.ledger).toMatchObject({ kind: 'cancelled', contract: 'splice', shown: 0, submitted: 0 })
    go()
    await running.reply
    expect(shown(recorder.talks)).toHaveLength(3)
    expect(recorder.cost().work.steps).toBe(2)
    valid(recorder)
  })

  it('passes on every event and the reply unchanged, and forgets and counts like the engine', async () => {
    const script = [{ content: 'A b c.', calls: [{ name: 'x' }] }]
    const request: EngineRequest = {
      conversation: id,
      messages: [user('Hi.')],
      tools: [{ name: 'x', description: '', parameters: {} }],
    }
    const events = async (engine: Recorder | ScriptedEngine) => {
      const running = engine.respond(request)
      return { all: await all(running), reply: await running.reply }
    }
    const bare = await events(new ScriptedEngine(script))
    const engine = new ScriptedEngine(script)
    const recorder = new Recorder(engine)
    expect(await events(recorder)).toEqual(bare)
    expect(recorder.count(request.messages, [])).toBe(engine.count(request.messages, []))
    expect(recorder.talks[0]?.steps[0]).toMatchObject({ tools: true })
    await recorder.dispose()
    await expect(engine.respond({ conversation: id, messages: [] }).reply).rejects.toThrow('no reply for step 2')
  })

  it('can be read back: every request, in order, from messages that are stored once', async () => {
    const step = fc.record({
      conversation: fc.constantFrom('a', 'b'),
      how: fc.constantFrom('on', 'on', 'on', 'again', 'anew'),
      text: fc.string({ unit: fc.constantFrom('x', 'y', ' '), maxLength: 6 }),
      edit: fc.boolean(),
      summary: fc.boolean(),
    })
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 12 }), async (steps) => {
        const engine = new ScriptedEngine((_, at) => ({ content: `said ${at}` }))
        const recorder = new Recorder(engine)
        const talks = new Map<string, ChatMessage[]>()
        const spent: number[] = []
        for (const { conversation, how, text, edit, summary } of steps) {
          const before = talks.get(conversation) ?? []
          const messages =
            how === 'on' ? [...before, user(text)] : how === 'again' && before.length > 0 ? before.slice(0, -1) : [user(text)]
          const edits: Edit[] = edit ? [{ message: 0, span: span(0, 0), replacement: '[marker]' }] : []
          const { message, ledger } = await recorder.respond({
            conversation: conversationId(conversation),
            messages,
            edits,
            ...(summary ? { kind: 'summary' as const } : {}),
          }).reply
          talks.set(conversation, [...messages, message])
          spent.push(ledger.submitted)
        }
        const record = shown(recorder.talks)
        expect(record.map(({ contents }) => contents)).toEqual(engine.requests.map(({ messages }) => messages))
        expect(record.map(({ edits }) => edits)).toEqual(engine.requests.map(({ edits = [] }) => edits))
        expect(record.map(({ ledger }) => ledger.submitted)).toEqual(spent)
        const answers = record.filter(({ ledger }) => ledger.kind === 'answer')
        expect(recorder.cost().tokens).toEqual({
          before: record[0]?.ledger.shown ?? 0,
          most: Math.max(0, ...record.map(({ ledger }) => ledger.shown)),
          after: answers.at(-1)?.ledger.shown ?? 0,
        })
        const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0)
        expect(recorder.cost().work).toEqual({
          steps: steps.length,
          shown: sum(record.map(({ ledger }) => ledger.shown)),
          reused: sum(record.map(({ ledger }) => ledger.reused)),
          recomputed: sum(record.map(({ ledger }) => ledger.recomputed)),
          fresh: sum(record.map(({ ledger }) => ledger.fresh)),
          approximate: sum(record.map(({ ledger }) => ledger.approximate)),
          submitted: sum(spent),
          generated: sum(record.map(({ timing }) => timing.generatedTokens)),
        })
        // Each answer is in the record: as a message that a later step shows, or as the step's reply.
        for (const [at, { messages: many, said }] of record.entries()) {
          const talk = recorder.talks.find((one) => one.steps.some(({ place }) => place === at))!
          expect(said ?? talk.messages[many]?.content).toBe(`said ${at}`)
        }
        valid(recorder)
      }),
      { numRuns: 60 },
    )
  })
})

describe('Recorder on the built-in model', () => {
  let engine: LlamaEngine
  beforeAll(async () => {
    engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), { threads: 1, batchThreads: 1 })
  })
  afterAll(() => engine.dispose())

  it('has the same sums as the engine and the addon', async () => {
    const before = engine.submitted
    const recorder = new Recorder(engine)
    const session = sculptor({ engine: recorder, id: conversationId('recorded'), generation: { maxTokens: 48 }, maxCalls: 3 })
    const text = `The stream starts here. ${'colour: red; shape: round; '.repeat(40)}The stream ends here.`
    const outcome = await session.ask(text)
    expect(recorder.done.map(({ reply }) => reply.ledger)).toEqual(outcome.ledger)
    expect(recorder.cost().work.submitted).toBe(engine.submitted - before)
    expect(recorder.cost().tokens).toMatchObject({ before: outcome.contextBefore, after: outcome.contextAfter })
    const milliseconds = recorder.cost().milliseconds
    expect(milliseconds.prefill + milliseconds.decode + milliseconds.cache).toBeLessThanOrEqual(milliseconds.total)
    expect(milliseconds.prefill).toBeGreaterThan(0)
    // Messages carry the engine's tokens; the record does not.
    expect(JSON.stringify(recorder.talks)).not.toContain('sampled')
    expect(recorder.talks).toHaveLength(1)
    valid(recorder)
  })
})
