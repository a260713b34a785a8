/** The records of an attention study as plain data. Each is one line of a file in the folder of its run. */
import type { PairComparison } from './pairs.js'

/** The options that the records of a run depend on, as plain data. */
export type RecordedOptions = Readonly<Record<string, unknown>>

/** The measurements of one prompt, complete and folded under every contract of the study. */
export interface PromptRecord {
  readonly part: 'prompt'
  /** Number of updates of every key. */
  readonly n: number
  readonly seed: number
  /** Number of tokens of the complete prompt, a given answer included. */
  readonly shown: number
  readonly comparisons: readonly PairComparison[]
  /** Like `comparisons`, but the folds hide as many tokens of made-up words instead. Null when this was not measured. */
  readonly placebo: readonly PairComparison[] | null
  /** Like `comparisons`, but the folds hide as many tokens of updates of other keys than the question's. Null when not measured. */
  readonly unasked: readonly PairComparison[] | null
  readonly seconds: number
}

/** One token of a heat map: its text, and the weight that the value's tokens give it, averaged over layers and heads. */
export interface HeatMapToken {
  readonly text: string
  readonly weight: number
  readonly kind: 'current' | 'older' | 'marker' | 'answer' | 'other'
}

/** The heat map of one value: how much attention the value's tokens in the answer give to every token before them. */
export interface HeatMapRecord {
  readonly part: 'heat-map'
  readonly n: number
  readonly seed: number
  readonly key: string
  readonly value: string
  /** The layers whose attention was captured. The weights are averaged over these layers. */
  readonly layers: readonly number[]
  readonly sides: readonly { readonly name: string; readonly tokens: readonly HeatMapToken[] }[]
}

/** How much attention the generated tokens of a step give to one message. */
export interface EpisodeShare {
  readonly message: number
  readonly role: string
  readonly tokens: number
  /** The share of the attention that goes to the message, averaged over layers, heads and the step's generated tokens. */
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
  /** The share of the attention on the step's own generated tokens. `sink`: on the prompt's first token, which belongs to message 0. */
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
