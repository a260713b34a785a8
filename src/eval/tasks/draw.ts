/** Owns drawing from lists by chance that can be repeated. */
import { invariant } from '../../core/errors.js'
import type { Random } from '../../core/random.js'

/** Precondition: there is one. */
export function pick<T>(random: Random, list: readonly T[]): T {
  invariant(list.length > 0, 'Nothing to pick from.')
  return list[random.below(list.length)] as T
}

/** So many different ones in random order. Precondition: there are as many. */
export function some<T>(random: Random, list: readonly T[], count: number): T[] {
  invariant(count <= list.length, `There are ${list.length} to draw from, not ${count}.`)
  return random.shuffled(list).slice(0, count)
}

/** Letters and digits. */
export function code(random: Random, length: number): string {
  const characters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789'
  return Array.from({ length }, () => characters[random.below(characters.length)]).join('')
}
