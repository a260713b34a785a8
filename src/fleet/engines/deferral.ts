/**
 * Decides which edits a remote engine gets at this step, and which edits wait.
 *
 * An endpoint has a prefix cache only, so an edit makes it compute all text behind the edit again. An agent that folds one fragment per
 * step, from first to last, makes it compute the same text again and again. A small fold far in front never pays.
 *
 * Whether an edit pays depends on the unknown number of steps to come. This is the ski rental problem, whose known solution is: rent until
 * the rent paid equals the price of buying. That costs at most twice the best choice in hindsight. A waiting edit pays rent in each step:
 * the tokens that it would hide, at the price of cached tokens. A set of edits is bought at the price of the shown tokens behind its first
 * edit. Each of them costs the price of a computed token less that of a cached one.
 *
 * While an edit waits, the model still sees the folded text. So edits wait only if the option asks for it. A restore is never delayed.
 */
import type { Edit } from '../../runtime/chat/message.js'
import { length } from '../../runtime/core/span.js'
import type { Held } from './remote-ledger.js'
import { editsByMessage, shownText } from './wire.js'

export interface DeferralOptions {
  /**
   * The price of a cached prompt token as a share of the price of a computed one, 0 to 1. Hosted endpoints bill 0.1 to 0.5. Default: the
   * ratio that the engine's own times imply (`CachedPrice`), and 0.1 until they are known.
   */
  readonly cachedPrice?: number | (() => number)
}

/** The price of a cached token, as a share of a computed one, if no other figure is known. */
const USUAL = 0.1
/** There is no estimate before `ENOUGH` steps. Each new step reduces the weight of the earlier steps by the share `FORGOTTEN`. */
const [ENOUGH, FORGOTTEN] = [8, 0.02]

/**
 * Estimates the price of a cached token from an engine's own times. A least-squares fit over the recent steps models the milliseconds of a
 * prompt as fixed + a × cached + b × computed. The price is a / b. A cached token costs time because the computed tokens behind it attend
 * to it.
 */
export class CachedPrice {
  #steps = 0
  /** Row i, column j: the weighted sum over steps of x[i] × x[j], where x = (1, cached / 1000, computed / 1000, milliseconds). */
  readonly #sums = Array.from({ length: 4 }, () => new Float64Array(4))

  observe(cached: number, computed: number, milliseconds: number): void {
    if (computed <= 0 || milliseconds <= 0) return
    this.#steps++
    const row = [1, cached / 1000, computed / 1000, milliseconds]
    for (const [i, sums] of this.#sums.entries())
      for (const [j, value] of row.entries()) sums[j] = (1 - FORGOTTEN) * sums[j]! + row[i]! * value
  }

  /** The estimated price; null if there were too few steps, or if their numbers of cached and computed tokens are nearly proportional. */
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

  /** The estimated price; 0.1 if there is no estimate. */
  get price(): number {
    return this.ratio ?? USUAL
  }
}

export interface Choice {
  /** The edits that this step shows to the engine. */
  readonly edits: readonly Edit[]
  /** The edits that wait for a later step. */
  readonly waiting: readonly Edit[]
  /** Estimates for the case that all waiting edits were made at this step: `computes` tokens computed again, `hides` tokens hidden. */
  readonly computes: number
  readonly hides: number
  /** The price of a cached token, as a share of a computed one, that the choice used. */
  readonly price: number
}

/** A requested edit that the endpoint has not received yet, and its estimates in tokens. `paid`: the rent so far. */
interface WaitingEdit {
  readonly edit: Edit
  /** Index of the first token in the last prompt that the edit changes (an estimate); null if the last prompt did not show the message. */
  readonly place: number | null
  readonly hides: number
  readonly paid: number
}

export interface Wish {
  readonly edits: readonly Edit[]
  /** The original content of each message. */
  readonly contents: readonly string[]
  readonly held: Held | null
  /** Returns a message's text, as the ledger records it, under the given edits. */
  readonly row: (message: number, edits: readonly Edit[]) => string
  /** Returns whether the context has room for the messages under the given edits. If not, no edit waits. */
  readonly fits: (edits: readonly Edit[]) => boolean
  /** Estimates the tokens of a text. */
  readonly tokens: (text: string) => number
}

export class Deferral {
  readonly #priceOf: () => number
  #inForce = new Set<string>()
  /** The rent that each waiting edit has paid, in computed tokens, by `keyOf` the edit. */
  #paid = new Map<string, number>()

  constructor({ cachedPrice = USUAL }: DeferralOptions = {}) {
    this.#priceOf = () => Math.min(1, Math.max(0, typeof cachedPrice === 'number' ? cachedPrice : cachedPrice()))
  }

  get #cachedPrice(): number {
    return this.#priceOf()
  }

  /** Chooses the edits for a step that is about to run. The waiting edits pay their rent for it, and the chosen edits stay in force. */
  choose(wish: Wish): Choice {
    const stay = wish.edits.filter((edit) => this.#inForce.has(keyOf(edit)))
    // An edit is free where the cache is lost anyway: behind text that is restored, or that changed for another reason.
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

  /**
   * Returns the edits from some point of the prompt to its end whose rent has reached their price. Takes the largest such set; empty if
   * none.
   */
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

/** Estimates the index of the first token of the last prompt that changes even if no waiting edit is made. */
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
 * Returns what it costs and saves to make these edits together. `computes`: the shown tokens behind the first edit, which the engine
 * computes again. `hides`: the tokens that the edits hide. `held`: the tokens in the engine's cache.
 */
function priceOf(set: readonly WaitingEdit[], held: number): { readonly computes: number; readonly hides: number } {
  if (set.length === 0) return { computes: 0, hides: 0 }
  const hides = set.reduce((sum, candidate) => sum + candidate.hides, 0)
  const first = Math.min(...set.map(({ place }) => place ?? held))
  return { computes: Math.max(0, held - first - hides), hides }
}

const keyOf = ({ message, span, replacement }: Edit): string => `${message} ${span.start} ${span.end} ${replacement}`
