/** A context. It checks every argument and its own state before a call, because llama.cpp ends the process on bad arguments. */
import { KvfoldError } from '../core/errors.js'
import type { SeqId } from '../core/ids.js'
import type { Span } from '../core/span.js'
import { NativeAdapter, type AppliedAdapter } from './adapter.js'
import { type Addon, type ContextHandle, type RawContext, type RawDrawn, awaiting, calling, meant, refuse } from './addon.js'
import { NativeCapture, type Watched } from './capture.js'
import { availableMemory, type ContextPlan, fixedKeys, refuseTooMuch } from './context-options.js'
import { NativeSampler } from './sampler.js'
import { isSealed, sealState, STATE_HEADER } from './sequence-state.js'
import type { Batch, CaptureOptions, Cell, DecodeStatus, DrawnTokens, MemoryFigures, ModelInfo, RunEnd } from './values.js'

const LAST_POSITION = 2 ** 31 - 1
const REPORT_ROUNDING = 2 ** 14
/** If a decode's logits take more bytes than this, it checks first that enough memory is free. */
const MANY_LOGITS = 256 * 2 ** 20

/** The largest absolute value of an adapter's scale. Larger scales overflow the activations. */
const LARGEST_SCALE = 1e6

/**
 * Several decodes in a row. Each decode takes one token per sequence: the one that was sampled after the decode before. All arrays have one
 * element per sequence.
 */
export interface DecodeRun {
  /** The tokens of the first decode. */
  readonly tokens: Int32Array
  readonly positions: Int32Array
  /** The sequences of the run, each at most once. */
  readonly sequences: Int32Array
  readonly samplers: readonly NativeSampler[]
  /** For each sequence: the most tokens to sample, at least 1. The run ends when one sequence reaches its limit. */
  readonly limits: Int32Array
  /** The most decodes, at least 1. Each decode takes one cell per sequence. */
  readonly steps: number
}

export class NativeContext {
  readonly cells: number
  readonly sequences: number
  readonly batch: number
  readonly ubatch: number
  /** Whether flash attention is on. For `auto`, llama.cpp decided when the context was made. */
  readonly flashAttention: boolean
  readonly canShift: boolean
  /** For each layer: its number of attention heads; 0 for a recurrent layer, which has no softmax. Null without the option `attention`. */
  readonly attention: readonly number[] | null
  readonly memory: MemoryFigures
  #handle: ContextHandle | null
  #decoding: Promise<unknown> | null = null
  #disposing: Promise<void> | null = null

  constructor(
    private readonly addon: Addon,
    private readonly info: ModelInfo,
    made: RawContext,
    private readonly plan: ContextPlan,
    /** Hash of everything on which a saved sequence's bytes depend (`identityOf`). A state with another hash is not loaded. */
    readonly identity: Buffer,
    private readonly onDispose: (closed: NativeContext) => void,
  ) {
    const { size } = info
    this.#handle = made.handle
    this.cells = made.cells
    this.sequences = made.sequences
    this.batch = made.batch
    this.ubatch = made.ubatch
    this.flashAttention = made.flashAttention
    this.attention = made.attention === null ? null : [...made.attention]
    this.canShift = made.canShift && fixedKeys(info, plan.keyType) === null
    this.memory = { cache: figure(made.cacheBytes, plan.cache), compute: figure(made.computeBytes, plan.compute), model: size }
  }

  /** How many tokens llama.cpp has accepted into the cache since the context was made. */
  get submitted(): number {
    const handle = this.#alive()
    return calling(() => this.addon.submitted(handle))
  }

