/**
 * The public API of kvfold. In the order of a program's use:
 *
 *     const native = await openNative({ gpu: 'auto' })
 *     const engine = await LlamaEngine.load(native, 'model.gguf')
 *     const session = sculptor({ engine, id: conversationId('report'), firstStep: 'auto' })
 *     const { answer, ledger } = await session.ask(longText)
 *     await engine.dispose()
 *
 * Anything that is not exported here may change without notice.
 */

// Errors and ids. Every failure that a caller should handle is a KvfoldError with a code.
export { KvfoldError, errorTable, type ErrorCode } from './runtime/core/errors.js'
export { conversationId, fragmentId, freshConversation, searchId } from './runtime/core/ids.js'
export type { ConversationId, FragmentId, SearchId } from './runtime/core/ids.js'
export type { Span } from './runtime/core/span.js'
export type { Steps } from './runtime/core/turns.js'

// Models: the native binding, files and hub URIs, the built-in model, models with random weights.
export { openNative } from './runtime/native/binding.js'
export { resolveModel, type ResolveOptions } from './runtime/models/folder.js'
export { isModelUri } from './runtime/models/names.js'
// llama.cpp ends the process on some damaged files. `proveModel` first loads and runs a model file in another process, as every command
// does.
export { proveModel, type Trial, type ModelTrialOptions } from './runtime/engine/tried-models.js'
export { synthesizeAdapter, synthesizeModel, type SyntheticAdapter, type SyntheticShape } from './runtime/native/synthetic.js'
// An adapter that switches off chosen attention heads, to find out which heads a behaviour needs.
export { writeHeadAdapter } from './runtime/native/head-adapter.js'
export type { AttentionHead } from './runtime/native/types.js'
export { builtinModel } from './runtime/cli/builtin.js'
export type {
  AnswerLimits,
  BackendInfo,
  LibraryFiles,
  CacheType,
  ContextOptions,
  FitOptions,
  FitReason,
  FittingCells,
  DryOptions,
  FillTokens,
  GpuChoice,
  MemoryFigures,
  ModelInfo,
  ModelOptions,
  Native,
  NativeDry,
  NativeAdapter,
  NativeModel,
  NativeWords,
  Pooling,
  SamplerName,
  SamplerOptions,
  SamplingFilters,
  SpecialTokens,
  TensorValues,
  TokenizeOptions,
  VocabType,
} from './runtime/native/types.js'
export type { LibraryKind } from './runtime/native/compiled-library.js'

// Chat: messages and tools, and chat templates with a token span for every message.
export type {
  ChatMessage,
  Edit,
  OmittedPart,
  Role,
  Sampled,
  TemplateVariables,
  ToolCall,
  ToolChoice,
  ToolDefinition,
} from './runtime/chat/message.js'
export {
  type AnswerBeginning as Beginning,
  ChatFormat,
  type FormatOptions,
  type Rendered,
  type RenderRequest,
} from './runtime/chat/format.js'
export type { LazyGrammar, ReasoningTags } from './runtime/chat/grammar.js'

// Engines: an engine takes messages with their edits, and returns the next message with its ledger entry.
export { LlamaEngine, type Completion, type LlamaEngineOptions } from './runtime/engine/llama.js'
export type { DraftModelOptions } from './runtime/engine/draft-model.js'
export type { SpeculateKind, SpeculateOptions } from './runtime/engine/speculate-terms.js'
export type { AdapterFile, AdapterInfo } from './runtime/engine/adapters.js'
export type { ShelfPlace } from './runtime/engine/disk-tier.js'
export type { SharedCells } from './runtime/engine/saved-cells.js'
export { sharedCells, type SharedPlace } from './fleet/cells/shared-cells-folder.js'
export { KvEventPublisher, type KvEventsOptions } from './fleet/events/kv-events.js'
export type { BlockOutlet } from './runtime/engine/block-watch.js'
export type { BlockEvent, BlocksRemoved, BlocksStored, EventTier } from './runtime/kv/block-events.js'
export { RemoteEngine, type RemoteEngineOptions } from './fleet/engines/remote.js'
export type { DeferralOptions } from './fleet/engines/deferral.js'
export type { Patience } from './fleet/engines/endpoint.js'
export type { EngineEntry } from './fleet/engines/engine-pool.js'
export type { EngineStatus, FlavourName } from './runtime/engine/elsewhere.js'
export type { PooledTextsOptions } from './runtime/engine/pooled-texts.js'
export { type Ranking, Reranker, type TextScores } from './runtime/engine/reranker.js'
export { OnnxEmbedder, OnnxReranker } from './runtime/engine/onnx.js'
export {
  Embedder,
  type EmbedderOptions,
  type Embeddings,
  type EmbedOptions,
  type TextPooling,
  type TextVectors,
} from './runtime/engine/embedder.js'
export type {
  AdapterScale,
  Engine,
  EngineEvent,
  EngineInfo,
  EngineReply,
  EngineRequest,
  Finish,
  Generation,
  GenerationOptions,
  NamedLogprob,
  PlannedStep,
  PromptLogprob,
  RequestScope,
  Sampling,
  ShownTokens,
  Timing,
  TokenLogprob,
} from './runtime/engine/engine.js'

