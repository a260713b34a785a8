/** Under contract `blend`: chooses which tokens behind hidden text are computed again after a splice. */
import type { BlendChoice } from '../../core/contract.js'
import { placesOf, span, type Span } from '../../core/span.js'
import { commonPrefix, markerSource, type Prompt, type ReplacedSpan, tokenSource, uneditedOf } from '../prompt.js'
import type { HeldSequence } from '../sequence.js'
import type { Lenders, Part } from './parts.js'

/** The choice of tokens if the caller makes none; tuned on Qwen2.5-Coder-Instruct 0.5B with `npm run bench -- fidelity`. */
export const BLEND_DEFAULT = { echo: 3, asked: 6, first: 4, ending: 24, most: 0.4 } as const satisfies BlendChoice

/** The reasons for which `blend` computes a token again, as they appear in the ledger. */
export const BLEND_REASONS = [
  'blend: they repeat hidden text',
  'blend: the end of the prompt asks about them',
  'blend: they stand right behind hidden text',
  'blend: they end the prompt',
  'blend: a share of the text behind hidden text',
  'blend: they stand between such tokens',
] as const

/** The reused tokens that a step computes again under `blend`. */
export interface Repair {
  /** One element per prompt token: 0 if its cell stays, else 1 + the index of the reason in `BLEND_REASONS`. */
  readonly places: Uint8Array
  readonly count: number
  /** Number of approximate tokens behind the hidden text. The tokens to compute were chosen among these. */
  readonly tail: number
  /** Number of decodes that the chosen tokens take: one for each run of neighbouring chosen tokens. */
  readonly decodes: number
  /** Whether computing them takes more time than `BlendChoice.most` allows. Then the step falls back to `exact`. */
  readonly isTooMuch: boolean
}

/**
 * Chooses the shown tokens to compute again. Returns null when this step hides no text that later tokens had seen. Considers only
 * approximate tokens after the first text that this step hides. Exact tokens cannot improve, and a restore shows the cells from before the
 * fold.
 *
 * @param parts the parts of a plan under `splice`
 * @param known number of tokens at the beginning that are exact in these parts, or that the conversation showed before; they are not chosen
 * @param lenders the prompt of the conversation's last step, and the sequences that may hold the hidden text
 */
export function chooseRepair(
  sequence: HeldSequence,
  prompt: Prompt,
  parts: readonly Part[],
  known: number,
  lenders: HiddenLenders,
  choice: BlendChoice,
): Repair | null {
  const { tokens, messages } = prompt
  const holes = newHoles(sequence, prompt, parts, lenders)
  const from = Math.max(known, holes[0]?.behind ?? tokens.length)
  const tail = parts.flatMap(({ kind, span: { start, end } }): number[] =>
    kind === 'compute' || end <= from ? [] : placesOf(span(Math.max(start, from), end)),
  )
  if (tail.length === 0) return null
  const { most: asMost, decode = DECODE, ...chosen } = choice
  const wanted: BlendChoice = Object.keys(chosen).length === 0 ? BLEND_DEFAULT : chosen
  const { echo, asked, first = 0, ending = 0, messages: whole = 0, spread = 0 } = wanted
  const most = asMost ?? wanted.most ?? 1

  const candidates = new Uint8Array(tokens.length)
  for (const at of tail) candidates[at] = 1
  const places = new Uint8Array(tokens.length)
  let count = 0
  const choose = (reason: number, of: Span) => {
    for (let at = Math.max(from, of.start); at < Math.min(tokens.length, of.end); at++)
      if (candidates[at] === 1 && places[at] === 0) {
        places[at] = reason
        count++
      }
  }
  if (echo !== undefined) for (const at of echoesIn(prompt, holes, candidates)) choose(1, span(at - echo, at + echo + 1))
  if (asked !== undefined) for (const at of askedIn(tokens, candidates)) choose(2, span(at - asked, at + asked + 1))
  for (const { behind } of holes) choose(3, span(behind, behind + first))
  choose(4, span(tokens.length - ending, tokens.length))
  // `messages` ends with the answer that is about to be generated, which does not count.
  if (whole > 0) choose(4, span(messages[messages.length - 1 - whole]?.span.start ?? 0, tokens.length))
  for (const [at, place] of tail.entries()) if (isSpread(at, spread)) choose(5, span(place, place + 1))
  let decodes = 0
  let last = -Infinity
  for (const at of tail) {
    if (places[at] === 0) continue
    if (at - last > decode + 1) decodes++
    else choose(6, span(last + 1, at))
    last = at
  }
  return { places, count, decodes, tail: tail.length, isTooMuch: count + decode * decodes > most * (tail.length + decode) }
}

