/** Owns turning a pattern into weights: from the tokens of one answer to one key set, averaged over queries, by layer and head and over all. */
import type { AttentionPattern } from '../engine/attention.js'
import { mean } from './moments.js'

/** One number for every captured layer and head. */
export interface HeadMap {
  readonly layers: readonly number[]
  readonly heads: readonly number[]
  /** [layer, head], the head varies fastest. */
  readonly values: Float64Array
}

/**
 * The mass on a key set, averaged over the queries at these places; null when none of them was captured or there is no such set. Queries that
 * were not captured are left out (the last token of an answer is never shown to the model).
 */
export function massOn(pattern: AttentionPattern, places: readonly number[], key: string): HeadMap | null {
  const { layers, heads, queries, keys, mass } = pattern
  const set = keys.indexOf(key)
  const rows = places.map((at) => queries.indexOf(at)).filter((row) => row >= 0)
  if (set < 0 || rows.length === 0) return null
  const values = Float64Array.from({ length: layers.length * heads.length }, (_, map) => {
    const sum = rows.reduce((total, row) => total + mass.data[(map * queries.length + row) * keys.length + set]!, 0)
    return sum / rows.length
  })
  return { layers, heads, values }
}

/** Every number divided: from the mass on a set to the mean weight on one of its tokens. */
export const dividedBy = (map: HeadMap, by: number): HeadMap => ({ ...map, values: map.values.map((value) => value / by) })

/** Over all layers and heads, each counting the same. */
export const overall = ({ values }: HeadMap): number => mean(values)