// Attention: which tokens attend to which. The weights are summed over sets of tokens during the forward pass.
export type { AttentionPattern, AttentionRequest, KeySet, NamedArray } from './runtime/engine/attention.js'
export { attentionPlan, type AttentionCost, type AttentionShape, type AttentionSize } from './runtime/engine/attention.js'

// The ledger: the tokens that every step reused, recomputed and computed fresh.
export { CONTRACTS, type Contract, type ContractChoice } from './runtime/core/contract.js'
export type { BlendChoice } from './runtime/core/contract.js'
export type { RefreshOptions, RefreshResult } from './runtime/engine/background-recompute.js'
export type { Abilities } from './runtime/engine/model-facts.js'
export type { CostModel, TierRates } from './runtime/kv/cost-model.js'
export type { LedgerEntry, MessageCost, ReuseSource, StepKind } from './runtime/kv/ledger.js'
export type { SharedCounts } from './runtime/kv/ports.js'
export type { CacheTotals, Residency } from './runtime/kv/residency.js'
export type { Tier } from './runtime/kv/sequence.js'

// Context: a conversation, and the operations that fold and restore its text. Programs, people and models use the same ones.
export {
  Conversation,
  type ConversationPorts,
  type ConversationState,
  type FragmentOptions,
  type Snap,
} from './runtime/context/conversation.js'
export type { Embed } from './runtime/context/meaning.js'
export { portsOf } from './runtime/context/ports.js'
export type { CostlyFolds, FoldOptions, Fragment, FragmentState, Omission, Price } from './runtime/context/fragment.js'
export type { FoundPlace, Hit, SearchOptions, SearchResult } from './runtime/context/search.js'
export type { Hidden, Stretch } from './runtime/context/stretch.js'
export type { Summarize } from './runtime/context/summary.js'
export type { Refusal, Result } from './runtime/context/refusal.js'
export { contextToolsFor, shortContextTools } from './runtime/context/short-tools.js'
export { contextTools } from './runtime/context/tools.js'
export type { ContextOperations, ContextTool, ToolOutcome } from './runtime/context/tools.js'

// Agents: run a turn with tool calls until the model answers.
export { plain, type PlainOptions } from './runtime/agents/sculptor.js'
export { sculptor, type SculptorOptions } from './runtime/agents/sculptor.js'
export { UFoldSession, type UFoldSessionOptions } from './runtime/agents/u-fold/session.js'
export { UFold, type FoldReport, type UFoldOptions, type UFoldSetting, type UFoldState } from './runtime/agents/u-fold/u-fold.js'
export type { ChosenLines as Block, Memory } from './runtime/agents/u-fold/helpers.js'
export type { Range } from './runtime/agents/u-fold/view.js'
export { Session, MAX_CALLS, type AskOptions, type SessionOptions } from './runtime/agents/session.js'
export { systemPrompts, type SystemPrompt } from './runtime/agents/sculptor.js'
export type { ClientTool, ExternalTools, Toolbox } from './runtime/agents/toolbox.js'
export type { AgentEvent, CallReport, StepReport, TurnEnd, TurnOutcome } from './runtime/agents/tool-loop.js'