  /**
   * The handle for a call into the addon, if no decode is running on this context.
   * @throws KvfoldError native/disposed, native/busy
   */
  get idle(): ContextHandle {
    const handle = this.#alive()
    if (this.#decoding !== null)
      throw new KvfoldError('native/busy', 'A decode is running on this context; wait for it or abort it.')
    return handle
  }

  /**
   * Sets the adapters that later decodes apply, to all sequences of a batch. They replace the adapters set before. Cells that are in the
   * cache already do not change. After a change the next decode takes a few milliseconds longer.
   * @throws KvfoldError native/bad-argument for an adapter of another model, one that is named twice, or a scale that is not finite
   */
  useAdapters(applied: readonly AppliedAdapter[]): void {
    const { idle } = this
    const handles = applied.map(({ adapter }) =>
      adapter instanceof NativeAdapter ? adapter.handle : refuse('A context needs adapters that this addon loaded.'),
    )
    if (new Set(handles).size < handles.length) refuse('An adapter is named twice; name each once, with one scale.')
    for (const { adapter, scale } of applied)
      if (!(Math.abs(scale) <= LARGEST_SCALE))
        refuse(`The scale of ${adapter.path} is ${scale}; give a number up to ${LARGEST_SCALE}.`)
    const scales = Float32Array.from(applied, ({ scale }) => scale)
    calling(() => {
      this.addon.useAdapters(idle, handles, scales)
    })
  }

  /** Decodes a batch off the event loop. The tokens of each sequence must continue at the position after its last one, without a gap. */
  async decode(batch: Batch, watched: readonly Watched[] = []): Promise<DecodeStatus> {
    const { idle, batch: most, sequences } = this
    const { vocabulary } = this.info
    checkBatch(batch, {
      batch: most,
      vocabulary,
      sequences,
      last: (seq) => calling(() => this.addon.positions(idle, seq))[1],
    })
    this.#checkEmbeddings(batch)
    const logits = 4 * vocabulary * batch.outputs.reduce((count, wanted) => count + (wanted === 0 ? 0 : 1), 0)
    if (logits > MANY_LOGITS)
      refuseTooMuch('The logits of this batch', logits, availableMemory(), 'memory', 'request fewer outputs')
    const { tokens, positions, sequences: tags, outputs } = batch
    const captures = watched.length === 0 ? null : watched.map((each) => NativeCapture.armed(this, batch, each))
    const status = await this.#busy(awaiting(() => this.addon.decode(idle, tokens, positions, tags, outputs, captures)))
    if (status === 'done') for (const each of watched) NativeCapture.filled(each)
    return status
  }

  /**
   * Decodes and samples off the event loop, step after step. The run ends when a sequence ends: its last sampled token ends generation, or
   * is a stop token. It also ends when a limit is reached, or after `interrupt`.
   *
   * `heard` receives finished steps in order; the last steps come with the result. Until then no other code may use the context or the
   * samplers; disposing a sampler ends the run. Contexts with `attention` or `embeddings` refuse runs.
   * @throws KvfoldError native/*, before anything was decoded; an error of `heard`, unchanged, after the run has ended
   */
  async generate(run: DecodeRun, heard: (drawn: DrawnTokens) => void): Promise<RunEnd> {
    const { idle, batch } = this
    const { tokens, positions, sequences, limits, steps } = run
    checkBatch(
      { tokens, positions, sequences, outputs: new Uint8Array(tokens.length).fill(1) },
      {
        batch,
        vocabulary: this.info.vocabulary,
        sequences: this.sequences,
        last: (seq) => calling(() => this.addon.positions(idle, seq))[1],
      },
    )
    if (this.plan.pooling !== null || this.attention !== null)
      refuse('A context for embeddings or attention capture cannot generate runs; decode step by step.')
    if (new Set(sequences).size < sequences.length)
      refuse('A run names a sequence twice; name each once, because a sequence takes one token a step.')
    if (run.samplers.length !== tokens.length || limits.length !== tokens.length || limits.some((limit) => limit < 1))
      refuse('A run needs a sampler and a limit of at least 1 for every sequence.')
    if (!Number.isInteger(steps) || steps < 1 || positions.some((position) => position + steps > LAST_POSITION))
      refuse(`steps is ${steps}; a run needs at least 1 step and must end before position ${LAST_POSITION}.`)
    const samplers = run.samplers.map((sampler) =>
      sampler instanceof NativeSampler ? sampler.handle : refuse('A run needs samplers that this addon created.'),
    )
    const thrown: unknown[] = []
    const tell = (raw: RawDrawn) => {
      // An error that is thrown in this callback would only be printed by Node. So keep it, and throw it when the run has ended.
      try {
        if (thrown.length === 0) heard(drawnOf(raw))
      } catch (error) {
        thrown.push(error)
        this.interrupt()
      }
    }
    const end = await this.#busy(
      awaiting(() => this.addon.generate(idle, tokens, positions, sequences, samplers, limits, steps, tell)),
    )
    if (thrown.length > 0) throw thrown[0]
    const error = (words: string) => (words === '' ? null : meant(words))
    const refused = Array.from(tokens, (_, at) => error(end.refused[at] ?? ''))
    return { status: end.status, failure: error(end.failure), drawn: drawnOf(end), refused }
  }

