/** Owns the making of ids: deterministic, unlike each other, unique in their conversation. */
import type { ChatMessage } from '../chat/message.js'
import { invariant } from '../core/errors.js'
import { fragmentId, searchId, type FragmentId, type SearchId } from '../core/ids.js'
import { mix } from '../core/random.js'

/** Five hexadecimal digits. */
const ROOM = 16 ** 5

/**
 * Ids are a hash of the conversation's content so far and of a counter, so that the same run gives the same ids and no model
 * can guess the next one from the last (spec: acm-tools, ids).
 */
export class IdMint {
  readonly #used = new Set<string>()
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
    for (const id of used) this.#used.add(id)
  }

  /** Ids made so far, collisions skipped included. */
  get count(): number {
    return this.#count
  }

  #next(prefix: 'f' | 's'): string {
    invariant(this.#used.size < ROOM, `All ${ROOM} ids of this conversation are used up.`)
    for (;;) {
      const id = prefix + (mix(this.#content ^ mix(this.#count++)) % ROOM).toString(16).padStart(5, '0')
      if (this.#used.has(id)) continue
      this.#used.add(id)
      return id
    }
  }
}
