/**
 * The public API of kvfold. In the order of a program's use:
 *
 *     const native = await openNative({ gpu: 'auto' })
 *     const engine = await LlamaEngine.load(native, 'model.gguf')
 *     const session = sculptor({ engine, id: conversationId('report'), firstStep: 'auto' })
 *     const { answer, ledger } = await session.ask(longText)
 *     await engine.dispose()
 *
 * What is not exported here may change without notice.
 */

// Errors and ids: every failure a caller is meant to see is a KvfoldError with a code.
export { KvfoldError, errorTable, type ErrorCode } from './core/errors.js'
export { conversationId, fragmentId, freshConversation, searchId } from './core/ids.js'
export type { ConversationId, FragmentId, SearchId } from './core/ids.js'
export type { Span } from './core/span.js'

// Models: the native binding, files and hub URIs, the model in the package, models with random weights.
export { openNative } from './native/binding.js'
export { isModelUri, resolveModel, type ResolveOptions } from './native/binding.js'
export { synthesizeModel, type SyntheticShape } from './native/synthetic.js'
export { builtinModel } from './cli/builtin.js'
export type {
  BackendInfo,
  CacheType,
  ContextOptions,
  GpuChoice,
  MemoryFigures,
  ModelInfo,
  ModelOptions,
  Native,
  NativeModel,
  Pooling,
  SamplerOptions,
  SpecialTokens,
  TokenizeOptions,
  VocabType,
} from './native/types.js'

// Chat: messages and tools as every layer passes them, templates with a span for every message.
export type { ChatMessage, Edit, Role, Sampled, TemplateVariables, ToolCall, ToolChoice, ToolDefinition } from './chat/message.js'
export {
  type AnswerBeginning as Beginning,
  ChatFormat,
  type FormatOptions,
  type Rendered,
  type RenderRequest,
} from './chat/format.js'
export type { LazyGrammar, ReasoningTags } from './chat/grammar.js'

// Engines: show messages under edits, get the next message and its account.
export { LlamaEngine, type Completion, type LlamaEngineOptions } from './engine/llama.js'
export type { ShelfPlace } from './engine/disk-tier.js'
export type { SharedPlace } from './engine/shared-cells-folder.js'
export { RemoteEngine, type RemoteEngineOptions } from './engine/remote/remote.js'
export type { DeferralOptions } from './engine/remote/deferral.js'
export type { Patience } from './engine/remote/endpoint.js'
export type { EngineEntry, EngineStatus } from './engine/remote/engine-pool.js'
export type { FlavourName } from './engine/remote/flavour.js'
export type { PooledTextsOptions } from './engine/pooled-texts.js'
export { type Ranking, Reranker } from './engine/reranker.js'
export { Embedder, type EmbedderOptions, type Embeddings, type EmbedOptions, type TextPooling } from './engine/embedder.js'
export type {
  Engine,
  EngineEvent,
  EngineInfo,
  EngineReply,
  EngineRequest,
  Finish,
  Generation,
  NamedLogprob,
  PlannedStep,
  Sampling,
  ShownTokens,
  Timing,
  TokenLogprob,
} from './engine/engine.js'

// Attention: where tokens look, reduced to sums over sets of tokens while it is computed.
export type { AttentionPattern, AttentionRequest, KeySet, NamedArray } from './engine/attention.js'
export { attentionPlan, type AttentionCost, type AttentionShape, type AttentionSize } from './engine/attention.js'

// The ledger: what every step reused, recomputed and computed anew.
export { CONTRACTS, type Contract, type ContractChoice } from './core/contract.js'
export type { BlendChoice } from './kv/plan/parts.js'
export type { RefreshOptions, RefreshResult } from './engine/background-recompute.js'
export type { Abilities } from './engine/model-facts.js'
export type { CostModel } from './kv/cost-model.js'
export type { LedgerEntry, MessageCost, ReuseSource, StepKind } from './kv/ledger.js'
export type { SharedCounts } from './kv/ports.js'
export type { CacheTotals, Residency } from './kv/residency.js'
export type { Tier } from './kv/sequence.js'

// Context: a conversation and the operations on what of it is shown, for programs and people as for models.
export {
  Conversation,
  type ConversationPorts,
  type ConversationState,
  type FragmentOptions,
  type Snap,
} from './context/conversation.js'
export { portsOf } from './context/ports.js'
export type { CostlyFolds, FoldOptions, Fragment, FragmentState, Price } from './context/fragment.js'
export type { FoundPlace, Hit, SearchOptions, SearchResult } from './context/search.js'
export type { Hidden, Stretch } from './context/stretch.js'
export type { Summarize } from './context/summary.js'
export type { Refusal, Result } from './context/refusal.js'
export { contextTools } from './context/tools.js'
export type { ContextOperations, ContextTool, ToolOutcome } from './context/tools.js'

// Agents: turns with tools until there is an answer.
export { plain, type PlainOptions } from './agents/sculptor.js'
export { sculptor, type SculptorOptions } from './agents/sculptor.js'
export { UFoldSession, type UFoldSessionOptions } from './agents/u-fold/session.js'
export { UFold, type FoldReport, type UFoldOptions, type UFoldSetting, type UFoldState } from './agents/u-fold/u-fold.js'
export type { ChosenLines as Block, Memory } from './agents/u-fold/helpers.js'
export type { Range } from './agents/u-fold/view.js'
export { Session, MAX_CALLS, type AskOptions, type SessionOptions } from './agents/session.js'
export { systemPrompts, type SystemPrompt } from './agents/sculptor.js'
export type { ClientTool, ExternalTools, Toolbox } from './agents/toolbox.js'
export type { AgentEvent, CallReport, StepReport, TurnEnd, TurnOutcome } from './agents/tool-loop.js'

// Attention studies, and PI-LLM's prompts, which they are made on: what folding does to where a model looks. The engine must have been loaded with
// `attention: true`.
export { studyValues, type Keeper, type ValueStudyOptions } from './eval/attention-study.js'
export { ownWords, wordsFrom, type PiWords } from './eval/pi-llm.js'
export { piSample, type PiOptions, type PiOrder, type PiSample, type PiUpdate } from './eval/pi-llm.js'
export { compareSpans, type SpanRow, type SpanStudy, type SpanStudyOptions, type WatchedSpan } from './attention/spans.js'
export { valueArrays, type ValueArrays } from './attention/tables.js'
export {
  findingOf,
  interferenceOf,
  type DistanceRow,
  type FindingFigure as Figure,
  type Finding,
  type InterferencePoint,
  type Tests,
} from './attention/findings.js'
export type { AnswerChoice } from './attention/measurement.js'
export type { Interval } from './attention/statistics.js'
export type {
  EpisodeRecord,
  EpisodeStep,
  HeatMapToken,
  PromptRecord,
  HeatMapRecord,
  StudyRecord,
} from './attention/run-folder.js'
export type { PairComparison as Comparison, From, Glance, HeadRow, Masses, Pair, PairStatus } from './attention/pairs.js'
