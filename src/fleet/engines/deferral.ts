/**
 * Chooses the edits that a remote engine gets now, and those that wait.
 *
 * An endpoint caches beginnings only, so after an edit all text behind it is computed again. An agent that folds one fragment a step, from
 * first to last, makes the endpoint compute the same text again and again. A small fold far in front never pays. Whether an edit pays
 * depends on the number of steps to come, which is unknown: this is the ski rental problem. Its solution: rent until the rent paid equals
 * the price of buying. That never costs more than twice as much as the best choice in hindsight. A waiting edit pays rent in each step: the
 * tokens that it would hide, at the price of cached ones. Edits that are made together cost the tokens after the first of them. Each such
 * token costs the price of a computed one less that of a cached one.
 *
 * Until then the model sees text that it has folded, so edits wait only if the option asks for it. Restored text is shown at once.
 */
import type { Edit } from '../../runtime/chat/message.js'
import { length } from '../../runtime/core/span.js'
import type { Held } from './remote-ledger.js'
import { editsByMessage, shownText } from './wire.js'

export interface DeferralOptions {
  /**
   * The price of a cached token of a prompt, as a share of the price of a computed one: 0 to 1. Hosted endpoints bill 0.1 to 0.5. Default:
   * the price that the engine's own times imply.
   */
  readonly cachedPrice?: number | (() => number)
}

/** The price of a cached token if neither the option nor the engine's times give one. */
const USUAL = 0.1
/** The engine's times count after `ENOUGH` steps. Each new step reduces the weight of the earlier ones by the share `FORGOTTEN`. */
const [ENOUGH, FORGOTTEN] = [8, 0.02]

/**
 * Estimates the price of a cached token from an engine's own times. A least-squares fit over the last steps gives the milliseconds of a
 * prompt as fixed + a x cached + b x computed. The price is a / b. Cached tokens cost time, because the computed tokens behind them attend
 * to them.
 */
export class CachedPrice {
  #steps = 0
  /** Sums of products of 1, cached, computed and milliseconds, each with each. */
  readonly #sums = Array.from({ length: 4 }, () => new Float64Array(4))

  observe(cached: number, computed: number, milliseconds: number): void {
    if (computed <= 0 || milliseconds <= 0) return
    this.#steps++
    const row = [1, cached / 1000, computed / 1000, milliseconds]
    for (const [i, sums] of this.#sums.entries())
      for (const [j, value] of row.entries()) sums[j] = (1 - FORGOTTEN) * sums[j]! + row[i]! * value
  }

  /** The estimated price; null if there were too few steps, or if they were too much alike. */
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

  /** The estimated price, or the usual one when there is no estimate. */
  get price(): number {
    return this.ratio ?? USUAL
  }
}

export interface Choice {
  /** The edits that the step shows. */
  readonly edits: readonly Edit[]
  /** The edits that still wait. */
  readonly waiting: readonly Edit[]
  /** Estimates of what all waiting edits would do now: the tokens to compute again, and the tokens to hide. */
  readonly computes: number
  readonly hides: number
  /** The price of a cached token that the choice used. */
  readonly price: number
}

/** A requested edit that the endpoint has not got yet, and its figures. */
interface WaitingEdit {
  readonly edit: Edit
  /** The place in the last prompt, in tokens, where the edit begins (an estimate); null if the last prompt did not show the message. */
  readonly place: number | null
  readonly hides: number
  readonly paid: number
}

export interface Wish {
  readonly edits: readonly Edit[]
  /** The original contents of the messages. */
  readonly contents: readonly string[]
  readonly held: Held | null
  /** Returns the text that a message has in the ledger under the given edits. */
  readonly row: (message: number, edits: readonly Edit[]) => string
  /** Returns whether the context has room for the messages under the given edits. If not, no edit waits. */
  readonly fits: (edits: readonly Edit[]) => boolean
  /** Estimates the tokens of a text. */
  readonly tokens: (text: string) => number
}

export class Deferral {
  readonly #priceOf: () => number
  #inForce = new Set<string>()
  /** The rent that waiting edits have paid, in computed tokens. */
  #paid = new Map<string, number>()

  constructor({ cachedPrice = USUAL }: DeferralOptions = {}) {
    this.#priceOf = () => Math.min(1, Math.max(0, typeof cachedPrice === 'number' ? cachedPrice : cachedPrice()))
  }

  /** The price of a cached token now, as a share of a computed one. */
  get #cachedPrice(): number {
    return this.#priceOf()
  }

  /** Chooses the edits, and assumes that the step is then made: edits that wait pay rent, and chosen edits are in force from now on. */
  choose(wish: Wish): Choice {
    const stay = wish.edits.filter((edit) => this.#inForce.has(keyOf(edit)))
    // Edits cost nothing where the cache is lost anyway: behind text that comes back or changes for another reason.
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

  /** Returns the largest set of the prompt's last edits whose rent has reached their price. */
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

/** Estimates the first token of the last prompt that changes under every choice of edits. */
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

/**
 * Returns what making these edits costs and saves. `computes`: the tokens behind the first edit that stay shown, which are computed again.
 * `hides`: the tokens that the edits hide.
 */
function priceOf(set: readonly WaitingEdit[], held: number): { readonly computes: number; readonly hides: number } {
  if (set.length === 0) return { computes: 0, hides: 0 }
  const hides = set.reduce((sum, candidate) => sum + candidate.hides, 0)
  const first = Math.min(...set.map(({ place }) => place ?? held))
  return { computes: Math.max(0, held - first - hides), hides }
}

const keyOf = ({ message, span, replacement }: Edit): string => `${message} ${span.start} ${span.end} ${replacement}`
