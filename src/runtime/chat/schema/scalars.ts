/** GBNF for numbers within bounds, written digit by digit, and for strings with patterns, formats and lengths. */
import { KvfoldError } from '../../core/errors.js'
import { compareNumbers, ExactNumber, isSchemaNumber, nearest, negative, type SchemaNumber, wholeOf } from './exact.js'
import { type LeaveOut, type Plain, refuse } from './merge.js'
import {
  lacking,
  lengthsOf,
  mayHave,
  ofLength,
  parsePattern,
  type Pattern,
  patternRule,
  PLAIN_TEXT,
  repeated,
  shortened,
  wholePattern,
} from './pattern.js'

/** Decimals with up to this many digits sort the same as doubles and as text. */
const EXACT_DIGITS = 15
/** The most digits of an integer. */
const MOST_DIGITS = 20
const MOST = 10n ** BigInt(MOST_DIGITS) - 1n

interface Bound {
  readonly value: SchemaNumber
  readonly exclusive: boolean
}

const either = (options: readonly string[]): string => (options.length === 1 ? options[0]! : `( ${options.join(' | ')} )`)
const digits = (least: number, most: number): string =>
  most === 0 ? '' : least === most ? (least === 1 ? ' [0-9]' : ` [0-9]{${least}}`) : ` [0-9]{${least},${most}}`
const oneOf = (low: number, high: number): string => (low === high ? ` "${low}"` : ` [${low}-${high}]`)

/** Writes GBNF for the integers within the bounds. Returns null when there are none. */
function integerRule(low: Bound | null, high: Bound | null): string | null {
  const [least, most] = [low === null ? null : wholeAbove(low), high === null ? null : wholeBelow(high)]
  // An integer has at most MOST_DIGITS digits. If a lower bound is that large itself, numbers up to ten times the bound are allowed.
  // Likewise for a negative upper bound.
  const [lowest, highest] = [smaller(-MOST, 10n * (most ?? 0n)), larger(MOST, 10n * (least ?? 0n))]
  const from = larger(least ?? lowest, lowest)
  const to = smaller(most ?? highest, highest)
  if (from > to) return null
  const options = [
    ...(from < 0n ? [`"-" ${naturals(to < 0n ? -to : 1n, -from)}`] : []),
    ...(to >= 0n ? [naturals(from > 0n ? from : 0n, to)] : []),
  ]
  return either(options)
}

const smaller = (a: bigint, b: bigint): bigint => (a < b ? a : b)
const larger = (a: bigint, b: bigint): bigint => (a > b ? a : b)

function wholeAbove({ value, exclusive }: Bound): bigint {
  const whole = wholeOf(value)
  return whole === null ? BigInt(Math.ceil(nearest(value))) : whole + (exclusive ? 1n : 0n)
}

function wholeBelow({ value, exclusive }: Bound): bigint {
  const whole = wholeOf(value)
  return whole === null ? BigInt(Math.floor(nearest(value))) : whole - (exclusive ? 1n : 0n)
}

/** Writes GBNF for the integers from `low` to `high`, without leading zeros. Neither may be negative. */
function naturals(low: bigint, high: bigint): string {
  const options: string[] = []
  let from = low
  if (from === 0n && high >= 9n) {
    options.push('"0"')
    from = 1n
  }
  while (from <= high) {
    const length = String(from).length
    const end = 10n ** BigInt(length) - 1n
    if (from === 10n ** BigInt(length - 1) && from > 0n && end <= high) {
      // All numbers of this length, and of longer lengths up to `high`.
      let longest = length
      while (10n ** BigInt(longest + 1) - 1n <= high) longest++
      options.push(`[1-9]${longest === 1 ? '' : digits(length - 1, longest - 1)}`)
      from = 10n ** BigInt(longest)
      continue
    }
    const to = end < high ? end : high
    options.push(sameLength(String(from), String(to)).trim())
    from = to + 1n
  }
  return either(options)
}

