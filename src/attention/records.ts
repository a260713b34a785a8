/** Owns the records of a study: what is kept of each prompt, as plain data, one line each in the run folder. */
import type { Comparison } from './pairs.js'

/** One prompt, complete and folded under every contract of the study. */
export interface PromptRecord {
  readonly part: 'prompt'
  /** Updates of every key. */
  readonly n: number
  readonly seed: number
  /** Tokens of the complete prompt, a given answer included. */
  readonly shown: number
  readonly comparisons: readonly Comparison[]
  readonly seconds: number
}

/** One token of a strip: its text and how much the value's tokens look at it, averaged over layers and heads. */
export interface StripToken {
  readonly text: string
  readonly weight: number
  readonly kind: 'current' | 'older' | 'marker' | 'answer' | 'other'
}

/** All tokens that one value's tokens in the answer look at. */
export interface StripRecord {
  readonly part: 'strip'
  readonly n: number
  readonly seed: number
  readonly key: string
  readonly value: string
  /** Layers averaged over: all that were captured. */
  readonly layers: readonly number[]
  readonly sides: readonly { readonly name: string; readonly tokens: readonly StripToken[] }[]
}

/** One message's share of one step's attention. */
export interface EpisodeShare {
  readonly message: number
  readonly role: string
  readonly tokens: number
  /** Averaged over layers, heads and the step's generated tokens. */
  readonly mass: number
  /** The part of `mass` that markers of hidden text have. */
  readonly markers: number
}

/** One step of an agent's turn: what it did, and where its generated tokens looked. */
export interface EpisodeStep {
  readonly step: number
  readonly calls: readonly string[]
  readonly text: string
  /** Generated tokens that were measured. */
  readonly queries: number
  readonly shown: number
  readonly shares: readonly EpisodeShare[]
  /** Mass on the step's own generated tokens, and on the first token of all (the sink), which belongs to message 0. */
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

export type StudyRecord = PromptRecord | StripRecord | EpisodeRecord

/** What tells a record from all others of its run. */
export const recordName = (record: Pick<StudyRecord, 'part' | 'n' | 'seed'>): string =>
  `${record.part} n=${record.n} seed=${record.seed}`
