/**
 * Attention measurements on the built-in model: a measurement agrees with whole rows of the same step, with and without folds, for given
 * and generated answers.
 */
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import {
  measureAttention,
  type Measurement,
  type MeasurementOptions,
  massOn,
  messageSet,
  overall,
} from '../../../src/runtime/attention/measurement.js'
import { compare, seenFrom, watchedSets } from '../../../src/lab/attention/pairs.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { type ConversationId, freshConversation } from '../../../src/runtime/core/ids.js'
import { span, type Span } from '../../../src/runtime/core/span.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { lookAtPrompt, lookAtValue, olderFolded, valuesSaid, watchedPairs } from '../../../src/lab/pi-attention.js'
import { ownWords, piSample } from '../../../src/lab/pi-llm.js'
import { openNative } from '../../../src/runtime/native/binding.js'

const SAMPLE = piSample({ words: ownWords(), updates: 8, keys: 6, seed: 5 })
const PAIRS = watchedPairs(SAMPLE)
const MESSAGES: ChatMessage[] = [{ role: 'user', content: SAMPLE.prompt }]
let engine: LlamaEngine

beforeAll(async () => {
  engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), {
    threads: 1,
    batchThreads: 1,
    cells: 4096,
    attention: true,
  })
})

afterAll(() => engine.dispose())

/** Conversations to forget after a test. Otherwise a splice could copy a folded prompt that another conversation computed. */
const used: ConversationId[] = []
const conversation = (): ConversationId => used[used.push(freshConversation()) - 1]!
afterEach(() => {
  for (const id of used.splice(0)) engine.forget(id)
})

const options = (more: Partial<MeasurementOptions> = {}): MeasurementOptions => ({
  engine,
  conversation: conversation(),
  messages: MESSAGES,
  terms: { contract: 'exact' },
  answer: { kind: 'given', text: SAMPLE.answer },
  find: (answer) => valuesSaid(PAIRS, answer),
  watched: watchedSets(PAIRS),
  ...more,
})

const text = (tokens: Int32Array, { start, end }: Span): string => engine.model.detokenize([...tokens.slice(start, end)], true)

/** Mean over layers, heads and queries of the sum over places, computed by hand from whole rows. */
function byHand({ pattern }: Measurement, from: readonly number[], to: readonly Span[]): number {
  const { rows, layers, heads, queries } = pattern!
  const wide = rows!.shape.at(-1)!
  let sum = 0
  for (let map = 0; map < layers.length * heads.length; map++)
    for (const at of from)
      for (const { start, end } of to)
        for (let place = start; place < end; place++)
          sum += rows!.data[(map * queries.length + queries.indexOf(at)) * wide + place]!
  return sum / (layers.length * heads.length * from.length)
}

