/**
 * The draft model: a second, smaller model with the same vocabulary. It proposes the next tokens of answers, and the large model checks
 * them. It reads what is shown, so it follows folds by reading the text behind them again.
 */
import { KvfoldError } from '../core/errors.js'
import { type SeqId, seqId } from '../core/ids.js'
import type { ContextOptions, ModelOptions, Native, NativeContext, NativeModel, NativeSampler } from '../native/types.js'
import { abilitiesOf, refusalOf } from './model-facts.js'
import { followed } from './running-time.js'

export interface DraftModelOptions {
  /** Path of the GGUF file. */
  readonly path: string
  readonly model?: ModelOptions
}

/** The most tokens that one proposal has. Later ones are seldom right. */
export const MOST_PROPOSED = 16
/** The most tokens that are read before one proposal. A longer text is read over several batches of the large model. */
const SLICE = 512
/** Reading so few tokens takes about as long as reading one. */
const FEW = 8
/** Two vocabularies may differ by this many tokens at their ends, which llama.cpp allows, too. */
const MORE_TOKENS = 128

/** What to propose for one answer, and how much. */
export interface Asked {
  readonly sequence: DraftSequence
  readonly most: number
}

export class DraftModel {
  /** Sequences of no running answer, the least lately used first. They keep their cells, since conversations come back. */
  readonly #idle: DraftSequence[]
  readonly #samplers: readonly NativeSampler[]
  /** Milliseconds: to read what few tokens are missing, and to write one token for all streams. Null before the first measurement. */
  #reading: number | null = null
  #step: number | null = null
  /** Milliseconds to read a token of a long text. */
  #bulk: number | null = null
  /** Why the model drafts no more; null while it works. */
  #failed: string | null = null

  private constructor(
    private readonly model: NativeModel,
    private readonly context: NativeContext,
    /** How many tokens both models have. */
    readonly vocabulary: number,
    /** The size of this model divided by the large one's. */
    private readonly share: number,
    private readonly tell: (sentence: string) => void,
  ) {
    this.#idle = Array.from({ length: context.sequences }, (_, at) => new DraftSequence(seqId(at)))
    this.#samplers = this.#idle.map(() => model.createSampler({ temperature: 0 }))
  }

  /**
   * Loads the draft model of a large model.
   * @param context its cells, threads and types; `sequences`: how many answers run at once
   * @throws KvfoldError model/unsupported for another vocabulary, and for a cache from which tokens cannot be taken back; like loadModel
   */
  static async load(
    native: Native,
    large: NativeModel,
    { path, model: options }: DraftModelOptions,
    context: ContextOptions,
    tell: (sentence: string) => void,
  ): Promise<DraftModel> {
    const model = await native.loadModel(path, options)
    try {
      const { info } = model
      const refusal = refusalOf(info) ?? abilitiesOf(info).refusal ?? foreign(model, large)
      if (refusal !== null) throw new KvfoldError('model/unsupported', `${path} cannot draft: ${refusal}`)
      const made = await model.createContext({ ...context, fullSlidingWindow: info.slidingWindow > 0 })
      const vocabulary = Math.min(info.vocabulary, large.info.vocabulary)
      return new DraftModel(model, made, vocabulary, info.size / large.info.size, tell)
    } catch (error) {
      await model.dispose()
      throw error
    }
  }

