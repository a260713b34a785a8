/** Tests compaction through the clients' own packages, over a real engine whose words a script gives. */
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { serving, type Serving } from './support/serving.js'
import type { LedgerEntry } from '../../../src/runtime/kv/ledger.js'

const SUMMARY = 'The user keeps bees in Ulm and has 41 hives; next they ask for honey.'
let served: Serving
/** Whether answers fail to what has the word `Break`. */
let breaks = false
let anthropic: Anthropic
let openai: OpenAI

beforeAll(async () => {
  served = await serving({
    teacher: ({ messages }) => {
      const last = messages.at(-1)!.content
      if (breaks && last.includes('Break')) throw new Error('The engine broke.')
      if (last.startsWith('Stop here') || last.startsWith('Sum up')) return { content: SUMMARY }
      return { content: last.includes('at length') ? 'It hums. '.repeat(500) : `I see: ${last.slice(-20)}` }
    },
  })
  anthropic = new Anthropic({ baseURL: served.url, apiKey: 'none', maxRetries: 0 })
  openai = new OpenAI({ baseURL: `${served.url}/v1`, apiKey: 'none', maxRetries: 0 })
})
afterAll(() => served.close())

const model = 'builtin'
type Param = Anthropic.Beta.BetaMessageParam
type Message = Anthropic.Beta.BetaMessage
interface Told {
  readonly thread: string
  readonly ledger: readonly LedgerEntry[]
  readonly lost: unknown
}
const toldIn = (answer: object): Told => (answer as { kvfold: Told }).kvfold
const tools = [{ name: 'look', description: 'Looks into a hive.', input_schema: { type: 'object' as const } }]
const long = (of: string, at: number) => `Hive ${at} of ${of}: ${'it hums and it is full of bees. '.repeat(12)}`

const ask = (messages: Param[], more: object = {}): Promise<Message> =>
  anthropic.beta.messages.create({
    model,
    messages,
    tools,
    system: 'You keep a diary of bees.',
    max_tokens: 40,
    kvfold: { ledger: true },
    ...more,
  } as Anthropic.Beta.MessageCreateParamsNonStreaming)
const managed = (edit: object) => ({ context_management: { edits: [{ type: 'compact_20260112', ...edit }] } })
const above = (value: number) => ({ trigger: { type: 'input_tokens', value } })

/** Has a conversation of three turns, and returns its messages with one more question. */
async function talked(of: string, more: object = {}): Promise<Param[]> {
  const messages: Param[] = []
  for (let at = 0; at < 3; at++) {
    messages.push({ role: 'user', content: long(of, at) })
    const { content } = await ask(messages, more)
    messages.push({ role: 'assistant', content: content as never })
  }
  return [...messages, { role: 'user', content: `And how is ${of}?` }]
}