describe('a look at a given answer', () => {
  it('measures from the tokens of every value and the tokens before them to the tokens of the same value in the prompt', async () => {
    const seen = await measureAttention(options({ rows: true }))
    expect([...seen.said.keys()]).toEqual(SAMPLE.keys)
    for (const { key, value, older } of PAIRS) {
      const said = seen.said.get(key)!
      expect(text(seen.prompt.tokens, span(said.value[0]!, said.value.at(-1)! + 1)).trim()).toBe(`${value}.`)
      expect(text(seen.prompt.tokens, span(said.reading, said.reading + 1)).trim()).toBe('is')
      const { tokens } = seen.sets.get(`current ${key}`)!
      expect(tokens.map((one) => text(seen.prompt.tokens, one).trim())).toEqual([`${value};`])
      expect(seen.sets.get(`older ${key}`)!.size).toBeGreaterThanOrEqual(older.length)
      for (const places of [said.value, [said.reading]])
        expect(overall(massOn(seen.pattern!, places, `current ${key}`)!)).toBeCloseTo(byHand(seen, places, tokens), 6)
    }
  })

  it('finds the pairs of the folded prompt, and reports which are folded away', async () => {
    const edits = olderFolded(engine, MESSAGES)
    const [complete, folded] = [await measureAttention(options()), await measureAttention(options({ edits, rows: true }))]
    const { pairs, heads } = compare(PAIRS, 'exact', complete, folded)
    const hidden = (chars: Span) => edits.some((edit) => edit.span.start < chars.end && chars.start < edit.span.end)
    for (const [index, { key, current, older }] of PAIRS.entries()) {
      const pair = pairs[index]!
      expect(pair.status).toBe(hidden(current.chars) ? 'folded-away' : 'measured')
      expect(pair.olderShown).toBe(older.filter(({ chars }) => !hidden(chars)).length)
      if (pair.status !== 'measured') expect(pair.folded).toBeNull()
      else
        expect(pair.folded!.reading!.older).toBeCloseTo(
          byHand(folded, [folded.said.get(key)!.reading], folded.sets.get(`older ${key}`)!.tokens),
          6,
        )
    }
    const measured = pairs.filter(({ status }) => status === 'measured')
    expect(measured.length).toBeGreaterThan(0)
    // The mean over layers and heads equals the mean over the pairs.
    for (const side of ['complete', 'folded'] as const)
      for (const from of ['value', 'reading'] as const) {
        const over = heads.reduce((sum, row) => sum + seenFrom(row[side], from)!.current, 0) / heads.length
        const mean = measured.reduce((sum, pair) => sum + seenFrom(pair[side], from)!.current, 0) / measured.length
        expect(over).toBeCloseTo(mean, 9)
      }
  })

  it('is the same under exact whether the fold came later or was there from the start', async () => {
    const edits = olderFolded(engine, MESSAGES)
    const first = conversation()
    const fresh = await measureAttention(options({ edits, conversation: first }))
    engine.forget(first)
    const id = conversation()
    await engine.respond({ conversation: id, messages: MESSAGES, maxTokens: 0 }).reply
    const later = await measureAttention(options({ edits, conversation: id }))
    const mass = ({ pattern }: Measurement) => [...pattern!.mass.data]
    expect(Math.max(...mass(later).map((value, index) => Math.abs(value - mass(fresh)[index]!)))).toBeLessThan(5e-4)
  })

  it('measures nothing where the answer has none of the values', async () => {
    const seen = await measureAttention(options({ answer: { kind: 'given', text: 'I do not know.' } }))
    expect(seen.pattern).toBeNull()
    expect(seen.said.size).toBe(0)
    const { pairs } = compare(PAIRS, 'exact', seen, seen)
    expect(new Set(pairs.map(({ status }) => status))).toEqual(new Set(['unanswered']))
  })
})

describe('a look at a generated answer', () => {
  it('measures from the tokens that were generated', async () => {
    const seen = await measureAttention(options({ answer: { kind: 'generated', maxTokens: 200 } }))
    expect(seen.said.size).toBeGreaterThan(0)
    const before = seen.prompt.tokens.length
    for (const { value, reading } of seen.said.values()) {
      expect(reading).toBeGreaterThanOrEqual(before - 1)
      expect(value[0]).toBe(reading + 1)
    }
    // With the same answer given, the same tokens have the same weights.
    const given = await measureAttention(options({ answer: { kind: 'given', text: seen.answer } }))
    expect(given.answer).toBe(seen.answer)
    for (const [key, { value }] of seen.said) {
      expect(given.said.get(key)!.value).toEqual(value)
      const mass = (of: Measurement) => overall(massOn(of.pattern!, value, messageSet(0))!)
      expect(mass(given)).toBeCloseTo(mass(seen), 4)
    }
  })
})

