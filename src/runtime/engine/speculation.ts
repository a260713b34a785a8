/**
 * Speculative decoding: tokens that may come next are decoded together with the last sampled one, and those that the model then samples are
 * kept. This file decides which tokens are drafted, and how many. drafts.ts adds them to batches; scheduler.ts decodes and verifies them.
 */
import type { Prompt } from '../kv/prompt.js'
import { type DraftedText, type DraftModel, MOST_PROPOSED, type TextOwner } from './draft-model.js'
import { PromptLookup, SHORTEST_MATCH } from './prompt-lookup.js'
import { followed } from './running-time.js'
import type { SpeculateOptions } from './speculate-terms.js'

// Statistics: how often a proposed token is the one that the model samples, by the length of the match before it.

/** Matches are counted in classes by their length in tokens. This is the smallest length of each class. */
const CLASSES = [SHORTEST_MATCH, 4, 5, 6, 8, 12, 16, 32]
/** The assumed share of hits of each class before any is counted, and (next constant) the number of outcomes that it weighs as much as. */
const EXPECTED = [0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.9, 0.95]
const EXPECTED_WEIGHT = 8
/** When this many outcomes are counted, their weight is halved, so that newer ones count more. */
const REMEMBERED = { engine: 512, answer: 32 }
/** For a new answer, the engine's share of hits over all answers weighs as much as this many outcomes. */
const ENGINE_WEIGHT = 4

const classOf = (matched: number): number => {
  let found = 0
  while (found + 1 < CLASSES.length && matched >= CLASSES[found + 1]!) found++
  return found
}

/** The assumed share of hits of the draft model's proposals before any is counted (weight: EXPECTED_WEIGHT). */
const EXPECTED_OF_MODEL = 0.7
/** Tokens of the draft model are counted by their index in the proposal. Indices from this one on count together. */
const LAST_PLACE = CLASSES.length - 1
/** Each new answer reduces the weight of the draft model's outcomes by this share. So a model with few hits gets another try later. */
const FADES = 0.05

/**
 * Counts, by class, how often the proposed token was a hit. For repeats from the conversation every sampled token gives an outcome, drafted
 * or not, so counting costs no decode. The draft model's proposals give outcomes only where they are drafted.
 */
class Outcomes {
  readonly #hits = new Float64Array(CLASSES.length)
  readonly #trials = new Float64Array(CLASSES.length)

  constructor(
    private readonly most: number,
    private readonly weight: number,
    private readonly expected: (at: number) => number,
  ) {}

  record(at: number, hit: boolean): void {
    this.#hits[at]! += hit ? 1 : 0
    if (++this.#trials[at]! < this.most) return
    this.#hits[at]! /= 2
    this.#trials[at]! /= 2
  }

