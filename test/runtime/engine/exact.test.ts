/**
 * Tests the promise of contract `exact`, and of every step without approximate tokens in its ledger: after any edits, the model predicts
 * the same as after a fresh prefill of the same tokens. "The same" is judged against the difference between two fresh prefills in the same
 * run: one alone and whole, one in chunks beside another sequence.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { ChatMessage, Edit } from '../../../src/runtime/chat/message.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { Random } from '../../../src/runtime/core/random.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import type { LedgerEntry } from '../../../src/runtime/kv/ledger.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Native, NativeContext, NativeModel } from '../../../src/runtime/native/types.js'
import { ON_GPU, TEST_GPU } from '../../support/device.js'
import { tinyModel } from '../../support/models.js'
import { firstPrediction, freshPrediction, largestDifference } from '../../support/predictions.js'
import { LONG } from '../../support/long.js'

/** The number for this kind of run. A software device takes a second for each step. */
const most = (long: number, usual: number, gpu: number) => (LONG ? long : ON_GPU ? gpu : usual)
/** Random sequences for each setting. Without flash attention the noise is a thousand times smaller, so most run there. */
const RUNS = [
  { flashAttention: 'off', contracts: ['exact'], sequences: most(4000, 18, 12) },
  { flashAttention: 'on', contracts: ['exact'], sequences: most(1000, 8, 6) },
  { flashAttention: 'off', contracts: ['exact', 'splice', 'splice', 'blend'], sequences: most(2000, 15, 12) },
] as const
const CELLS = 1536

interface Fragment {
  readonly message: number
  readonly span: { readonly start: number; readonly end: number }
  state: 'open' | 'folded' | 'summarised'
}

interface Talk {
  readonly id: string
  readonly messages: ChatMessage[]
  readonly fragments: Fragment[]
}

let native: Native
let engine: LlamaEngine
let referenceModel: NativeModel
let whole: NativeContext
let chunked: NativeContext

beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
  referenceModel = await native.loadModel(await tinyModel())
})

afterAll(() => referenceModel.dispose())

/** Opens the engine under test, and two contexts for fresh prefills that differ in chunking. */
async function open(flashAttention: 'on' | 'off'): Promise<void> {
  const common = { cells: CELLS, threads: 1, batchThreads: 1, flashAttention } as const
  engine = await LlamaEngine.load(native, await tinyModel(), { ...common, sequences: 12 })
  whole = await referenceModel.createContext({ ...common, sequences: 1 })
  chunked = await referenceModel.createContext({ ...common, sequences: 2, batch: 61, ubatch: 61 })
}

function words(random: Random, count: number): string {
  const list = ['red', 'stone', 'river', 'a', 'Zürich', '42', 'fold', '\n', 'light', ';', '{"x": 1}', 'quiet', '日本']
  return Array.from({ length: count }, () => list[random.below(list.length)]!).join(' ')
}

function edits({ fragments }: Talk): Edit[] {
  return fragments
    .filter(({ state }) => state !== 'open')
    .map(({ message, span, state }) => ({
      message,
      span,
      replacement: state === 'folded' ? `[folded f${span.start}]` : `[summary: it was about ${span.end}]`,
    }))
    .sort((a, b) => a.message - b.message || a.span.start - b.span.start)
}

function addFragment(random: Random, talk: Talk): void {
  const message = random.below(talk.messages.length)
  const { content } = talk.messages[message]!
  if (content.length < 8) return
  const start = random.below(content.length - 4)
  const span = engine.snap(talk.messages, [], message, { start, end: Math.min(content.length, start + 4 + random.below(80)) })
  const clash = talk.fragments.some(
    (other) => other.message === message && other.span.start < span.end && span.start < other.span.end,
  )
  if (!clash && span.end > span.start) talk.fragments.push({ message, span, state: 'open' })
}

/** Does something to a conversation between two steps that must not change predictions. */
async function meddle(random: Random, talk: Talk): Promise<void> {
  const id = conversationId(talk.id)
  const kind = random.below(8)
  if (kind === 0) await engine.refresh(id)
  else if (kind === 1) await engine.compact(id)
  else if (kind === 2) await engine.closeGaps(id)
  else if (kind === 3) {
    const controller = new AbortController()
    setTimeout(() => {
      controller.abort()
    }, random.below(8))
    const other = { conversation: id, messages: talk.messages.slice(0, 2), signal: controller.signal }
    await engine.respond(other).reply.catch((error: unknown) => {
      expect(error).toMatchObject({ code: 'engine/cancelled' })
    })
  }
  await engine.check('full')
}

