/**
 * The draft model for speculative decoding: a second, smaller model with the same vocabulary. It proposes the next tokens of answers, which
 * the large model verifies. It reads each prompt as the large model sees it. After a fold it reads the text behind the fold again.
 */
import { KvfoldError } from '../core/errors.js'
import { type ConversationId, type SeqId, seqId } from '../core/ids.js'
import { type CacheSalt, sameSalt } from '../kv/tenant-salts.js'
import type { ContextOptions, ModelOptions, Native, NativeContext, NativeModel, NativeSampler } from '../native/types.js'
import { abilitiesOf, refusalOf } from './model-facts.js'
import { followed } from './running-time.js'

export interface DraftModelOptions {
  /** Path of the GGUF file. */
  readonly path: string
  readonly model?: ModelOptions
}

/** The conversation of a text, and its tenant's salt. Texts of different tenants share no cells. */
export interface TextOwner {
  readonly conversation: ConversationId
  readonly salt?: CacheSalt
}

/** A text for which tokens are to be proposed, and the most of them. */
export interface AskedDraft {
  readonly text: DraftedText
  readonly most: number
}

/** The most tokens of one proposal. Later ones are seldom hits. */
export const MOST_PROPOSED = 16
/** Milliseconds of reading before one proposal. All streams wait meanwhile, so a long text is read over several proposals. */
const SLICE_TIME = 100
/** How many tokens are read before the first measurement of the speed. */
const FIRST_SLICE = 128
/** Reading up to this many tokens takes about as long as reading one. */
const FEW = 8
/** The vocabularies' sizes may differ by up to this many tokens at the end, as in llama.cpp. */
const MORE_TOKENS = 128

/** One sequence of the draft model's cache. */
interface Sequence {
  readonly id: SeqId
  /** The token of each cell, in order. */
  cells: number[]
  owner: TextOwner | null
  /** The running answer that uses the sequence; null if there is none. */
  user: DraftedText | null
}

export class DraftModel {
  /** Longest unused first. Cells stay when an answer ends, because its conversation may continue. */
  readonly #sequences: Sequence[]
  readonly #samplers: readonly NativeSampler[]
  /** Milliseconds to read a few missing tokens, and (next field) to write one token per stream, by the number of streams. */
  #reading: number | null = null
  readonly #steps = new Map<number, number>()
  /** Milliseconds per token to read a long text. */
  #bulk: number | null = null
  /** Why the model has stopped drafting; null while it works. */
  #failed: string | null = null

