/** Measures what a model costs on this machine: prefill and decode at several depths, bookkeeping of folds, copies to host memory. */
import { invariant, KvfoldError } from '../core/errors.js'
import { conversationId, seqId, type SeqId } from '../core/ids.js'
import { Random } from '../core/random.js'
import { span } from '../core/span.js'
import { KvCache } from '../kv/cache.js'
import type { StepContract } from '../kv/plan/parts.js'
import {
  COST_VERSION,
  type CostModel,
  fitCosts,
  type MeasuredOn,
  medianOf,
  type ComputedRun,
  type Timed,
  type TimedBooks,
} from '../kv/cost-model.js'
import type { Prompt } from '../kv/prompt.js'
import type { NativeContext } from '../native/types.js'

export interface CalibrateOptions {
  /** Whether to take about 10 seconds instead of about a minute, with fewer depths and more noise. Default false. */
  readonly quick?: boolean
  /**
   * The milliseconds that the calibration may take. A few figures are measured in any case. More time allows greater depths and larger
   * chunks. Default: about a minute, or 10 seconds with `quick`.
   */
  readonly budget?: number
  readonly signal?: AbortSignal
  /** Receives the share of the time that has passed (0..1), and the name of the current measurement. */
  readonly onProgress?: (share: number, what: string) => void
}

/** The limits of a calibration: milliseconds in all, the greatest depth in tokens, and the rounds per figure. */
interface CalibrationLimits {
  readonly budget: number
  readonly deepest: number
  readonly rounds: number
}

const WHOLE: CalibrationLimits = { budget: 50_000, deepest: 16_384, rounds: 5 }
const QUICK: CalibrationLimits = { budget: 8_000, deepest: 4096, rounds: 3 }
/** `FILLED` is the sequence that is filled with tokens. Timed runs happen in `PROBE`, beside it. */
const FILLED = seqId(0)
const PROBE = seqId(1)
const SMALL = 16
/** The fewest cells of a context for a calibration. With fewer, differences in time cannot be seen. */
const FEWEST = 1024
const SHALLOWEST = 256
/**
 * How many sequences the context needs: a live one, a scratch one, and one that keeps the cells. The folds and restores of the rounds park
 * the rest.
 */
export const SEQUENCES = 16
/** A chunk whose decode takes more than this share of the budget is made smaller. */
const LONGEST = 1 / 60
/** The share of the budget for the rounds of one figure. Long measurements need fewer rounds, because noise weighs less in them. */
const LONGEST_ROUNDS = 1 / 30
/** The share of the budget for prefill and decode. The rest is for copies and bookkeeping. */
const COMPUTING = 0.8
const MARKER = 16
/** The fewest steps from which the three rates of bookkeeping can be determined. */
const FEWEST_STEPS = 4
const SPLICE: StepContract = { contract: 'splice' }

/**
 * Measures the costs on an empty context, and leaves it empty. Every figure is the median of several rounds. The depth grows up to fourfold
 * at a time until the budget is used up, so a faster machine reaches a greater depth. Few depths suffice, because costs are linear in it.
 * @param vocabulary how many tokens the model has
 * @throws KvfoldError engine/bad-request when the context is too small, engine/cancelled, and what the context throws
 */
export async function calibrate(
  context: NativeContext,
  vocabulary: number,
  on: MeasuredOn,
  { quick = false, budget, signal, onProgress }: CalibrateOptions = {},
): Promise<CostModel> {
  const usual = quick ? QUICK : WHOLE
  const limits = budget === undefined ? usual : { ...usual, budget }
  if (context.cells < FEWEST || context.sequences < SEQUENCES)
    throw new KvfoldError(
      'engine/bad-request',
      `A calibration needs a context of at least ${FEWEST} cells and ${SEQUENCES} sequences.`,
    )
  const bench = new CalibrationBench(context, vocabulary, limits, signal, onProgress)
  const abort = () => {
    context.abort()
  }
  signal?.addEventListener('abort', abort)
  try {
    const chunk = await bench.warmUp()
    const prefill: Timed[] = []
    const decode: Timed[] = []
    const most = Math.min(limits.deepest, context.cells - chunk - SHALLOWEST)
    let depth = 0
    for (;;) {
      const begun = bench.elapsed
      // Measure with all `depth` cells attended and with none, to separate the costs of attended and of scanned cells.
      for (const attended of new Set([0, depth])) {
        decode.push(await bench.time({ tokens: 1, attended, cells: depth }))
        for (const tokens of new Set([SMALL, 4 * SMALL, 16 * SMALL, chunk].filter((size) => size <= chunk)))
          prefill.push(await bench.time({ tokens, attended, cells: depth }))
      }
      // The next depth needs at least as much time as this one. The rest of the time can go into filling the sequence up to it.
      const left = COMPUTING * limits.budget - bench.elapsed - (bench.elapsed - begun)
      const affordable = Math.floor((left * chunk) / prefill.at(-1)!.milliseconds)
      const next = Math.min(most, depth === 0 ? Math.max(2 * chunk, SHALLOWEST) : depth + Math.min(3 * depth, affordable))
      // A slightly greater depth adds no information.
      if (next < 1.25 * depth) break
      await bench.fill(depth, next, chunk)
      depth = next
    }
    const host = bench.host()
    const books = await bench.books()
    return { version: COST_VERSION, on, deepest: depth, ...fitCosts(prefill, decode, books, context.ubatch), host }
  } finally {
    signal?.removeEventListener('abort', abort)
    context.clear()
  }
}