/** Writes GBNF for the numbers from `low` to `high`, given as digits of equal length. */
function sameLength(low: string, high: string): string {
  if (low === '') return ''
  if (/^0*$/.test(low) && /^9*$/.test(high)) return digits(low.length, low.length)
  const [first, last] = [Number(low[0]), Number(high[0])]
  const rest = low.length - 1
  if (first === last) return oneOf(first, first) + sameLength(low.slice(1), high.slice(1))
  const options: string[] = []
  let [from, to] = [first, last]
  if (!/^.0*$/.test(low)) options.push(oneOf(from, from++) + sameLength(low.slice(1), '9'.repeat(rest)))
  if (!/^.9*$/.test(high)) to--
  if (from <= to) options.push(oneOf(from, to) + digits(rest, rest))
  if (to < last) options.push(oneOf(last, last) + sameLength('0'.repeat(rest), high.slice(1)))
  return ` ${either(options.map((option) => option.trim()))}`
}

/** Writes GBNF for the decimals within the bounds; at least one bound is not null. Returns null when there are none. */
function numberRule(low: Bound | null, high: Bound | null): string | null {
  const options: string[] = []
  const isBelow = low === null || nearest(low.value) < 0
  if (isBelow && !(high !== null && low !== null && compareNumbers(high.value, low.value) < 0)) {
    const least = high !== null && nearest(high.value) <= 0 ? negated(high) : { value: 0, exclusive: false }
    const below = decimals(least, low === null ? null : negated(low))
    if (below !== null) options.push(`"-" ${below}`)
  }
  if (high === null || nearest(high.value) >= 0) {
    const least: Bound = low !== null && nearest(low.value) >= 0 ? low : { value: 0, exclusive: false }
    const positive = decimals(least, high)
    if (positive !== null) options.push(positive)
  }
  return options.length === 0 ? null : either(options)
}

const negated = ({ value, exclusive }: Bound): Bound => ({ value: negative(value), exclusive })

interface Decimal {
  readonly whole: bigint
  readonly fraction: string
}

/** Splits a number that is not negative into its integer part and its fraction digits. */
function decimalOf(value: SchemaNumber): Decimal {
  if (typeof value !== 'number' && value.whole !== null) return { whole: value.whole, fraction: '' }
  const [mantissa = '0', exponent = '0'] = String(nearest(value)).split('e')
  const [whole = '0', fraction = ''] = mantissa.split('.')
  const shift = Number(exponent)
  const all = (whole + fraction).padEnd(whole.length + shift, '0').padStart(fraction.length - shift + 1, '0')
  const point = Math.max(all.length - Math.max(fraction.length - shift, 0), 0)
  return { whole: BigInt(all.slice(0, point) || '0'), fraction: all.slice(point).replace(/0+$/, '') }
}

/** Writes GBNF for the decimals from `low` to `high`. `low` must not be negative. */
function decimals(low: Bound, high: Bound | null): string | null {
  const from = decimalOf(low.value)
  const highest = larger(MOST, 10n * from.whole)
  const most = high === null ? null : decimalOf(high.value)
  const to = most !== null && most.whole >= highest ? { whole: highest - 1n, fraction: '' } : most
  const length = String(to?.whole ?? from.whole).length
  const places = Math.max(EXACT_DIGITS - length, 0, from.fraction.length, to?.fraction.length ?? 0)
  const options: string[] = []
  const add = (whole: string, fraction: string | null) => {
    if (fraction !== null) options.push(`${whole}${fraction}`)
  }
  const between = (least: string | null, isAbove: boolean, most: string | null, isBelow: boolean) =>
    fractions({ low: least ?? '', isAbove, high: most, isBelow }, places)
  const end = to?.whole ?? highest
  if (from.whole > end) return null
  if (from.whole === end) {
    add(`"${from.whole}"`, between(from.fraction, low.exclusive, to?.fraction ?? null, high?.exclusive ?? false))
  } else {
    add(`"${from.whole}"`, between(from.fraction, low.exclusive, null, false))
    if (end - from.whole > 1n) add(naturals(from.whole + 1n, end - 1n), between(null, false, null, false))
    add(`"${end}"`, between(null, false, to?.fraction ?? null, high?.exclusive ?? false))
  }
  return options.length === 0 ? null : either(options)
}

interface DecimalRange {
  readonly low: string
  /** Whether the fraction must be greater than `low`, not equal. */
  readonly isAbove: boolean
  /** The fraction digits of the upper bound; null when there is none. */
  readonly high: string | null
  readonly isBelow: boolean
}

