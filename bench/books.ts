/**
 * What the books of the cache cost: a turn of a conversation that shows 16K tokens, of which all but a few are held, and generates one. Everything the
 * cache does in it (plan, cell hashes, verification, ledger) against the decodes of the same turn.
 */
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { conversationId } from '../src/core/ids.js'
import { OffloadTiers } from '../src/kv/offload.js'
import { KvCache } from '../src/kv/cache.js'
import type { Terms } from '../src/kv/plan-parts.js'
import type { Prompt } from '../src/kv/prompt.js'
import { openNative } from '../src/native/binding.js'
import { synthesizeModel } from '../src/native/synthetic.js'
import type { NativeContext } from '../src/native/types.js'
import { builtinModel } from '../src/cli/builtin.js'
import { decode } from './driver.js'
import { median, randomTokens } from './random-tokens.js'

const LENGTH = 16_384
/** Tokens of each new message. */
const NEW = 8
const ROUNDS = 60
/** Rounds that are not counted: code is compiled in them. */
const WARM = 20
const VOCABULARY = 1024
const CONTRACTS = ['exact', 'splice'] as const

/** Milliseconds of one turn. */
interface Turn {
  readonly decode: number
  readonly plan: number
  readonly begin: number
  readonly rest: number
}

export async function books(json: boolean): Promise<void> {
  const synthetic = join(tmpdir(), 'kvfold-bench-books.gguf')
  // Of almost no work: what a fast device leaves of a decode.
  await synthesizeModel(synthetic, {
    ...{ architecture: 'llama', layers: 1, embedding: 64, heads: 1, kvHeads: 1, feedForward: 64, vocabulary: VOCABULARY },
    ...{ context: 32_768, type: 'f16', seed: 1 },
  })
  const native = await openNative({ gpu: 'cpu' })
  const results = []
  for (const [name, path] of [
    ['built-in model', builtinModel()],
    ['one layer of width 64', synthetic],
  ] as const) {
    const model = await native.loadModel(path)
    for (const contract of CONTRACTS) {
      const context = await model.createContext({
        ...{ cells: LENGTH + 8192, sequences: 16, threads: 1, batchThreads: 1, flashAttention: 'on' },
      })
      const turns = (await play(context, { contract })).slice(WARM)
      const of = (part: keyof Turn) => median(turns.map((turn) => turn[part]))
      const spent = median(turns.map(({ plan, begin, rest }) => plan + begin + rest))
      const milliseconds = { decode: of('decode'), books: spent, plan: of('plan'), begin: of('begin'), rest: of('rest') }
      results.push({ model: name, contract, share: spent / (spent + milliseconds.decode), milliseconds })
      await context.dispose()
    }
    await model.dispose()
  }
  if (json) {
    console.log(JSON.stringify({ tokens: LENGTH, new: NEW, rounds: ROUNDS - WARM, results }))
    return
  }
  console.log(`a turn that shows ${LENGTH} tokens, computes ${NEW} and generates 1; one thread, median of ${ROUNDS - WARM}`)
  for (const { model, contract, share, milliseconds: ms } of results)
    console.log(
      `  ${model}, ${contract}: books ${(100 * share).toFixed(2)} % of the turn: ${ms.books.toFixed(3)} ms (plan ${ms.plan.toFixed(3)}, begin ${ms.begin.toFixed(3)}, rest ${ms.rest.toFixed(3)}) beside ${ms.decode.toFixed(2)} of decoding`,
    )
}

/** Turns of one conversation, while two others are there to lend. */
async function play(context: NativeContext, terms: Terms): Promise<Turn[]> {
  const cache = new KvCache(context, { offload: new OffloadTiers({ hostBytes: 2 ** 30 }) })
  for (const other of [1, 2]) await turn(cache, context, `other ${other}`, randomTokens(2048, other, VOCABULARY), terms)
  let text = randomTokens(LENGTH, 3, VOCABULARY)
  await turn(cache, context, 'measured', text, terms)
  const turns: Turn[] = []
  for (let round = 0; round < ROUNDS; round++) {
    const { tokens } = cache.lane(conversationId('measured'))!
    text = Int32Array.from([...tokens, ...randomTokens(NEW, 10 + round, VOCABULARY)])
    turns.push(await turn(cache, context, 'measured', text, terms))
  }
  return turns
}

/** As the scheduler has it: fetch, prepare, begin, decodes and commits, finish. */
async function turn(cache: KvCache, context: NativeContext, name: string, tokens: Int32Array, terms: Terms): Promise<Turn> {
  const shown: Prompt = { tokens, messages: [{ index: 0, role: 'text', span: { start: 0, end: tokens.length } }] }
  const started = performance.now()
  const opened = cache.open(conversationId(name))
  if (opened.kind === 'full') throw new Error(opened.reason)
  await cache.fetch(opened.sequence, shown, terms)
  const plan = await cache.prepare(opened.sequence, shown, terms)
  const planned = performance.now()
  const step = cache.begin(opened.sequence, plan, 'answer')
  const begun = performance.now()
  let decoding = 0
  const decoded = async (seq: number, position: number, of: Int32Array) => {
    if (cache.reserve(of.length).kind === 'full') throw new Error('the context is full')
    const before = performance.now()
    await decode(context, seq, position, of)
    decoding += performance.now() - before
  }
  for (;;) {
    const chunk = cache.next(step, context.batch)
    if (chunk === null) break
    await decoded(chunk.seq, chunk.position, chunk.tokens)
    cache.commit(step, chunk.tokens, 'prompt', 0)
  }
  const answer = Int32Array.of(tokens[0]!)
  const { seq, position } = cache.seat(step)
  await decoded(seq, position, answer)
  cache.commit(step, answer, 'generated', 0)
  cache.finish(step, 'done', 0)
  return { decode: decoding, plan: planned - started, begin: begun - planned, rest: performance.now() - begun - decoding }
}