/** The test bench: a context with one sequence full of random tokens (FILLED), beside which runs are timed. */
class CalibrationBench {
  readonly #begun = performance.now()
  readonly #random = new Random(1)

  constructor(
    private readonly context: NativeContext,
    private readonly vocabulary: number,
    private readonly limits: CalibrationLimits,
    private readonly signal: AbortSignal | undefined,
    private readonly onProgress: CalibrateOptions['onProgress'],
  ) {}

  /** Milliseconds since the bench began. */
  get elapsed(): number {
    return performance.now() - this.#begun
  }

  /**
   * Runs a few decodes, because the first ones are slow. Returns the chunk size: how many tokens can be decoded several times in the
   * budget.
   */
  async warmUp(): Promise<number> {
    this.#tell('warming up')
    let took = 0
    for (let round = 0; round < 3; round++) {
      took = await this.#decode(PROBE, 0, this.#tokens(SMALL))
      this.context.untag(PROBE, span(0, SMALL))
    }
    let chunk = Math.min(this.context.ubatch, Math.floor(this.context.cells / 4))
    while (chunk > SMALL && (took / SMALL) * chunk > this.limits.budget * LONGEST) chunk = Math.floor(chunk / 2)
    return chunk
  }

  /** Lengthens the sequence FILLED from `from` to `to` tokens. */
  async fill(from: number, to: number, chunk: number): Promise<void> {
    for (let at = from; at < to; at += chunk) {
      this.#tell(`filling up to ${to} tokens`)
      await this.#decode(FILLED, at, this.#tokens(Math.min(chunk, to - at)))
    }
  }

