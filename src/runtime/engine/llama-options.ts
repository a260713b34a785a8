/** Owns what an engine over llama.cpp can be told, and what it is where nothing is said. */
import { ChatFormat } from '../chat/format.js'
import { type ContractChoice, contractOfStep } from '../core/contract.js'
import { KvfoldError } from '../core/errors.js'
import type { BlendChoice, Terms } from '../kv/plan/parts.js'
import type { EditMap } from '../kv/prompt.js'
import type { ContextOptions, ModelInfo, ModelOptions, NativeModel, SamplerOptions } from '../native/types.js'
import type { ShelfPlace } from './disk-tier.js'
import type { SharedCells } from './saved-cells.js'
import type { EngineRequest, Sampling } from './engine.js'
import type { JobRequest } from './job.js'
import type { Abilities } from './model-facts.js'
import { guardedSequences, MOST_GUARDED } from './window-guard.js'

export interface LlamaEngineOptions extends Omit<ContextOptions, 'embeddings'> {
  readonly model?: ModelOptions
  /** Steps that run at once. Default 4. */
  readonly slots?: number
  /**
   * Milliseconds between two tokens of an answer, as far as prompts that are computed meanwhile are the reason; these go on by 16 tokens at
   * least. Default 1000. Shorter gaps cost throughput: small batches take longer a token.
   */
  readonly maxGap?: number
  /** Used instead of the model's own chat template. */
  readonly chatTemplate?: string
  /** What edits keep to unless a request says otherwise. Default: exact. */
  readonly contract?: ContractChoice
  /** What `blend` computes again unless a request says otherwise. */
  readonly blend?: BlendChoice
  /** Bytes of memory for what the cache has no room for. Default: a quarter of what is free; 0 for none. */
  readonly hostBytes?: number
  /** A folder for what memory has no room for; it outlives the engine, and any number of engines may use it. Default: none. */
  readonly disk?: ShelfPlace
  /** Where engines on several machines find each other's cells (`sharedCells`). Default: nowhere. */
  readonly shared?: SharedCells
  /** Told in a sentence what befalls the disk cache after loading, when it is noticed; `notes` say what did before. */
  readonly tell?: (sentence: string) => void
}

/** A bare completion: these tokens, no template. */
export type Completion = Omit<JobRequest, 'prompt' | 'sampler' | 'salt'> & {
  /** As EngineRequest.tenant. */
  readonly tenant?: string
  readonly tokens: Int32Array
  /** The tokens before edits, and the edits; for contracts other than exact. */
  readonly origin?: EditMap
  readonly sampling?: Sampling
  /** As EngineRequest's. */
  readonly grammar?: string
  readonly schema?: unknown
  readonly loose?: boolean
}

/** Cells when neither the caller nor a small model says otherwise. */
const DEFAULT_CELLS = 32_768
export const DEFAULT_SLOTS = 4
/** As contexts have it (ContextOptions). */
const DEFAULT_SEQUENCES = 64
const DEFAULT_UBATCH = 512

/** The context for a model and these options. */
export function contextOptions(info: ModelInfo, abilities: Abilities, options: LlamaEngineOptions): ContextOptions {
  const { trainedContext, recurrent, hybrid, slidingWindow } = info
  const { sequences = DEFAULT_SEQUENCES, slots = DEFAULT_SLOTS, ubatch = DEFAULT_UBATCH, batch = ubatch } = options
  return {
    ...options,
    cells: options.cells ?? Math.min(trainedContext > 0 ? trainedContext : DEFAULT_CELLS, DEFAULT_CELLS),
    // Room for a state is taken for every sequence there may be, and no sequence is needed but live sequences.
    ...(recurrent || hybrid ? { sequences: options.sequences ?? 2 * slots } : {}),
    // Without it a sliding-window cache forgets cells that an edit may need again (docs/kv-cache.md).
    fullSlidingWindow: abilities.edits === 'tags' && slidingWindow > 0,
    ...(isGuarded(info, abilities)
      ? { sequences: guardedSequences(Math.min(sequences, MOST_GUARDED)), batch: Math.min(batch, ubatch) }
      : {}),
  }
}

/** Whether cells need protection from llama.cpp's own idea of what a window still needs. */
export const isGuarded = ({ slidingWindow }: ModelInfo, { edits }: Abilities): boolean => edits === 'tags' && slidingWindow > 0

/** Whether what a step leaves approximate is to be computed again when nothing else runs. */
export const recomputesInBackground = ({ contract, clientEdits }: EngineRequest, defaults: LlamaEngineOptions): boolean =>
  [contract ?? defaults.contract, clientEdits].includes('auto')

/** What a request keeps to. */
export function termsOf({ contract, blend }: EngineRequest, defaults: LlamaEngineOptions): Terms {
  const choice = blend ?? defaults.blend
  const asked = contract ?? defaults.contract ?? 'exact'
  return { contract: contractOfStep(asked), ...(choice === undefined ? {} : { blend: choice }) }
}

/** Greedy where no temperature is said. */
export function samplerOptions({ temperature = 0, ...rest }: Sampling = {}): SamplerOptions {
  return { temperature, ...rest }
}

/** By the template that was given, else by the model's own. @throws KvfoldError model/no-chat-template, chat/template-failed */
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
