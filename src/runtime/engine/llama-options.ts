/** The options of the llama.cpp engine, and their defaults. */
import { ChatFormat } from '../chat/format.js'
import type { ToolDefinition } from '../chat/message.js'
import { type BlendChoice, type ContractChoice, contractOfStep } from '../core/contract.js'
import { KvfoldError } from '../core/errors.js'
import { type CostModel, decodeInTokens } from '../kv/cost-model.js'
import type { StepContract } from '../kv/plan/parts.js'
import type { EditMap } from '../kv/prompt.js'
import type {
  ContextOptions,
  FitOptions,
  FitReason,
  ModelInfo,
  ModelOptions,
  NativeModel,
  SamplerOptions,
} from '../native/types.js'
import type { AdapterFile } from './adapters.js'
import type { BlockOutlet } from './block-watch.js'
import type { DraftModelOptions } from './draft-model.js'
import { allowedTools } from './client-request.js'
import type { ShelfPlace } from './disk-tier.js'
import type { SharedCells } from './saved-cells.js'
import type { EngineRequest, Sampling } from './engine.js'
import type { AskedStep, JobListener, JobRequest } from './job.js'
import type { Abilities } from './model-facts.js'
import { speculateTerms, type SpeculateKind, type SpeculateOptions } from './speculate-terms.js'
import { guardedSequences, MOST_GUARDED } from './window-guard.js'

export interface LlamaEngineOptions extends Omit<ContextOptions, 'embeddings'> {
  readonly model?: ModelOptions
  /** LoRA adapters of the model. A request that names none applies all, each at its scale (default 1). Names must differ. Default: none. */
  readonly lora?: readonly AdapterFile[]
  /** How many steps run at once. Default 4. */
  readonly slots?: number
  /**
   * The most milliseconds between two tokens of an answer that prompts may cause. A prompt still gets at least 16 tokens per batch. Shorter
   * gaps cost throughput, because small batches take longer per token. Default: 50, or up to 250 if shorter gaps cost over 5 % of
   * throughput, or up to 1000 for a chunk of 64 tokens.
   */
  readonly maxGap?: number
  /**
   * Chooses the number of cells by the free memory, if `cells` is unset (`NativeModel.cellsThatFit`). For a process that loads only one
   * model. With a draft model the number does not grow. Default: at most 32,768 cells, and an error if they do not fit.
   */
  readonly fits?: FitOptions
  /** Replaces the model's own chat template. */
  readonly chatTemplate?: string
  /** Whether bare calls are read, unless a request sets `bareCalls`. Default true. */
  readonly bareCalls?: boolean
  /**
   * How tokens are drafted, unless a request says otherwise. For models from whose cache tokens cannot be removed, `ngram` is refused, and
   * `auto` is `off`. Default `off`; commands use `auto`.
   */
  readonly speculate?: SpeculateKind
  /** A smaller model with the same vocabulary, which drafts tokens for `auto` and `draft`. Its context has as many cells. Default: none. */
  readonly draft?: DraftModelOptions
  /** The contract of edits, unless a request names another one. Default: exact. */
  readonly contract?: ContractChoice
  /** Which tokens `blend` computes again, unless a request says otherwise. */
  readonly blend?: BlendChoice
  /** Bytes of host memory for cells that leave the device. Default: a quarter of the free memory; 0 turns this tier off. */
  readonly hostBytes?: number
  /**
   * A folder of calibrations; commands use `~/.cache/kvfold/calibration`. It tells what copies and masked cells cost on this device. If it
   * has no such rates, `load` measures them in about a second and saves them there. With rates, cells leave the device when that pays.
   * Default: none; cells leave the device only when others need their room.
   */
  readonly calibrations?: string
  /** A folder for cells that leave host memory. It is kept after the engine ends, and several engines may use it. Default: none. */
  readonly disk?: ShelfPlace
  /** The tier in which engines on several machines share cells (`sharedCells`). Default: none. */
  readonly shared?: SharedCells
  /** Receives which blocks of tokens the cache holds exactly, and in which tier. Default: none. */
  readonly blocks?: BlockOutlet
  /** Called with a sentence for the user when something goes wrong with the disk cache after loading. Earlier problems are in `notes`. */
  readonly tell?: (sentence: string) => void
}

