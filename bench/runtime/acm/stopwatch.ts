/** Times turns on a real engine: fills in a text once, then runs turns that begin with all of it cached. */
import { invariant, KvfoldError } from '../../../src/runtime/core/errors.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import type { Completion, LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { medianOf } from '../../../src/runtime/kv/cost-model.js'
import type { Prompt } from '../../../src/runtime/kv/prompt.js'
import { folded, MARKER, open, type Point, randomText, termsOf, type Arm } from './schedule.js'

/** Tokens `from` to `to` of the text, computed behind the earlier ones, and the milliseconds this took. */
export interface Fill {
  readonly from: number
  readonly to: number
  readonly milliseconds: number
}

/** One timed turn. Milliseconds are on the requested clock, except where a comment names the wall clock. */
export interface TurnTiming {
  readonly way: Arm
  /** `shown`: tokens shown when the first token was generated. `cells`: cells in use at that time. */
  readonly shown: number
  readonly cells: number
  /** Milliseconds from the request to the first token. */
  readonly first: number
  /** Portions of `first`. `books`: planning, cell bookkeeping and tags (wall clock). `prefill`: computing the prompt. */
  readonly books: number
  readonly prefill: number
  /** Milliseconds between two generated tokens: `perToken` is the median of all `gaps`. */
  readonly perToken: number
  readonly gaps: readonly number[]
  /** Prompt tokens that were computed, by the ledger. */
  readonly computed: number
  /** Shown tokens that keep a trace of folded text (see LedgerEntry). */
  readonly approximate: number
  /** The engine's estimate, made beforehand, for bookkeeping and prompt (wall clock). */
  readonly predicted: number | null
}

/**
 * `wall`: wall time. `cpu`: CPU time of the process. With one CPU thread both are nearly the same, but other work on a busy machine hardly
 * disturbs `cpu`.
 */
export type ClockName = 'wall' | 'cpu'

export interface StopwatchOptions {
  readonly clock: ClockName
  /** Tokens generated in every turn, at least 2. */
  readonly generated: number
  /** The share of the text behind the fold that `blend` computes again. */
  readonly blend: number
  readonly seed: number
  readonly signal?: AbortSignal
}

const TEXT = conversationId('acm-text')

/** Needs an engine that no other caller uses, with room for the text and for what a fold computes again. */
export class Stopwatch {
  readonly #text: Int32Array
  readonly #ends: readonly { readonly token: number; readonly bias: number }[]
  #filled = 0
  #turns = 0

  /** `length`: tokens of the text. */
  constructor(
    private readonly engine: LlamaEngine,
    length: number,
    private readonly options: StopwatchOptions,
  ) {
    const { model } = engine
    const { vocabulary } = model.info
    this.#text = randomText(length, vocabulary, options.seed)
    // Ban the tokens that end an answer, because an ended answer has nothing left to time.
    this.#ends = Array.from({ length: vocabulary }, (_, token) => token)
      .filter((token) => model.isEndOfGeneration(token))
      .map((token) => ({ token, bias: -Infinity }))
  }

  /** Tokens of the text that are cached. */
  get filled(): number {
    return this.#filled
  }

  /**
   * Computes the text up to token `to`, which must be behind the filled part.
   * @param onProgress receives the number of tokens done so far
   * @throws KvfoldError engine/cancelled
   */
  async fill(to: number, onProgress?: (tokens: number) => void): Promise<Fill> {
    const from = this.#filled
    const begun = this.#now()
    const shown = open(this.#text.subarray(0, to))
    await this.#complete(TEXT, shown, { maxTokens: 0, onPrefill: (done) => onProgress?.(done) })
    const milliseconds = this.#now() - begun
    this.#filled = to
    return { from, to, milliseconds }
  }

  /**
   * Times a turn that begins with the whole filled text cached and shown, and with no other cells in use. Under a contract it first folds
   * the text. Each fold gets a new marker, so that it cannot reuse cells of an earlier fold. The text keeps its cells, so cells that a
   * blend replaces stay in use, unlike in a normal conversation.
   * @param point required for folds; `before` tokens must be filled in
   * @throws KvfoldError engine/cancelled
   */
  turn(way: 'keep', point?: Point): Promise<TurnTiming>
  turn(way: Arm, point: Point): Promise<TurnTiming>
  turn(way: Arm, point?: Point): Promise<TurnTiming> {
    const text = this.#text.subarray(0, this.#filled)
    if (way === 'keep' || point === undefined) return this.#turn(way, open(text))
    invariant(point.before === this.#filled, `a fold of ${point.before} tokens was timed while ${this.#filled} are there`)
    const marker = randomText(MARKER, this.engine.model.info.vocabulary, this.options.seed + 1 + this.#turns)
    return this.#turn(way, folded(text, point, marker))
  }

  /** Returns milliseconds on the chosen clock. */
  #now(): number {
    if (this.options.clock === 'wall') return performance.now()
    const { user, system } = process.cpuUsage()
    return (user + system) / 1000
  }

  async #turn(way: Arm, shown: Prompt): Promise<TurnTiming> {
    const { engine, options } = this
    const conversation = conversationId(`acm-turn-${++this.#turns}`)
    try {
      // The turn has its own conversation, so that all its cells can be dropped later. It shows the text before the clock starts.
      await this.#complete(conversation, open(this.#text.subarray(0, this.#filled)), { maxTokens: 0 })
      const at: number[] = []
      const begun = this.#now()
      const { ledger, timing } = await this.#complete(conversation, shown, {
        maxTokens: options.generated,
        terms: termsOf(way, options.blend),
        sampling: { logitBias: this.#ends },
        onText: (_, tokens) => {
          if (tokens.length > 0) at.push(this.#now())
          return false
        },
      })
      if (ledger.fallback !== null)
        throw new KvfoldError('engine/bad-request', `A fold under ${way} cannot be measured here: ${ledger.fallback}.`)
      const first = (at[0] ?? NaN) - begun
      const gaps = at.slice(1).map((time, index) => time - at[index]!)
      return {
        way,
        shown: shown.tokens.length,
        cells: engine.cacheTotals.used - gaps.length,
        first,
        books: ledger.milliseconds.cache,
        // The ledger uses the wall clock.
        prefill: options.clock === 'wall' ? ledger.milliseconds.prefill : first,
        perToken: medianOf(gaps),
        gaps,
        computed: timing.prefillTokens,
        approximate: ledger.approximate,
        predicted: ledger.predicted,
      }
    } finally {
      engine.forget(conversation)
    }
  }

  async #complete(
    conversation: Completion['conversation'],
    { tokens, origin }: Prompt,
    rest: Omit<Completion, 'conversation' | 'tokens' | 'origin'>,
  ): ReturnType<LlamaEngine['complete']> {
    const { signal } = this.options
    const result = await this.engine.complete({
      conversation,
      tokens,
      ...(origin === undefined ? {} : { origin }),
      ...(signal === undefined ? {} : { signal }),
      ...rest,
    })
    if (result.finish === 'cancelled') throw new KvfoldError('engine/cancelled', 'The study was cancelled.')
    return result
  }
}
