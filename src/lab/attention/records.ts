/** The records of a study as plain data, one line each in the folder of its run. */
import type { PairComparison } from './pairs.js'

/** The options that decide a run's records, as plain data. */
export type RecordedOptions = Readonly<Record<string, unknown>>

/** One prompt, complete and folded under every contract of the study. */
export interface PromptRecord {
  readonly part: 'prompt'
  /** Number of updates of every key. */
  readonly n: number
  readonly seed: number
  /** Number of tokens of the complete prompt, a given answer included. */
  readonly shown: number
  readonly comparisons: readonly PairComparison[]
  /** The same folds over as many tokens of made-up words, which mention no key; null when this was not measured. */
  readonly placebo: readonly PairComparison[] | null
  /** The same folds over as many tokens of updates of keys that the question does not ask for; null when this was not measured. */
  readonly unasked: readonly PairComparison[] | null
  readonly seconds: number
}

/** One token of a heat map: its text, and the weight that the value's tokens give it, averaged over layers and heads. */
export interface HeatMapToken {
  readonly text: string
  readonly weight: number
  readonly kind: 'current' | 'older' | 'marker' | 'answer' | 'other'
}

/** The heat map of one value: all tokens that the value's tokens in the answer can look at. */
export interface HeatMapRecord {
  readonly part: 'heat-map'
  readonly n: number
  readonly seed: number
  readonly key: string
  readonly value: string
  /** The captured layers; weights are averaged over them. */
  readonly layers: readonly number[]
  readonly sides: readonly { readonly name: string; readonly tokens: readonly HeatMapToken[] }[]
}

/** One message's share of one step's attention. */
export interface EpisodeShare {
  readonly message: number
  readonly role: string
  readonly tokens: number
  /** Attention mass, averaged over layers, heads and the step's generated tokens. */
  readonly mass: number
  /** The part of `mass` that is on markers of hidden text. */
  readonly markers: number
}

/** One step of an agent's turn: its calls and text, and the attention of its generated tokens. */
export interface EpisodeStep {
  readonly step: number
  readonly calls: readonly string[]
  readonly text: string
  /** Number of generated tokens whose attention was measured. */
  readonly queries: number
  readonly shown: number
  readonly shares: readonly EpisodeShare[]
  /** Mass on the step's own generated tokens; `sink`: mass on the prompt's first token, which belongs to message 0. */
  readonly own: number
  readonly sink: number
}

export interface EpisodeRecord {
  readonly part: 'episode'
  readonly n: number
  readonly seed: number
  readonly steps: readonly EpisodeStep[]
  readonly right: number
  readonly asked: number
}

export type StudyRecord = PromptRecord | HeatMapRecord | EpisodeRecord

/** Returns the name of a record, unique within its run. */
export const recordName = (record: Pick<StudyRecord, 'part' | 'n' | 'seed'>): string =>
  `${record.part} n=${record.n} seed=${record.seed}`
