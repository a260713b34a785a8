/**
 * Owns the choice of edits that a remote engine is shown now, and of those that wait.
 *
 * An endpoint caches beginnings only, so an edit has all that stands after it computed again. Folding one fragment a step from first to last
 * computes the same text again and again; a fold of little far in front never pays. Whether one pays depends on the steps still to come, which
 * nobody knows: the ski rental problem. Its answer: go on renting until the rent paid is the price of buying, which never costs more than
 * twice what the best choice in hindsight costs. Rent of a waiting edit, each step: the tokens it would hide, at the price of cached ones.
 * Price: the tokens after the first edit of those made together, at the price of computing them less that of having them cached.
 *
 * Until then the model sees text that it has folded; that is why nothing waits unless asked for. What is restored is shown at once.
 */
import type { Edit } from '../../runtime/chat/message.js'
import { length } from '../../runtime/core/span.js'
import type { Held } from './remote-ledger.js'
import { editsByMessage, shownText } from './wire.js'

export interface DeferralOptions {
  /** What a cached token of a prompt costs, as a share of one that is computed: 0 to 1. Hosted endpoints bill 0.1 to 0.5. Default: what the engine's own times say. */
  readonly cachedPrice?: number | (() => number)
}

/** Where neither anybody nor the engine has said a price. */
const USUAL = 0.1
/** Steps after which the engine's times are believed, and the share of a step that is forgotten with each new one. */
const [ENOUGH, FORGOTTEN] = [8, 0.02]

/**
 * The price of a cached token by an engine's own times: milliseconds of a prompt = fixed + a x cached + b x computed, by least squares over the last
 * steps; the price is a / b. What is cached costs because what is computed after it looks at it.
 */
export class CachedPrice {
  #steps = 0
  /** Sums of 1, cached, computed and milliseconds, each with each. */
  readonly #sums = Array.from({ length: 4 }, () => new Float64Array(4))

