/**
 * Tests clients that change their earlier messages, over the real engine. The model sees their messages and nothing else. Under `exact`,
 * predictions equal a fresh prefill; under `splice`, text that is sent again unchanged is exact again.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import type { ContractChoice } from '../../../src/runtime/core/contract.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { Random } from '../../../src/runtime/core/random.js'
import { FEWEST_KEPT } from '../../../src/runtime/engine/client-request.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { TEST_GPU } from '../../support/device.js'
import { tinyModel } from '../../support/models.js'
import { firstPrediction, largestDifference } from '../../support/predictions.js'
import { LONG } from '../../support/long.js'

/** How many random histories run; each has some ten steps. */
const HISTORIES = LONG ? 1000 : 4
/** The noise without flash attention: two fresh prefills differ by up to 1e-3 in such caches (exact.test.ts measures it in its own run). */
const NOISE = 1e-3

let engine: LlamaEngine
/** An engine that gets every prompt once, in a new conversation. */
let reference: LlamaEngine

beforeAll(async () => {
  const native = await openNative({ gpu: TEST_GPU })
  const options = { cells: 4096, threads: 1, batchThreads: 1, flashAttention: 'off' } as const
  engine = await LlamaEngine.load(native, await tinyModel(), { ...options, sequences: 24, blend: { first: 5 } })
  reference = await LlamaEngine.load(native, await tinyModel(), { ...options, hostBytes: 0 })
})

afterAll(() => Promise.all([engine.dispose(), reference.dispose()]))

const user = (content: string): ChatMessage => ({ role: 'user', content })
const text = (random: Random, words: number): string => {
  const list = ['red', 'stone', 'river', 'a', 'Zürich', '42', '\n', 'light', ';', '{"x": 1}', 'quiet', '日本']
  return Array.from({ length: words }, () => list[random.below(list.length)]!).join(' ')
}

interface Shown {
  readonly next: Float32Array
  readonly message: ChatMessage
  readonly computed: number
  readonly approximate: number
  readonly contract: string
}

/** Runs one step, and checks that its ledger shows exactly the tokens of these messages. */
async function show(
  of: LlamaEngine,
  id: string,
  messages: readonly ChatMessage[],
  clientEdits?: ContractChoice,
  parent?: string,
): Promise<Shown> {
  const { reply } = of.respond({
    conversation: conversationId(id),
    messages,
    ...(clientEdits === undefined ? {} : { clientEdits }),
    ...(parent === undefined ? {} : { parent: conversationId(parent) }),
    maxTokens: 1,
    logprobs: of.modelInfo.vocabulary,
  })
  const { ledger, logprobs, message } = await reply
  expect(ledger.shown).toBe(of.count(messages, []))
  expect(ledger.reused + ledger.recomputed + ledger.fresh).toBe(ledger.shown)
  expect(ledger.recomputed + ledger.fresh + ledger.side).toBe(ledger.submitted)
  const { submitted: computed, approximate, contract } = ledger
  return { next: firstPrediction(logprobs, of.modelInfo.vocabulary), message, computed, approximate, contract }
}

let once = 0
/** Returns the prediction of a fresh prefill. */
async function fresh(messages: readonly ChatMessage[]): Promise<Float32Array> {
  const id = `once-${++once}`
  const { next } = await show(reference, id, messages)
  reference.forget(conversationId(id))
  return next
}

/** Makes a random edit that a client may make; `ever` has all messages that it ever sent. */
function edit(random: Random, messages: ChatMessage[], ever: ChatMessage[]): void {
  const at = random.below(messages.length)
  const message = messages[at]!
  const kind = random.below(7)
  const plain = ({ role, content }: ChatMessage): ChatMessage => ({ role, content })
  if (kind === 0) messages[at] = { ...plain(message), content: '[cleared]' }
  else if (kind === 1) messages[at] = { ...plain(message), content: message.content.slice(0, message.content.length >> 1) }
  else if (kind === 2) messages[at] = { ...plain(message), content: '' }
  else if (kind === 3 && messages.length > 2) messages.splice(at, 1)
  else if (kind === 4) messages.splice(at, 0, user(text(random, 3)))
  else if (kind === 5 && messages.length > 4) messages.splice(at, 3, user('Summary.'))
  else if (kind === 6) messages.splice(at, random.below(2), ever[random.below(ever.length)]!)
}