describe('compact_20260112', () => {
  it('computes the instruction and the summary alone, and goes on from the summary', async () => {
    const messages = await talked('one')
    const whole = (
      await anthropic.messages.countTokens({ model, messages: messages as never, tools, system: 'You keep a diary of bees.' })
    ).input_tokens
    const below = await ask(messages, managed(above(whole)))
    expect(below.content.map(({ type }) => type)).toEqual(['text'])

    const past = await ask(messages, managed(above(whole - 1)))
    const [block, text] = past.content
    expect(block).toMatchObject({ type: 'compaction', encrypted_content: null })
    const { content } = block as Anthropic.Beta.BetaCompactionBlock
    expect(content).toBe(`${SUMMARY}\n\nThe user's last message, word for word:\nAnd how is one?`)
    expect(text).toMatchObject({ type: 'text' })
    const { ledger, thread } = toldIn(past)
    expect(ledger.map(({ kind }) => kind)).toEqual(['summary', 'answer'])
    const [summary, answer] = ledger as [LedgerEntry, LedgerEntry]
    // The prompt stays: what is computed is the instruction and the words of the summary.
    expect(summary.reused).toBeGreaterThan(whole - 20)
    expect(summary.submitted).toBeLessThan(160)
    expect(summary.recomputed).toBeLessThanOrEqual(1)
    expect(answer.shown).toBeLessThan(whole / 3)
    const { usage } = past
    expect(usage.iterations!.map(({ type }) => type)).toEqual(['compaction', 'message'])
    expect(usage.iterations![0]!.cache_read_input_tokens).toBe(summary.reused)

    // The messages are folded, not lost.
    const view = served.service.threads.get('public', thread)
    expect(view.all.flatMap(({ omitted }) => omitted).map(({ omits }) => omits.part)).toEqual(Array(7).fill('message'))
    expect(view.all[1]!.message.content).toBe(long('one', 0))
    expect(view.events.at(-1)).toMatchObject({ kind: 'policy', reason: 'the conversation is compacted' })
    expect(view.events.at(-1)!.saves).toBeGreaterThan(whole / 2)

    // Sent back, the block stands for all before it, whether the client keeps that or not.
    const answered: Param = { role: 'assistant', content: past.content as never }
    const next = await ask([...messages, answered, { role: 'user', content: 'Good. And the queen?' }], managed(above(whole)))
    expect(toldIn(next)).toMatchObject({ thread, lost: null })
    expect(toldIn(next).ledger).toHaveLength(1)
    expect(toldIn(next).ledger[0]!.submitted).toBeLessThan(40)
    const kept: Param[] = [
      answered,
      { role: 'user', content: 'Good. And the queen?' },
      { role: 'assistant', content: next.content as never },
      { role: 'user', content: 'And the drones?' },
    ]
    const later = await ask(kept)
    expect(toldIn(later)).toMatchObject({ thread, lost: null })
    expect(toldIn(later).ledger[0]!.submitted).toBeLessThan(40)
  })

  it('pauses with the block alone, by instructions of the client', async () => {
    const messages = await talked('two')
    const instructions = 'Sum up what hums.'
    const paused = await ask(messages, managed({ ...above(100), instructions, pause_after_compaction: true }))
    expect(paused.stop_reason).toBe('compaction')
    expect(paused.content.map(({ type }) => type)).toEqual(['compaction'])
    expect(paused.usage).toMatchObject({ input_tokens: 0, output_tokens: 0 })
    expect(paused.usage.iterations!.map(({ type }) => type)).toEqual(['compaction'])
    expect(toldIn(paused).ledger[0]!.submitted).toBeLessThan(80)
    const next = await ask([
      { role: 'assistant', content: paused.content as never },
      { role: 'user', content: 'Go on.' },
    ])
    expect(toldIn(next)).toMatchObject({ thread: toldIn(paused).thread, lost: null })
    expect(next.content).toMatchObject([{ type: 'text', text: 'I see: Go on.' }])
  })

  it.each([
    ['no', undefined, undefined],
    ['the same', 'You keep bees.', 'You keep bees.'],
    ['another', 'You keep bees.', 'You keep wasps.'],
    ['a new', undefined, 'You keep bees.'],
  ])('a client edit after it keeps the compacted text (%s system message)', async (name, system, later) => {
    const said = `edit with ${name} system`
    const messages = await talked(said, { system })
    const past = await ask(messages, { system, ...managed(above(100)) })
    const { thread } = toldIn(past)
    const question: Param = { role: 'user', content: `Good. ${'And the queen? '.repeat(9)}` }
    const answered: Param[] = [{ role: 'assistant', content: past.content as never }, question]
    const { content } = await ask(answered, { system })
    const pruned: Param[] = [
      answered[0]!,
      { role: 'user', content: 'Good.' },
      { role: 'assistant', content: content as never },
      { role: 'user', content: 'And the drones?' },
    ]
    const edited = await ask(pruned, { system: later })
    expect(toldIn(edited)).toMatchObject({ thread })
    expect(served.service.threads.view('public', thread).some((message) => message.content === question.content)).toBe(false)
    const { all } = served.service.threads.get('public', thread)
    const compacted = all.filter(({ omitted }) => omitted.length > 0)
    expect(compacted.map(({ message }) => message.content)).toEqual([
      ...[0, 1, 2].flatMap((at) => [long(said, at), expect.stringContaining('I see: ') as string]),
      `And how is ${said}?`,
    ])
    expect(all.findIndex(({ message }) => message.role === 'system')).toBe(later === undefined ? -1 : 0)
    await served.service.threads.restore('public', thread, compacted[0]!.omitted[0]!.id)
    // A compacted message that is shown again stays, too.
    const more: Param[] = [
      { role: 'assistant', content: edited.content as never },
      { role: 'user', content: 'And the wax?' },
    ]
    const again = await ask([...pruned.with(1, question), ...more], { system: later })
    expect(toldIn(again)).toMatchObject({ thread })
    const { all: kept } = served.service.threads.get('public', thread)
    expect(kept.filter(({ shown }) => shown === long(said, 0))).toHaveLength(1)
    expect(kept.filter(({ omitted }) => omitted.length > 0)).toHaveLength(6)
  })

  it('leaves clear_tool_uses only the results after it', async () => {
    const results = (...ids: readonly string[]): Param[] =>
      ids.flatMap((id, at): Param[] => [
        { role: 'assistant', content: [{ type: 'tool_use', id: `look_${id}`, name: 'look', input: { at } }] },
        { role: 'user', content: [{ type: 'tool_result', tool_use_id: `look_${id}`, content: long(id, at) }] },
      ])
    const messages: Param[] = [{ role: 'user', content: 'Look into them.' }, ...results('a', 'b', 'c')]
    const past = await ask(messages, managed(above(100)))
    const next: Param[] = [
      { role: 'assistant', content: past.content as never },
      { role: 'user', content: 'And into two more.' },
      ...results('d', 'e'),
    ]
    const clearing = (value: number) => {
      const limits = { trigger: { type: 'tool_uses', value }, keep: { type: 'tool_uses', value: 1 } }
      return ask(next, { context_management: { edits: [{ type: 'clear_tool_uses_20250919', ...limits }] } })
    }
    const below = await clearing(2)
    expect(toldIn(below)).toMatchObject({ thread: toldIn(past).thread })
    expect(below.context_management).toEqual({ applied_edits: [] })
    expect((await clearing(1)).context_management).toMatchObject({ applied_edits: [{ cleared_tool_uses: 1 }] })
  })

  it('streams the block before the answer', async () => {
    const messages = await talked('three')
    const stream = anthropic.beta.messages.stream({
      model,
      messages,
      tools,
      system: 'You keep a diary of bees.',
      max_tokens: 40,
      context_management: { edits: [{ type: 'compact_20260112', trigger: { type: 'input_tokens', value: 200 } }] },
    })
    const told: string[] = []
    stream.on('compaction' as never, ((text: string) => told.push(text)) as never)
    const { content, usage } = await stream.finalMessage()
    expect(content.map(({ type }) => type)).toEqual(['compaction', 'text'])
    expect((content[0] as Anthropic.Beta.BetaCompactionBlock).content).toContain(SUMMARY)
    expect(told).toHaveLength(1)
    expect(usage.cache_read_input_tokens).toBeGreaterThan(0)
  })

  it('under splice nothing before the summary is computed again', async () => {
    const kvfold = { kvfold: { ledger: true, contract: 'splice' } }
    const messages = await talked('four', kvfold)
    const past = await ask(messages, { ...managed(above(200)), ...kvfold })
    expect(toldIn(past).ledger[0]!.submitted).toBeLessThan(160)
    expect(toldIn(past).ledger[1]).toMatchObject({ contract: 'splice' })
    // What the instruction and the summary have in common is their head.
    expect(toldIn(past).ledger[1]!.recomputed).toBeLessThan(12)
  })

  it('says what is wrong with a request', async () => {
    await expect(ask([{ role: 'user', content: 'x' }], managed({ trigger: { type: 'tool_uses', value: 1 } }))).rejects.toThrow(
      /edits\[0\]\.trigger must be .*input_tokens/,
    )
    await expect(ask([{ role: 'user', content: 'x' }], managed({ pause_after_compaction: 1 }))).rejects.toThrow(
      /must be true or false/,
    )
    await expect(ask([{ role: 'user', content: 'x' }], managed({ instructions: 1 }))).rejects.toThrow(
      /instructions must be a text/,
    )
    const bad: Param = { role: 'assistant', content: [{ type: 'compaction', content: '' }] }
    await expect(ask([bad, { role: 'user', content: 'x' }])).rejects.toThrow(
      /messages\[0\]\.content\[0\]\.content must be the text/,
    )
    // A compaction that failed stands for nothing.
    const failed: Param = {
      role: 'assistant',
      content: [
        { type: 'compaction', content: null },
        { type: 'text', text: 'Hm.' },
      ],
    }
    const answer = await ask([{ role: 'user', content: 'x' }, failed, { role: 'user', content: 'And?' }])
    expect(answer.content).toMatchObject([{ type: 'text' }])
  })
})