/** Writes GBNF for the fraction after an integer, decimal point included. Returns null when no fraction is in range, not even none. */
function fractions(stretch: DecimalRange, places: number): string | null {
  const { low, isAbove, high, isBelow } = stretch
  const isNoneRight = /^0*$/.test(low) && !isAbove && !(isBelow && high !== null && /^0*$/.test(high))
  const digit = places === 0 ? null : further(stretch, places)
  if (digit === null) return isNoneRight ? '' : null
  return isNoneRight ? ` ( "." ${digit} )?` : ` "." ${digit}`
}

/** Writes GBNF for one or more further digits that keep the fraction in range. Returns null when no digit can. */
function further({ low, isAbove, high, isBelow }: DecimalRange, places: number): string | null {
  if (places === 0) return null
  const options: string[] = []
  const first = Number(low[0] ?? '0')
  const last = high === null ? 9 : Number(high[0] ?? '0')
  for (const [from, to] of runs(first, last, low !== '' || isAbove, high !== null)) {
    const isLow = from === first && (low !== '' || isAbove)
    const isHigh = to === last && high !== null
    if (!isLow && !isHigh) {
      options.push(`${oneOf(from, to)}${places === 1 ? '' : digits(0, places - 1)}`)
      continue
    }
    const rest: DecimalRange = {
      low: isLow ? low.slice(1) : '',
      isAbove: isLow && isAbove,
      high: isHigh ? high.slice(1) : null,
      isBelow: isHigh && isBelow,
    }
    const mayEnd =
      !(isLow && (isAbove ? /^0*$/.test(rest.low) : !/^0*$/.test(rest.low))) &&
      !(isLow && !/^0*$/.test(rest.low)) &&
      !(isHigh && isBelow && /^0*$/.test(rest.high ?? ''))
    // Once the digits of both bounds are used up, only zeros could follow. Leaving them out loses no number.
    const isSpent = (!isLow || (rest.low === '' && !isAbove)) && isHigh && rest.high === ''
    const more = isSpent ? null : further(rest, places - 1)
    if (more === null && !mayEnd) continue
    options.push(oneOf(from, to) + (more === null ? '' : mayEnd ? ` ( ${more} )?` : ` ${more}`))
  }
  return options.length === 0 ? null : either(options.map((option) => option.trim()))
}

/** Splits the digits from `first` to `last` into runs. A digit that equals a bound is a run of its own. */
function runs(first: number, last: number, lowApart: boolean, highApart: boolean): [number, number][] {
  if (first > last) return []
  if (first === last) return [[first, last]]
  const all: [number, number][] = []
  let [from, to] = [first, last]
  if (lowApart) all.push([from, from++])
  if (highApart) to--
  if (from <= to) all.push([from, to])
  if (highApart) all.push([last, last])
  return all
}

/** The value ranges of integer formats. */
const RANGES: Readonly<Record<string, readonly [SchemaNumber, SchemaNumber]>> = {
  int32: [-(2 ** 31), 2 ** 31 - 1],
  int64: [new ExactNumber('-9223372036854775808'), new ExactNumber('9223372036854775807')],
}

/** Returns GBNF for a schema's numbers; null when there are none. */
export function numbersOf(type: 'integer' | 'number', schema: Readonly<Record<string, unknown>>): string | null {
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum, format, multipleOf } = schema
  /** Returns the tightest of several bounds. `side`: 1 for lower bounds, where the larger is tighter; -1 for upper bounds. */
  const bound = (plain: unknown, exclusive: unknown, side: 1 | -1, range: SchemaNumber | undefined): Bound | null => {
    const all = [
      ...(isSchemaNumber(exclusive) ? [{ value: exclusive, exclusive: true }] : []),
      ...(isSchemaNumber(plain) ? [{ value: plain, exclusive: false }] : []),
      ...(range === undefined ? [] : [{ value: range, exclusive: false }]),
    ]
    // Of equal bounds the first wins, because it may be exclusive.
    return all.reduce<Bound | null>(
      (tightest, each) => (tightest === null || side * compareNumbers(each.value, tightest.value) > 0 ? each : tightest),
      null,
    )
  }
  const range = typeof format === 'string' && Object.hasOwn(RANGES, format) ? RANGES[format] : undefined
  const isWhole = type === 'integer' || multipleOf === 1 || range !== undefined
  const low = bound(minimum, exclusiveMinimum, 1, range?.[0])
  const high = bound(maximum, exclusiveMaximum, -1, range?.[1])
  if (low === null && high === null) return isWhole ? 'integer' : 'number'
  return isWhole ? integerRule(low, high) : numberRule(low, high)
}

