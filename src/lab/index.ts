/**
 * The package `kvfold/lab`, the laboratory's interface for programs: studies of how folding changes a model's attention. The engine must
 * have been loaded with `attention: true`. Anything that is not exported here may change without notice.
 */

// Attention studies, and the PI-LLM prompts that they use.
export { studyValues, type Keeper, type ValueStudyOptions } from './attention-study.js'
export { ownWords, wordsFrom, type PiWords } from './pi-llm.js'
export { piSample, type PiOptions, type PiOrder, type PiSample, type PiUpdate } from './pi-llm.js'
export { compareSpans, type SpanRow, type SpanStudy, type SpanStudyOptions, type WatchedSpan } from './attention/spans.js'
export {
  HEAD_SCORES,
  headScoreFile,
  randomHeads,
  readHeadScores,
  topHeads,
  type HeadScores,
  type HeadScoreName,
} from './attention/head-scores.js'
export {
  headLosses,
  LOSSES,
  scoreHeads,
  type HeadLosses,
  type HeadPrompts,
  type HeadStudyOptions,
  type LossName,
} from './head-study.js'
export {
  findingOf,
  interferenceOf,
  type DistanceRow,
  type FindingFigure as Figure,
  type Finding,
  type InterferencePoint,
  type Tests,
} from './attention/findings.js'
export type { AnswerChoice } from '../runtime/attention/measurement.js'
export type { Interval } from './attention/statistics.js'
export type { EpisodeRecord, EpisodeStep, HeatMapToken, PromptRecord, HeatMapRecord, StudyRecord } from './attention/records.js'
export type { PairComparison as Comparison, From, ValueAttention, HeadRow, Masses, Pair, PairStatus } from './attention/pairs.js'