  /** Ends the running `generate` after its current step. Does nothing if no run is going on. */
  interrupt(): void {
    if (this.#decoding !== null && this.#handle !== null) this.addon.pause(this.#handle)
  }

  /**
   * Stops the running decode: on a CPU within a graph, on a GPU at the next ubatch. Does nothing if no decode runs, or if it is the first one
   * after `shift`.
   */
  abort(): void {
    if (this.#decoding !== null && this.#handle !== null) this.addon.abort(this.#handle)
  }

  /** Returns a copy of a token's logits, one number for each token of the vocabulary. `index` is the token's index in the last batch. */
  logits(index: number): Float32Array {
    const { idle } = this
    return calling(() => this.addon.logits(idle, index))
  }

  /**
   * Returns a copy of an embedding of the last decode, not normalised. Without pooling, `at` is a batch index. With pooling, `at` is a
   * sequence, and the embedding covers only its tokens in the last ubatch. @throws KvfoldError native/bad-argument if there is none
   */
  embedding(at: number): Float32Array {
    const { idle } = this
    return calling(() => this.addon.embedding(idle, at))
  }

  /**
   * Makes a capture. @throws KvfoldError attention/unavailable without `attention`, native/bad-argument for layers or heads that do not
   * exist
   */
  createCapture(options: CaptureOptions): NativeCapture {
    this.#alive()
    return new NativeCapture(this.addon, this, options)
  }

  tag(from: SeqId, to: SeqId, { start, end }: Span): void {
    const { idle } = this
    this.#checkSequence(from)
    this.#checkSequence(to)
    this.#checkSpan(start, end)
    this.#refusePart(from, start, end, 'Tagging')
    if (from !== to && start < end)
      calling(() => {
        this.addon.tag(idle, from, to, start, end)
      })
  }

  untag(seq: SeqId, { start, end }: Span): void {
    const { idle } = this
    this.#checkSequence(seq)
    this.#checkSpan(start, end)
    this.#refusePart(seq, start, end, 'Untagging')
    if (start < end)
      calling(() => {
        this.addon.untag(idle, seq, start, end)
      })
  }

  /**
   * Moves the positions of a sequence's cells in the span by `delta` (llama_memory_seq_add). @throws KvfoldError model/unsupported if
   * llama.cpp would assert
   */
  shift(seq: SeqId, { start, end }: Span, delta: number): void {
    const { idle } = this
    this.#checkSequence(seq)
    this.#checkSpan(start, end)
    if (!this.canShift)
      throw new KvfoldError(
        'model/unsupported',
        `The positions of this ${this.info.architecture} model's cells cannot be shifted: ${fixedKeys(this.info, this.plan.keyType) ?? 'llama.cpp refuses'}.`,
      )
    this.#refusePart(seq, start, end, 'Shifting')
    const held = this.positions(seq)
    if (!Number.isInteger(delta) || start + delta < 0 || (held?.max ?? 0) + delta > LAST_POSITION)
      refuse(`A shift of [${start}, ${end}) by ${delta} would leave the positions from 0 to ${LAST_POSITION}.`)
    if (start < end && delta !== 0)
      calling(() => {
        this.addon.shift(idle, seq, start, end, delta)
      })
  }

  positions(seq: SeqId): { readonly min: number; readonly max: number } | null {
    const { idle } = this
    this.#checkSequence(seq)
    const [min, max] = calling(() => this.addon.positions(idle, seq))
    return max < 0 ? null : { min, max }
  }

  /**
   * Returns all occupied cells, parsed from llama_state_get_data. It copies the whole cache, so it is for tests only. For a sliding-window
   * model, these are the cells of the layers without a window.
   */
  readback(): readonly Cell[] {
    const { idle } = this
    this.#refuseCacheless()
    const { recurrent, hybrid } = this.info
    if (recurrent || hybrid)
      throw new KvfoldError(
        'model/unsupported',
        'The cells of recurrent and hybrid models cannot be read back, because their cells are not positions of a text.',
      )
    const raw = calling(() => this.addon.readback(idle))
    const cells: Cell[] = []
    for (let at = 0; at < raw.length;) {
      const [position = -1, count = 0] = raw.subarray(at, at + 2)
      cells.push({ position, sequences: Array.from(raw.subarray(at + 2, at + 2 + count)) as SeqId[] })
      at += 2 + count
    }
    return cells
  }

  clear(): void {
    const { idle } = this
    calling(() => {
      this.addon.clear(idle)
    })
  }

  /** Returns the state of one whole sequence (llama_state_seq_get_data), with a header: only an equal model and context will load it. */
  saveSequence(seq: SeqId): Uint8Array {
    const { idle } = this
    this.#refuseCacheless()
    this.#checkSequence(seq)
    const state = calling(() => this.addon.saveSequence(idle, seq, STATE_HEADER))
    sealState(state, this.identity)
    return state
  }

  /**
   * Does the same as saveSequence, but off the event loop. The context is busy meanwhile. The memory is pinned if the GPU's backend offers
   * that, and is reused when the array is collected.
   */
  async copyOut(seq: SeqId): Promise<Uint8Array> {
    const { idle } = this
    this.#refuseCacheless()
    this.#checkSequence(seq)
    const state = await this.#busy(awaiting(() => this.addon.copyOut(idle, seq, STATE_HEADER)))
    sealState(state, this.identity)
    return state
  }

  /**
   * Does the same as loadSequence, but off the event loop. The context is busy meanwhile, and the caller must not write to the state.
   */
  async copyIn(seq: SeqId, state: Uint8Array): Promise<boolean> {
    const idle = this.#emptied(seq)
    if (!isSealed(state, this.identity)) return false
    return this.#busy(awaiting(() => this.addon.copyIn(idle, seq, state, STATE_HEADER)))
  }

  /**
   * Loads a state into an empty sequence. Returns false, and changes nothing, if the cache has no room, or if the state is cut off or
   * foreign (`isSealed`). Its values are not checked. So a state must come from this process, or the caller must have verified it.
   */
  loadSequence(seq: SeqId, state: Uint8Array): boolean {
    const idle = this.#emptied(seq)
    return isSealed(state, this.identity) && calling(() => this.addon.loadSequence(idle, seq, state, STATE_HEADER))
  }

  dispose(): Promise<void> {
    this.#disposing ??= this.#dispose()
    return this.#disposing
  }

  async #dispose(): Promise<void> {
    const handle = this.#handle
    if (handle === null) return
    this.abort()
    await this.#decoding?.catch(() => undefined)
    this.#handle = null
    this.onDispose(this)
    await awaiting(() => this.addon.contextFree(handle))
  }

  /** Returns the context's handle if a state may be loaded into this sequence: it exists and is empty. Throws otherwise. */
  #emptied(seq: SeqId): ContextHandle {
    const { idle } = this
    this.#refuseCacheless()
    this.#checkSequence(seq)
    if (this.positions(seq) !== null)
      refuse(`Sequence ${seq} is not empty; a state goes into an empty one only, because llama.cpp empties it first.`)
    return idle
  }

