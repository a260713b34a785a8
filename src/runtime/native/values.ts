/** Plain values that the addon's objects take and return. */
import type { SeqId } from '../core/ids.js'
import type { LibraryKind } from './compiled-library.js'

export type GpuChoice = 'auto' | 'cpu' | 'cuda' | 'vulkan' | 'metal'
export type CacheType = 'f32' | 'f16' | 'bf16' | 'q8_0' | 'q4_0' | 'q4_1' | 'q5_0' | 'q5_1' | 'iq4_nl'

/** One occupied cell of the cache: its position, and every sequence that sees it. */
export interface Cell {
  readonly position: number
  readonly sequences: readonly SeqId[]
}

/** The build of llama.cpp that this process runs on. */
export interface BackendInfo {
  /** The backend: `cpu`, `cuda`, ... */
  readonly gpu: Exclude<GpuChoice, 'auto'>
  /** The release tag that node-llama-cpp pins, e.g. `v0.5.0`. */
  readonly release: string
  readonly devices: readonly string[]
  readonly systemInfo: string
  /** The library in use for each kind of device. A kind that has no library file of its own is missing. */
  readonly libraries: Readonly<Partial<Record<LibraryKind, LibraryFiles>>>
}

export interface LibraryFiles {
  /** The library that node-llama-cpp ships. */
  readonly shipped: string
  /** The path at which `kvfold compile` puts the library that it builds, whether it exists or not. */
  readonly compiled: string
  /** The library in use: one of the two above, or the file that `KVFOLD_CPU_LIBRARY` or the like names. */
  readonly used: string
}

export interface ModelOptions {
  /** How many layers go to the GPU. Default: as many as the device can hold on a GPU build, 0 on CPU. */
  readonly gpuLayers?: number
  /** Maps the file into memory instead of copying its weights. Default true. */
  readonly mmap?: boolean
  readonly mlock?: boolean
  /** Loads only the tokenizer and the metadata. */
  readonly vocabOnly?: boolean
  readonly checkTensors?: boolean
  /** Called with the share of the model that is loaded, 0..1. */
  readonly onProgress?: (progress: number) => void
}

/**
 * How the vectors of a text's tokens become one vector. `none`: they stay separate. `mean`: their mean. `cls`: that of the first token.
 * `last`: that of the last token. `rank`: the scores of a reranker.
 */
export type Pooling = 'none' | 'mean' | 'cls' | 'last' | 'rank'

export type VocabType = 'none' | 'spm' | 'bpe' | 'wpm' | 'ugm' | 'rwkv' | 'plamo2' | 'unknown'

export interface ModelInfo {
  readonly path: string
  /** llama.cpp's description of the model, e.g. `llama 1.2M F16`. */
  readonly description: string
  readonly architecture: string
  readonly parameters: number
  /** Bytes of all tensors. */
  readonly size: number
  readonly layers: number
  readonly embedding: number
  readonly heads: number
  readonly kvHeads: number
  readonly trainedContext: number
  /** Number of tokens in the vocabulary. */
  readonly vocabulary: number
  /** Bytes of the longest token; control tokens count in their written form, e.g. `<|im_end|>`. 1 without a vocabulary. */
  readonly longestToken: number
  readonly vocabType: VocabType
  readonly recurrent: boolean
  readonly hybrid: boolean
  /** Whether the model does not generate token by token: text encoders, encoder-decoders, diffusion and speech models. */
  readonly encoder: boolean
  /** Whether the model has a head that scores texts, as rerankers do. */
  readonly scores: boolean
  /** Size of the sliding window in tokens; 0 if the model has none. */
  readonly slidingWindow: number
  /** The kind of rotary positions: `none`, `norm`, `neox`, `mrope`, `vision`, `imrope`, ... */
  readonly rope: string
  /** The scalar values of the GGUF metadata, as text. */
  readonly metadata: Readonly<Record<string, string>>
  /** The metadata's `tokenizer.chat_template`; null if the file has none. */
  readonly chatTemplate: string | null
}

export interface TokenizeOptions {
  /** Adds BOS and EOS where the vocabulary asks for them. Default false. */
  readonly addSpecial?: boolean
  /** Recognises control tokens in the text. Default false: the whole text is plain. */
  readonly parseSpecial?: boolean
}

/** The tokens that mark the parts of a fill-in-the-middle prompt. */
export interface FillTokens {
  readonly prefix: number
  readonly suffix: number
  readonly middle: number
  /** The token before the name of a repository, and (next field) before each file of it; null if the vocabulary has none. */
  readonly repository: number | null
  readonly file: number | null
}