// Strings with patterns, formats and lengths.

const LENGTHS_BESIDE = 'limits the length beside a pattern or format that allows other lengths, which is not supported'
/** The first character of every tag. */
const TAG = '<'

/** Writes GBNF for a schema's strings, in JSON's quotes. Returns null when no string is allowed. */
export function texts(
  { pattern, format, minLength = 0, maxLength = Infinity }: Plain,
  path: string,
  leaveOut: LeaveOut | null,
): string | null {
  const [least, most] = [minLength as number, maxLength as number]
  if (least > most) return null
  const known = matched(pattern as string | undefined, format as string | undefined, path, leaveOut)
  if (known === null) return least === 0 && most === Infinity ? 'string' : `( "\\"" ${repeated('char', least, most)} "\\"" )`
  const sized = sizedTo(known, [least, most], pattern === undefined, path, leaveOut)
  try {
    const written = patternRule(sized, 'json')
    return written === null ? null : `( "\\"" ${written} "\\"" )`
  } catch (error) {
    outOfReach(error, `${path}/pattern`, leaveOut)
    return 'string'
  }
}

/** Restricts a pattern to these lengths. If a grammar cannot express that, leaves the lengths out and returns the pattern unchanged. */
function sizedTo(
  known: Pattern,
  [least, most]: readonly [number, number],
  isFormat: boolean,
  path: string,
  leaveOut: LeaveOut | null,
): Pattern {
  // A format such as `email` has long strings that no model writes. To keep the lengths, the grammar may exclude those.
  const sized = ofLength(known, least, most) ?? (isFormat ? ofLength(shortened(known, most), least, most) : null)
  if (sized !== null) return sized
  if (leaveOut === null) refuse(LENGTHS_BESIDE, path)
  leaveOut(`${path}/${lengthsOf(known)[0] >= least ? 'maxLength' : 'minLength'}`)
  return known
}

/** Handles a keyword that a grammar cannot express: leaves it out, or refuses the schema without `leaveOut`. */
function outOfReach(error: unknown, place: string, leaveOut: LeaveOut | null): null {
  if (!(error instanceof KvfoldError)) throw error
  if (leaveOut === null) refuse(error.message, place)
  leaveOut(place)
  return null
}

/** Returns the pattern for a schema's strings, made from `pattern` or `format`; null when any string is allowed. */
function matched(
  pattern: string | undefined,
  format: string | undefined,
  path: string,
  leaveOut: LeaveOut | null,
): Pattern | null {
  const known = format === undefined || !Object.hasOwn(FORMATS, format) ? undefined : FORMATS[format]
  try {
    if (format !== undefined && known === undefined && !/^(?:int|float|double)/.test(format))
      throw new KvfoldError(
        'engine/bad-grammar',
        `is ${JSON.stringify(format.slice(0, 40))}, which is not supported; use one of ${Object.keys(FORMATS).join(', ')}`,
      )
    if (pattern !== undefined && typeof known === 'string')
      throw new KvfoldError('engine/bad-grammar', 'is given together with a pattern, which is not supported; give one of them')
    return pattern !== undefined ? parsePattern(pattern) : typeof known === 'string' ? wholePattern(known) : null
  } catch (error) {
    return outOfReach(error, `${path}/${pattern === undefined || typeof known === 'string' ? 'format' : 'pattern'}`, leaveOut)
  }
}

/**
 * Writes GBNF for a schema's strings as they stand between tags. `text`: the rule for any text. Returns null when no string is allowed.
 * A string with `<` could look like the tag that ends the value. With `leaveOut`, patterns and lengths that allow `<` are left out. Without
 * it, the grammar allows no `<`.
 */