describe('a prompt of a study', () => {
  it('is compared under every contract, and leaves no cells behind', async () => {
    const record = await lookAtPrompt({ n: 8, seed: 5, sample: SAMPLE }, true, {
      engine,
      contracts: ['exact', 'splice', 'blend'],
      // The default choice is exact behind a text this short.
      blend: { first: 5 },
      mode: 'given',
    })
    expect(record.comparisons.map(({ contract, fallback }) => [contract, fallback])).toEqual([
      ['exact', null],
      ['splice', null],
      ['blend', null],
    ])
    for (const { shown } of record.comparisons) expect(shown).toBeLessThan(record.shown)
    const [exact, splice] = record.comparisons
    // A splice leaves a trace: its values differ from those of a fresh prefill.
    expect(exact!.pairs.map(({ folded }) => folded?.reading?.current)).not.toEqual(
      splice!.pairs.map(({ folded }) => folded?.reading?.current),
    )
    await engine.check('books')
    // Placebos fold as many tokens of an equally long prompt, and have the same values beside them.
    const shown = (comparisons: typeof record.comparisons) => comparisons.map((each) => each.shown)
    const measured = ({ pairs }: (typeof record.comparisons)[number]) =>
      pairs.filter(({ status }) => status === 'measured').map(({ key }) => key)
    for (const placebo of [record.placebo!, record.unasked!]) {
      for (const [at, tokens] of shown(placebo).entries())
        expect(Math.abs(tokens - shown(record.comparisons)[at]!)).toBeLessThanOrEqual(4)
      for (const [at, comparison] of placebo.entries()) {
        expect(measured(comparison)).toEqual(measured(record.comparisons[at]!))
        expect(comparison.pairs.map(({ olderShown }) => olderShown)).toEqual(
          record.comparisons[at]!.pairs.filter(({ status }) => status === 'measured').map(({ olderShown }) => olderShown),
        )
      }
    }
    expect(record.unasked![0]!.pairs.map(({ complete }) => complete)).not.toEqual(
      record.placebo![0]!.pairs.map(({ complete }) => complete),
    )
    // `others` are the open tokens without the value's own. Even with the value's own tokens they get less than all of the attention.
    for (const { complete, distance } of exact!.pairs.filter(({ status }) => status === 'measured')) {
      expect(complete!.others).toBeGreaterThan(0)
      expect(complete!.others + complete!.current).toBeLessThan(1)
      expect(distance).toBeLessThan(SAMPLE.updates.length)
    }
  })

  it('reports what softmax arithmetic alone makes of a fold, as computed from whole rows of the complete prompt', async () => {
    const edits = olderFolded(engine, MESSAGES)
    const hidden = edits.map(({ message, span: chars }) => ({ message, chars }))
    const watched = watchedSets(PAIRS, hidden)
    const complete = await measureAttention(options({ watched, rows: true }))
    const { pattern, sets } = complete
    const { rows, layers, heads, queries } = pattern!
    const wide = rows!.shape.at(-1)!
    const folded = sets.get(watched.at(-1)!.name)!.tokens
    const after = await measureAttention(options({ watched, edits }))
    let seen = 0
    for (const { key, baseline, complete: before, status } of compare(PAIRS, 'exact', complete, after).pairs) {
      if (status !== 'measured') continue
      const { tokens, size } = sets.get(`current ${key}`)!
      const { value } = complete.said.get(key)!
      const sums: number[] = []
      for (let map = 0; map < layers.length * heads.length; map++)
        for (const at of value.filter((place) => queries.includes(place))) {
          const row = rows!.data.subarray((map * queries.length + queries.indexOf(at)) * wide)
          const over = (spans: readonly Span[]) =>
            spans.reduce((sum, { start, end }) => sum + row.slice(start, end).reduce((a, b) => a + b, 0), 0)
          sums.push(over(tokens) / (1 - over(folded)) / size)
        }
      expect(baseline!.value).toBeCloseTo(sums.reduce((a, b) => a + b, 0) / sums.length, 5)
      expect(baseline!.value).toBeGreaterThan(before!.weight)
      seen++
    }
    expect(seen).toBeGreaterThan(2)
  })

  it('has a heat map with the weights of the pair, which sum to no more than 1', async () => {
    const { key } = PAIRS[0]!
    const heatMap = await lookAtValue({ n: 8, seed: 5, sample: SAMPLE }, key, { engine, contracts: ['exact'], mode: 'given' })
    const { comparisons } = await lookAtPrompt({ n: 8, seed: 5, sample: SAMPLE }, false, {
      engine,
      contracts: ['exact'],
      mode: 'given',
    })
    const pair = comparisons[0]!.pairs[0]!
    const [complete] = heatMap.sides
    const sum = (kind: string) => complete!.tokens.reduce((total, token) => total + (token.kind === kind ? token.weight : 0), 0)
    expect(sum('current')).toBeCloseTo(pair.complete!.current, 5)
    expect(sum('older')).toBeCloseTo(pair.complete!.older, 5)
    expect(complete!.tokens.reduce((total, { weight }) => total + weight, 0)).toBeCloseTo(1, 3)
  })
})