  fade(): void {
    for (const counts of [this.#hits, this.#trials]) for (const at of counts.keys()) counts[at]! *= 1 - FADES
  }

  share(at: number): number {
    return (this.#hits[at]! + this.weight * this.expected(at)) / (this.#trials[at]! + this.weight)
  }
}

/** The methods of a draft model that speculation uses. */
type Model = Pick<DraftModel, 'open' | 'close' | 'can' | 'propose' | 'milliseconds' | 'readingTime'>

/** The draft model's state for one answer. */
interface ModelDrafts {
  readonly model: Model
  readonly text: DraftedText
  readonly outcomes: Outcomes
}

/** Proposes tokens for one answer, and counts which of them are hits. */
export class Drafter {
  readonly #lookup: PromptLookup
  readonly #outcomes: Outcomes
  readonly #ofModel: Outcomes | null
  /** The draft model's last proposal, and how many of its first tokens were hits so far. */
  #proposal: Int32Array = new Int32Array()
  #came = 0
  /** Number of tokens of the answer so far. */
  #written = 0

  constructor(
    prompt: Prompt,
    readonly terms: Required<SpeculateOptions>,
    private readonly engine: Outcomes,
    private readonly isEnd: (token: number) => boolean,
    private readonly drafts: ModelDrafts | null = null,
  ) {
    this.#lookup = new PromptLookup(repeatable(prompt))
    this.#outcomes = new Outcomes(REMEMBERED.answer, ENGINE_WEIGHT, (at) => engine.share(at))
    this.#ofModel = drafts && new Outcomes(REMEMBERED.answer, ENGINE_WEIGHT, (at) => drafts.outcomes.share(at))
  }

  /** The answer's text for the draft model; null without a draft model. */
  get text(): DraftedText | null {
    return this.drafts?.text ?? null
  }

  /** Whether the draft model's next token is likelier a hit than the conversation's repeat. True if there is no repeat. */
  get prefersModel(): boolean {
    if (!this.#canModel) return false
    const { matched } = this.#lookup
    return matched === 0 || this.#outcomes.share(classOf(matched)) < this.#ofModel!.share(0)
  }

  get #canModel(): boolean {
    return this.drafts !== null && this.drafts.model.can(this.drafts.text)
  }

  /**
   * Whether the draft model may read the part of the text that it has not read. It must wait until the answer has taken as long as the
   * reading will take. An answer is assumed to go on for as long as it has already taken.
   * @param alone milliseconds of a batch without drafts
   */
  mayRead(alone: number): boolean {
    return this.drafts !== null && this.drafts.model.readingTime(this.drafts.text, alone) <= this.#written * alone
  }

  /** Takes the next token of the answer. */
  push(token: number): void {
    this.#written++
    this.text?.push(token)
    if (this.#came < this.#proposal.length) {
      const [at, hit] = [Math.min(this.#came, LAST_PLACE), this.#proposal[this.#came] === token]
      this.drafts!.outcomes.record(at, hit)
      this.#ofModel!.record(at, hit)
      if (hit) this.#came++
      else this.#proposal = new Int32Array()
    }
    const trial = this.#lookup.push(token)
    if (trial === null) return
    const at = classOf(trial.matched)
    this.engine.record(at, trial.hit)
    this.#outcomes.record(at, trial.hit)
  }

  /** Returns up to `most` tokens that followed an earlier occurrence of the answer's last tokens. */
  propose(most: number): Int32Array {
    return this.#checked(this.#lookup.propose(most))
  }

  /** Takes a proposal of the draft model. Returns the tokens of it that are drafted. */
  proposed(tokens: Int32Array): Int32Array {
    this.#came = 0
    return (this.#proposal = this.#checked(tokens))
  }

  /** Cuts the proposal off before a token that ends the answer, because its cell would be removed again. */
  #checked(proposed: Int32Array): Int32Array {
    const end = proposed.findIndex(this.isEnd)
    return end < 0 ? proposed : proposed.subarray(0, end)
  }

  /** How many tokens are drafted even if it does not pay. `ngram`: twice the length of the match. `draft`: as many as allowed. */
  get wanted(): number {
    const { kind, most } = this.terms
    if (kind === 'draft') return this.#canModel ? Math.min(most, MOST_PROPOSED) : 0
    return kind === 'ngram' ? Math.min(most, 2 * this.#lookup.matched) : 0
  }

  /**
   * Returns the chance that the first 1, 2, ... proposed tokens are all hits, for at most `most` tokens; empty if nothing can be proposed.
   * @param byModel whether the draft model proposes; else the conversation's repeats
   */
  chances(most: number, byModel: boolean): number[] {
    const { matched } = this.#lookup
    const longest = byModel ? Math.min(most, MOST_PROPOSED) : matched > 0 ? most : 0
    const chances: number[] = []
    let all = 1
    for (let at = 0; at < longest; at++) {
      all *= byModel ? this.#ofModel!.share(Math.min(at, LAST_PLACE)) : this.#outcomes.share(classOf(matched + at))
      if (all < LEAST_CHANCE) break
      chances.push(all)
    }
    return chances
  }
}

/** A token is not drafted if the chance that it and all drafts before it are hits is smaller than this. */
const LEAST_CHANCE = 0.05

/** Returns the texts that an answer may repeat: the unedited prompt, hidden text included, and the markers and summaries of its edits. */
function repeatable({ tokens, origin }: Prompt): readonly Int32Array[] {
  if (origin === undefined) return [tokens]
  const markers: Int32Array[] = []
  let [at, place] = [0, 0]
  for (const { span, marker } of origin.holes) {
    at += span.start - place
    if (marker > SHORTEST_MATCH) markers.push(tokens.subarray(at, at + marker))
    at += marker
    place = span.end
  }
  return [...markers, origin.base]
}

// The time of a batch by its number of rows. Each stream takes one row, and each drafted token another.

/** The most drafted tokens of a batch until batches with drafts were measured. */
const FIRST_DRAFT = 7
/** Before any measurement, a further row is assumed to cost this share of a batch's time. */
const UNKNOWN_ROW = 0.5

export class TurnTimes {
  readonly #byRows = new Map<number, number>()
  /** Milliseconds per token in large batches of prompt tokens; null before the first. */
  #bulk: number | null = null

  /** Updates the times with a batch of streams. */
  took(rows: number, milliseconds: number): void {
    this.#byRows.set(rows, followed(this.#byRows.get(rows) ?? null, milliseconds))
  }

  /** Updates the times with a batch that had only prompt tokens. */
  tookPrompt(tokens: number, milliseconds: number): void {
    this.#bulk = followed(this.#bulk, milliseconds / tokens)
  }

  knows(rows: number): boolean {
    return this.#byRows.has(rows)
  }

  /** Returns the most rows that a batch may have: at most twice as many as were measured, because the time may jump beyond that. */
  triable(streams: number): number {
    return Math.max(streams + FIRST_DRAFT, 2 * Math.max(0, ...this.#byRows.keys()))
  }

  /** Returns the expected milliseconds of a batch with this many rows, interpolated between the nearest measured numbers of rows. */
  of(rows: number): number {
    const known = this.#byRows.get(rows)
    if (known !== undefined) return known
    let [below, above] = [0, Infinity]
    for (const each of this.#byRows.keys())
      if (each < rows) below = Math.max(below, each)
      else above = Math.min(above, each)
    if (below === 0) return Infinity
    const start = this.#byRows.get(below)!
    if (above === Infinity) return start + (rows - below) * this.#slope(below)
    return start + ((rows - below) / (above - below)) * (this.#byRows.get(above)! - start)
  }

  /** Returns the milliseconds of a batch if every row beyond `known` costs only as much as a token in a large batch of prompt tokens. */
  least(rows: number, known: number): number {
    const start = this.of(known)
    return start + (rows - known) * (this.#bulk ?? UNKNOWN_ROW * start)
  }

  /** Returns the milliseconds per row beyond the largest measured number of rows. */
  #slope(last: number): number {
    const first = Math.min(...this.#byRows.keys())
    const measured = first < last ? (this.#byRows.get(last)! - this.#byRows.get(first)!) / (last - first) : 0
    const start = this.#byRows.get(first)!
    return Math.max(measured, this.#bulk ?? (first < last ? 0 : (UNKNOWN_ROW * start) / first))
  }
}

// How many tokens are drafted for each stream of a batch.

/** Drafts must promise at least this many times the tokens per second of batches without drafts. */
const MARGIN = 1.08
/**
 * A trial is a batch with drafts whose time is not known yet, to measure it. Under the most favourable time it must promise this many times
 * the tokens per second.
 */
const TRIAL_MARGIN = 1.25
/** Number of batches between two trials, at first and at most. It doubles with each trial that shows no gain. */
const TRIALS = { first: 32, last: 2048 }
/** After this many batches with drafts in a row, one without drafts measures the time of the streams alone. */
const PLAIN_EVERY = 64

/** A stream that may get drafts. `room` is the most draft tokens that its request, the free cells and the batch allow. */
export interface DraftingStream {
  readonly drafter: Drafter
  readonly room: number
}

/** The drafts of one stream: how many tokens, and whether the draft model proposes them. */
export interface Draft {
  readonly count: number
  readonly byModel: boolean
}

const NOTHING: Draft = { count: 0, byModel: false }

/** Drafts for a batch: the first `most` of the `offers`. `gain` is how many times the tokens per second they promise. */
interface Plan {
  readonly offers: readonly { readonly index: number; readonly chance: number }[]
  readonly byModel: readonly boolean[]
  readonly most: number
  readonly gain: number
}

/** Chooses the drafts for all answers of one engine. */
export class Speculation {
  readonly times = new TurnTimes()
  readonly outcomes = new Outcomes(REMEMBERED.engine, EXPECTED_WEIGHT, (at) => EXPECTED[at]!)
  readonly #ofModel = new Outcomes(REMEMBERED.engine, EXPECTED_WEIGHT, () => EXPECTED_OF_MODEL)
  /** Number of batches until the next trial may begin, and (next field) from that trial to the one after it. */
  #trialIn = 0
  #trialEvery = TRIALS.first
  #drafting = 0

  constructor(
    private readonly isEnd: (token: number) => boolean,
    private readonly model: Model | null = null,
  ) {}

  /** Returns the drafter of an answer; null if it gets no drafts. Call `ended` when the answer ends. */
  drafter(prompt: Prompt, terms: Required<SpeculateOptions>, owner: TextOwner): Drafter | null {
    const { model } = this
    if (terms.kind === 'off') return null
    if (model === null || terms.kind === 'ngram') return new Drafter(prompt, terms, this.outcomes, this.isEnd)
    this.#ofModel.fade()
    const drafts = { model, text: model.open(prompt.tokens, owner), outcomes: this.#ofModel }
    return new Drafter(prompt, terms, this.outcomes, this.isEnd, drafts)
  }

  /** Releases the drafter of an answer that has ended. */
  ended({ text }: Drafter): void {
    if (text !== null) this.model!.close(text)
  }

  /** Returns the proposed tokens of each stream; none for a stream that is null. */
  async propose(streams: readonly (DraftingStream | null)[], drafts: readonly Draft[]): Promise<readonly Int32Array[]> {
    const asked = streams.flatMap((stream, at) => {
      const { count, byModel } = drafts[at]!
      const text = count > 0 && byModel ? stream?.drafter.text : undefined
      return text == null ? [] : [{ at, text, most: count }]
    })
    const written = asked.length === 0 ? [] : await this.model!.propose(asked)
    const ofModel = new Map(asked.map(({ at }, place) => [at, written[place]!]))
    return streams.map((stream, at) => {
      const tokens = ofModel.get(at)
      if (stream === null || drafts[at]!.count === 0) return new Int32Array()
      return tokens === undefined ? stream.drafter.propose(drafts[at]!.count) : stream.drafter.proposed(tokens)
    })
  }

  /** Updates the times with a batch of streams only. `rows`: streams and drafts together. */
  took(rows: number, drafted: number, milliseconds: number): void {
    this.times.took(rows, milliseconds)
    this.#drafting = drafted > 0 ? this.#drafting + 1 : 0
    if (this.#trialIn > 0) this.#trialIn--
  }

  /**
   * Returns how many tokens to draft for each stream, or null for none at all. For `ngram` the length of the match decides, for `draft` the
   * limits. For `auto` it is the number with the most tokens per second, by hit chances and measured times.
   * @param streams null for a stream that drafts nothing
   * @param asks True: the batch is decoded with the result, so a trial may begin. False: only asks whether there would be drafts.
   */
  choose(streams: readonly (DraftingStream | null)[], asks = true): readonly Draft[] | null {
    const drafts = streams.map((stream) =>
      stream === null
        ? NOTHING
        : {
            count: enough(stream, Math.min(stream.room, stream.drafter.wanted)),
            byModel: stream.drafter.terms.kind === 'draft',
          },
    )
    const plan = this.#paying(
      streams,
      drafts.reduce((sum, { count }) => sum + count, streams.length),
      asks,
    )
    if (plan !== null) {
      const added = new Array<number>(streams.length).fill(0)
      for (const { index } of plan.offers.slice(0, plan.most)) added[index]!++
      for (const [index, count] of added.entries())
        if (count > 0) drafts[index] = { count: enough(streams[index]!, count), byModel: plan.byModel[index]! }
    }
    return drafts.some(({ count }) => count > 0) ? drafts : null
  }

  /** Returns the drafts of `auto` streams that pay, in a batch with `rows` other rows; null if none do. */
  #paying(streams: readonly (DraftingStream | null)[], rows: number, asks: boolean): Plan | null {
    if (!this.times.knows(streams.length) || this.#drafting >= PLAIN_EVERY) return null
    const alone = this.times.of(streams.length)
    const isAuto = streams.map((stream) => stream?.drafter.terms.kind === 'auto')
    const byModel = streams.map((stream, at) => isAuto[at]! && stream!.drafter.prefersModel && stream!.drafter.mayRead(alone))
    // Repeats cost no time to propose, so they may pay where the draft model does not. Try both.
    const ways = byModel.includes(true) ? [byModel, byModel.map(() => false)] : [byModel]
    const offered = ways.map((way) => ({ byModel: way, offers: offersOf(streams, isAuto, way) }))
    const best = (time: (of: number) => number, triable: number, isFavourable: boolean) => {
      const plans = offered.map((way) => this.#best(way, streams.length, rows, time, triable, isFavourable))
      return plans.reduce((one, other) => (other.gain > one.gain ? other : one))
    }
    const chosen = best((of) => this.times.of(of), this.times.triable(streams.length), false)
    if (chosen.gain >= MARGIN) {
      if (asks) this.#trialEvery = TRIALS.first
      return chosen
    }
    const favourable = (of: number) => Math.min(this.times.of(of), this.times.least(of, streams.length))
    const trial = best(favourable, streams.length + FIRST_DRAFT, true)
    if (trial.gain < TRIAL_MARGIN || this.#trialIn > 0) return null
    if (asks) {
      this.#trialIn = this.#trialEvery
      this.#trialEvery = Math.min(2 * this.#trialEvery, TRIALS.last)
    }
    return trial
  }

  /** Returns the plan with the most tokens per second: how many of the offers to draft. */
  #best(
    { offers, byModel }: Pick<Plan, 'offers' | 'byModel'>,
    streams: number,
    rows: number,
    time: (of: number) => number,
    triable: number,
    isFavourable: boolean,
  ): Plan {
    const [plain, alone] = [streams / time(rows), time(streams)]
    const writers = byModel.filter(Boolean).length
    const depths = byModel.map(() => 0)
    let [most, gain, tokens, deepest] = [0, 1, streams, 0]
    for (const [at, { index, chance }] of offers.slice(0, Math.max(0, triable - rows)).entries()) {
      tokens += chance
      if (byModel[index]!) deepest = Math.max(deepest, ++depths[index]!)
      const writing = deepest === 0 ? 0 : this.model!.milliseconds(deepest, writers, alone, isFavourable)
      const ratio = tokens / (time(rows + at + 1) + writing) / plain
      if (ratio > gain) [most, gain] = [at + 1, ratio]
    }
    return { offers, byModel, most, gain }
  }
}

/** Returns the tokens that `auto` may draft, likeliest first. Chances fall along a stream, so its tokens keep their order. */
function offersOf(
  streams: readonly (DraftingStream | null)[],
  isAuto: readonly boolean[],
  byModel: readonly boolean[],
): Plan['offers'] {
  return streams
    .flatMap((stream, index) =>
      stream === null || !isAuto[index]!
        ? []
        : stream.drafter
            .chances(Math.min(stream.room, stream.drafter.terms.most), byModel[index]!)
            .map((chance) => ({ index, chance })),
    )
    .sort((a, b) => b.chance - a.chance)
}

const enough = ({ drafter }: DraftingStream, count: number): number => (count < drafter.terms.least ? 0 : count)
