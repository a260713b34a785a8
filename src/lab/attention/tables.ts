/** Builds the data of an attention study for notebooks: its tables, its arrays, and the Parquet files of the tables. */
import { type BasicType, parquetWriteBuffer } from 'hyparquet-writer'
import type { Contract } from '../../runtime/core/contract.js'
import type { NamedArray } from '../../runtime/engine/attention.js'
import type { InterferencePoint } from './findings.js'
import { baselineChangeOf, changeOf, type From, type ValueAttention, seenFrom } from './pairs.js'
import type { PromptRecord, StudyRecord } from './records.js'

// The tables of a study: their columns, and their rows, which are made from the records.

export interface StudyTable {
  readonly columns: Readonly<Record<string, ColumnType>>
  readonly rows: readonly StudyRow[]
}

/** Makes a table with one row for each pair, prompt and contract. Weights are means over layers, heads and tokens; changes in percent. */
export function pairTable(records: readonly StudyRecord[]): StudyTable {
  return {
    columns: {
      n: 'integer',
      seed: 'integer',
      contract: 'text',
      key: 'text',
      value: 'text',
      status: 'text',
      value_tokens: 'integer',
      older_shown: 'integer',
      complete: 'real',
      folded: 'real',
      change: 'real',
      baseline_change: 'real',
      reading_change: 'real',
      reading_baseline_change: 'real',
      ...MASS_COLUMNS,
      complete_tokens: 'integer',
      folded_tokens: 'integer',
      fallback: 'text',
    },
    rows: prompts(records).flatMap(({ n, seed, shown: completeTokens, comparisons }) =>
      comparisons.flatMap(({ contract, fallback, pairs, shown }) =>
        pairs.map((pair): StudyRow => ({
          ...{ n, seed, contract, key: pair.key, value: pair.value, status: pair.status },
          ...{ value_tokens: pair.tokens, older_shown: pair.olderShown, change: changeOf(pair, 'value') },
          ...{ reading_change: changeOf(pair, 'reading'), baseline_change: baselineChangeOf(pair, 'value') },
          reading_baseline_change: baselineChangeOf(pair, 'reading'),
          ...{ complete: pair.complete?.weight ?? null, folded: pair.folded?.weight ?? null },
          ...masses('complete', pair.complete),
          ...masses('folded', pair.folded),
          ...{ complete_tokens: completeTokens, folded_tokens: shown, fallback },
        })),
      ),
    ),
  }
}

const MASS_COLUMNS = Object.fromEntries(
  ['mass', 'older_mass', 'reading_mass', 'reading_older_mass'].flatMap((name) =>
    ['complete', 'folded'].map((side) => [`${side}_${name}`, 'real' as const]),
  ),
)

const masses = (side: string, glance: ValueAttention | null): StudyRow => ({
  [`${side}_mass`]: glance?.current ?? null,
  [`${side}_older_mass`]: glance?.older ?? null,
  [`${side}_reading_mass`]: glance?.reading?.current ?? null,
  [`${side}_reading_older_mass`]: glance?.reading?.older ?? null,
})

/** Makes a table with one row for each layer, head, prompt and contract. The numbers are means over the prompt's measured pairs. */
export function headTable(records: readonly StudyRecord[]): StudyTable {
  return {
    columns: {
      n: 'integer',
      seed: 'integer',
      contract: 'text',
      layer: 'integer',
      head: 'integer',
      complete: 'real',
      folded: 'real',
      ...MASS_COLUMNS,
    },
    rows: prompts(records).flatMap(({ n, seed, comparisons }) =>
      comparisons.flatMap(({ contract, heads }) =>
        heads.map(({ layer, head, complete, folded }): StudyRow => ({
          ...{ n, seed, contract, layer, head, complete: complete.weight, folded: folded.weight },
          ...masses('complete', complete),
          ...masses('folded', folded),
        })),
      ),
    ),
  }
}