  /** Returns a sequence for an answer to this prompt; null if there is none. The caller gives it back with `close`. */
  open(prompt: Int32Array): DraftSequence | null {
    if (this.#failed !== null || prompt.some((token) => token >= this.vocabulary)) return null
    let best: DraftSequence | undefined
    let longest = -1
    for (const each of this.#idle) {
      const shared = each.shares(prompt)
      if (shared > longest) [best, longest] = [each, shared]
    }
    if (best === undefined) return null
    this.#idle.splice(this.#idle.indexOf(best), 1)
    best.begin(prompt, longest)
    return best
  }

  close(sequence: DraftSequence): void {
    this.#idle.push(sequence)
  }

  /**
   * Returns the expected milliseconds of a proposal of `depth` tokens for every stream. `plain`: milliseconds of a batch of the large model
   * without drafts, for what was not measured yet.
   */
  milliseconds(depth: number, plain: number): number {
    if (this.#failed !== null) return Infinity
    const guess = this.share * plain
    return (this.#reading ?? guess) + depth * (this.#step ?? guess)
  }

  /** Returns the expected milliseconds to read so many tokens of a text. `plain`: as for `milliseconds`. */
  readingTime(tokens: number, plain: number): number {
    return tokens * (this.#bulk ?? (this.share * plain) / FEW)
  }

  /**
   * Returns up to `most` tokens for each answer, in the given order. An answer of whose text much is unread gets none: a part of it is
   * read. Never throws: a model that fails says so once, and drafts no more.
   */
  async propose(asked: readonly Asked[]): Promise<readonly Int32Array[]> {
    try {
      if (this.#failed === null && (await this.#read(asked))) return await this.#write(asked)
    } catch (error) {
      this.#failed = error instanceof Error ? error.message : String(error)
      this.tell(`The draft model ${this.model.info.path} failed, and drafts no more: ${this.#failed}`)
    }
    return asked.map(() => new Int32Array())
  }

  async dispose(): Promise<void> {
    await this.model.dispose()
  }

  /** Reads all but the last token of each text, up to a slice of them. Returns false if the cells do not suffice. */
  async #read(asked: readonly Asked[]): Promise<boolean> {
    for (const { sequence } of asked) sequence.cut(this.context)
    const begun = performance.now()
    let room = Math.min(SLICE, this.context.batch)
    const parts = asked.map(({ sequence }) => {
      const tokens = sequence.unread(room)
      room -= tokens.length
      return { sequence, tokens }
    })
    const count = parts.reduce((sum, { tokens }) => sum + tokens.length, 0)
    if (count === 0) return true
    const batch = {
      tokens: Int32Array.from(parts.flatMap(({ tokens }) => tokens)),
      positions: Int32Array.from(parts.flatMap(({ sequence, tokens }) => tokens.map((_, at) => sequence.filled + at))),
      sequences: Int32Array.from(parts.flatMap(({ sequence, tokens }) => tokens.map(() => sequence.id))),
      outputs: new Uint8Array(count),
    }
    if ((await this.context.decode(batch)) !== 'done') {
      this.#makeRoom()
      return false
    }
    for (const { sequence, tokens } of parts) sequence.read(tokens.length)
    const elapsed = performance.now() - begun
    if (count <= FEW * asked.length) this.#reading = followed(this.#reading, elapsed)
    else this.#bulk = followed(this.#bulk, elapsed / count)
    return true
  }

  /** Writes tokens behind the texts that are read. */
  async #write(asked: readonly Asked[]): Promise<readonly Int32Array[]> {
    const ready = asked.filter(({ sequence }) => sequence.isRead)
    const steps = Math.max(0, ...ready.map(({ most }) => most))
    const drawn = new Map(ready.map(({ sequence }) => [sequence, [] as number[]]))
    if (steps > 0) {
      const take = (tokens: Int32Array) => {
        for (const [at, token] of tokens.entries()) drawn.get(ready[at % ready.length]!.sequence)!.push(token)
      }
      const begun = performance.now()
      const end = await this.context.generate(
        {
          tokens: Int32Array.from(ready, ({ sequence }) => sequence.last),
          positions: Int32Array.from(ready, ({ sequence }) => sequence.filled),
          sequences: Int32Array.from(ready, ({ sequence }) => sequence.id),
          samplers: ready.map((_, at) => this.#samplers[at]!),
          limits: new Int32Array(ready.length).fill(steps),
          steps,
        },
        ({ tokens }) => {
          take(tokens)
        },
      )
      if (end.status === 'failed') throw end.failure ?? new Error('a decode failed')
      take(end.drawn.tokens)
      if (end.status === 'no-room') this.#makeRoom()
      const done = drawn.get(ready[0]!.sequence)!.length
      if (done > 0) this.#step = followed(this.#step, (performance.now() - begun) / done)
      for (const { sequence } of ready) sequence.wrote(drawn.get(sequence)!)
    }
    return asked.map(({ sequence, most }) => {
      const tokens = drawn.get(sequence) ?? []
      const end = tokens.findIndex((token) => token < 0 || token >= this.vocabulary)
      return Int32Array.from(tokens.slice(0, end < 0 ? most : Math.min(end, most)))
    })
  }

  /** Frees the cells of the idle sequence that was used least lately. Without one, no tokens are proposed until an answer ends. */
  #makeRoom(): void {
    this.#idle.find(({ filled }) => filled > 0)?.clear(this.context)
  }
}

/** The text of one answer, and how much of it is in the draft model's cache. */
export class DraftSequence {
  #text: number[] = []
  /** How many cells the sequence has. The first `#agreed` of them hold the text's first tokens. */
  filled = 0
  #agreed = 0
  /** The tokens in the cells from `#agreed` on that were written as a proposal. */
  #written: readonly number[] = []

  constructor(readonly id: SeqId) {}

  /** Returns how many tokens of this text are in the cells. */
  shares(text: Int32Array): number {
    const most = Math.min(text.length, this.#agreed)
    let at = 0
    while (at < most && text[at] === this.#text[at]) at++
    return at
  }

  /** Begins a text, of which `agreed` tokens are in the cells. */
  begin(text: Int32Array, agreed: number): void {
    this.#text = Array.from(text)
    this.#agreed = agreed
    this.#written = []
  }

  /** Takes the next token of the text. */
  push(token: number): void {
    this.#text.push(token)
    if (this.#written.length > 0 && this.#written[0] === token) {
      this.#agreed++
      this.#written = this.#written.slice(1)
    } else this.#written = []
  }

  /** Removes the cells behind the text, and that of its last token, which is written on from. */
  cut(context: NativeContext): void {
    const kept = Math.min(this.#agreed, this.#text.length - 1)
    if (this.filled > kept) context.untag(this.id, { start: kept, end: this.filled })
    this.filled = kept
    this.#agreed = kept
    this.#written = []
  }

  /** Returns up to `most` tokens that are not in the cells; never the last one of the text. */
  unread(most: number): number[] {
    return this.#text.slice(this.filled, Math.min(this.#text.length - 1, this.filled + most))
  }

  /** Takes that so many tokens of the text were read. */
  read(count: number): void {
    this.filled += count
    this.#agreed = this.filled
  }

  /** How many tokens are to be read before the first proposal. */
  get behind(): number {
    return Math.max(0, this.#text.length - 1 - this.#agreed)
  }

  get isRead(): boolean {
    return this.filled === this.#text.length - 1
  }

  get last(): number {
    return this.#text.at(-1)!
  }

  /** Takes the tokens that were written behind the text. The last one has no cell. */
  wrote(tokens: readonly number[]): void {
    if (tokens.length === 0) return
    this.#agreed = this.#text.length
    this.filled += tokens.length
    this.#written = tokens.slice(0, -1)
  }

  clear(context: NativeContext): void {
    context.untag(this.id, { start: 0, end: this.filled })
    this.filled = 0
    this.#agreed = 0
    this.#written = []
  }
}

/** Returns why the two models' tokens are not the same; null if they are. */
function foreign(draft: NativeModel, large: NativeModel): string | null {
  const [own, other] = [draft.info, large.info]
  const { addBos } = large.special
  const isAlike =
    own.vocabType === other.vocabType &&
    Math.abs(own.vocabulary - other.vocabulary) <= MORE_TOKENS &&
    draft.special.addBos === addBos &&
    (!addBos || draft.special.bos === large.special.bos)
  const both = Math.min(own.vocabulary, other.vocabulary)
  let at = isAlike ? 0 : -1
  while (at >= 0 && at < both && Buffer.compare(draft.piece(at), large.piece(at)) === 0) at++
  if (at === both) return null
  const where =
    at < 0 ? `${own.vocabulary} and ${other.vocabulary} tokens, ${own.vocabType} and ${other.vocabType}` : `token ${at}`
  return `its vocabulary is not that of ${other.path} (${where}). Give a smaller model of the same family.`
}
