/** Regular expressions of JSON schemas as GBNF, for characters in a JSON string or in raw text. Also computes how long a match may be. */
import { KvfoldError } from '../../core/errors.js'

/** Ranges of code points (first and last), sorted and disjoint. */
export type CharSet = readonly (readonly [number, number])[]

export type Pattern =
  | { readonly kind: 'set'; readonly set: CharSet }
  | { readonly kind: 'all'; readonly parts: readonly Pattern[] }
  | { readonly kind: 'any'; readonly parts: readonly Pattern[] }
  | { readonly kind: 'repeat'; readonly part: Pattern; readonly least: number; readonly most: number }

/** `json`: characters as in a JSON string, escaped where needed. `raw`: characters as they are. */
export type Writing = 'json' | 'raw'

const LAST = 0x10ffff
const EVERY: CharSet = [
  [0, 0xd7ff],
  [0xe000, LAST],
]
const DIGIT: CharSet = [[0x30, 0x39]]
const WORD: CharSet = [
  [0x30, 0x39],
  [0x41, 0x5a],
  [0x5f, 0x5f],
  [0x61, 0x7a],
]
const SPACE: CharSet = [
  [0x09, 0x0d],
  [0x20, 0x20],
  [0xa0, 0xa0],
  [0x1680, 0x1680],
  [0x2000, 0x200a],
  [0x2028, 0x2029],
  [0x202f, 0x202f],
  [0x205f, 0x205f],
  [0x3000, 0x3000],
  [0xfeff, 0xfeff],
]
const LINE_ENDS: CharSet = [
  [0x0a, 0x0a],
  [0x0d, 0x0d],
  [0x2028, 0x2029],
]

const union = (...sets: readonly CharSet[]): CharSet => {
  const sorted = sets.flat().sort((a, b) => a[0] - b[0])
  const joined: [number, number][] = []
  for (const [from, to] of sorted) {
    const last = joined.at(-1)
    if (last !== undefined && from <= last[1] + 1) last[1] = Math.max(last[1], to)
    else joined.push([from, to])
  }
  return joined
}

const both = (a: CharSet, b: CharSet): CharSet =>
  a.flatMap(([from, to]) =>
    b.flatMap(([start, end]): [number, number][] =>
      Math.max(from, start) <= Math.min(to, end) ? [[Math.max(from, start), Math.min(to, end)]] : [],
    ),
  )

const without = (set: CharSet): CharSet => {
  const rest: [number, number][] = []
  let next = 0
  for (const [from, to] of set) {
    if (from > next) rest.push([next, from - 1])
    next = to + 1
  }
  if (next <= LAST) rest.push([next, LAST])
  return both(rest, EVERY)
}

/** Characters that stand in a JSON string without an escape. */
const PLAIN = without([
  [0, 0x1f],
  [0x22, 0x22],
  [0x5c, 0x5c],
])
const SHORT: Readonly<Record<number, string>> = { 8: 'b', 9: 't', 10: 'n', 12: 'f', 13: 'r', 34: '"', 92: '\\' }

const inClass = (code: number): string =>
  code > 0x20 && code < 0x7f && !'[]\\^-'.includes(String.fromCharCode(code))
    ? String.fromCharCode(code)
    : code < 0x100
      ? `\\x${code.toString(16).padStart(2, '0')}`
      : code < 0x10000
        ? `\\u${code.toString(16).padStart(4, '0')}`
        : `\\U${code.toString(16).padStart(8, '0')}`

const classOf = (set: CharSet): string =>
  `[${set.map(([from, to]) => inClass(from) + (to === from ? '' : `-${inClass(to)}`)).join('')}]`

