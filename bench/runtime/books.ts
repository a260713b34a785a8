/**
 * The cost of the cache's bookkeeping. A turn shows 16K tokens, of which the cache holds all but a few, and generates one token. The
 * benchmark compares everything that the cache does in the turn (plan, cell hashes, verification, ledger) with the turn's decodes. Then it
 * repeats this with a past: the cache keeps 64 versions that folds left, most of them in memory, and under `splice` those 64 folds are in
 * force. The turn with a past uses the decode times of the turn without one, because both show the same number of tokens.
 */
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { conversationId } from '../../src/runtime/core/ids.js'
import { span } from '../../src/runtime/core/span.js'
import { OffloadTiers } from '../../src/runtime/kv/offload.js'
import { KvCache } from '../../src/runtime/kv/cache.js'
import { DryRunMemory } from '../../src/runtime/kv/dry-run.js'
import type { KvMemory } from '../../src/runtime/kv/ports.js'
import type { StepContract } from '../../src/runtime/kv/plan/parts.js'
import { type Prompt, type ReplacedSpan, uneditedOf } from '../../src/runtime/kv/prompt.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { synthesizeModel } from '../../src/runtime/native/synthetic.js'
import { builtinModel } from '../../src/runtime/cli/builtin.js'
import { decode, edited } from '../driver.js'
import { median, randomTokens } from '../random-tokens.js'

const LENGTH = 16_384
/** Tokens of each new message. */
const NEW = 8
const ROUNDS = 60
/** The first rounds, which are not counted because JavaScript is still being compiled. */
const WARM = 20
const VOCABULARY = 1024
const CONTRACTS = ['exact', 'splice'] as const
const CELLS = LENGTH + 8192
const SEQUENCES = 16
/** `FOLDS`: number of folds in a past. `HIDDEN`: tokens that each hides. `MARKER`: tokens of its marker. */
const FOLDS = 64
const HIDDEN = 64
const MARKER = 8

const MEASURED = 'measured'
const BATCH = 2048

/** Computes these tokens of a sequence, from this position on. */
type Decode = (seq: number, position: number, tokens: Int32Array) => Promise<unknown>

/** Milliseconds of one turn. */
interface Turn {
  readonly decode: number
  readonly plan: number
  readonly begin: number
  readonly rest: number
}

export async function books(json: boolean): Promise<void> {
  const synthetic = join(tmpdir(), 'kvfold-bench-books.gguf')
  // A model with almost no work: on a fast device, a decode takes as little.
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
        ...{ cells: CELLS, sequences: SEQUENCES, threads: 1, batchThreads: 1, flashAttention: 'on' },
      })
      const alone = result(await play(cacheOver(context), { contract }, (...of) => decode(context, ...of)))
      await context.dispose()
      const past = cacheOver(new DryRunMemory(CELLS, SEQUENCES))
      const behind = result((await leavePast(past, { contract }), await goOn(past, { contract }, async () => {})))
      const { versions, parked, tiers } = past.totals
      const { sequences, tokens } = tiers.host
      results.push({ model: name, contract, past: { versions: 0, tokens: 0 }, ...shared(alone, alone.decode) })
      results.push({
        model: name,
        contract,
        past: { versions: versions + sequences, tokens: parked + tokens },
        ...shared(behind, alone.decode),
      })
    }
    await model.dispose()
  }
  if (json) {
    console.log(JSON.stringify({ tokens: LENGTH, new: NEW, rounds: ROUNDS - WARM, results }))
    return
  }
  console.log(`a turn that shows ${LENGTH} tokens, computes ${NEW} and generates 1; one thread, median of ${ROUNDS - WARM}`)
  for (const { model, contract, share, past, milliseconds: ms } of results) {
    const left = past.versions === 0 ? '' : `, ${past.versions} versions of ${past.tokens} tokens kept`
    console.log(
      `  ${model}, ${contract}${left}: books ${(100 * share).toFixed(2)} % of the turn: ${ms.books.toFixed(3)} ms (plan ${ms.plan.toFixed(3)}, begin ${ms.begin.toFixed(3)}, rest ${ms.rest.toFixed(3)}) beside ${ms.decode.toFixed(2)} of decoding`,
    )
  }
}