  private constructor(
    private readonly model: NativeModel,
    private readonly context: NativeContext,
    /** Number of tokens that both vocabularies have. */
    private readonly vocabulary: number,
    /** The size of this model in bytes, divided by that of the large one. */
    private readonly share: number,
    private readonly tell: (sentence: string) => void,
  ) {
    this.#sequences = Array.from({ length: context.sequences }, (_, at) => ({
      ...{ id: seqId(at), cells: [], owner: null, user: null },
    }))
    this.#samplers = this.#sequences.map(() => model.createSampler({ temperature: 0 }))
  }

  /**
   * Loads the draft model of a large model.
   * @param context its number of cells, threads and cache types; `sequences` is how many answers run at once
   * @throws KvfoldError model/unsupported for another vocabulary, or a cache from which tokens cannot be removed; as loadModel
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

  /** Begins the text of an answer. Call `close` when the answer ends. */
  open(prompt: Int32Array, owner: TextOwner): DraftedText {
    const text = new DraftedText(prompt, owner, this.vocabulary)
    text.known = Math.max(0, ...this.#sequences.map((each) => (mayShare(each.owner, owner) ? text.shares(each.cells) : 0)))
    return text
  }

  close(text: DraftedText): void {
    const at = this.#sequences.findIndex(({ user }) => user === text)
    if (at < 0) return
    const [sequence] = this.#sequences.splice(at, 1)
    sequence!.user = null
    this.#sequences.push(sequence!)
  }

  /** Whether the model may propose tokens for this text. */
  can(text: DraftedText): boolean {
    return this.#failed === null && text.isAble && this.#sequences.some(({ user }) => user === null || user === text)
  }

  /**
   * Returns the expected milliseconds of a proposal of `depth` tokens for this many streams.
   * @param plain milliseconds of a batch of the large model without drafts, from which unmeasured times are estimated
   * @param isFavourable True: no time counts for more than the estimate by the model's size, because the first measurements may be too
   * long.
   */
  milliseconds(depth: number, streams: number, plain: number, isFavourable = false): number {
    const guess = this.share * plain
    const [reading, step] = [this.#reading ?? guess, this.#steps.get(streams) ?? guess]
    return isFavourable ? Math.min(reading, guess) + depth * Math.min(step, guess) : reading + depth * step
  }

  /** Returns the expected milliseconds to read the unread part of a text. `plain`: as for `milliseconds`. */
  readingTime(text: DraftedText, plain: number): number {
    return text.behind * (this.#bulk ?? (this.share * plain) / FEW)
  }

  /**
   * Returns up to `most` tokens for each text, in the given order. A text with a long unread part gets none; a slice of that part is read
   * instead. Never throws: if the model fails, it tells the user once and drafts nothing from then on.
   */
  async propose(asked: readonly AskedDraft[]): Promise<readonly Int32Array[]> {
    const drawn = new Map<DraftedText, number[]>()
    try {
      const texts = this.#failed === null ? asked.map(({ text }) => text).filter((text) => text.isAble && this.#seat(text)) : []
      await this.#read(texts)
      const ready = asked.filter(({ text }) => texts.includes(text) && text.isRead)
      await this.#write(ready, drawn)
    } catch (error) {
      this.#failed = error instanceof Error ? error.message : String(error)
      this.tell(`The draft model ${this.model.info.path} failed, and drafts no more: ${this.#failed}`)
    }
    return asked.map(({ text, most }) => {
      const tokens = drawn.get(text) ?? []
      const end = tokens.findIndex((token) => token < 0 || token >= this.vocabulary)
      return Int32Array.from(tokens.slice(0, end < 0 ? most : Math.min(end, most)))
    })
  }

  /** Removes the conversation's cells. Call it while no proposal is being written. */
  forget(conversation: ConversationId): void {
    for (const each of this.#sequences) if (each.owner?.conversation === conversation && each.user === null) this.#clear(each)
  }

  async dispose(): Promise<void> {
    await this.model.dispose()
  }

  /**
   * Gives the text a sequence: that of its conversation, or an empty one, or the longest unused one. A sequence of another text first gets
   * the cells of the longest common beginning with any sequence. Returns false if all sequences are in use.
   */
  #seat(text: DraftedText): boolean {
    if (text.sequence === null) {
      const idle = this.#sequences.filter(({ user }) => user === null)
      const { conversation } = text.owner
      const own = idle.find(({ owner }) => mayShare(owner, text.owner) && owner?.conversation === conversation)
      const chosen = own ?? idle.find(({ cells }) => cells.length === 0) ?? idle[0]
      if (chosen === undefined) return false
      if (own === undefined) {
        this.#clear(chosen)
        this.#lend(chosen, text)
      }
      chosen.owner = text.owner
      chosen.user = text
      text.take(chosen)
    }
    const { id, cells } = text.sequence!
    const kept = text.keep()
    if (kept < cells.length) {
      // If the window has passed some cells, llama.cpp cannot go back to an earlier position. Then remove all cells.
      const from = this.#isWhole(text.sequence!) ? kept : 0
      this.context.untag(id, { start: from, end: cells.length })
      cells.length = from
      if (from < kept) text.take(text.sequence!)
    }
    return true
  }

  /** Tags the cells of the longest beginning that the text has in common with another sequence. */
  #lend(to: Sequence, text: DraftedText): void {
    let [from, longest]: [Sequence | null, number] = [null, 0]
    for (const each of this.#sequences) {
      const shared = mayShare(each.owner, text.owner) && this.#isWhole(each) ? text.shares(each.cells) : 0
      if (shared > longest) [from, longest] = [each, shared]
    }
    if (from === null) return
    this.context.tag(from.id, to.id, { start: 0, end: longest })
    to.cells = from.cells.slice(0, longest)
  }

  /**
   * Whether the cache still has all cells of the sequence. With a sliding window, llama.cpp reuses cells that the window has passed
   * (`WindowGuard`).
   */
  #isWhole({ id, cells }: Sequence): boolean {
    return this.model.info.slidingWindow === 0 || cells.length === 0 || this.context.positions(id)?.min === 0
  }

  #clear(sequence: Sequence): void {
    if (sequence.cells.length > 0) this.context.untag(sequence.id, { start: 0, end: sequence.cells.length })
    sequence.cells = []
    sequence.owner = null
  }

  /** Reads a slice of the texts' unread parts, the shortest part first. The last token of a text stays unread: writing begins with it. */
  async #read(texts: readonly DraftedText[]): Promise<void> {
    const slice = this.#bulk === null ? FIRST_SLICE : Math.round(SLICE_TIME / this.#bulk)
    let room = Math.min(Math.max(slice, FEW * texts.length), this.context.batch)
    const parts: { readonly sequence: Sequence; readonly tokens: readonly number[] }[] = []
    for (const text of texts.toSorted((a, b) => a.behind - b.behind)) {
      const tokens = text.unread(room)
      room -= tokens.length
      if (tokens.length > 0) parts.push({ sequence: text.sequence!, tokens })
    }
    if (parts.length === 0 || (await this.#decoded(parts))) return
    for (const each of this.#sequences) if (each.user === null) this.#clear(each)
    if (await this.#decoded(parts)) return
    const [longest] = texts.toSorted((a, b) => b.length - a.length)
    longest!.isAble = false
    this.#clear(longest!.sequence!)
  }

  /** Decodes these tokens. Returns false if there are not enough cells. */
  async #decoded(parts: readonly { readonly sequence: Sequence; readonly tokens: readonly number[] }[]): Promise<boolean> {
    const tokens = Int32Array.from(parts.flatMap((part) => part.tokens))
    const begun = performance.now()
    const status = await this.context.decode({
      tokens,
      positions: Int32Array.from(parts.flatMap(({ sequence, tokens }) => tokens.map((_, at) => sequence.cells.length + at))),
      sequences: Int32Array.from(parts.flatMap(({ sequence, tokens }) => tokens.map(() => sequence.id))),
      outputs: new Uint8Array(tokens.length),
    })
    if (status !== 'done') return false
    for (const part of parts) part.sequence.cells.push(...part.tokens)
    const elapsed = performance.now() - begun
    if (tokens.length <= FEW * parts.length) this.#reading = followed(this.#reading, elapsed)
    else this.#bulk = followed(this.#bulk, elapsed / tokens.length)
    return true
  }

  /**
   * Writes tokens after texts that are read whole, into `drawn`. A run ends when one text is finished; the rest continues in the next run.
   */
  async #write(ready: readonly AskedDraft[], drawn: Map<DraftedText, number[]>): Promise<void> {
    for (const { text } of ready) drawn.set(text, [])
    let active = ready
    while (active.length > 0) {
      const written = await this.#run(active, drawn)
      if (!written) return
      active = active.filter(({ text, most }) => {
        const tokens = drawn.get(text)!
        return tokens.length < most && !this.model.isEndOfGeneration(tokens.at(-1)!)
      })
    }
  }

  /** Writes until one of the texts has all its tokens or ends. Returns false if there were not enough cells. */
  async #run(active: readonly AskedDraft[], drawn: Map<DraftedText, number[]>): Promise<boolean> {
    const steps = Math.min(...active.map(({ text, most }) => most - drawn.get(text)!.length))
    const lasts = active.map(({ text }) => drawn.get(text)!.at(-1) ?? text.last)
    const made = active.map((): number[] => [])
    const take = (tokens: Int32Array) => {
      for (const [at, token] of tokens.entries()) made[at % active.length]!.push(token)
    }
    const begun = performance.now()
    const end = await this.context.generate(
      {
        tokens: Int32Array.from(lasts),
        positions: Int32Array.from(active, ({ text }) => text.sequence!.cells.length),
        sequences: Int32Array.from(active, ({ text }) => text.sequence!.id),
        samplers: active.map((_, at) => this.#samplers[at]!),
        limits: new Int32Array(active.length).fill(steps),
        steps,
      },
      ({ tokens }) => {
        take(tokens)
      },
    )
    if (end.status === 'failed') throw end.failure ?? new Error('a decode failed')
    take(end.drawn.tokens)
    const count = made[0]!.length
    if (count === 0) return false
    const step = (performance.now() - begun) / count
    this.#steps.set(active.length, followed(this.#steps.get(active.length) ?? null, step))
    for (const [at, { text }] of active.entries()) {
      const tokens = made[at]!
      // The last token was sampled but not decoded, so it has no cell.
      text.sequence!.cells.push(lasts[at]!, ...tokens.slice(0, -1))
      drawn.get(text)!.push(...tokens)
    }
    return end.status === 'done'
  }
}