/** Writes GBNF for one character of the set. Returns null when no character of the set can be written. */
function charRule(set: CharSet, writing: Writing): string | null {
  if (writing === 'raw') return set.length === 0 ? null : classOf(set)
  const plain = both(set, PLAIN)
  const options = plain.length === 0 ? [] : [classOf(plain)]
  // All escapes share one backslash. This keeps the number of parallel parse states small in grammars that allow any character.
  const short: [number, number][] = []
  const long: string[] = []
  for (const [from, to] of both(set, without(PLAIN)))
    for (let code = from; code <= to; code++) {
      const letter = SHORT[code]?.charCodeAt(0)
      if (letter === undefined) long.push(`"${code.toString(16).padStart(4, '0')}"`)
      else short.push([letter, letter])
    }
  const escapes = [...(short.length > 0 ? [classOf(short)] : []), ...(long.length > 0 ? [`"u" ( ${long.join(' | ')} )`] : [])]
  if (escapes.length > 0) options.push(`"\\\\" ( ${escapes.join(' | ')} )`)
  if (options.length === 0) return null
  return escapes.length === 0 ? options[0]! : `( ${options.join(' | ')} )`
}

/** The most characters of a pattern's GBNF. It can be a thousand times as long as the pattern. */
const LONGEST_RULE = 2 ** 18

/**
 * Writes GBNF for texts that match the pattern. Returns null when no text can match.
 * @throws KvfoldError engine/bad-grammar when the GBNF would be too long
 */
export function patternRule(pattern: Pattern, writing: Writing): string | null {
  const rule = ruleOf(pattern, writing)
  if (rule !== null && rule.length > LONGEST_RULE)
    throw new KvfoldError('engine/bad-grammar', `makes a grammar of more than ${LONGEST_RULE} characters`)
  return rule
}

function ruleOf(pattern: Pattern, writing: Writing): string | null {
  switch (pattern.kind) {
    case 'set':
      return charRule(pattern.set, writing)
    case 'all': {
      const parts = pattern.parts.map((part) => patternRule(part, writing))
      return parts.includes(null) ? null : `( ${parts.length === 0 ? '""' : parts.join(' ')} )`
    }
    case 'any': {
      const parts = pattern.parts.map((part) => patternRule(part, writing)).filter((part) => part !== null)
      return parts.length === 0 ? null : `( ${parts.join(' | ')} )`
    }
    case 'repeat': {
      const part = patternRule(pattern.part, writing)
      if (part === null) return pattern.least === 0 ? '""' : null
      return repeated(part, pattern.least, pattern.most)
    }
  }
}

/**
 * The largest repetition count to write as one `{n}`. llama.cpp's grammar parser writes each repetition out, so larger counts become
 * repeated blocks.
 */
const MOST_REPEATED = 500
/** The longest GBNF text to repeat in blocks, in characters. Blocks contain the text several times. */
const LONGEST_REPEATED = 20_000

/** Writes GBNF for `part`, repeated from `least` to `most` times. */
export function repeated(part: string, least: number, most: number): string {
  if (most === 0) return '""'
  if (least === 0 && most === Infinity) return `${part}*`
  if (least === 1 && most === Infinity) return `${part}+`
  if (least === 0 && most === 1) return `${part}?`
  if (most <= MOST_REPEATED) return `${part}{${least}${most === least ? '' : `,${most}`}}`
  if (part.length > LONGEST_REPEATED)
    throw new KvfoldError('engine/bad-grammar', `repeats a part whose grammar takes more than ${LONGEST_REPEATED} characters`)
  // First the whole blocks, then the repetitions that do not fill one.
  const block = `( ${part}{${MOST_REPEATED}} )`
  if (least > MOST_REPEATED) {
    const blocks = Math.floor(least / MOST_REPEATED)
    const taken = blocks * MOST_REPEATED
    return `( ${repeated(block, blocks, blocks)} ${repeated(part, least - taken, most - taken)} )`
  }
  if (most === Infinity) return `( ${part}{${least}} ${part}* )`
  if (least > 0) return `( ${part}{${least}} ${repeated(part, 0, most - least)} )`
  const blocks = Math.floor(most / MOST_REPEATED)
  const rest = most - blocks * MOST_REPEATED
  const short = `${repeated(block, 0, blocks - 1)} ${repeated(part, 0, MOST_REPEATED - 1)}`
  return `( ${short} | ${repeated(block, blocks, blocks)} ${repeated(part, 0, rest)} )`
}

