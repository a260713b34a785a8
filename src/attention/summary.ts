/** Owns the summary of a study as plain data: what was found, beside what the paper says. */
import type { Contract } from '../core/contract.js'
import { findingOf, interferenceOf, type Finding, type InterferencePoint } from './findings.js'
import { FROMS } from './pairs.js'
import type { PromptRecord, StudyRecord } from './records.js'

/** Raised when a field changes its meaning. */
export const SCHEMA = 'kvfold.attention/1'

/** Sculptor, section 4.3 and figure 5: another model (theirs), one prompt with 46 pairs, changes in percent. Not ours. */
export const PAPER = {
  source: 'Sculptor, section 4.3 (their model, their prompt)',
  pairs: 46,
  improved: 43,
  improvedShare: 0.935,
  meanChange: 9.87,
  medianChange: 9.9,
  range: [-6.86, 37.56],
  r2: 0.97,
  p: '< 0.001',
} as const

export interface SummaryInput {
  readonly model: { readonly name: string; readonly fingerprint: string; readonly layers: number; readonly heads: number }
  /** llama.cpp's, and ours. */
  readonly versions: Readonly<Record<string, string>>
  readonly date: string
  /** The command that makes it again. */
  readonly command: string
  readonly options: Readonly<Record<string, unknown>>
  /** Updates of every key in the comparison. */
  readonly n: number
  readonly contracts: readonly Contract[]
  readonly records: readonly StudyRecord[]
}

export interface Summary extends Omit<SummaryInput, 'records'> {
  readonly schema: typeof SCHEMA
  /** For each contract first from the value's tokens, as in the paper, then from the token before. */
  readonly findings: readonly Finding[]
  readonly interference: readonly InterferencePoint[]
  readonly paper: typeof PAPER
}

/** Pure. */
export function summarise({ records, ...input }: SummaryInput): Summary {
  const prompts = records.filter((record): record is PromptRecord => record.part === 'prompt')
  const own = prompts.filter(({ n }) => n === input.n)
  const sizes = [...new Set(prompts.map(({ n }) => n))].sort((a, b) => a - b)
  return {
    schema: SCHEMA,
    ...input,
    findings: input.contracts.flatMap((contract) => FROMS.map((from) => findingOf(own, contract, from))),
    interference: FROMS.flatMap((from) =>
      sizes.flatMap((n) => {
        const of = prompts.filter((prompt) => prompt.n === n)
        return [null, ...input.contracts].flatMap((contract) => interferenceOf(n, of, contract, from) ?? [])
      }),
    ),
    paper: PAPER,
  }
}