describe('compact-2026-09-04', () => {
  it('answers with a signed block, which stands first in the next request', async () => {
    const messages = await talked('five')
    const compaction = { type: 'summarize' }
    const summed = await ask(messages, { compaction })
    expect(summed.stop_reason).toBe('compaction')
    const [block] = summed.content as [Anthropic.Beta.BetaCompactionBlock]
    expect(block.signature).toMatch(/^kvfold1\./)
    expect(toldIn(summed).ledger[0]!.submitted).toBeLessThan(160)
    const next = await ask([
      { role: 'assistant', content: [block] as never },
      { role: 'user', content: 'And the wax?' },
    ])
    expect(toldIn(next)).toMatchObject({ thread: toldIn(summed).thread, lost: null })

    const changed = { ...block, content: `${block.content!} They pay.` }
    await expect(
      ask([
        { role: 'assistant', content: [changed] as never },
        { role: 'user', content: 'x' },
      ]),
    ).rejects.toThrow(/signature is of another text/)
    await expect(ask(messages, { compaction, ...managed({}) })).rejects.toThrow(/compaction or context_management, not both/)
    await expect(ask([{ role: 'user', content: 'x' }], { compaction })).rejects.toThrow(/nothing to compact/)
  })
})

it("a client's own request for a summary computes its instruction and nothing else", async () => {
  const messages = await talked('six')
  const asked = messages.with(-1, { role: 'user', content: 'Sum up what we said, in a few words.' })
  const summed = await ask(asked)
  expect(summed.content).toMatchObject([{ type: 'text', text: SUMMARY }])
  const [entry] = toldIn(summed).ledger as [LedgerEntry]
  expect(entry.recomputed).toBe(0)
  expect(entry.submitted).toBeLessThan(60)
  expect(entry.reused).toBeGreaterThan(300)
})

