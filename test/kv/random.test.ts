/** Random conversations, edits, cancellations and shortages, against a naive memory; everything is checked after every call (Desk). */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { conversationId } from '../../src/core/ids.js'
import type { Prompt } from '../../src/kv/prompt.js'
import { Desk, missing, shownOf } from './desk.js'

const NAMES = ['a', 'b', 'c'] as const
/** Few different tokens, so that beginnings, endings and whole messages coincide by chance as well. */
const token = fc.integer({ min: 10, max: 12 })
const name = fc.constantFrom(...NAMES)
const some = fc.array(token, { minLength: 1, maxLength: 12 })

type Operation =
  | { readonly do: 'say'; readonly name: string; readonly tokens: readonly number[] }
  /** Shows `tokens` instead of the middle of a message. */
  | {
      readonly do: 'edit'
      readonly name: string
      readonly message: number
      readonly from: number
      readonly size: number
      readonly tokens: readonly number[]
    }
  | { readonly do: 'undo' | 'revert' | 'start' | 'cancel' | 'finish' | 'forget'; readonly name: string }
  | { readonly do: 'advance'; readonly name: string; readonly count: number; readonly tokens: readonly number[] }
  | { readonly do: 'abort'; readonly name: string; readonly count: number; readonly entering: number }
  /** A whole step; after `trial`, an edit, another step, the edit undone and a third step follow. */
  | { readonly do: 'ask' | 'trial'; readonly name: string; readonly tokens: readonly number[] }

const operation: fc.Arbitrary<Operation> = fc.oneof(
  { weight: 3, arbitrary: fc.record({ do: fc.constant('say' as const), name, tokens: some }) },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant('edit' as const),
      name,
      message: fc.nat(8),
      from: fc.nat(11),
      size: fc.nat(8),
      tokens: fc.array(token, { maxLength: 3 }),
    }),
  },
  { weight: 3, arbitrary: fc.record({ do: fc.constantFrom('undo' as const, 'revert' as const), name }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('start' as const), name }) },
  {
    weight: 8,
    arbitrary: fc.record({ do: fc.constant('advance' as const), name, count: fc.integer({ min: 1, max: 40 }), tokens: some }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      do: fc.constant('abort' as const),
      name,
      count: fc.integer({ min: 1, max: 20 }),
      entering: fc.nat(20),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constantFrom('cancel' as const, 'forget' as const), name }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('finish' as const), name }) },
  {
    weight: 8,
    arbitrary: fc.record({
      do: fc.constantFrom('ask' as const, 'ask' as const, 'trial' as const),
      name,
      tokens: fc.array(token, { maxLength: 4 }),
    }),
  },
)

interface Message {
  readonly original: readonly number[]
  shown: readonly number[]
}

/** A conversation as its owner sees it: messages, each with what is shown of it now. */
class Talk {
  #messages: Message[]
  readonly #undo: (() => void)[] = []

  constructor(system: readonly number[]) {
    this.#messages = [{ original: system, shown: system }]
  }