/** Makes a table with one row for each point of the interference curve. A null contract stands for the complete prompt. */
export function interferenceTable(points: readonly InterferencePoint[]): StudyTable {
  return {
    columns: {
      n: 'integer',
      contract: 'text',
      from: 'text',
      seeds: 'integer',
      pairs: 'integer',
      older_mass: 'real',
      older_low: 'real',
      older_high: 'real',
      current_mass: 'real',
      current_low: 'real',
      current_high: 'real',
    },
    rows: points.map(({ n, contract, from, seeds, pairs, older, current }): StudyRow => ({
      ...{ n, contract, from, seeds, pairs },
      ...{ older_mass: older.value, older_low: older.interval?.[0] ?? null, older_high: older.interval?.[1] ?? null },
      ...{ current_mass: current.value, current_low: current.interval?.[0] ?? null, current_high: current.interval?.[1] ?? null },
    })),
  }
}

/** Makes a table with one row for each step of an episode and each message that the step's tokens look at. */
export function episodeTable(records: readonly StudyRecord[]): StudyTable {
  return {
    columns: {
      n: 'integer',
      seed: 'integer',
      step: 'integer',
      calls: 'text',
      message: 'integer',
      role: 'text',
      tokens: 'integer',
      mass: 'real',
      marker_mass: 'real',
      queries: 'integer',
    },
    rows: records.flatMap((record) =>
      record.part !== 'episode'
        ? []
        : record.steps.flatMap(({ step, calls, shares, queries }) =>
            shares.map(({ message, role, tokens, mass, markers }): StudyRow => ({
              ...{ n: record.n, seed: record.seed, step, calls: calls.join(', '), message, role, tokens, mass },
              ...{ marker_mass: markers, queries },
            })),
          ),
    ),
  }
}

const prompts = (records: readonly StudyRecord[]) => records.flatMap((record) => (record.part === 'prompt' ? [record] : []))

// The arrays of a study, for notebooks. An array has numbers, the names of its axes, and the labels along each axis.

export interface ValueArrays {
  readonly contracts: readonly Contract[]
  readonly seeds: readonly number[]
  /** The keys of all prompts, in alphabetical order. */
  readonly keys: readonly string[]
  readonly sides: readonly ['complete', 'folded']
  /**
   * Mean weight on one token of the current value, on the axes `[contract, seed, key, side]`. NaN when it was not measured, or when the
   * folded prompt's step did not keep its contract.
   */
  readonly weights: NamedArray<Float32Array>
  /** Attention to the key's earlier values, on the axes of `weights`. */
  readonly older: NamedArray<Float32Array>
}

/** Builds the arrays from the records of all prompts with `n` updates of every key. `from`: the tokens that look. Pure. */
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
    for (const { contract, pairs, fallback } of comparisons)
      for (const pair of pairs)
        sides.forEach((side, index) => {
          const masses = side === 'folded' && fallback !== null ? null : seenFrom(pair[side], from)
          if (masses === null) return
          const row = (contracts.indexOf(contract) * seeds.length + seeds.indexOf(seed)) * keys.length + keys.indexOf(pair.key)
          weights.data[row * sides.length + index] = masses.weight
          older.data[row * sides.length + index] = masses.older
        })
  return { contracts, seeds, keys, sides, weights, older }
}

// Writes tables as Parquet files, which pandas, Polars, DuckDB and Arrow can read.

type StudyCell = string | number | null
export type StudyRow = Readonly<Record<string, StudyCell>>

/** The type of a column's values. Every column may hold nulls. */
export type ColumnType = 'text' | 'integer' | 'real'

const TYPES: Readonly<Record<ColumnType, BasicType>> = { text: 'STRING', integer: 'INT32', real: 'DOUBLE' }

/** Returns the contents of a Parquet file with these rows. `about`: a text for the file's metadata. */
export function parquet(columns: Readonly<Record<string, ColumnType>>, rows: readonly StudyRow[], about: string): Uint8Array {
  const buffer = parquetWriteBuffer({
    columnData: Object.entries(columns).map(([name, type]) => ({
      name,
      data: rows.map((row) => row[name] ?? null),
      type: TYPES[type],
    })),
    kvMetadata: [{ key: 'kvfold', value: about }],
    createdBy: 'kvfold',
  })
  return new Uint8Array(buffer)
}