  /** Times a run in PROBE. FILLED has `run.cells` cells meanwhile, and the run sees the first `run.attended` of them. */
  async time(run: ComputedRun): Promise<Timed> {
    const { tokens, attended, cells } = run
    const times: number[] = []
    const end = this.elapsed + LONGEST_ROUNDS * this.limits.budget
    for (let round = 0; round < this.limits.rounds && (round === 0 || this.elapsed < end); round++) {
      this.#tell(`${tokens === 1 ? 'decode' : `prefill of ${tokens}`} at ${cells} cells`)
      if (attended > 0) this.context.tag(FILLED, PROBE, span(0, attended))
      times.push(await this.#decode(PROBE, attended, this.#tokens(tokens)))
      this.context.untag(PROBE, span(0, attended + tokens))
    }
    return { ...run, milliseconds: medianOf(times) }
  }

  /** Measures copies to host memory and back, with a sequence of as many cells as are free, at most 4096. */
  host(): CostModel['host'] {
    this.#tell('copies to host memory')
    const { context, limits } = this
    const filled = (context.positions(FILLED)?.max ?? -1) + 1
    const size = Math.min(filled, context.cells - filled, 4096)
    invariant(size > 0, 'a calibration copies a sequence before it filled one')
    const saves: number[] = []
    const loads: number[] = []
    let bytes = 0
    for (let round = 0; round < limits.rounds + 1; round++) {
      context.tag(FILLED, PROBE, span(0, size))
      const begun = performance.now()
      const state = context.saveSequence(PROBE)
      const saved = performance.now()
      context.untag(PROBE, span(0, size))
      const cleared = performance.now()
      invariant(context.loadSequence(PROBE, state), 'a context refused a state that it saved itself')
      const loaded = performance.now()
      context.untag(PROBE, span(0, size))
      bytes = state.byteLength
      // The first round allocates memory that the system must provide, so it does not count.
      if (round === 0) continue
      saves.push(saved - begun)
      loads.push(loaded - cleared)
    }
    const rate = (milliseconds: number) => (1000 * bytes) / Math.max(milliseconds, 1e-3)
    return {
      saveBytesPerSecond: rate(medianOf(saves)),
      loadBytesPerSecond: rate(medianOf(loads)),
      bytesPerCell: bytes / size,
    }
  }

  /**
   * Folds and restores spans of the sequence FILLED, as conversations do. Times everything but the decodes. Measures as many folds as the
   * time allows.
   */
  async books(): Promise<TimedBooks[]> {
    const filled = (this.context.positions(FILLED)?.max ?? -1) + 1
    const timed: TimedBooks[] = []
    // `keeper` holds the cells, which each cache over them would otherwise free at its end.
    const keeper = seqId(this.context.sequences - 1)
    this.context.tag(FILLED, keeper, span(0, filled))
    this.context.untag(FILLED, span(0, filled))
    for (const { held, size } of foldsOf(filled)) {
      if (this.#isLate && timed.length >= FEWEST_STEPS) break
      this.context.tag(keeper, FILLED, span(0, held))
      const timer = new TimedFolds(this.context, this.#tokens(held), (...run) => this.#decode(...run))
      const folds: number[] = []
      const restores: number[] = []
      for (let round = 0; round < this.limits.rounds + 1; round++) {
        if (this.#isLate && folds.length > 0) break
        this.#tell(`folds of ${size} of ${held} tokens`)
        const fold = await timer.show(size, this.#tokens(MARKER))
        const restore = await timer.show(0, this.#tokens(MARKER))
        // The first round runs code that the JIT has not compiled yet, so it does not count.
        if (round === 0) continue
        folds.push(fold)
        restores.push(restore)
      }
      timed.push({ shown: held - size + MARKER, moved: size, milliseconds: medianOf(folds) })
      timed.push({ shown: held, moved: size + MARKER, milliseconds: medianOf(restores) })
      timer.end()
    }
    return timed
  }

  get #isLate(): boolean {
    return this.elapsed > this.limits.budget
  }

  #tokens(count: number): Int32Array {
    return Int32Array.from({ length: count }, () => this.#random.below(this.vocabulary))
  }

  /** Decodes tokens. Returns the milliseconds from the call to the logits of the last token. */
  async #decode(seq: SeqId, position: number, tokens: Int32Array): Promise<number> {
    const { length } = tokens
    const outputs = new Uint8Array(length)
    outputs[length - 1] = 1
    const positions = Int32Array.from(tokens, (_, offset) => position + offset)
    const begun = performance.now()
    this.#refuseCancelled()
    const status = await this.context.decode({ tokens, positions, sequences: new Int32Array(length).fill(seq), outputs })
    this.#refuseCancelled()
    invariant(status === 'done', `a decode of a calibration ended ${status}`)
    this.context.logits(length - 1)
    return performance.now() - begun
  }

  #refuseCancelled(): void {
    if (this.signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'The calibration was cancelled.')
  }

  #tell(what: string): void {
    this.onProgress?.(Math.min(1, this.elapsed / this.limits.budget), what)
  }
}

/** Returns the folds to time. Each hides `size` of `held` tokens. The most informative come first, because time may run out. */
const foldsOf = (filled: number): { readonly held: number; readonly size: number }[] =>
  [2, 16, 4].flatMap((part) =>
    [...new Set([Math.ceil(filled / 4), filled, Math.ceil(filled / 2)])]
      .map((held) => ({ held, size: Math.ceil(held / part) }))
      .filter(({ size }) => size >= MARKER),
  )

/** A conversation in a KvCache of its own, over cells that are in the context already. */
class TimedFolds {
  readonly #cache: KvCache
  readonly #conversation = conversationId('calibration')

  /** @param base the tokens that FILLED's cells stand for; FILLED must be the sequence id that the cache lends first */
  constructor(
    context: NativeContext,
    private readonly base: Int32Array,
    private readonly decode: (seq: SeqId, position: number, tokens: Int32Array) => Promise<number>,
  ) {
    this.#cache = new KvCache(context)
    const { sequence, step } = this.#begin(this.#shown(0, base))
    invariant(sequence.seq === FILLED, 'a cache did not lend the filled sequence first')
    this.#cache.commit(step, base, 'prompt', 0)
    this.#cache.finish(step, 'done', 0)
  }

  /** Runs a step that hides `hidden` tokens in the middle of the text. Returns the milliseconds of planning and bookkeeping. */
  async show(hidden: number, marker: Int32Array): Promise<number> {
    const begun = performance.now()
    const { step } = this.#begin(this.#shown(hidden, marker))
    let spent = performance.now() - begun
    for (;;) {
      const chunk = this.#cache.next(step, this.base.length)
      if (chunk === null) break
      await this.decode(seqId(chunk.seq), chunk.position, chunk.tokens)
      const decoded = performance.now()
      this.#cache.commit(step, chunk.tokens, 'prompt', 0)
      spent += performance.now() - decoded
    }
    const ended = performance.now()
    this.#cache.finish(step, 'done', 0)
    return spent + performance.now() - ended
  }

  /** Drops the conversation, which frees its cells in FILLED. */
  end(): void {
    this.#cache.forget(this.#conversation)
  }

  #begin(prompt: Prompt) {
    const opened = this.#cache.open(this.#conversation)
    invariant(opened.kind === 'live', 'an empty cache has no live sequence')
    return {
      sequence: opened.sequence,
      step: this.#cache.begin(opened.sequence, this.#cache.plan(opened.sequence, prompt, SPLICE), 'answer'),
    }
  }

  #shown(hidden: number, marker: Int32Array): Prompt {
    const { base } = this
    const start = Math.floor((base.length - hidden) / 2)
    const end = start + hidden
    const tokens = hidden === 0 ? base : Int32Array.from([...base.subarray(0, start), ...marker, ...base.subarray(end)])
    const holes = hidden === 0 ? [] : [{ span: span(start, end), marker: marker.length }]
    return { tokens, messages: [{ index: 0, role: 'text', span: span(0, tokens.length) }], origin: { base, holes } }
  }
}
