/**
 * GBNF for multiples of a number (multipleOf). Numbers are written digit by digit; one rule stands for each remainder that the digits so
 * far can have.
 */
import { isSchemaNumber, nearest, wholeOf } from './exact.js'
import type { Plain } from './merge.js'
import type { AddRule } from './properties.js'

/** The most digits of a written number. A double holds that many exactly. */
const DIGITS = 15
const MOST_PLACES = 8
/** The most rules to make. Larger steps have more remainders, and their grammar would take seconds to write. */
const MOST_REMAINDERS = 50_000

/** A decimal number as an integer count of units of its last decimal place. Example: 0.25 has 25 units and 2 places. */
interface Scaled {
  readonly units: bigint
  readonly places: number
}

/** Converts a number; null when it is not a finite number. */
function scaledOf(number: unknown): Scaled | null {
  if (!isSchemaNumber(number)) return null
  const exact = wholeOf(number)
  if (exact !== null) return { units: exact, places: 0 }
  const value = nearest(number)
  if (!Number.isFinite(value)) return null
  const [mantissa = '0', exponent = '0'] = String(value).split('e')
  const [whole = '0', fraction = ''] = mantissa.split('.')
  const places = fraction.length - Number(exponent)
  const units = BigInt(whole + fraction)
  return places < 0 ? { units: units * 10n ** BigInt(-places), places: 0 } : { units, places }
}

const inUnits = ({ units, places }: Scaled, wanted: number): bigint => units * 10n ** BigInt(wanted - places)
const divisor = (a: bigint, b: bigint): bigint => (b === 0n ? a : divisor(b, a % b))

interface DigitRules {
  readonly rule: AddRule
  /** How many more rules may be made. */
  readonly budget: { left: number }
  /** The number whose multiples are written, in units of the last decimal place. */
  readonly step: bigint
  readonly places: number
}

/**
 * Writes GBNF for the multiples from `low` to `high`, both in units of the last decimal place and not negative. Returns null when there are
 * none.
 */
function multiplesBetween(low: bigint, high: bigint, { rule, budget, step, places }: DigitRules): string | null {
  const known = new Map<string, string | null>()
  /**
   * Returns the rule for the last `left` digits, or null when none fit. `rest`: the remainder of the digits before them. `least` and
   * `most`: the digits of the bound that still apply; null once any digit is within the bound.
   */
  const follow = (left: number, rest: bigint, least: string | null, most: string | null): string | null => {
    if (left === 0) return rest === 0n ? '' : null
    if (budget.left <= 0) return null
    // Of the digits so far, only their remainder in the finished number matters. States with equal keys share a rule.
    const key = `${left} ${(rest * 10n ** BigInt(left)) % step} ${least ?? ''} ${most ?? ''}`
    if (!known.has(key)) {
      budget.left--
      const options: string[] = []
      const [from, to] = [Number(least?.[0] ?? 0), Number(most?.[0] ?? 9)]
      for (let digit = from; digit <= to; digit++) {
        const behind = follow(
          left - 1,
          (rest * 10n + BigInt(digit)) % step,
          least !== null && digit === from ? least.slice(1) : null,
          most !== null && digit === to ? most.slice(1) : null,
        )
        if (behind !== null) options.push(`"${digit}" ${behind}`)
      }
      const point = left === places ? '"." ' : ''
      known.set(key, options.length === 0 ? null : rule(`${point}( ${options.join(' | ')} )`))
    }
    return known.get(key)!
  }
  const options: string[] = []
  for (let length = places + 1; length <= DIGITS; length++) {
    const first = length === places + 1 ? 0n : 10n ** BigInt(length - 1)
    const last = 10n ** BigInt(length) - 1n
    const [from, to] = [first > low ? first : low, last < high ? last : high]
    if (from > to) continue
    const written = follow(length, 0n, String(from).padStart(length, '0'), String(to))
    if (written !== null) options.push(written)
  }
  return options.length === 0 ? null : options.join(' | ')
}

/** Returns GBNF for the multiples within a schema's bounds. Null: there are none. Undefined: a grammar cannot express them. */
export function multiplesOf(type: 'integer' | 'number', schema: Plain, rule: AddRule): string | null | undefined {
  const { multipleOf, minimum, maximum, exclusiveMinimum, exclusiveMaximum, format } = schema
  const step = scaledOf(multipleOf)
  if (step === null || step.places > MOST_PLACES) return undefined
  const isWhole = type === 'integer' || format === 'int32' || format === 'int64'
  const bounds = [minimum, maximum, exclusiveMinimum, exclusiveMaximum]
  if (bounds.some((bound) => bound !== undefined && scaledOf(bound) === null)) return undefined
  const budget = { left: MOST_REMAINDERS }
  const written = (places: number): string | null => {
    const end = 10n ** BigInt(DIGITS) - 1n
    let [low, high] = [-end, end]
    /**
     * Tightens `low` or `high` by a bound of the schema. The bound is converted to units of `places` decimal places and rounded inwards.
     */
    const limit = (bound: unknown, isExclusive: boolean, isLow: boolean) => {
      if (bound === undefined) return
      const exact = scaledOf(bound)!
      const most = Math.max(places, exact.places)
      const [value, unit] = [inUnits(exact, most), 10n ** BigInt(most - places)]
      const below = value / unit - (value % unit < 0n ? 1n : 0n)
      const isExact = below * unit === value
      if (isLow) {
        const least = isExact && !isExclusive ? below : below + 1n
        if (least > low) low = least
      } else {
        const largest = isExact && isExclusive ? below - 1n : below
        if (largest < high) high = largest
      }
    }
    limit(minimum, false, true)
    limit(maximum, false, false)
    limit(exclusiveMinimum, true, true)
    limit(exclusiveMaximum, true, false)
    if (format === 'int32') {
      limit(-(2 ** 31), false, true)
      limit(2 ** 31 - 1, false, false)
    }
    const scale = 10n ** BigInt(step.places)
    // Among integers, the multiples of 0.4 are those of 2.
    const stepHere = places === step.places ? step.units : step.units / divisor(step.units, scale)
    const digitRules = { rule, budget, step: stepHere, places }
    const negative = low < 0n ? multiplesBetween(high < 0n ? -high : 1n, -low, digitRules) : null
    const positive = high >= 0n ? multiplesBetween(low > 0n ? low : 0n, high, digitRules) : null
    const all = [...(negative === null ? [] : [`"-" ( ${negative} )`]), ...(positive === null ? [] : [positive])]
    return all.length === 0 ? null : all.join(' | ')
  }
  const forms = [written(0), ...(isWhole || step.places === 0 ? [] : [written(step.places)])].filter((form) => form !== null)
  if (budget.left <= 0) return undefined
  return forms.length === 0 ? null : `( ${forms.join(' | ')} )`
}
