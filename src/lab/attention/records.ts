/** The records of an attention study as plain data. Each is one line of a file in the run's folder. */
import type { PairComparison } from './pairs.js'

/** The options that a run's records depend on, as plain data. */
export type RecordedOptions = Readonly<Record<string, unknown>>

/** The measurements of one prompt, complete and folded under every contract of the study. */
export interface PromptRecord {
  readonly part: 'prompt'
  /** Updates per key. */
  readonly n: number
  readonly seed: number
  /** Number of tokens of the complete prompt, with a given answer. */
  readonly shown: number
  readonly comparisons: readonly PairComparison[]
  /** Like `comparisons`, for a control prompt: the folds hide made-up words with as many tokens. Null if not measured. */
  readonly placebo: readonly PairComparison[] | null
  /**
   * Like `comparisons`, for a control prompt: the folds hide as many tokens of updates of keys that the question does not ask for. Null if
   * not measured.
   */
  readonly unasked: readonly PairComparison[] | null
  readonly seconds: number
}

/** One token of a heat map: its text, and the mean weight that the query tokens give it. */
export interface HeatMapToken {
  readonly text: string
  readonly weight: number
  readonly kind: 'current' | 'older' | 'marker' | 'answer' | 'other'
}

/** The heat map of one value: how much attention the value's tokens in the answer give to each token before them. */
export interface HeatMapRecord {
  readonly part: 'heat-map'
  readonly n: number
  readonly seed: number
  readonly key: string
  readonly value: string
  /** Indexes of the layers whose attention was captured, and over which the weights are averaged. */
  readonly layers: readonly number[]
  readonly sides: readonly { readonly name: string; readonly tokens: readonly HeatMapToken[] }[]
}

/** How much attention the generated tokens of a step give to one message. */
export interface EpisodeShare {
  readonly message: number
  readonly role: string
  readonly tokens: number
  /** Share of the attention on the message: mean over layers, heads and the step's generated tokens. */
  readonly mass: number
  /** The portion of `mass` that is on the markers of folded text. */
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
  /**
   * `own`: share of the attention on the step's own generated tokens. `sink`: share on the prompt's first token, which belongs to message
   * 0.
   */
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

export const recordName = (record: Pick<StudyRecord, 'part' | 'n' | 'seed'>): string =>
  `${record.part} n=${record.n} seed=${record.seed}`
