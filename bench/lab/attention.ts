/**
 * What capturing attention costs: a 300-token answer behind 16K tokens of context, with and without the capture, both without flash
 * attention.
 */
import { fileURLToPath } from 'node:url'
import { conversationId } from '../../src/runtime/core/ids.js'
import { type AttentionPattern, attentionPlan, type AttentionRequest, type KeySet } from '../../src/runtime/engine/attention.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { median, neverEnding, randomTokens } from '../random-tokens.js'

const MODEL = fileURLToPath(new URL('../../native-models/builtin/kvfold-tiny.gguf', import.meta.url))
const LENGTH = 16_384
const ANSWER = 300
const ROUNDS = 5
/** The number of keys. Each has a set for its current and one for its obsolete values, as in PI-LLM. */
const PAIRS = 46
const MESSAGES = 40
const UBATCH = 512
const MEBIBYTE = 2 ** 20

/** The sizes of an 8B model at 64K tokens of context, whose memory is only calculated. */
const LARGE = { layers: 32, heads: 32, cells: 65_536, ubatch: 512 } as const

interface Sample {
  /** The median milliseconds between two tokens; other programs disturb some of them. */
  readonly perToken: number
  /** The most memory of the process while it ran, in bytes. */
  readonly resident: number
  readonly pattern: AttentionPattern | null
}

export async function attention(json: boolean): Promise<void> {
  const native = await openNative({ gpu: 'cpu' })
  const settings = { cells: LENGTH + 1024, ubatch: UBATCH, threads: 1, batchThreads: 1, hostBytes: 0 } as const
  const plain = await LlamaEngine.load(native, MODEL, { ...settings, flashAttention: 'off' })
  const watching = await LlamaEngine.load(native, MODEL, { ...settings, attention: true })
  const tokens = randomTokens(LENGTH, 1, plain.modelInfo.vocabulary)
  const request: AttentionRequest = { queries: { generated: true }, keys: keySets() }
  // Compute the prompts once, and warm up.
  await answer(plain, tokens, null)
  await answer(watching, tokens, null)
  await answer(watching, tokens, request)
  const samples: { readonly without: Sample; readonly unarmed: Sample; readonly captured: Sample }[] = []
  for (let round = 0; round < ROUNDS; round++)
    samples.push({
      without: await answer(plain, tokens, null),
      unarmed: await answer(watching, tokens, null),
      captured: await answer(watching, tokens, request),
    })
  const { pattern } = samples[0]!.captured
  if (pattern === null || pattern.queries.length !== ANSWER - 1) throw new Error('the answer was not captured')
  const arrays = [pattern.mass, pattern.total, pattern.entropy, pattern.sink].reduce((sum, { data }) => sum + data.byteLength, 0)
  const perToken = (of: 'without' | 'unarmed' | 'captured') => median(samples.map((sample) => sample[of].perToken))
  const result = {
    ratio: median(samples.map(({ without, captured }) => captured.perToken / without.perToken)),
    unarmedRatio: median(samples.map(({ without, unarmed }) => unarmed.perToken / without.perToken)),
    milliseconds: { without: perToken('without'), unarmed: perToken('unarmed'), captured: perToken('captured') },
    memory: {
      arrays,
      resident:
        Math.max(...samples.map(({ captured }) => captured.resident)) -
        Math.max(...samples.map(({ unarmed }) => unarmed.resident)),
    },
    pattern: {
      layers: pattern.layers.length,
      heads: pattern.heads.length,
      queries: pattern.queries.length,
      sets: pattern.keys.length,
    },
    onPaper: attentionPlan(LARGE, { queries: ANSWER, sets: 2 * PAIRS + MESSAGES }),
    rounds: ROUNDS,
  }
  if (json) console.log(JSON.stringify(result))
  else {
    const { milliseconds, memory, onPaper } = result
    console.log(`an answer of ${ANSWER} tokens after ${LENGTH}, built-in model, one thread, no flash attention, ${ROUNDS} rounds`)
    console.log(`  without   ${milliseconds.without.toFixed(2)} ms a token`)
    console.log(`  unarmed   ${milliseconds.unarmed.toFixed(2)} ms: ${result.unarmedRatio.toFixed(3)} times`)
    console.log(`  captured  ${milliseconds.captured.toFixed(2)} ms: ${result.ratio.toFixed(3)} times`)
    console.log(
      `  memory    ${(memory.arrays / MEBIBYTE).toFixed(1)} MiB of arrays; the process grew by ${(memory.resident / MEBIBYTE).toFixed(1)} MiB at most`,
    )
    console.log(
      `  on paper  8B at 64K: ${(onPaper.pattern / MEBIBYTE).toFixed(0)} MiB kept of ${(onPaper.unreduced / MEBIBYTE).toFixed(0)}, scores and mask ${(onPaper.compute / MEBIBYTE).toFixed(0)} MiB`,
    )
  }
  await plain.dispose()
  await watching.dispose()
}

/** Returns key sets as in a PI-LLM study: two of scattered tokens per pair, and one per message. */
function keySets(): KeySet[] {
  const pair = (at: number, of: string, stride: number): KeySet => ({
    name: `${of} ${at}`,
    tokens: Array.from({ length: 4 }, (_, use) => {
      const start = 100 + at * 3 + use * stride
      return { start, end: start + 2 }
    }),
  })
  const message = (at: number): KeySet => ({
    name: `message ${at}`,
    tokens: [{ start: (at * LENGTH) / MESSAGES, end: ((at + 1) * LENGTH) / MESSAGES }].map(({ start, end }) => ({
      start: Math.floor(start),
      end: Math.floor(end),
    })),
  })
  const pairs = Array.from({ length: PAIRS }, (_, at) => [pair(at, 'current', 3000), pair(at, 'obsolete', 3001)]).flat()
  return [...pairs, ...Array.from({ length: MESSAGES }, (_, at) => message(at))]
}

async function answer(engine: LlamaEngine, tokens: Int32Array, request: AttentionRequest | null): Promise<Sample> {
  let resident = 0
  const times: number[] = []
  const { timing, attention: pattern = null } = await engine.complete({
    conversation: conversationId('bench'),
    tokens,
    maxTokens: ANSWER,
    sampling: { logitBias: neverEnding(engine.model) },
    ...(request === null ? {} : { attention: request }),
    onText: () => {
      times.push(performance.now())
      resident = Math.max(resident, process.memoryUsage.rss())
    },
  })
  if (timing.generatedTokens !== ANSWER) throw new Error(`the answer has ${timing.generatedTokens} tokens`)
  resident = Math.max(resident, process.memoryUsage.rss())
  return { perToken: median(times.slice(1).map((time, at) => time - times[at]!)), resident, pattern }
}