describe("OpenAI's responses", () => {
  const kvfold = { kvfold: { ledger: true } } as object
  const input = (of: string): OpenAI.Responses.ResponseInputItem[] =>
    [0, 1, 2].flatMap((at): OpenAI.Responses.ResponseInputItem[] => [
      { role: 'user', content: long(of, at) },
      { role: 'assistant', content: `So it is with ${of}, ${at}.` },
    ])

  it('compacts above the threshold, and the id goes on from the summary', async () => {
    const first = await openai.responses.create({
      model,
      input: [...input('seven'), { role: 'user', content: 'How is it?' }],
      ...kvfold,
    })
    const managed = { context_management: [{ type: 'compaction', compact_threshold: 200 }] }
    const second = await openai.responses.create({
      model,
      previous_response_id: first.id,
      input: 'And now?',
      ...managed,
      ...kvfold,
    })
    expect(second.output.map(({ type }) => type)).toEqual(['compaction', 'message'])
    expect(toldIn(second).ledger[0]).toMatchObject({ kind: 'summary', recomputed: 0 })
    expect(toldIn(second).ledger[0]!.submitted).toBeLessThan(160)
    const third = await openai.responses.create({ model, previous_response_id: second.id, input: 'And then?', ...kvfold })
    expect(toldIn(third)).toMatchObject({ thread: toldIn(second).thread, lost: null })
    expect(third.usage!.input_tokens).toBeLessThan(200)
    // What was folded cannot be gone back to by its id.
    await expect(openai.responses.create({ model, previous_response_id: first.id, input: 'And?' })).rejects.toThrow(
      /previous_response_id names no response/,
    )
    // The same with items instead of the id, with all items before or without them.
    const items = [...second.output, { role: 'user', content: 'And then, again?' }] as OpenAI.Responses.ResponseInputItem[]
    const dropped = await openai.responses.create({ model, input: items, ...kvfold })
    const kept = await openai.responses.create({ model, input: [...input('seven'), ...items], ...kvfold })
    expect(kept.usage!.input_tokens).toBe(dropped.usage!.input_tokens)
    expect(dropped.usage!.input_tokens).toBeLessThan(200)
  })

  it('an answer that fails after its compaction leaves the conversation as it was, and can be asked for again', async () => {
    const first = await openai.responses.create({ model, input: [...input('ten'), { role: 'user', content: 'How is it?' }] })
    const request = {
      ...{ model, previous_response_id: first.id, input: 'Break, or not?', ...kvfold },
      context_management: [{ type: 'compaction' as const, compact_threshold: 200 }],
    }
    breaks = true
    await expect(openai.responses.create(request)).rejects.toMatchObject({ status: 500 })
    breaks = false
    const again = await openai.responses.create(request)
    expect(again.output.map(({ type }) => type)).toEqual(['compaction', 'message'])
  })

  it('a client that leaves after the compaction can ask again', async () => {
    const first = await openai.responses.create({ model, input: [...input('ten b'), { role: 'user', content: 'How is it?' }] })
    const leaving = new AbortController()
    const request = {
      ...{ model, previous_response_id: first.id, input: 'And now, at length?' },
      context_management: [{ type: 'compaction' as const, compact_threshold: 200 }],
    }
    const stream = await openai.responses.create({ ...request, stream: true }, { signal: leaving.signal })
    let left = ''
    for await (const event of stream) {
      if (event.type === 'response.created') left = event.response.id
      if (event.type === 'response.output_item.done' && event.item.type === 'compaction') leaving.abort()
    }
    // The server notices a moment later that the client has left. The time includes the whole request that succeeds.
    const again = await vi.waitFor(() => openai.responses.create({ ...request, max_output_tokens: 20 }), { timeout: 50_000 })
    expect(again.output.map(({ type }) => type)).toEqual(['compaction', 'message'])
    const kept = await openai.responses.retrieve(left).then(
      ({ status }) => status,
      () => 'none',
    )
    expect(kept).not.toBe('cancelled')
  })

  it('a deleted response takes no later turns with it', async () => {
    const first = await openai.responses.create({ model, input: [...input('eleven'), { role: 'user', content: 'Well?' }] })
    const managed = { context_management: [{ type: 'compaction', compact_threshold: 200 }] }
    const second = await openai.responses.create({ model, previous_response_id: first.id, input: 'Now?', ...managed, ...kvfold })
    await openai.responses.create({ model, previous_response_id: second.id, input: 'Then?', store: false })
    await openai.responses.delete(first.id)
    await openai.responses.delete(second.id)
    // The summary with the question, its answer, and the later turn.
    expect(served.service.threads.view('public', toldIn(second).thread)).toHaveLength(4)
  })

  it('after /v1/responses/compact, the id of an earlier response names no other messages', async () => {
    const first = await openai.responses.create({ model, input: 'The first hive hums.' })
    const second = await openai.responses.create({ model, previous_response_id: first.id, input: 'The second one is full.' })
    await openai.responses.compact({ model, previous_response_id: second.id })
    await expect(openai.responses.create({ model, previous_response_id: first.id, input: 'And?' })).rejects.toThrow(
      /previous_response_id names no response/,
    )
    await openai.responses.create({ model, previous_response_id: second.id, input: 'And?' })
  })

  it('streams the item before the answer', async () => {
    const stream = await openai.responses.create({
      model,
      input: [...input('eight'), { role: 'user', content: 'How is it?' }],
      context_management: [{ type: 'compaction', compact_threshold: 200 }],
      stream: true,
    })
    const done: OpenAI.Responses.ResponseOutputItem[] = []
    for await (const event of stream) if (event.type === 'response.output_item.done') done.push(event.item)
    expect(done.map(({ type }) => type)).toEqual(['compaction', 'message'])
  })

  it('/v1/responses/compact gives the user’s messages and one item for the rest', async () => {
    const compacted = await openai.responses.compact({ model, input: input('nine') })
    expect(compacted.object).toBe('response.compaction')
    expect(compacted.output.map(({ type }) => type)).toEqual(['message', 'message', 'message', 'compaction'])
    expect(compacted.usage.input_tokens).toBeGreaterThan(200)
    const next = await openai.responses.create({
      model,
      input: [...compacted.output, { role: 'user', content: 'How are they?' }] as OpenAI.Responses.ResponseInputItem[],
      ...kvfold,
    })
    // The user's messages stand behind folded ones, which is said.
    expect(toldIn(next).lost).toMatchObject({ cause: 'folded' })
    const { all } = served.service.threads.get('public', toldIn(next).thread)
    expect(all.filter(({ shown }) => shown.includes('So it is with nine'))).toEqual([])
    expect(all.filter(({ shown }) => shown.includes('Hive 1 of nine'))).toHaveLength(1)
    expect(all.some(({ shown }) => shown.includes(SUMMARY))).toBe(true)
  })

  it('a last item can ask for it at once, and what is wrong is said', async () => {
    const trigger = { type: 'compaction_trigger' } as OpenAI.Responses.ResponseInputItem
    const first = await openai.responses.create({ model, input: input('ten').slice(0, 3) })
    const counted = async () =>
      Number(/^kvfold_prompt_tokens_total\{[^}]*\} (\d+)/m.exec(await (await fetch(`${served.url}/metrics`)).text())![1])
    const [before, lines] = [await counted(), served.log.length]
    const { id, output, usage } = await openai.responses.create({ model, previous_response_id: first.id, input: [trigger] })
    expect(output.map(({ type }) => type)).toEqual(['compaction'])
    // Usage, log and metrics count the summary.
    const { input_tokens: shown } = usage!
    expect(shown).toBeGreaterThan(first.usage!.input_tokens)
    expect(served.log.slice(lines).join()).toContain(`"prompt":${shown},`)
    expect(await counted()).toBe(before + shown)
    expect((await openai.responses.retrieve(first.id)).output).toEqual(first.output)
    expect((await openai.responses.retrieve(id)).output).toEqual(output)
    await openai.responses.create({ model, previous_response_id: id, input: 'And?' })
    const foreign = [{ type: 'compaction', encrypted_content: 'gAAAA' } as const]
    await expect(openai.responses.create({ model, input: foreign })).rejects.toThrow(
      /input\[0\]\.encrypted_content was not written/,
    )
    await expect(openai.responses.create({ model, input: 'x', context_management: [{ type: 'prune' }] })).rejects.toThrow(
      /must be "compaction"/,
    )
    await expect(openai.responses.compact({ model, input: 'x' })).rejects.toThrow(/nothing to compact/)
  })
})