  /** Marks the context as busy while `running` uses it. */
  async #busy<T>(running: Promise<T>): Promise<T> {
    this.#decoding = running
    try {
      return await running
    } finally {
      this.#decoding = null
    }
  }

  #alive(): ContextHandle {
    if (this.#handle === null || this.#disposing !== null)
      throw new KvfoldError('native/disposed', 'The context was disposed; create another.')
    return this.#handle
  }

  #checkSequence(seq: SeqId): void {
    if (!Number.isInteger(seq) || seq < 0 || seq >= this.sequences)
      refuse(`Sequence ${seq} does not exist; use 0 to ${this.sequences - 1}.`)
  }

  /** Refuses models without a cache. llama.cpp would do nothing for them and report success. */
  #refuseCacheless(): void {
    const { encoder, architecture } = this.info
    if (encoder)
      throw new KvfoldError(
        'model/unsupported',
        `${architecture} models keep no cache, so there is nothing to tag, save or read back.`,
      )
  }

  /**
   * Checks a batch of a context for embeddings. There, llama.cpp makes an output of every token, so all outputs must be requested. A text
   * encoder looks positions up in a table, so every position must lie in the table.
   */
  #checkEmbeddings({ outputs, positions }: Batch): void {
    if (this.plan.pooling === null) return
    const { encoder, trainedContext, architecture } = this.info
    if (outputs.includes(0)) refuse('A context for embeddings outputs every token; set all outputs of the batch to 1.')
    const last = positions.reduce((most, position) => Math.max(most, position), 0)
    if (encoder && last >= trainedContext)
      refuse(`Position ${last} is too far: this ${architecture} model has ${trainedContext} positions, counted from 0.`)
  }

  /**
   * Refuses bounds that are no span of positions. To llama.cpp a negative bound means "everything", so a wrong sign could empty a sequence.
   */
  #checkSpan(start: number, end: number): void {
    if (!Number.isInteger(start) || !Number.isInteger(end) || start < 0 || end < start || end > LAST_POSITION)
      refuse(`[${start}, ${end}) is not a span of positions.`)
  }

  /**
   * Refuses to change only a part of a sequence where llama.cpp would report success but keep or lose the wrong tokens. A recurrent state
   * cannot be divided into tokens. A sliding window that has moved on lacks tokens that a shortened text would see.
   */
  #refusePart(seq: SeqId, start: number, end: number, what: string): void {
    const { recurrent, hybrid, slidingWindow, architecture } = this.info
    this.#refuseCacheless()
    const windowed = slidingWindow > 0 && !this.plan.fullSlidingWindow
    if (!recurrent && !hybrid && !windowed) return
    const held = this.positions(seq)
    if (held === null || start >= end || (start <= held.min && end > held.max)) return
    if (recurrent || hybrid)
      throw new KvfoldError(
        'model/unsupported',
        `${what} a part of a sequence is impossible: ${architecture} keeps a recurrent state.`,
      )
    if (held.min > 0)
      throw new KvfoldError(
        'model/unsupported',
        `${what} a part of a sequence needs the whole sliding window of ${architecture}; create the context with fullSlidingWindow.`,
      )
  }
}