const mayShare = (one: TextOwner | null, other: TextOwner): boolean =>
  one !== null && (one.salt === undefined || other.salt === undefined ? one.salt === other.salt : sameSalt(one.salt, other.salt))

/** The text of one answer, prompt included, and how much of it the draft model has read. */
export class DraftedText {
  readonly #tokens: number[]
  /** The sequence that the text uses; null before its first proposal. */
  sequence: Sequence | null = null
  /** How many of the text's first tokens are known to equal those of its cells. */
  #agreed = 0
  /** How many of the text's first tokens some sequence had cells of when the text began. */
  known = 0
  /** Whether tokens may be proposed. False if the text has tokens that the draft model lacks, or does not fit into its cells. */
  isAble: boolean

  constructor(
    prompt: Int32Array,
    readonly owner: TextOwner,
    private readonly vocabulary: number,
  ) {
    this.#tokens = Array.from(prompt)
    this.isAble = !prompt.some((token) => token >= vocabulary)
  }

  get length(): number {
    return this.#tokens.length
  }

  get last(): number {
    return this.#tokens.at(-1)!
  }

  push(token: number): void {
    this.#tokens.push(token)
    if (token >= this.vocabulary) this.isAble = false
  }

  take(sequence: Sequence): void {
    this.sequence = sequence
    this.#agreed = 0
  }