export interface SpecialTokens {
  readonly bos: number | null
  readonly eos: number | null
  readonly eot: number | null
  /** Separates two texts in one input, for example a question and a document. */
  readonly sep: number | null
  readonly newline: number | null
  /** The tokens of a fill-in prompt; null if the vocabulary lacks the one for prefix, suffix or middle. */
  readonly fill: FillTokens | null
  readonly addBos: boolean
  readonly addEos: boolean
  readonly addSep: boolean
}

export interface ContextOptions {
  /** llama.cpp's n_ctx: the number of cells, which all sequences share. Default: the trained context. */
  readonly cells?: number
  /** llama.cpp's n_seq_max: the number of sequences, 1..256. Default 64. */
  readonly sequences?: number
  /** llama.cpp's n_batch: the most tokens of one decode. Default 2048, and at least `ubatch`. */
  readonly batch?: number
  /** llama.cpp's n_ubatch: the most tokens that are computed at once. Default 512. */
  readonly ubatch?: number
  readonly threads?: number
  readonly batchThreads?: number
  readonly flashAttention?: 'auto' | 'on' | 'off'
  readonly keyType?: CacheType
  readonly valueType?: CacheType
  /**
   * If set, decodes make embeddings, pooled in this way, and no logits; every token is an output. Text encoders need this option. Models
   * that are not causal take at most `ubatch` tokens in a decode. Default: unset.
   */
  readonly embeddings?: Pooling
  /** Keeps all cells of sliding-window layers. Edits on sliding-window models need it. Default false. */
  readonly fullSlidingWindow?: boolean
  /**
   * Allows attention to be captured. This turns flash attention off for the context's lifetime and enlarges the compute buffer. Default
   * false.
   */
  readonly attention?: boolean
}

/** Options for choosing a context's number of cells by the free memory. */
export interface FitOptions {
  /** Whether there may be more cells than usual. Then half of the GPUs' free memory stays free, unless `copies` says otherwise. */
  readonly grows: boolean
  /**
   * Whether there must be room for a second copy of the model with as many cells, which captures attention. Both together take at most 90 %
   * of the GPUs' free memory.
   */
  readonly copies: boolean
}

/**
 * Why a context has another number of cells than usual. `trained`: the trained context. `grown`: as many as leave enough memory free.
 * `short`: fewer, because no more fit.
 */
export type FitReason = 'trained' | 'grown' | 'short'

/** The number of cells that a context gets by default. */
export interface FittingCells {
  /** A multiple of 256. */
  readonly cells: number
  /** Null if there are as many cells as usual. */
  readonly reason: FitReason | null
}

/** The tokens of one decode call: parallel arrays with one element per token. */
export interface Batch {
  readonly tokens: Int32Array
  readonly positions: Int32Array
  readonly sequences: Int32Array
  /** 1 if the logits of this token are needed. */
  readonly outputs: Uint8Array
}

/**
 * The settings of a capture. A row is one softmax: for one layer, one head and one query token, the attention weights on all tokens that
 * the query sees.
 */
export interface CaptureOptions {
  /** The layers to capture, ascending. Each must have a softmax (NativeContext.attention). */
  readonly layers: readonly number[]
  /** The heads to capture in each of these layers, ascending. */
  readonly heads: readonly number[]
  /** The number of atoms. An atom is a set of tokens whose weights are summed. A token belongs to one atom at most (`Watched.atoms`). */
  readonly atoms: number
  /** How many of the most attended tokens are kept for each row. Default 0. */
  readonly top?: number
  /** Whether to keep whole rows, too. Default false. */
  readonly rows?: boolean
}

/**
 * The result of a capture for one decode. The arrays have the axes [layer, head, query, ...] in the order of the capture's options; the
 * last axis varies fastest. Weights are attention weights after the softmax. A place is an index in `Watched.positions`.
 */
export interface Captured {
  /** [.., atom]: sum of the weights on the atom's tokens. */
  readonly mass: Float32Array
  /** Sum of the row's weights. */
  readonly total: Float32Array
  /** Entropy of the row, in nats. */
  readonly entropy: Float32Array
  /** Weight on the first token (place 0), the attention sink. */
  readonly sink: Float32Array
  /** [.., rank]: places of the most attended tokens, -1 if the row has fewer, and (next field) their weights. Empty without `top`. */
  readonly topPlaces: Int32Array
  readonly topWeights: Float32Array
  /** [.., place]: the whole rows, with one weight for each of `Watched.positions`. Empty without `rows`. */
  readonly rows: Float32Array
}

/**
 * How a decode ended. `done`: all tokens are in the cache. `no-room`: llama.cpp found no free cells, and nothing changed. `aborted`: some
 * ubatches may be in the cache, so read the positions from llama.cpp again. A failed decode throws.
 */
