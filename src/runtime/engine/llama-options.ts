/** The options of an engine over llama.cpp, and their defaults. */
import { ChatFormat } from '../chat/format.js'
import type { ToolDefinition } from '../chat/message.js'
import { type ContractChoice, contractOfStep } from '../core/contract.js'
import { KvfoldError } from '../core/errors.js'
import type { BlendChoice, StepContract } from '../kv/plan/parts.js'
import type { EditMap } from '../kv/prompt.js'
import type { ContextOptions, ModelInfo, ModelOptions, NativeModel, SamplerOptions } from '../native/types.js'
import { callableTools } from './client-request.js'
import type { ShelfPlace } from './disk-tier.js'
import type { SharedCells } from './saved-cells.js'
import type { EngineRequest, Sampling } from './engine.js'
import type { AskedStep, JobListener, JobRequest } from './job.js'
import type { Abilities } from './model-facts.js'
import { speculateTerms, type SpeculateKind, type SpeculateOptions } from './speculation.js'
import { guardedSequences, MOST_GUARDED } from './window-guard.js'

export interface LlamaEngineOptions extends Omit<ContextOptions, 'embeddings'> {
  readonly model?: ModelOptions
  /** How many steps run at once. Default 4. */
  readonly slots?: number
  /**
   * The most milliseconds between two tokens of an answer, as far as prompts computed beside it cause the gap. A prompt still gets at least
   * 16 tokens a turn. Default 1000. Shorter gaps cost throughput: small batches take longer per token.
   */
  readonly maxGap?: number
  /** Used instead of the model's own chat template. */
  readonly chatTemplate?: string
  /** Whether bare calls are read, unless a request says otherwise (`EngineRequest.bareCalls`). Default true. */
  readonly bareCalls?: boolean
  /**
   * Whether tokens are drafted, unless a request says otherwise. `ngram` is refused for models that cannot take tokens back, and `auto` is
   * `off` there. Default `off`; commands use `auto`.
   */
  readonly speculate?: SpeculateKind
  /** The contract of edits, unless a request names another one. Default: exact. */
  readonly contract?: ContractChoice
  /** Which tokens `blend` computes again, unless a request says otherwise. */
  readonly blend?: BlendChoice
  /** Bytes of host memory for cells that leave the device. Default: a quarter of the free memory; 0 turns this tier off. */
  readonly hostBytes?: number
  /**
   * A folder of calibrations; commands use `~/.cache/kvfold/calibration`. It says what copies and masked cells cost on this device. If the
   * folder has no such rates, `load` measures them in about a second and keeps them there. With rates, cells leave the device where that
   * pays. Default: none, and cells leave the device only when others need their room.
   */
  readonly calibrations?: string
  /** A folder for cells that leave host memory. It outlives the engine, and any number of engines may use it. Default: none. */
  readonly disk?: ShelfPlace
  /** The place where engines on several machines find each other's cells (`sharedCells`). Default: none. */
  readonly shared?: SharedCells
  /** Called with a sentence for the user when something goes wrong with the disk cache after loading. Earlier problems are in `notes`. */
  readonly tell?: (sentence: string) => void
}

/** A completion of exactly these tokens, without a template. */
export interface Completion
  extends
    AskedStep,
    JobListener,
    Pick<JobRequest, 'terms'>,
    Pick<EngineRequest, 'tenant' | 'sampling' | 'grammar' | 'schema' | 'loose'> {
  readonly tokens: Int32Array
  /** The tokens before edits, and the edits. Contracts other than exact need it. */
  readonly origin?: EditMap
}

/** How many cells a context has at most by default; a model trained on fewer tokens gets as many cells as those. */
const DEFAULT_CELLS = 32_768
export const DEFAULT_SLOTS = 4
/** The same default as ContextOptions has. */
const DEFAULT_SEQUENCES = 64
const DEFAULT_UBATCH = 512