/** The default of BlendChoice.decode: how many tokens can be computed in the time that one more decode costs. */
const DECODE = 8

/** BlendChoice.spread chooses runs of this many neighbouring tokens. */
const RUN = 16

/**
 * Whether BlendChoice.spread chooses a token. `at` is its index among the approximate tokens. It chooses runs of RUN tokens at even
 * distances, a `share` of all.
 */
function isSpread(at: number, share: number): boolean {
  const run = Math.floor(at / RUN)
  return Math.floor((run + 1) * share) > Math.floor(run * share)
}

/** A text that this step hides, although the cells of the tokens behind it were computed with it. */
interface NewHole extends ReplacedSpan {
  /** Prompt index of the first token behind the hole and its marker. */
  readonly behind: number
}

type HiddenLenders = Pick<Lenders, 'before' | 'parked'>

/**
 * Returns the holes that are new in this step. A hole counts only if some sequence still holds cells of its hidden text. This may be the
 * sequence that holds the tokens behind the hole. It may also be a parked one, for instance after a cancelled step parked the hidden text.
 */
function newHoles(sequence: HeldSequence, prompt: Prompt, parts: readonly Part[], { before, parked }: HiddenLenders): NewHole[] {
  const base = uneditedOf(prompt)
  const agrees = before === null ? 0 : commonPrefix(uneditedOf(before), base)
  const hiddenBefore = before?.origin?.holes ?? []
  const isNew = ({ start, end }: Span) => end > agrees || !hiddenBefore.some(({ span: of }) => of.start <= start && end <= of.end)
  const found: NewHole[] = []
  let hidden = 0
  for (const hole of prompt.origin?.holes ?? []) {
    const { start, end } = hole.span
    const behind = start - hidden + hole.marker
    hidden += end - start - hole.marker
    const next = parts.find(({ kind, span: of }) => kind !== 'compute' && of.end > behind)
    if (next === undefined || next.kind === 'compute') break
    const holder = next.kind === 'keep' ? sequence : next.from
    const isLent = () => parked.some((each) => commonPrefix(each.unedited, base) >= end && holdsText(each, hole.span))
    const isHeld = () => holdsText(holder, hole.span) || isLent()
    if (isNew(hole.span) && isHeld()) found.push({ ...hole, behind })
  }
  return found
}

/** Whether the sequence holds tokens of this hidden text. The marker of a hole right behind it does not count. */
const holdsText = (holder: HeldSequence, { start, end }: Span): boolean =>
  holder.atKey(tokenSource(start)) < holder.atKey(markerSource(end))

/** More than the number of tokens of any vocabulary. So a pair of tokens can be written as one number: first * PAIR + second. */
const PAIR = 2 ** 26

/**
 * Returns the prompt indices of echoes, among the candidates. An echo is a token that follows its predecessor in hidden text, too, but in
 * no shown text before it.
 */
function echoesIn({ tokens, origin }: Prompt, holes: readonly NewHole[], candidates: Uint8Array): number[] {
  const base = origin?.base ?? tokens
  /** For each pair of tokens in hidden text: the first prompt index behind the first hole that contains the pair. */
  const hidden = new Map<number, number>()
  for (const { span: hole, behind } of holes)
    for (let place = hole.start + 1; place < hole.end; place++) {
      const pair = base[place - 1]! * PAIR + base[place]!
      if (!hidden.has(pair)) hidden.set(pair, behind)
    }
  const shown = new Set<number>()
  const echoes: number[] = []
  for (let at = 1; at < tokens.length; at++) {
    const pair = tokens[at - 1]! * PAIR + tokens[at]!
    const behind = hidden.get(pair)
    if (behind === undefined) continue
    if (candidates[at] === 1 && behind <= at && !shown.has(pair)) echoes.push(at)
    shown.add(pair)
  }
  return echoes
}

/**
 * ASKS: the number of tokens at the end of the prompt that count as the question. RARE: a pair of its tokens counts only if it occurs at
 * most this often before the question.
 */
const ASKS = 24
const RARE = 2

/** Returns the candidate prompt indices at which a pair of neighbouring tokens of the question occurs. Ignores pairs that are not RARE. */
function askedIn(tokens: Int32Array, candidates: Uint8Array): number[] {
  const end = Math.max(1, tokens.length - ASKS)
  const pairAt = (at: number) => tokens[at - 1]! * PAIR + tokens[at]!
  const places = new Map<number, number[]>()
  for (let at = end; at < tokens.length; at++) places.set(pairAt(at), [])
  for (let at = 1; at < end; at++) places.get(pairAt(at))?.push(at)
  return [...places.values()].flatMap((of) => (of.length <= RARE ? of.filter((at) => candidates[at] === 1) : []))
}