export function rawTexts(
  { pattern, format, minLength = 0, maxLength = Infinity }: Plain,
  text: string,
  path: string,
  leaveOut: LeaveOut | null,
): string | null {
  const [least, most] = [minLength as number, maxLength as number]
  if (least > most) return null
  if (pattern === undefined && format === undefined && least === 0 && most === Infinity) return text
  const known = matched(pattern as string | undefined, format as string | undefined, path, leaveOut)
  const sized = sizedTo(known ?? PLAIN_TEXT, [least, most], pattern === undefined, path, leaveOut)
  if (leaveOut !== null && (known === null || mayHave(sized, TAG))) {
    const lengths = [...(least > 0 ? ['minLength'] : []), ...(most < Infinity ? ['maxLength'] : [])]
    for (const name of known === null ? lengths : [pattern === undefined ? 'format' : 'pattern']) leaveOut(`${path}/${name}`)
    return text
  }
  return patternRule(lacking(sized, TAG), 'raw')
}

// Formats, as patterns for the whole string.

const SIXTY = '[0-5]\\d'
const TIME = `(?:[01]\\d|2[0-3]):${SIXTY}:${SIXTY}(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):${SIXTY})`
const DATE =
  '(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))' +
  '|\\d{2}(?:0[48]|[2468][048]|[13579][26])-02-29)'
/** A label of a host name: up to 63 characters, without `--`, which is reserved. */
const LABEL = '[A-Za-z0-9](?:-?[A-Za-z0-9]){0,31}'
const BYTE = '(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)'
const HEX = '[0-9a-fA-F]'
const PATH = `(?:[A-Za-z0-9._~!$&()*+,;=:@/-]|%${HEX}{2})`
/** A port number of two digits or more. */
const PORT = '(?:[1-9]\\d{1,3}|[1-5]\\d{4}|6[0-4]\\d{3}|65[0-4]\\d{2}|655[0-2]\\d|6553[0-5])'
const GROUP = `${HEX}{1,4}`
/** IPv6 addresses that contain `::`, one pattern for each number of groups before it. */
const SHORT = Array.from({ length: 8 }, (_, count) => {
  const before = count === 0 ? ':' : `(?:${GROUP}:){${count}}`
  return `${before}:${count === 7 ? '' : `(?:${GROUP}(?::${GROUP}){0,${6 - count}})?`}`
}).join('|')

/** The pattern of each format. Null: the format does not restrict strings. */
export const FORMATS: Readonly<Record<string, string | null>> = {
  date: DATE,
  time: TIME,
  'date-time': `${DATE}T${TIME}`,
  duration:
    'P(?:\\d{1,4}W|(?:\\d{1,4}Y(?:\\d{1,2}M(?:\\d{1,3}D)?)?|\\d{1,2}M(?:\\d{1,3}D)?|\\d{1,3}D)(?:T(?:\\d{1,2}H(?:\\d{1,2}M(?:\\d{1,2}S)?)?|\\d{1,2}M(?:\\d{1,2}S)?|\\d{1,2}S))?' +
    '|T(?:\\d{1,2}H(?:\\d{1,2}M(?:\\d{1,2}S)?)?|\\d{1,2}M(?:\\d{1,2}S)?|\\d{1,2}S))',
  uuid: `${HEX}{8}-${HEX}{4}-${HEX}{4}-${HEX}{4}-${HEX}{12}`,
  email: `[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,32}){0,3}@(?:${LABEL}\\.){1,3}[A-Za-z]{2,12}`,
  hostname: `${LABEL}(?:\\.${LABEL}){0,4}`,
  ipv4: `${BYTE}(?:\\.${BYTE}){3}`,
  ipv6: `(?:${GROUP}:){7}${GROUP}|${SHORT}`,
  uri: `[a-z][a-z0-9+.-]{0,15}://${LABEL}(?:\\.${LABEL}){0,4}(?::(?:\\d|${PORT}))?(?:/${PATH}*)?(?:\\?${PATH}*)?(?:#${PATH}*)?`,
  url: `https?://(?:${LABEL}\\.){1,4}[A-Za-z]{2,12}(?::${PORT})?(?:/${PATH}*(?:\\?${PATH}*)?(?:#${PATH}*)?)?`,
  'json-pointer': '(?:/[A-Za-z0-9_.-]*)*',
  byte: '(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?',
  password: null,
  binary: null,
}
