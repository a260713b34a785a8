/** Owns the arrays of a study, for notebooks: dense numbers with the names of their axes and of what stands on them. */
import type { Contract } from '../core/contract.js'
import type { NamedArray } from '../engine/attention.js'
import { seenFrom, type From } from './pairs.js'
import type { PromptRecord, StudyRecord } from './records.js'

export interface ValueArrays {
  readonly contracts: readonly Contract[]
  readonly seeds: readonly number[]
  /** Of all prompts, in alphabetical order. */
  readonly keys: readonly string[]
  readonly sides: readonly ['complete', 'folded']
  /** [contract, seed, key, side]: mean weight on one token of the current value; NaN where there is none. */
  readonly weights: NamedArray<Float32Array>
  /** The same axes: mass on the key's earlier values. */
  readonly older: NamedArray<Float32Array>
}

/** The prompts with `n` updates. Pure. */
export function valueArrays(records: readonly StudyRecord[], n: number, from: From = 'value'): ValueArrays {
  const prompts = records.filter((record): record is PromptRecord => record.part === 'prompt' && record.n === n)
  const contracts = [...new Set(prompts.flatMap(({ comparisons }) => comparisons.map(({ contract }) => contract)))]
  const seeds = prompts.map(({ seed }) => seed).sort((a, b) => a - b)
  const keys = [
    ...new Set(prompts.flatMap(({ comparisons }) => comparisons.flatMap(({ pairs }) => pairs.map(({ key }) => key)))),
  ].sort()
  const sides = ['complete', 'folded'] as const
  const shape = [contracts.length, seeds.length, keys.length, sides.length]
  const empty = (): NamedArray<Float32Array> => ({
    data: new Float32Array(shape.reduce((a, b) => a * b, 1)).fill(NaN),
    shape,
    axes: ['contract', 'seed', 'key', 'side'],
  })
  const [weights, older] = [empty(), empty()]
  for (const { seed, comparisons } of prompts)
    for (const { contract, pairs } of comparisons)
      for (const pair of pairs)
        sides.forEach((side, index) => {
          const masses = seenFrom(pair[side], from)
          if (masses === null) return
          const row = (contracts.indexOf(contract) * seeds.length + seeds.indexOf(seed)) * keys.length + keys.indexOf(pair.key)
          weights.data[row * sides.length + index] = masses.weight
          older.data[row * sides.length + index] = masses.older
        })
  return { contracts, seeds, keys, sides, weights, older }
}