/** Returns the fewest and the most characters of a match. */
export function lengthsOf(pattern: Pattern): readonly [least: number, most: number] {
  switch (pattern.kind) {
    case 'set':
      return [1, 1]
    case 'all':
      return pattern.parts.map(lengthsOf).reduce(([least, most], [a, b]) => [least + a, most + b], [0, 0])
    case 'any': {
      const lengths = pattern.parts.map(lengthsOf)
      return [Math.min(...lengths.map(([least]) => least)), Math.max(...lengths.map(([, most]) => most))]
    }
    case 'repeat': {
      const [least, most] = lengthsOf(pattern.part)
      return [least * pattern.least, most === 0 || pattern.most === 0 ? 0 : most * pattern.most]
    }
  }
}

/**
 * Restricts a pattern to matches of these lengths, by changing how often its one repeated character may occur. Returns null for patterns of
 * any other kind.
 */
export function ofLength(pattern: Pattern, least: number, most: number): Pattern | null {
  const [shortest, longest] = lengthsOf(pattern)
  if (shortest >= least && longest <= most) return pattern
  const parts = pattern.kind === 'all' ? pattern.parts : [pattern]
  const free = parts.filter((part) => {
    const [a, b] = lengthsOf(part)
    return a !== b
  })
  const [only] = free
  if (free.length !== 1 || only?.kind !== 'repeat') return null
  const [a, b] = lengthsOf(only.part)
  if (a !== 1 || b !== 1) return null
  const fixed = shortest - only.least
  const bounds = { least: Math.max(only.least, least - fixed), most: Math.min(only.most, most - fixed) }
  if (bounds.least > bounds.most) return { kind: 'any', parts: [] }
  return { kind: 'all', parts: parts.map((part) => (part === only ? { ...only, ...bounds } : part)) }
}

/** When a match must be shortened: the shares of the spare characters to try for its first part of variable length. */
const SHARES = [0, 0.25, 0.5, 0.75, 1]
const HALF = [0.5]

/**
 * Restricts a pattern to matches of at most `most` characters. Not all such matches are kept. There are none when the shortest match is
 * longer.
 * @param ways the shares of spare characters that the first part of variable length may get
 */
export function shortened(pattern: Pattern, most: number, ways: readonly number[] = SHARES): Pattern {
  const [shortest, longest] = lengthsOf(pattern)
  if (longest <= most) return pattern
  if (shortest > most) return { kind: 'any', parts: [] }
  switch (pattern.kind) {
    case 'set':
      return pattern
    case 'any':
      return {
        kind: 'any',
        parts: pattern.parts.filter((part) => lengthsOf(part)[0] <= most).map((part) => shortened(part, most, ways)),
      }
    case 'repeat': {
      const { part, least } = pattern
      const [narrowest, widest] = lengthsOf(part)
      const count = Math.floor(most / widest)
      if (count >= Math.max(least, 1)) return { ...pattern, most: Math.min(pattern.most, count) }
      if (most < narrowest) return { ...pattern, most: least }
      const fewest = Math.max(least, 1)
      return { ...pattern, part: shortened(part, Math.floor(most / fewest), HALF), most: fewest }
    }
    case 'all': {
      const at = pattern.parts.findIndex((part) => lengthsOf(part)[0] < lengthsOf(part)[1])
      const first = pattern.parts[at]!
      const [before, after] = [pattern.parts.slice(0, at), pattern.parts.slice(at + 1)]
      const rest: Pattern = { kind: 'all', parts: after }
      const [fewest, widest] = lengthsOf(first)
      const spare = most - shortest
      const isLast = lengthsOf(rest)[0] === lengthsOf(rest)[1]
      const split = (share: number): Pattern => {
        const given = Math.min(Math.floor(spare * share), widest - fewest)
        const own = shortened(first, fewest + given, HALF)
        return { kind: 'all', parts: [...before, own, shortened(rest, lengthsOf(rest)[0] + spare - given, HALF)] }
      }
      return isLast ? split(1) : { kind: 'any', parts: ways.map(split) }
    }
  }
}

/** Matches any text. */
const anyText: Pattern = { kind: 'repeat', part: { kind: 'set', set: EVERY }, least: 0, most: Infinity }