function result(turns: readonly Turn[]): Turn & { readonly books: number } {
  const of = (part: keyof Turn) => median(turns.map((turn) => turn[part]))
  const books = median(turns.map(({ plan, begin, rest }) => plan + begin + rest))
  return { decode: of('decode'), books, plan: of('plan'), begin: of('begin'), rest: of('rest') }
}

const shared = (milliseconds: ReturnType<typeof result>, decode: number) => ({
  share: milliseconds.books / (milliseconds.books + decode),
  milliseconds: { ...milliseconds, decode },
})

const cacheOver = (memory: KvMemory) => new KvCache(memory, { offload: new OffloadTiers({ hostBytes: 2 ** 30 }) })

const textOf = (tokens: Int32Array): Prompt => ({
  tokens,
  messages: [{ index: 0, role: 'text', span: span(0, tokens.length) }],
})

/** Returns the text with these spans hidden, each replaced by its own marker. */
const folded = (base: Int32Array, holes: readonly ReplacedSpan[]): Prompt =>
  edited(
    base,
    holes.map(({ span: hole, marker }) => ({ ...hole, marker: randomTokens(marker, hole.start, VOCABULARY) })),
  )

/** Runs turns of one conversation, while two other conversations hold cells that it could copy. */
async function play(cache: KvCache, terms: StepContract, decoded: Decode): Promise<Turn[]> {
  for (const other of [1, 2]) await turn(cache, `other ${other}`, textOf(randomTokens(2048, other, VOCABULARY)), terms, decoded)
  await turn(cache, MEASURED, textOf(randomTokens(LENGTH, 3, VOCABULARY)), terms, decoded)
  return goOn(cache, terms, decoded)
}

/**
 * Runs turns that fold, until the conversation shows LENGTH tokens. Under `exact`, each turn shows again what the previous one hid, and
 * parks half of the text and computes it again. Under `splice`, all hidden text stays hidden.
 */
async function leavePast(cache: KvCache, terms: StepContract): Promise<void> {
  const stays = terms.contract === 'splice'
  const base = randomTokens(LENGTH + (stays ? FOLDS : 1) * (HIDDEN - MARKER), 3, VOCABULARY)
  let holes: ReplacedSpan[] = []
  for (let fold = 0; fold < FOLDS; fold++) {
    const start = LENGTH / 4 + 2 * HIDDEN * fold
    holes = [...(stays ? holes : []), { span: span(start, start + HIDDEN), marker: MARKER }]
    await turn(cache, MEASURED, folded(base, holes), terms, async () => {})
  }
}

/** Runs turns that each add NEW tokens to the conversation. */
async function goOn(cache: KvCache, terms: StepContract, decoded: Decode): Promise<Turn[]> {
  const turns: Turn[] = []
  for (let round = 0; round < ROUNDS; round++) {
    const before = cache.prompt(conversationId(MEASURED))!
    const base = Int32Array.from([...uneditedOf(before), ...randomTokens(NEW, 10 + round, VOCABULARY)])
    turns.push(await turn(cache, MEASURED, folded(base, before.origin?.holes ?? []), terms, decoded))
  }
  return turns.slice(WARM)
}

/** Runs one turn in the scheduler's order: fetch, prepare, begin, decodes and commits, finish. */
async function turn(cache: KvCache, name: string, shown: Prompt, terms: StepContract, decode: Decode): Promise<Turn> {
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
    await decode(seq, position, of)
    decoding += performance.now() - before
  }
  for (;;) {
    const chunk = cache.next(step, BATCH)
    if (chunk === null) break
    await decoded(chunk.seq, chunk.position, chunk.tokens)
    cache.commit(step, chunk.tokens, 'prompt', 0)
  }
  const answer = Int32Array.of(shown.tokens[0]!)
  const { seq, position } = cache.seat(step)
  await decoded(seq, position, answer)
  cache.commit(step, answer, 'generated', 0)
  cache.finish(step, 'done', 0)
  return { decode: decoding, plan: planned - started, begin: begun - planned, rest: performance.now() - begun - decoding }
}