  get shown(): Prompt {
    return shownOf(...this.#messages.map(({ shown }) => [1, ...shown, 2]), [1, 3])
  }

  say(tokens: readonly number[]): void {
    this.#messages.push({ original: tokens, shown: tokens })
  }

  edit(which: number, from: number, size: number, tokens: readonly number[]): void {
    const message = this.#messages[which % this.#messages.length]!
    const before = message.shown
    message.shown = [...before.slice(0, from), ...tokens, ...before.slice(from + size)]
    this.#undo.push(() => (message.shown = before))
  }

  undo(): void {
    this.#undo.pop()?.()
  }

  revert(): void {
    for (const message of this.#messages) message.shown = message.original
  }
}

/** What happened over all sequences, so that the test can say that it went through what it is meant to go through. */
const seen = { steps: 0, own: 0, parked: 0, shared: 0, again: 0, noCells: 0, noSequence: 0, evicted: 0, cancelled: 0, parks: 0 }

function play(operations: readonly Operation[], cells: number, sequences: number): void {
  const desk = new Desk({ cells, sequences })
  const fresh = (of: string) => new Talk(of === 'c' ? [11, 10, 12, 11, 10] : [10, 11, 12, 10, 11, 12])
  const talks = new Map<string, Talk>(NAMES.map((each) => [each, fresh(each)]))
  const runningOf = (of: string) => desk.running.get(conversationId(of))

  /** Prompt tokens still to be computed. */
  const missingOf = (of: string) => {
    const running = runningOf(of)
    return running === undefined ? 0 : missing(running)
  }

  const finish = (of: string, outcome: 'done' | 'cancelled') => {
    const { generated } = runningOf(of)!
    const entry = desk.finish(of, outcome)
    if (outcome === 'done') talks.get(of)!.say([3, ...generated])
    seen.steps++
    if (outcome === 'cancelled') seen.cancelled++
    seen.own += entry.sources.own
    seen.parked += entry.sources.parked
    seen.shared += entry.sources.shared
    seen.again += outcome === 'done' ? entry.side : 0
    seen.evicted += entry.evicted
    seen.parks += entry.parked
  }
  const start = (of: string) => {
    if (desk.start(of, talks.get(of)!.shown) === null) seen.noSequence++
  }
  /** One decode; without room the step ends. */
  const advance = (of: string, count: number, tokens: readonly number[]) => {
    const running = runningOf(of)!
    const isIn = missing(running) === 0
    if (desk.decode(running, isIn ? Int32Array.from(tokens) : count)) return
    seen.noCells++
    finish(of, isIn ? 'done' : 'cancelled')
  }

  const ask = (of: string, tokens: readonly number[]) => {
    start(of)
    while (runningOf(of) !== undefined && missingOf(of) > 0) advance(of, 16, [])
    for (const token of tokens) if (runningOf(of) !== undefined) advance(of, 1, [token])
    if (runningOf(of) !== undefined) finish(of, 'done')
  }

  for (const op of operations) {
    const talk = talks.get(op.name)!
    const running = runningOf(op.name)
    if (op.do === 'say') talk.say(op.tokens)
    else if (op.do === 'edit') talk.edit(op.message, op.from, op.size, op.tokens)
    else if (op.do === 'undo') talk.undo()
    else if (op.do === 'revert') talk.revert()
    else if (op.do === 'start' && running === undefined) start(op.name)
    else if (op.do === 'advance' && running !== undefined) advance(op.name, op.count, op.tokens)
    else if (op.do === 'abort' && running !== undefined && missing(running) > 0) {
      if (desk.decode(running, op.count, op.entering) && op.entering % 2 === 0) finish(op.name, 'cancelled')
    } else if (op.do === 'cancel' && running !== undefined) finish(op.name, 'cancelled')
    else if (op.do === 'finish' && running !== undefined && missing(running) === 0) finish(op.name, 'done')
    else if (op.do === 'forget' && running === undefined) {
      desk.forget(op.name)
      talks.set(op.name, fresh(op.name))
    } else if (op.do === 'ask' && running === undefined) ask(op.name, op.tokens)
    else if (op.do === 'trial' && running === undefined) {
      ask(op.name, op.tokens)
      talk.edit(op.tokens.length, 1, 4, op.tokens)
      ask(op.name, [])
      talk.undo()
      ask(op.name, op.tokens)
    }
  }
}

describe('random conversations', () => {
  const runs = process.env['KVFOLD_LONG'] === undefined ? 600 : 6000
  it(`hold what a fresh prefill would, and account for it, in ${runs} sequences`, () => {
    fc.assert(
      fc.property(
        fc.array(operation, { minLength: 10, maxLength: 60, size: 'max' }),
        fc.integer({ min: 40, max: 240 }),
        fc.integer({ min: 1, max: 8 }),
        play,
      ),
      { numRuns: runs },
    )
    for (const [what, count] of Object.entries(seen))
      expect(count, `no run came by "${what}" often enough`).toBeGreaterThan(runs / 20)
  }, 600_000)
})