  /** Returns the length of the common beginning of the text and these tokens, which are equal up to `from`. */
  shares(cells: readonly number[], from = 0): number {
    const most = Math.min(cells.length, this.#tokens.length)
    let at = from
    while (at < most && cells[at] === this.#tokens[at]) at++
    return at
  }

  /** Returns how many cells of the sequence can stay: those that equal the text, but not its last token, which writing decodes again. */
  keep(): number {
    this.#agreed = Math.min(this.shares(this.sequence!.cells, this.#agreed), this.#tokens.length - 1)
    return this.#agreed
  }

  /** How many tokens must be read before the first proposal. */
  get behind(): number {
    const held = this.sequence === null ? this.known : this.shares(this.sequence.cells, this.#agreed)
    return Math.max(0, this.#tokens.length - 1 - held)
  }

  /** Returns up to `most` tokens that have no cell yet; never the last one of the text. */
  unread(most: number): readonly number[] {
    const held = this.sequence!.cells.length
    return this.#tokens.slice(held, Math.min(this.#tokens.length - 1, held + most))
  }

  get isRead(): boolean {
    return this.isAble && this.sequence!.cells.length === this.#tokens.length - 1
  }
}

/** Returns how the draft model's vocabulary differs from that of the large one; null if it does not. */
function foreign(draft: NativeModel, large: NativeModel): string | null {
  const [own, other] = [draft.info, large.info]
  const { addBos } = large.special
  const not = (why: string) => `its vocabulary is not that of ${other.path}: ${why}. Give a smaller model of the same family.`
  if (own.vocabType !== other.vocabType || Math.abs(own.vocabulary - other.vocabulary) > MORE_TOKENS)
    return not(`${own.vocabulary} tokens (${own.vocabType}) instead of ${other.vocabulary} (${other.vocabType})`)
  if (draft.special.addBos !== addBos || (addBos && draft.special.bos !== large.special.bos))
    return not('texts begin with another token')
  const both = Math.min(own.vocabulary, other.vocabulary)
  for (let at = 0; at < both; at++)
    if (Buffer.compare(draft.piece(at), large.piece(at)) !== 0) return not(`token ${at} is another one`)
  return null
}