/** Matches any text without `<`, the character that tags begin with. */
export const PLAIN_TEXT: Pattern = {
  kind: 'repeat',
  part: { kind: 'set', set: without([[0x3c, 0x3c]]) },
  least: 0,
  most: Infinity,
}

/** Restricts a pattern to matches that do not contain this character. */
export function lacking(pattern: Pattern, char: string): Pattern {
  const code = char.codePointAt(0)!
  if (pattern.kind === 'set') return { kind: 'set', set: both(pattern.set, without([[code, code]])) }
  if (pattern.kind === 'repeat') return { ...pattern, part: lacking(pattern.part, char) }
  return { ...pattern, parts: pattern.parts.map((part) => lacking(part, char)) }
}

/** Whether a match may contain this character. */
export function mayHave(pattern: Pattern, char: string): boolean {
  const code = char.codePointAt(0)!
  if (pattern.kind === 'set') return pattern.set.some(([from, to]) => from <= code && code <= to)
  return pattern.kind === 'repeat' ? mayHave(pattern.part, char) : pattern.parts.some((part) => mayHave(part, char))
}

/** Parses a JSON schema's pattern: it may match anywhere in the text. @throws KvfoldError engine/bad-grammar */
export const parsePattern = (source: string): Pattern => parsed(source, false)

/** Parses a pattern that must match the text from beginning to end. @throws KvfoldError engine/bad-grammar */
export const wholePattern = (source: string): Pattern => parsed(source, true)

function parsed(source: string, isWhole: boolean): Pattern {
  if (source.length > LONGEST_PATTERN)
    throw new KvfoldError('engine/bad-grammar', `has ${source.length} characters, but at most ${LONGEST_PATTERN} are allowed`)
  try {
    // JSON Schema uses JavaScript's regular expressions, so JavaScript checks the syntax.
    new RegExp(source, 'u')
  } catch (error) {
    throw new KvfoldError('engine/bad-grammar', `is not a valid regular expression (${(error as Error).message})`)
  }
  return new PatternReader(source, isWhole).read()
}

const LONGEST_PATTERN = 20_000
/** The deepest nesting of groups. */
const DEEPEST = 100

class PatternReader {
  readonly #chars: readonly string[]
  #at = 0
  #depth = 0

  /** @param isWhole whether a match must be the whole text; `^` and `$` around the pattern are then redundant */
  constructor(
    source: string,
    private readonly isWhole: boolean,
  ) {
    this.#chars = Array.from(source)
  }

  read(): Pattern {
    const pattern = this.#choice(true)
    if (this.#at < this.#chars.length) throw this.#cannot('a bracket that closes nothing')
    return pattern
  }

  get #next(): string {
    return this.#chars[this.#at] ?? ''
  }