export type DecodeStatus = 'done' | 'no-room' | 'aborted'

/** Finished steps of a run. In each step, one token per sequence was decoded, then the next one was sampled. */
export interface DrawnTokens {
  /** The sampled tokens, step by step, and within a step in the order of the run's sequences. */
  readonly tokens: Int32Array
  /** The time of each step. */
  readonly milliseconds: Float64Array
}

/** How a run ended. */
export interface RunEnd {
  /** The status of the last decode. Unless it is `done`, that decode's tokens may be missing from the cache. */
  readonly status: DecodeStatus | 'failed'
  /** Why the decode failed; null if it did not. */
  readonly failure: Error | null
  /** The tokens of the last steps, which `heard` did not receive. */
  readonly drawn: DrawnTokens
  /** For each sequence: why no token could be sampled for it in the last step (its token is then -1); null if one was. */
  readonly refused: readonly (Error | null)[]
}

/** The samplers of the chain, by llama-server's names. */
export type SamplerName =
  'penalties' | 'dry' | 'top_n_sigma' | 'top_k' | 'typ_p' | 'top_p' | 'min_p' | 'xtc' | 'temperature' | 'adaptive_p' | 'infill'

/** The samplers that remove candidates or spread the draw between them. Each is off by default. */
export interface SamplingFilters {
  /** Dynamic temperature: it lies within `range` of `temperature`, and grows with the candidates' entropy to the power `exponent`. */
  readonly dynatemp?: { readonly range: number; readonly exponent: number }
  /** Keeps this many of the likeliest tokens. 0 keeps all. */
  readonly topK?: number
  readonly topP?: number
  readonly minP?: number
  readonly typicalP?: number
  /** Keeps tokens whose logit is at most this many standard deviations below the best. 0: off. */
  readonly topNSigma?: number
  /** With this `probability`, removes all tokens at or above `threshold` but the least likely. A threshold above 0.5 turns it off. */
  readonly xtc?: { readonly probability: number; readonly threshold: number }
  /** Adaptive-p: draws tokens near the probability `target`. The higher `decay` (0 to 0.99), the longer earlier draws count. */
  readonly adaptive?: { readonly target: number; readonly decay: number }
  /** The fewest tokens that the filters must leave. Default 0. */
  readonly minKeep?: number
  /**
   * The samplers of the chain, in this order; those that it does not name are left out. Default: llama.cpp's order (sampler-chain.cc).
   * Mirostat ignores it.
   */
  readonly order?: readonly SamplerName[]
}

/** Options of the DRY sampler, which penalises tokens that would prolong a repetition of earlier text. */
export interface DryOptions {
  /** The strength of the penalty; 0 turns it off. */
  readonly multiplier: number
  /** The penalty grows by this factor with each token of the repetition. At least 1. Default 1.75. */
  readonly base?: number
  /** Repetitions of up to this many tokens are free. Default 2. */
  readonly allowedLength?: number
  /** How many of the latest tokens are searched for repetitions. Default 64. */
  readonly lastN?: number
  /** Texts that no repetition crosses; at most 32 texts of up to 40 bytes. Default: newline, colon, quote and asterisk. */
  readonly breakers?: readonly string[]
}

/** Limits on the tokens of an answer. */
export interface AnswerLimits {
  /** The fewest tokens of an answer. Until then no end token is drawn, unless the grammar allows only end tokens. Default 0. */
  readonly minTokens?: number
  /** Whether to never draw the vocabulary's end tokens, unless the grammar allows nothing else. Default false. */
  readonly ignoreEnd?: boolean
  /** More tokens that end the answer. They do not become part of its text. Default: none. */
  readonly stopTokens?: readonly number[]
  /** The only tokens that the answer may have. Default: all. */
  readonly allowedTokens?: readonly number[]
  /** Texts that the answer must not contain, not even within longer words; at most 64 texts of up to 256 bytes. Default: none. */
  readonly badWords?: readonly string[]
}

export interface MemoryFigures {
  /** Bytes of the KV cache as allocated. */
  readonly cache: number
  /** Bytes of compute buffers as estimated or reported. */
  readonly compute: number
  /** Bytes of the model's tensors. */
  readonly model: number
}

/** A query head of a model. Layers, and the heads of a layer, are counted from 0. */
export interface AttentionHead {
  readonly layer: number
  readonly head: number
}

/** The numbers of a tensor. The first dimension varies fastest, as in ggml. */
export interface TensorValues {
  readonly shape: readonly number[]
  readonly values: Float32Array
}