/** A request to continue exactly these tokens, without a template. */
export interface Completion
  extends
    AskedStep,
    JobListener,
    Pick<JobRequest, 'terms'>,
    Pick<EngineRequest, 'tenant' | 'lora' | 'sampling' | 'limits' | 'grammar' | 'schema' | 'loose'> {
  readonly tokens: Int32Array
  /** The unedited prompt, and the edits. Needed for contracts other than exact. */
  readonly origin?: EditMap
}

/** The default number of cells; the trained context if that is smaller. */
const DEFAULT_CELLS = 32_768
export const DEFAULT_SLOTS = 4
/** Must equal the default of ContextOptions.sequences. */
const DEFAULT_SEQUENCES = 64
const DEFAULT_UBATCH = 512

/** Returns the options of the context, and why it has another number of cells than usual; null if it has the usual number. */
export function contextOptions(
  model: NativeModel,
  abilities: Abilities,
  options: LlamaEngineOptions,
): { readonly shape: ContextOptions; readonly sizedBy: FitReason | null } {
  const { cells, ...others } = contextShape(model.info, abilities, options)
  const { fits } = options
  if (fits === undefined || options.cells !== undefined) return { shape: { ...others, cells }, sizedBy: null }
  const fitting = model.cellsThatFit(cells, others, { ...fits, grows: fits.grows && options.draft === undefined })
  return { shape: { ...others, cells: fitting.cells }, sizedBy: fitting.reason }
}

const REASONS: Readonly<Record<FitReason, string>> = {
  trained: 'the context that the model was trained on',
  grown: 'what the free GPU memory holds',
  short: 'more do not fit into the free memory',
}

/** Returns a sentence for the user about a number of cells that is not the usual one. */
export const cellsNote = (cells: number, reason: FitReason): string =>
  `The cache has ${cells.toLocaleString('en')} cells: ${REASONS[reason]}.`

const usualCells = ({ trainedContext }: ModelInfo): number =>
  Math.min(trainedContext > 0 ? trainedContext : DEFAULT_CELLS, DEFAULT_CELLS)

/** Returns the options of the context, with the usual number of cells whatever memory is free. */
function contextShape(
  info: ModelInfo,
  abilities: Abilities,
  options: LlamaEngineOptions,
): ContextOptions & { readonly cells: number } {
  const { recurrent, hybrid, slidingWindow } = info
  const { sequences = DEFAULT_SEQUENCES, slots = DEFAULT_SLOTS, ubatch = DEFAULT_UBATCH, batch = ubatch } = options
  return {
    ...options,
    cells: options.cells ?? usualCells(info),
    // llama.cpp allocates a state for every possible sequence of such a model, and it needs only live sequences. So ask for few.
    ...(recurrent || hybrid ? { sequences: options.sequences ?? 2 * slots } : {}),
    // Otherwise llama.cpp drops cells that the window has passed, but that an edit may need again (docs/kv-cache.md).
    fullSlidingWindow: abilities.edits === 'tags' && slidingWindow > 0,
    ...(isGuarded(info, abilities)
      ? { sequences: guardedSequences(Math.min(sequences, MOST_GUARDED)), batch: Math.min(batch, ubatch) }
      : {}),
  }
}

/** Whether the context needs a WindowGuard, because edits may need cells that the sliding window has passed. */
export const isGuarded = ({ slidingWindow }: ModelInfo, { edits }: Abilities): boolean => edits === 'tags' && slidingWindow > 0

/** Whether approximate cells that a step leaves are computed again while the engine is idle. */
export const recomputesInBackground = ({ contract, clientEdits }: EngineRequest, defaults: LlamaEngineOptions): boolean =>
  [contract ?? defaults.contract, clientEdits].includes('auto')

/** Returns the tools that the answer may also call by bare calls (`GenerationOptions.bareCalls`). */
export function bareTools(request: EngineRequest, defaults: LlamaEngineOptions): readonly ToolDefinition[] {
  const { toolChoice = 'auto', bareCalls = defaults.bareCalls ?? true, grammar, schema } = request
  const isRead = bareCalls && toolChoice === 'auto' && grammar === undefined && schema === undefined
  return isRead ? allowedTools(request) : []
}

/**
 * Returns the contract of a request's step, and which tokens `blend` computes again.
 * @param cost the calibration of this device; null if there is none
 */