  observe(cached: number, computed: number, milliseconds: number): void {
    if (computed <= 0 || milliseconds <= 0) return
    this.#steps++
    const row = [1, cached / 1000, computed / 1000, milliseconds]
    for (const [i, sums] of this.#sums.entries())
      for (const [j, value] of row.entries()) sums[j] = (1 - FORGOTTEN) * sums[j]! + row[i]! * value
  }

  /** Null: there were too few steps, or they were too much alike. */
  get ratio(): number | null {
    if (this.#steps < ENOUGH) return null
    const [one, cached, computed] = this.#sums.map((sums) => [...sums])
    const about = (a: readonly number[], at: number) => a[at]! - (a[0]! * one![at]!) / one![0]!
    const [cc, cn, nn] = [about(cached!, 1), about(cached!, 2), about(computed!, 2)]
    const [cm, nm] = [about(cached!, 3), about(computed!, 3)]
    const determinant = cc * nn - cn * cn
    if (determinant <= 1e-3 * cc * nn) return null
    const [a, b] = [(cm * nn - nm * cn) / determinant, (nm * cc - cm * cn) / determinant]
    return b > 0 ? Math.min(1, Math.max(0, a / b)) : null
  }

  /** What is to be counted with now. */
  get price(): number {
    return this.ratio ?? USUAL
  }
}

export interface Choice {
  /** Shown now. */
  readonly edits: readonly Edit[]
  /** Kept back. */
  readonly waiting: readonly Edit[]
  /** Tokens that making all of them now would compute again, and that it would hide; about. */
  readonly computes: number
  readonly hides: number
  /** What a cached token was taken to cost. */
  readonly price: number
}

/** A wanted edit that is not in force, and what is known of it. */
interface WaitingEdit {
  readonly edit: Edit
  /** Token of the last prompt at which it begins, about; null: the last prompt did not show that message. */
  readonly place: number | null
  readonly hides: number
  readonly paid: number
}

export interface Wish {
  readonly edits: readonly Edit[]
  /** Original contents. */
  readonly contents: readonly string[]
  readonly held: Held | null
  /** A message's text as a row of the books has it, under edits of it. */
  readonly row: (message: number, edits: readonly Edit[]) => string
  /** Whether the context has room for the messages under these edits; where it has not, nothing waits. */
  readonly fits: (edits: readonly Edit[]) => boolean
  /** Tokens of a text, about. */
  readonly tokens: (text: string) => number
}

export class Deferral {
  readonly #priceOf: () => number
  #inForce = new Set<string>()
  /** Rent that waiting edits have paid, in computed tokens. */
  #paid = new Map<string, number>()

  constructor({ cachedPrice = USUAL }: DeferralOptions = {}) {
    this.#priceOf = () => Math.min(1, Math.max(0, typeof cachedPrice === 'number' ? cachedPrice : cachedPrice()))
  }

  /** What a cached token costs now, as a share of a computed one. */
  get #cachedPrice(): number {
    return this.#priceOf()
  }

  /** Chooses, and takes it that the step is made: rent is paid, chosen edits are in force. */
  choose(wish: Wish): Choice {
    const stay = wish.edits.filter((edit) => this.#inForce.has(keyOf(edit)))
    // Where the cache is lost anyway, edits cost nothing: behind text that comes back, or changes for another reason.
    const lost = lostFrom(wish, stay)
    const candidates = this.#candidates(wish, stay)
    const free = candidates.filter(({ place, hides }) => place === null || place >= lost || hides < 0)
    const rest = candidates.filter((candidate) => !free.includes(candidate)).map((one) => this.#rented(one))
    const inTime = [...free, ...this.#paidOff(rest, wish.held?.tokens ?? 0)]
    const fits = inTime.length === candidates.length || wish.fits([...stay, ...inTime.map(({ edit }) => edit)])
    const chosen = fits ? inTime : candidates
    const waiting = rest.filter(({ edit }) => !chosen.some((one) => one.edit === edit))

    this.#inForce = new Set([...stay, ...chosen.map(({ edit }) => edit)].map(keyOf))
    this.#paid = new Map(waiting.map(({ edit, paid }) => [keyOf(edit), paid]))
    const edits = wish.edits.filter((edit) => this.#inForce.has(keyOf(edit)))
    const price = priceOf(waiting, wish.held?.tokens ?? 0)
    return { edits, waiting: waiting.map(({ edit }) => edit), ...price, price: this.#cachedPrice }
  }

  #rented(candidate: WaitingEdit): WaitingEdit {
    return { ...candidate, paid: candidate.paid + candidate.hides * this.#cachedPrice }
  }

  /** The largest set of the hindmost edits whose rent has reached its price. */
  #paidOff(candidates: readonly WaitingEdit[], held: number): readonly WaitingEdit[] {
    const sorted = [...candidates].sort((a, b) => (a.place ?? 0) - (b.place ?? 0))
    for (let from = 0; from < sorted.length; from++) {
      const set = sorted.slice(from)
      const rent = set.reduce((sum, { paid }) => sum + paid, 0)
      if (rent >= priceOf(set, held).computes * (1 - this.#cachedPrice)) return set
    }
    return []
  }

  #candidates({ edits, contents, held, tokens }: Wish, stay: readonly Edit[]): WaitingEdit[] {
    return edits
      .filter((edit) => !this.#inForce.has(keyOf(edit)))
      .map((edit) => {
        const content = contents[edit.message] ?? ''
        const at = held?.spans[edit.message]
        const hides = tokens(content.slice(edit.span.start, edit.span.end)) - tokens(edit.replacement)
        if (at === undefined) return { edit, place: null, hides, paid: 0 }
        const before = stay.filter(({ message, span: { end } }) => message === edit.message && end <= edit.span.start)
        const place = at.start + Math.min(length(at), tokens(shownText(content.slice(0, edit.span.start), before)))
        return { edit, place, hides, paid: this.#paid.get(keyOf(edit)) ?? 0 }
      })
  }
}

/** The first token of the last prompt that is another one now, about, whatever is chosen. */
function lostFrom({ contents, held, row, tokens }: Wish, stay: readonly Edit[]): number {
  if (held === null) return 0
  const edits = editsByMessage(stay)
  for (const [index, at] of held.spans.entries()) {
    if (index >= contents.length) return at.start
    const old = held.rows[index]?.text ?? ''
    const now = row(index, edits.get(index) ?? [])
    if (now === old) continue
    let same = 0
    while (same < old.length && now[same] === old[same]) same++
    return at.start + Math.min(length(at), tokens(old.slice(0, same)))
  }
  return held.tokens
}

/** Tokens after the first of these edits that stay shown and are computed again when they are made, and those that they hide. */
function priceOf(set: readonly WaitingEdit[], held: number): { readonly computes: number; readonly hides: number } {
  if (set.length === 0) return { computes: 0, hides: 0 }
  const hides = set.reduce((sum, candidate) => sum + candidate.hides, 0)
  const first = Math.min(...set.map(({ place }) => place ?? held))
  return { computes: Math.max(0, held - first - hides), hides }
}

const keyOf = ({ message, span, replacement }: Edit): string => `${message} ${span.start} ${span.end} ${replacement}`