const drawnOf = ({ drawn, milliseconds }: RawDrawn): DrawnTokens => ({ tokens: drawn, milliseconds })

/**
 * Chooses between the size that llama.cpp logged and our estimate, both in bytes. llama.cpp rounds each buffer to hundredths of a MiB. So
 * the estimate is taken if the two differ by no more than that, or if nothing was logged; else the logged size.
 */
function figure(reported: number, estimate: number): number {
  return reported === 0 || Math.abs(reported - estimate) <= REPORT_ROUNDING ? estimate : Math.round(reported)
}

// Checks a batch for everything that llama.cpp would assert on or misread.

export interface BatchRules {
  /** The most tokens of one decode. */
  readonly batch: number
  readonly vocabulary: number
  readonly sequences: number
  /** Returns the largest position of a sequence; -1 when it is empty. */
  last(seq: number): number
}

/**
 * Checks a batch before a decode. @throws KvfoldError native/bad-argument, e.g. if its positions leave a gap behind a sequence in the cache
 */
export function checkBatch({ tokens, positions, sequences, outputs }: Batch, rules: BatchRules): void {
  const bad = (what: string): never => refuse(`The batch cannot be decoded: ${what}.`)
  const size = tokens.length
  if (size === 0) bad('it is empty')
  if (positions.length !== size || sequences.length !== size || outputs.length !== size) bad('its arrays differ in length')
  if (size > rules.batch) bad(`it has ${size} tokens, but the context takes at most ${rules.batch} at once`)
  const next = new Map<number, number>()
  for (let at = 0; at < size; at++) {
    const token = tokens[at] ?? -1
    const position = positions[at] ?? -1
    const seq = sequences[at] ?? -1
    if (token < 0 || token >= rules.vocabulary) bad(`token ${token} at ${at} is not in the vocabulary of ${rules.vocabulary}`)
    if (seq < 0 || seq >= rules.sequences) bad(`sequence ${seq} at ${at} does not exist; use 0 to ${rules.sequences - 1}`)
    const expected = next.get(seq) ?? rules.last(seq) + 1
    if (position !== expected) bad(`sequence ${seq} continues at position ${expected}, not ${position} (entry ${at})`)
    next.set(seq, expected + 1)
  }
}