function equations(entry: LedgerEntry): void {
  expect(entry.reused + entry.recomputed + entry.fresh).toBe(entry.shown)
  expect(entry.recomputed + entry.fresh + entry.side).toBe(entry.submitted)
  for (const key of ['shown', 'reused', 'recomputed', 'fresh'] as const)
    expect(entry.messages.reduce((sum, message) => sum + message[key], 0)).toBe(entry[key])
}

describe('a step without approximate tokens', () => {
  it.each(RUNS)(
    'predicts the same as a fresh prefill over $sequences random edit sequences under $contracts, flash attention $flashAttention',
    { timeout: LONG ? 3_600_000 : 300_000 },
    async ({ flashAttention, contracts, sequences }) => {
      await open(flashAttention)
      let floor = 0
      let worst = 0
      let steps = 0
      let approximations = 0
      let recomputedByReading = 0
      let settled = 0
      for (let seed = 1; seed <= sequences; seed++) {
        if (seed === Math.ceil(sequences / 4)) settled = process.memoryUsage.rss()
        const random = new Random(seed)
        const opening: ChatMessage[] = [
          { role: 'system', content: `Sequence ${seed % 7}. ${words(random, 6)}` },
          { role: 'user', content: words(random, 10 + random.below(30)) },
        ]
        const talks: Talk[] = Array.from({ length: 1 + random.below(2) }, (_, index) => ({
          id: `${seed}-${index}`,
          messages:
            index === 0 || random.below(2) === 0 ? [...opening] : [opening[0]!, { role: 'user', content: words(random, 20) }],
          fragments: [],
        }))
        for (let move = 0; move < 5; move++) {
          const talk = talks[random.below(talks.length)]!
          const marks = 1 + random.below(3)
          let appended = true
          for (let mark = 0; mark < marks; mark++) {
            const kind = random.below(5)
            const fragment = talk.fragments[random.below(Math.max(1, talk.fragments.length))]
            if (kind < 2 || fragment === undefined) addFragment(random, talk)
            else {
              fragment.state = (['folded', 'summarised', 'open'] as const)[kind - 2]!
              appended = false
            }
          }
          const conversation = conversationId(talk.id)
          const rendered = engine.format.render({ messages: talk.messages, edits: edits(talk) })
          const { reply } = engine.respond({
            conversation,
            messages: talk.messages,
            edits: edits(talk),
            contract: contracts[random.below(contracts.length)]!,
            maxTokens: 1 + random.below(4),
            logprobs: engine.modelInfo.vocabulary,
          })
          // The three contexts run in parallel, each with one thread.
          const [{ message, ledger, logprobs }, reference, other] = await Promise.all([
            reply,
            freshPrediction(whole, rendered.tokens),
            freshPrediction(chunked, rendered.tokens, 29),
          ])
          equations(ledger)
          if (ledger.contract === 'exact') expect(ledger.approximate).toBe(0)
          if (appended && ledger.step > 1 && contracts.length === 1) recomputedByReading += ledger.recomputed
          await engine.check('full')
          const next = firstPrediction(logprobs, engine.modelInfo.vocabulary)
          floor = Math.max(floor, largestDifference(reference, other))
          // An answer that ends at once has no log-probabilities to compare. Steps with approximate tokens are not compared, because they
          // may differ.
          if (ledger.approximate > 0) approximations++
          else if (logprobs !== undefined && logprobs.length > 0) {
            worst = Math.max(worst, largestDifference(next, reference))
            steps++
          }
          if (contracts.length > 1) await meddle(random, talk)
          talk.messages.push(message)
          if (random.below(2) === 0) talk.messages.push({ role: 'user', content: words(random, 1 + random.below(10)) })
        }
        for (const talk of talks) if (random.below(3) > 0) engine.forget(conversationId(talk.id))
      }
      const difference = `worst difference ${worst.toExponential(2)}, noise floor ${floor.toExponential(2)}`
      const counts = `${steps} exact and ${approximations} approximate steps of ${sequences} sequences`
      const grown = (process.memoryUsage.rss() - settled) / 2 ** 20
      console.log(
        `${contracts.join(', ')}, flash attention ${flashAttention}: ${counts}, ${difference}, memory ${grown.toFixed(0)} MiB more than after a quarter`,
      )
      expect(steps).toBeGreaterThan(sequences * (contracts.length === 1 ? 3 : 1))
      expect(approximations > 0).toBe(contracts.length > 1)
      expect(floor).toBeGreaterThan(0)
      expect(grown).toBeLessThan(200)
      expect(worst).toBeLessThanOrEqual(3 * floor)
      expect(recomputedByReading).toBe(0)
      await Promise.all([engine.dispose(), whole.dispose(), chunked.dispose()])
    },
  )
})