/** Returns the context's options for this model. */
export function contextOptions(info: ModelInfo, abilities: Abilities, options: LlamaEngineOptions): ContextOptions {
  const { trainedContext, recurrent, hybrid, slidingWindow } = info
  const { sequences = DEFAULT_SEQUENCES, slots = DEFAULT_SLOTS, ubatch = DEFAULT_UBATCH, batch = ubatch } = options
  return {
    ...options,
    cells: options.cells ?? Math.min(trainedContext > 0 ? trainedContext : DEFAULT_CELLS, DEFAULT_CELLS),
    // llama.cpp allocates a state for every possible sequence. Such a model needs only live sequences, so we ask for few.
    ...(recurrent || hybrid ? { sequences: options.sequences ?? 2 * slots } : {}),
    // Without it a sliding-window cache drops cells that an edit may need again (docs/kv-cache.md).
    fullSlidingWindow: abilities.edits === 'tags' && slidingWindow > 0,
    ...(isGuarded(info, abilities)
      ? { sequences: guardedSequences(Math.min(sequences, MOST_GUARDED)), batch: Math.min(batch, ubatch) }
      : {}),
  }
}

/** Whether a WindowGuard must keep llama.cpp from reusing cells that a sliding window has passed. */
export const isGuarded = ({ slidingWindow }: ModelInfo, { edits }: Abilities): boolean => edits === 'tags' && slidingWindow > 0

/** Whether cells that a step leaves approximate are to be computed again while nothing else runs. */
export const recomputesInBackground = ({ contract, clientEdits }: EngineRequest, defaults: LlamaEngineOptions): boolean =>
  [contract ?? defaults.contract, clientEdits].includes('auto')

/** The tools of which a request's answer may have bare calls. */
export function bareTools(request: EngineRequest, defaults: LlamaEngineOptions): readonly ToolDefinition[] {
  const { toolChoice = 'auto', bareCalls = defaults.bareCalls ?? true, grammar, schema } = request
  const isRead = bareCalls && toolChoice === 'auto' && grammar === undefined && schema === undefined
  return isRead ? callableTools(request) : []
}

/** The contract of a request's step, and what `blend` computes again. */
export function termsOf({ contract, blend }: EngineRequest, defaults: LlamaEngineOptions): StepContract {
  const choice = blend ?? defaults.blend
  const asked = contract ?? defaults.contract ?? 'exact'
  return { contract: contractOfStep(asked), ...(choice === undefined ? {} : { blend: choice }) }
}

/**
 * Returns how a request's tokens are drafted.
 * @throws KvfoldError engine/bad-request for numbers out of bounds, and for `ngram` on a model that cannot take tokens back
 */
export function draftsOf(
  { speculate: asked }: Pick<EngineRequest, 'speculate'>,
  { refusal }: Abilities,
  defaults: LlamaEngineOptions,
): Required<SpeculateOptions> {
  const terms = speculateTerms(asked, defaults.speculate ?? 'off')
  if (terms.kind === 'ngram' && refusal !== null) throw new KvfoldError('engine/bad-request', cannotSpeculate(refusal))
  return terms
}

/** The sentence that refuses drafts. */
export const cannotSpeculate = (refusal: string): string =>
  `Tokens cannot be drafted with this model: ${refusal}. Leave speculation at auto or off.`

/** Returns the sampler's options. Without a temperature sampling is greedy. */
export function samplerOptions({ temperature = 0, ...rest }: Sampling = {}): SamplerOptions {
  return { temperature, ...rest }
}

/**
 * Makes the chat format from the given template, else from the model's own. @throws KvfoldError model/no-chat-template,
 * chat/template-failed
 */
export function chatFormatOf(model: NativeModel, { chatTemplate }: Pick<LlamaEngineOptions, 'chatTemplate'>): ChatFormat {
  const template = chatTemplate ?? model.info.chatTemplate
  if (template === null)
    throw new KvfoldError(
      'model/no-chat-template',
      `${model.info.path} carries no chat template; pass one with --chat-template, or use a bare completion.`,
    )
  const { bos, eos } = model.special
  const text = (token: number | null) => (token === null ? '' : model.detokenize([token], true))
  return ChatFormat.create({ template, tokenizer: model, bosText: text(bos), eosText: text(eos) })
}
