/** Owns the properties of an object as GBNF: which follow which, how many there may be, and what others may be called. */
import { literal } from './rules.js'
import { repeated } from './pattern.js'

/** Adds a rule of this body and gives its name. */
export type AddRule = (body: string) => string

export interface PropertyRule {
  readonly pair: string
  readonly isNeeded: boolean
}

/** Null: it cannot be. */
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
  /** What follows behind `count` properties (not counted: 1 for any number), from the entry at `at` on. */
  const from = (at: number, count: number): string | null => {
    const key = `${at} ${count}`
    if (!known.has(key)) {
      const made = at < entries.length ? entry(at, count) : others(count)
      // A rule, as several places lead here.
      known.set(key, made === null || made === '' ? made : rule(made))
    }
    return known.get(key)!
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
  return from(0, 0)
}

/** Keys that are none of these. */
export function otherKeys(rule: AddRule, names: readonly string[]): string {
  if (names.length === 0) return 'string'
  const inside = (at: string): string => {
    const next = [
      ...new Set(
        names
          .filter((name) => name.startsWith(at) && name.length > at.length)
          .map((name) => Array.from(name.slice(at.length))[0]!),
      ),
    ]
    const isName = names.includes(at)
    const others = `[^"\\\\\\x00-\\x1f${next.map(classChar).join('')}] [^"\\\\\\x00-\\x1f]*`
    const branches = next
      .filter((char) => char >= ' ' && char !== '"' && char !== '\\')
      .map((char) => `${literal(char)} ${inside(at + char)}`)
    const all = [others, ...branches].join(' | ')
    return isName ? `( ${all} )` : `( ${all} )?`
  }
  return rule(`"\\"" ${inside('')} "\\""`)
}

const classChar = (char: string): string => (/[[\]\\^-]/.test(char) ? `\\${char}` : char)