describe('client edits', () => {
  it.each(['splice', 'blend'] as const)(
    'under %s come back to a list that was sent before another one with little in common',
    async (contract) => {
      const random = new Random(5, 23)
      const id = `other-${contract}`
      const messages = [user(`Back, ${contract}.`), ...[60, 80, 60, 40].map((words) => user(text(random, words)))]
      await show(engine, id, messages, contract)
      const edited = [messages[0]!, user('Gone.'), ...messages.slice(2)]
      const before = await show(engine, id, edited, contract)
      expect(before.approximate).toBeGreaterThan(FEWEST_KEPT)
      const other = [user('Of something else.'), user(text(random, 30))]
      expect((await show(engine, id, other, contract)).approximate).toBe(0)
      const again = await show(engine, id, edited, contract)
      expect([again.computed, again.approximate]).toEqual([1, before.approximate])
      expect(largestDifference(again.next, before.next)).toBeLessThan(NOISE)
    },
  )

  it(
    `show the client's messages after ${HISTORIES} random histories, and are exact whenever the ledger says so`,
    { timeout: LONG ? 3_600_000 : 240_000 },
    async () => {
      let [approximations, compared] = [0, 0]
      for (let seed = 1; seed <= HISTORIES; seed++) {
        const random = new Random(seed, 21)
        const terms = (['exact', 'splice', 'splice', 'auto', 'blend'] as const)[random.below(5)]!
        let messages: ChatMessage[] = [user(`History ${seed}.`), user(text(random, 20))]
        const ever = [...messages]
        let [id, parent] = [`h${seed}`, undefined as string | undefined]
        for (let step = 0; step < 10; step++) {
          const { next, message, approximate, contract } = await show(engine, id, messages, terms, parent)
          await engine.check('full')
          if (terms === 'exact') expect(contract).toBe('exact')
          if (approximate > 0) approximations++
          else {
            compared++
            expect(largestDifference(next, await fresh(messages))).toBeLessThan(NOISE)
          }
          messages = [...messages, message, user(text(random, 5 + random.below(20)))]
          ever.push(...messages)
          for (let edits = random.below(4); edits > 0; edits--) edit(random, messages, ever)
          if (messages.length === 0) messages.push(user('Anew.'))
          if (random.below(6) === 0) {
            parent = id
            id = `${id}f`
          }
        }
        engine.forget(conversationId(id))
      }
      expect(approximations).toBeGreaterThan(0)
      expect(compared).toBeGreaterThan(0)
    },
  )

  it('restore hidden text with one computed token, exactly', async () => {
    for (let seed = 1; seed <= (LONG ? 300 : 2); seed++) {
      const random = new Random(seed, 22)
      const id = `r${seed}`
      const messages = Array.from({ length: 8 }, (_, at) => user(`${at}: ${text(random, 20)}`))
      const before = await show(engine, id, messages, 'splice')
      const pruned = messages.map((message, at) => (at < 6 && random.below(2) === 0 ? user(`${at}.`) : message))
      await show(engine, id, pruned, 'splice')
      if (random.below(2) === 0)
        await show(
          engine,
          id,
          pruned.filter((_, at) => at !== 3),
          'splice',
        )
      const after = await show(engine, id, messages, 'splice')
      expect([after.computed, after.approximate]).toEqual([1, 0])
      expect(largestDifference(after.next, before.next)).toBeLessThan(NOISE)
      engine.forget(conversationId(id))
    }
  })

  it('under splice compute only placeholders and new text, whether messages are replaced or removed, also in a fork', async () => {
    const random = new Random(1, 23)
    const messages: ChatMessage[] = []
    for (let turn = 0; turn < 12; turn++) {
      const id = turn < 8 ? 'p' : 'q'
      messages.push(user(text(random, 40)))
      const added = engine.count(messages.slice(-1), [])
      if (turn > 3) messages[turn - 3] = user('[cleared]')
      if (turn === 6) messages.splice(0, 2)
      if (turn === 6) messages.unshift(user('Both are gone.'), user('Still.'))
      const { computed } = await show(engine, id, [...messages], 'splice', id === 'q' ? 'p' : undefined)
      // The step computes the new message, and a placeholder with the template's text around it.
      if (turn > 0) expect(computed).toBeLessThan(added + 40)
    }
    for (const id of ['p', 'q']) engine.forget(conversationId(id))
  })

  it('keep approximate cells only if they are enough to pay', async () => {
    const random = new Random(1, 25)
    const kept: number[] = []
    for (let words = 1; words < 40; words += 3) {
      const id = `f${words}`
      const messages = [user(text(random, 30)), user(text(random, words)), user('Go on.')]
      await show(engine, id, messages, 'splice')
      const { computed, approximate } = await show(engine, id, [user('[cleared]'), ...messages.slice(1), user('So?')], 'splice')
      const shown = engine.count([...messages.slice(1)], [])
      if (approximate === 0) expect(computed).toBeGreaterThan(shown)
      else expect(approximate).toBeGreaterThanOrEqual(FEWEST_KEPT)
      kept.push(approximate)
      engine.forget(conversationId(id))
    }
    expect(kept[0]).toBe(0)
    expect(kept.at(-1)).toBeGreaterThan(0)
  })

  it("do not lend a parent's approximate cells to another tenant", async () => {
    const random = new Random(1, 24)
    const messages = Array.from({ length: 6 }, () => user(text(random, 30)))
    const pruned = [user('[cleared]'), ...messages.slice(1)]
    const ask = (id: string, tenant: string, given: readonly ChatMessage[], parent?: string) =>
      engine.respond({
        ...{ conversation: conversationId(id), tenant, messages: given, clientEdits: 'splice', maxTokens: 1 },
        ...(parent === undefined ? {} : { parent: conversationId(parent) }),
      }).reply
    await ask('t1', 'a', messages)
    const { ledger: spliced } = await ask('t1', 'a', pruned)
    expect(spliced.approximate).toBeGreaterThan(0)
    const { ledger: own } = await ask('t2', 'a', [...pruned, user('go')], 't1')
    expect(own.reused).toBeGreaterThan(own.shown / 2)
    const { ledger: other } = await ask('t3', 'b', [...pruned, user('go')], 't1')
    expect([other.reused, other.approximate]).toEqual([0, 0])
  })
})