  /** Reads alternatives. `searched`: true at the top level, where a match may begin anywhere in the text; false inside groups. */
  #choice(searched: boolean): Pattern {
    const parts = [this.#sequence(searched)]
    while (this.#next === '|') {
      this.#at++
      parts.push(this.#sequence(searched))
    }
    return parts.length === 1 ? parts[0]! : { kind: 'any', parts }
  }

  #sequence(searched: boolean): Pattern {
    const parts: Pattern[] = []
    const isBegun = searched && this.#next === '^'
    if (isBegun) this.#at++
    let isEnded = false
    while (this.#next !== '' && this.#next !== '|' && this.#next !== ')') {
      if (searched && this.#next === '$' && ['', '|'].includes(this.#chars[this.#at + 1] ?? '')) {
        this.#at++
        isEnded = true
        break
      }
      parts.push(this.#counted(this.#atom()))
    }
    if (!searched || this.isWhole) return { kind: 'all', parts }
    return { kind: 'all', parts: [...(isBegun ? [] : [anyText]), ...parts, ...(isEnded ? [] : [anyText])] }
  }

  #counted(part: Pattern): Pattern {
    const bounds = this.#bounds()
    if (bounds === null) return part
    if (this.#next === '?') this.#at++
    return { kind: 'repeat', part, least: bounds[0], most: bounds[1] }
  }

  #bounds(): [number, number] | null {
    const simple: Readonly<Record<string, [number, number]>> = { '*': [0, Infinity], '+': [1, Infinity], '?': [0, 1] }
    const found = simple[this.#next]
    if (found !== undefined) {
      this.#at++
      return found
    }
    if (this.#next !== '{') return null
    const end = this.#chars.indexOf('}', this.#at)
    const [, least = '0', comma, most = ''] = /^(\d+)(,)?(\d*)$/.exec(this.#chars.slice(this.#at + 1, end).join('')) ?? []
    this.#at = end + 1
    return [Number(least), comma === undefined ? Number(least) : most === '' ? Infinity : Number(most)]
  }

  #atom(): Pattern {
    const char = this.#next
    this.#at++
    if (char === '(') {
      const opening = this.#chars.slice(this.#at, this.#at + 3).join('')
      const name = /^\?<[A-Za-z_$][\w$]*>/.exec(this.#chars.slice(this.#at, this.#at + 200).join(''))?.[0]
      if (opening.startsWith('?:')) this.#at += 2
      else if (name !== undefined) this.#at += name.length
      else if (opening.startsWith('?')) throw this.#cannot(`the group (${opening}`)
      if (this.#depth >= DEEPEST) throw this.#cannot(`groups nested ${DEEPEST} deep`)
      this.#depth++
      const inside = this.#choice(false)
      this.#depth--
      this.#at++
      return inside
    }
    if (char === '[') return { kind: 'set', set: this.#set() }
    if (char === '.') return { kind: 'set', set: without(LINE_ENDS) }
    if (char === '\\') return { kind: 'set', set: this.#escape(false) }
    if (char === '^' || char === '$') throw this.#cannot(`${char} in its middle`)
    return { kind: 'set', set: [[char.codePointAt(0)!, char.codePointAt(0)!]] }
  }

  #set(): CharSet {
    const isNegated = this.#next === '^'
    if (isNegated) this.#at++
    const sets: CharSet[] = []
    while (this.#next !== ']') {
      const first = this.#member()
      const isRange = this.#next === '-' && this.#chars[this.#at + 1] !== ']'
      if (!isRange) {
        sets.push(first)
        continue
      }
      this.#at++
      const last = this.#member()
      sets.push([[first[0]![0], last[0]![1]]])
    }
    this.#at++
    const all = both(union(...sets), EVERY)
    return isNegated ? without(all) : all
  }

  #member(): CharSet {
    const char = this.#next
    this.#at++
    if (char === '\\') return this.#escape(true)
    return [[char.codePointAt(0)!, char.codePointAt(0)!]]
  }

  #escape(inSet: boolean): CharSet {
    const char = this.#next
    this.#at++
    const sets: Readonly<Record<string, CharSet>> = {
      d: DIGIT,
      D: without(DIGIT),
      w: WORD,
      W: without(WORD),
      s: SPACE,
      S: without(SPACE),
    }
    if (Object.hasOwn(sets, char)) return sets[char]!
    const controls: Readonly<Record<string, number>> = { n: 10, r: 13, t: 9, f: 12, v: 11, 0: 0, ...(inSet ? { b: 8 } : {}) }
    const rest = this.#chars.slice(this.#at, this.#at + 12).join('')
    const form = char === 'x' ? /^([0-9a-f]{2})/i : /^(?:\{([0-9a-f]+)\}|([0-9a-f]{4}))/i
    const [hex, code] = 'xu'.includes(char) ? (form.exec(rest)?.filter((group) => group) ?? []) : []
    if (hex !== undefined && code !== undefined) {
      this.#at += hex.length
      const value = Number.parseInt(code, 16)
      if (value >= 0xd800 && value <= 0xdfff) throw this.#cannot('half of a surrogate pair')
      return [[value, value]]
    }
    const control = controls[char]
    if (control !== undefined) return [[control, control]]
    if (/[\^$\\.*+?()[\]{}|/-]/.test(char)) return [[char.codePointAt(0)!, char.codePointAt(0)!]]
    throw this.#cannot(`\\${char}`)
  }

  #cannot(what: string): KvfoldError {
    return new KvfoldError('engine/bad-grammar', `uses ${what}, which a grammar cannot express`)
  }
}
