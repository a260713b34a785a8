/** GBNF for an object's properties: their order, their number, and names of additional properties. */
import { classChar, literal } from './rules.js'
import { repeated } from './pattern.js'

/** Adds a rule with this body. Returns the rule's name. */
export type AddRule = (body: string) => string

export interface PropertyRule {
  readonly pair: string
  readonly isNeeded: boolean
}

/**
 * Writes GBNF for an object's properties: first `entries` in this order, then others. Between `least` and `most` properties must occur.
 * Returns null when that is impossible.
 */
export function sequenceOf(
  rule: AddRule,
  entries: readonly PropertyRule[],
  other: string | null,
  comma: string,
  least: number,
  most: number,
): string | null {
  const needed = entries.filter(({ isNeeded }) => isNeeded).length
  if (needed > most || least > most) return null
  const isCounted = least > needed || most < entries.length
  const known = new Map<string, string | null>()
  /**
   * Returns the rule for what may follow after `count` properties, beginning with the entry at index `at`. If properties are not counted,
   * `count` 1 means one or more.
   */
  const from = (at: number, count: number): string | null => known.get(`${at} ${count}`) ?? null
  const follow = (at: number, count: number): void => {
    const made = at < entries.length ? entry(at, count) : others(count)
    // A rule, because several other rules continue with this text.
    known.set(`${at} ${count}`, made === null || made === '' ? made : rule(made))
  }
  const entry = (at: number, count: number): string | null => {
    const { pair, isNeeded } = entries[at]!
    const taken = isCounted && count >= most ? null : from(at + 1, isCounted ? count + 1 : 1)
    const skipped = isNeeded ? null : from(at + 1, count)
    const written = taken === null ? [] : [`${count === 0 ? '' : `${comma} `}${pair}${taken === '' ? '' : ` ${taken}`}`]
    const all = [...written, ...(skipped === null ? [] : [skipped === '' ? '""' : skipped])]
    return all.length === 0 ? null : all.join(' | ')
  }
  const others = (count: number): string | null => {
    const missing = isCounted ? Math.max(least - count, 0) : 0
    if (other === null) return missing > 0 ? null : ''
    const room = most - (isCounted ? count : entries.length)
    if (missing > 1 || missing > room) return null
    if (room <= 0) return ''
    if (count > 0) return repeated(`( ${comma} ${other} )`, missing, room)
    const some = `${other} ${repeated(`( ${comma} ${other} )`, 0, room - 1)}`
    return missing > 0 ? some : `( ${some} )?`
  }
  // From the last entry to the first, in a loop: an object may have thousands of entries, too many for recursion.
  let neededBefore = needed
  for (let at = entries.length; at >= 0; at--) {
    if (entries[at]?.isNeeded === true) neededBefore--
    const fewest = Math.min(neededBefore, isCounted ? Infinity : 1)
    for (let count = Math.min(at, isCounted ? most : 1); count >= fewest; count--) follow(at, count)
  }
  return from(0, 0)
}

/** Writes GBNF for all keys except these names. */
export function otherKeys(rule: AddRule, names: readonly string[]): string {
  if (names.length === 0) return 'string'
  /**
   * Writes the rest of a key whose first `length` characters are those of all names in `alike`. The whole key must differ from each of
   * these names.
   */
  const inside = (alike: readonly (readonly string[])[], length: number): string => {
    const next = new Map<string, (readonly string[])[]>()
    for (const chars of alike) {
      const char = chars[length]
      if (char === undefined) continue
      const those = next.get(char)
      if (those === undefined) next.set(char, [chars])
      else those.push(chars)
    }
    const isName = alike.some((chars) => chars.length === length)
    const others = `[^"\\\\\\x00-\\x1f${[...next.keys()].map(classChar).join('')}] [^"\\\\\\x00-\\x1f]*`
    const branches = [...next]
      .filter(([char]) => char >= ' ' && char !== '"' && char !== '\\')
      .map(([char, those]) => `${literal(char)} ${inside(those, length + 1)}`)
    const all = [others, ...branches].join(' | ')
    return isName ? `( ${all} )` : `( ${all} )?`
  }
  return rule(
    `"\\"" ${inside(
      names.map((name) => Array.from(name)),
      0,
    )} "\\""`,
  )
}
