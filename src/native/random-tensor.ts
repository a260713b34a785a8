/** Owns random weights: normally distributed tensors, reproducible from a seed and fast enough for billions of numbers. */
import { mix } from '../core/random.js'
import type { GgufTensor, TensorType } from './gguf-writer.js'

export interface RandomTensor {
  readonly name: string
  /** Fastest dimension first. */
  readonly shape: readonly number[]
  readonly type: TensorType
  readonly mean: number
  readonly deviation: number
  /** 32 bits. */
  readonly seed: number
}

/** Different values a weight can take: 12 random bits pick one. */
const LEVELS = 4096
const CHUNK = 1 << 20

/** A tensor of quantiles of the normal distribution, drawn at random: about the distribution of trained weights, at a few ns each. */
export function randomTensor({ name, shape, type, mean, deviation, seed }: RandomTensor): GgufTensor {
  return {
    name,
    shape,
    type,
    *chunks() {
      const floats = normalQuantiles().map((quantile) => mean + deviation * quantile)
      const levels = type === 'f32' ? floats : Uint16Array.from(floats, toHalf)
      const total = shape.reduce((product, size) => product * size, 1)
      let state = mix(seed) || 1
      for (let start = 0; start < total; start += CHUNK) {
        const count = Math.min(CHUNK, total - start)
        const values = type === 'f32' ? new Float32Array(count) : new Uint16Array(count)
        for (let index = 0; index < count; index++) {
          // xorshift32 (Marsaglia): core/random is better and ten times slower, which a model of gigabytes would feel.
          state ^= state << 13
          state ^= state >>> 17
          state ^= state << 5
          values[index] = levels[state >>> 20] ?? 0
        }
        yield new Uint8Array(values.buffer)
      }
    },
  }
}

let quantiles: Float32Array | null = null

/** The normal distribution's quantiles at (i + 1/2) / LEVELS, from the sums of its density (midpoint rule), symmetric about 0. */
function normalQuantiles(): Float32Array {
  if (quantiles !== null) return quantiles
  const table = new Float32Array(LEVELS)
  const step = 1 / 4096
  const half = LEVELS / 2
  let mass = 0
  let at = 0
  for (let index = 0; index < half; index++) {
    const wanted = (index + 0.5) / LEVELS
    while (mass < wanted && at < 5) {
      const middle = at + step / 2
      mass += (Math.exp((-middle * middle) / 2) / Math.sqrt(2 * Math.PI)) * step
      at += step
    }
    table[half + index] = at
    table[half - 1 - index] = -at
  }
  quantiles = table
  return table
}

/** The nearest IEEE half-precision bits, ties to even; magnitudes beyond its range become infinite. */
export function toHalf(value: number): number {
  const scratch = new Float32Array([value])
  const bits = new Uint32Array(scratch.buffer)[0] ?? 0
  const sign = (bits >>> 16) & 0x8000
  const exponent = (bits >>> 23) & 0xff
  const fraction = bits & 0x7fffff
  if (exponent === 0xff) return sign | 0x7c00 | (fraction === 0 ? 0 : 0x200)
  const shifted = exponent - 127 + 15
  if (shifted >= 31) return sign | 0x7c00
  // Below 2^-14 the implicit one moves into the fraction.
  const drop = shifted > 0 ? 13 : 14 - shifted
  if (drop > 24) return sign
  const significand = shifted > 0 ? (shifted << 23) | fraction : fraction | 0x800000
  const rest = significand & ((1 << drop) - 1)
  const middle = 1 << (drop - 1)
  const kept = significand >>> drop
  return sign | (kept + (rest > middle || (rest === middle && (kept & 1) === 1) ? 1 : 0))
}