export function termsOf({ contract, blend }: EngineRequest, defaults: LlamaEngineOptions, cost: CostModel | null): StepContract {
  const asked = contractOfStep(contract ?? defaults.contract ?? 'exact')
  const choice = { ...(cost === null ? {} : { decode: decodeInTokens(cost) }), ...(blend ?? defaults.blend) }
  return { contract: asked, ...(Object.keys(choice).length === 0 ? {} : { blend: choice }) }
}

/**
 * Returns how a request's tokens are drafted.
 * @throws KvfoldError engine/bad-request for numbers out of bounds, for `draft` without a draft model, and for `ngram` or `draft` on a
 * model from whose cache tokens cannot be removed
 */
export function draftsOf(
  { speculate: asked }: Pick<EngineRequest, 'speculate'>,
  { refusal }: Abilities,
  defaults: LlamaEngineOptions,
): Required<SpeculateOptions> {
  const terms = speculateTerms(asked, defaults.speculate ?? 'off')
  const isAlways = terms.kind === 'ngram' || terms.kind === 'draft'
  if (isAlways && refusal !== null) throw new KvfoldError('engine/bad-request', cannotSpeculate(refusal))
  if (terms.kind === 'draft' && defaults.draft === undefined) throw new KvfoldError('engine/bad-request', NO_DRAFT_MODEL)
  return terms
}

export const NO_DRAFT_MODEL =
  'There is no draft model here; start with --speculate draft=MODEL, or leave speculation at auto, ngram or off.'

/** Returns the message of the error for drafts that the model cannot have. */
export const cannotSpeculate = (refusal: string): string =>
  `Tokens cannot be drafted with this model: ${refusal}. Leave speculation at auto or off.`

/** The most tokens that penalties and DRY count. */
const MOST_SEEN = 2 ** 20

/**
 * Returns the sampler's options. Without a temperature, sampling is greedy. Returns a promise only if the vocabulary must be searched,
 * which happens off the event loop.
 * @param cells number of cells of the context; a `lastN` of -1 means this many tokens
 * @throws KvfoldError native/bad-argument
 */
export function samplerOptions(
  model: NativeModel,
  { sampling = {}, limits }: Pick<EngineRequest, 'sampling' | 'limits'>,
  cells: number,
): SamplerOptions | Promise<SamplerOptions> {
  const { temperature = 0, dry, logitBias, mirostat, penaltyLastN, ...rest } = sampling
  const { badWords = [], ...held } = limits ?? {}
  const most = Math.min(cells, MOST_SEEN)
  const options: SamplerOptions = {
    temperature,
    ...rest,
    ...(penaltyLastN === undefined ? {} : { penaltyLastN: penaltyLastN === -1 ? most : penaltyLastN }),
    ...(mirostat === undefined || mirostat.version === 0 ? {} : { mirostat: { ...mirostat, version: mirostat.version } }),
    ...(limits === undefined ? {} : { limits: held }),
  }
  const isDry = dry !== undefined && dry.multiplier > 0
  const byText = logitBias?.filter(({ token }) => typeof token === 'string') ?? []
  if (!isDry && badWords.length === 0 && byText.length === 0)
    return logitBias === undefined ? options : { ...options, logitBias: logitBias as NonNullable<SamplerOptions['logitBias']> }
  const prepare = async (): Promise<SamplerOptions> => ({
    ...options,
    ...(logitBias === undefined ? {} : { logitBias: await biasOf(model, logitBias) }),
    ...(isDry ? { dry: await model.prepareDry(dry.lastN === -1 ? { ...dry, lastN: most } : dry) } : {}),
    ...(badWords.length === 0 ? {} : { limits: { ...held, badWords: await model.prepareWords(badWords) } }),
  })
  return prepare()
}

/** Replaces each bias on a string by biases on the string's tokens. */
async function biasOf(
  model: NativeModel,
  biases: NonNullable<Sampling['logitBias']>,
): Promise<NonNullable<SamplerOptions['logitBias']>> {
  const texts = biases.map(({ token }) => token).filter((token) => typeof token === 'string')
  const tokens = await model.tokenizeAll(texts)
  let at = 0
  return biases.flatMap(({ token, bias }) =>
    typeof token === 'number' ? [{ token, bias }] : Array.from(tokens[at++]!, (each) => ({ token: each, bias })),
  )
}

/**
 * Makes the chat format from the template in the options, else from the model's own.
 * @throws KvfoldError model/no-chat-template, chat/template-failed
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
