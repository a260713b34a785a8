/** Makes an attention study's data for notebooks: tables, and Parquet files of them. */
import { type BasicType, parquetWriteBuffer } from 'hyparquet-writer'
import type { InterferencePoint } from './findings.js'
import { baselineChangeOf, changeOf, type ValueAttention } from './pairs.js'
import type { StudyRecord } from './records.js'

// Below: the tables, whose rows are made from the records.

export interface StudyTable {
  readonly columns: Readonly<Record<string, ColumnType>>
  readonly rows: readonly StudyRow[]
}

/** Returns one row per pair, prompt and contract. Weights are means over layers, heads and tokens; changes are in percent. */
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

/** Returns one row per layer, head, prompt and contract. The numbers are means over the prompt's measured pairs. */
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

/** Returns one row per point of the interference curve. A null contract means the complete prompt. */
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

/** Returns one row per step of an episode and message that was in the step's prompt. */
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

// Below: writes tables as Parquet files, which pandas, Polars, DuckDB and Arrow read.

type StudyCell = string | number | null
export type StudyRow = Readonly<Record<string, StudyCell>>

/** The type of a column's values. Every column may hold nulls. */
export type ColumnType = 'text' | 'integer' | 'real'

const TYPES: Readonly<Record<ColumnType, BasicType>> = { text: 'STRING', integer: 'INT32', real: 'DOUBLE' }

/** Returns a Parquet file with these rows. `about`: a text for the file's metadata. */
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
