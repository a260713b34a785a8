/** Owns the making of ids: deterministic, unlike each other, unique in their conversation. */
import type { ChatMessage } from '../chat/message.js'
import { invariant } from '../core/errors.js'
import { fragmentId, searchId, type FragmentId, type SearchId } from '../core/ids.js'
import { mix } from '../core/random.js'

/** Five hexadecimal digits. */
const ROOM = 16 ** 5

/** Candidates for one id: so many that the last one that is unlike all others is found (one in twenty; 64 missed it now and then). */
const TRIES = 512

/**
 * Ids are a hash of the conversation's content so far and of a counter, so that the same run gives the same ids and no model
 * can guess the next one from the last (spec: acm-tools, ids). Models copy ids piece by piece and go astray where two of them share a piece: as
 * long as there are some left, an id shares no pair of characters with another.
 */
export class IdMint {
  readonly #used = new Set<string>()
  /** Of the ids in use: their first two characters, the next two and the last two. */
  readonly #pairs = new Set<string>()
  #content = 0x811c9dc5
  #count = 0

  /** Takes a message into the hash. */
  absorb({ role, content }: ChatMessage): void {
    let hash = this.#content
    for (const text of [role, '\n', content, '\n'])
      for (let at = 0; at < text.length; at++) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193)
    this.#content = hash
  }

  fragment(): FragmentId {
    return fragmentId(this.#next('f'))
  }

  search(): SearchId {
    return searchId(this.#next('s'))
  }

  /** Goes on where another one stopped that had made `count` ids, `used` among them. */
  resume(count: number, used: readonly string[]): void {
    this.#count = count
    for (const id of used) this.#take(id)
  }

  /** Ids made so far, those that were not taken included. */
  get count(): number {
    return this.#count
  }

  #next(prefix: 'f' | 's'): string {
    invariant(this.#used.size < ROOM, `All ${ROOM} ids of this conversation are used up.`)
    let best: { readonly id: string; readonly shared: number } | null = null
    for (let tries = 0; best === null || (best.shared > 0 && tries < TRIES); tries++) {
      const id = prefix + (mix(this.#content ^ mix(this.#count++)) % ROOM).toString(16).padStart(5, '0')
      const shared = pairsOf(id).filter((pair) => this.#pairs.has(pair)).length
      if (!this.#used.has(id) && shared < (best?.shared ?? Infinity)) best = { id, shared }
    }
    this.#take(best.id)
    return best.id
  }

  #take(id: string): void {
    this.#used.add(id)
    for (const pair of pairsOf(id)) this.#pairs.add(pair)
  }
}

const pairsOf = (id: string): string[] => [id.slice(0, 2), id.slice(2, 4), id.slice(4)]
