/** The interface of the C++ addon for the rest of kvfold. Only binding.ts makes these objects. */
import type { SeqId } from '../core/ids.js'
import type { Span } from '../core/span.js'
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
  /** Files of the libraries that compute: processor, CUDA, Vulkan. A library without a file of its own has no entry. */
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
 * How the vectors of a text's tokens become one vector. `none`: one vector for each token. `mean`: the mean of all. `cls`: the first
 * token's. `last`: the last token's. `rank`: the scores of a reranker.
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
  /** Bytes of the longest token; a control token counts with its written form. 1 without a vocabulary. */
  readonly longestToken: number
  readonly vocabType: VocabType
  readonly recurrent: boolean
  readonly hybrid: boolean
  /** Whether the model does not generate token after token: text encoders, encoders of translators, diffusion, speech. */
  readonly encoder: boolean
  /** Whether the model has a head that scores texts, as rerankers do. */
  readonly scores: boolean
  /** How many tokens the sliding window has; 0 if the model has no sliding window. */
  readonly slidingWindow: number
  /** The kind of rotary positions: `none`, `norm`, `neox`, `mrope`, `vision`, `imrope`, ... */
  readonly rope: string
  /** The scalar values of the GGUF metadata, as text. */
  readonly metadata: Readonly<Record<string, string>>
  /** The metadata's `tokenizer.chat_template`; null if the file has none. */
  readonly chatTemplate: string | null
}

export interface TokenizeOptions {
  /** Adds BOS and EOS as the vocabulary says. Default false. */
  readonly addSpecial?: boolean
  /** Recognises control tokens in the text. Default false: the whole text is plain. */
  readonly parseSpecial?: boolean
}

/** The tokens that stand before the parts of a fill-in prompt. */
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
  /** Separates two texts that are read as one, for example a question and a document. */
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
   * If set, decodes make embeddings, pooled in this way, and no logits; every token is an output. A text encoder can only have a context
   * with this option. Models that are not causal take at most `ubatch` tokens in a decode. Default: unset.
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

/** How the number of a context's cells follows the free memory. */
export interface FitOptions {
  /** Whether there may be more cells than usual. Half of the GPUs' free memory then stays free, or what `copies` asks for. */
  readonly grows: boolean
  /**
   * Whether the free room is for a second copy of the model with as many cells, in which attention is captured. Cells and copy together take
   * at most 90 % of the GPUs' free memory.
   */
  readonly copies: boolean
}

/**
 * Why a context gets another number of cells than usual. `trained`: it gets the trained context. `grown`: it gets as many as leave enough
 * memory free. `short`: it gets fewer, because no more fit.
 */
export type FitReason = 'trained' | 'grown' | 'short'

/** How many cells a context gets by default. */
export interface FittingCells {
  /** A multiple of 256. */
  readonly cells: number
  /** Null: they are as many as usual. */
  readonly reason: FitReason | null
}

/** The tokens of one decode call: parallel arrays with one entry for each token. */
export interface Batch {
  readonly tokens: Int32Array
  readonly positions: Int32Array
  readonly sequences: Int32Array
  /** 1 if the logits of this token are needed. */
  readonly outputs: Uint8Array
}

/**
 * The settings of a capture. A row is one softmax: for one layer, one head and one looking token (a query), the weights on the tokens that
 * it sees.
 */
export interface CaptureOptions {
  /** The layers to capture, ascending. Each must have a softmax (NativeContext.attention). */
  readonly layers: readonly number[]
  /** The heads to capture in each of these layers, ascending. */
  readonly heads: readonly number[]
  /** The number of atoms. An atom is a set of places (`Watched.positions`) whose weights are summed; no two atoms share a place. */
  readonly atoms: number
  /** How many of the most attended places are kept for each row. Default 0. */
  readonly top?: number
  /** Whether to keep whole rows, too. Default false. */
  readonly rows?: boolean
}

/** Tokens of one call of llama_decode whose attention is recorded. */
export interface Watched {
  readonly capture: NativeCapture
  /** The sequence of the looking tokens. */
  readonly sequence: SeqId
  /** Batch indices of the looking tokens, ascending. */
  readonly queries: Int32Array
  /**
   * The position of every token that can be seen, ascending. The looking tokens are among them. The index of a token in this array is its
   * place.
   */
  readonly positions: Int32Array
  /** The atom of every place, -1 for none. The array may be shorter than `positions`; the remaining places then have no atom. */
  readonly atoms: Int32Array
}

/**
 * The result of a capture for one decode: arrays [layer, head, query, ...] in the order of the capture's options; the last axis varies
 * fastest. Weights are attention weights after the softmax.
 */
export interface Captured {
  /** [.., atom]: sum of the weights on the atom's places. */
  readonly mass: Float32Array
  /** Sum of the row's weights. */
  readonly total: Float32Array
  /** Entropy of the row, in nats. */
  readonly entropy: Float32Array
  /** Weight on place 0, the first token. */
  readonly sink: Float32Array
  /** [.., rank]: the most attended places, -1 if the row has fewer, and (next field) their weights. Both are empty without `top`. */
  readonly topPlaces: Int32Array
  readonly topWeights: Float32Array
  /** [.., place]: the whole rows, with one weight for each of `Watched.positions`. Empty without `rows`. */
  readonly rows: Float32Array
}

/** A capture belongs to one context and one running step. Its memory is freed with the object. */
export interface NativeCapture {
  /**
   * Returns the rows that the last decode captured. Can be called once for each decode.
   * @throws KvfoldError attention/unavailable when rows were not computed as expected; the decode itself is not harmed by that.
   */
  take(): Captured
}

/**
 * How a decode ended. `done`: all tokens are in the cache. `no-room`: llama.cpp found no cells, and nothing changed. `aborted`: some
 * ubatches may be in the cache, so read the positions again. A failed decode throws.
 */
export type DecodeStatus = 'done' | 'no-room' | 'aborted'

/**
 * Several decodes in a row. Each decode takes, for every sequence, the token that was sampled after the decode before. Arrays have one
 * entry for each sequence.
 */
export interface DecodeRun {
  /** The tokens of the first decode. */
  readonly tokens: Int32Array
  readonly positions: Int32Array
  /** The sequences of the run, each at most once. */
  readonly sequences: Int32Array
  readonly samplers: readonly NativeSampler[]
  /** For each sequence: the most tokens to sample, at least 1. The run ends when one sequence reaches its limit. */
  readonly limits: Int32Array
  /** The most decodes, at least 1. Each decode needs one cell for every sequence. */
  readonly steps: number
}

/** Finished steps of a run. Each step decoded one token for every sequence, then sampled the next token of every sequence. */
export interface DrawnTokens {
  /** The sampled tokens, step by step, in the order of the run's sequences. */
  readonly tokens: Int32Array
  /** The time of each step. */
  readonly milliseconds: Float64Array
}

/** How a run ended. */
export interface RunEnd {
  /** The status of the last decode. Unless it is `done`, the decode's tokens may not be in the cache. */
  readonly status: DecodeStatus | 'failed'
  /** Why the decode failed; null if it did not. */
  readonly failure: Error | null
  /** The tokens of the last steps, which the callback `heard` has not received. */
  readonly drawn: DrawnTokens
  /** For each sequence: why the last step could sample no token (its token is -1); null if it could. */
  readonly refused: readonly (Error | null)[]
}

/** The parts of a sampler's chain, by llama-server's names. */
export type SamplerName =
  'penalties' | 'dry' | 'top_n_sigma' | 'top_k' | 'typ_p' | 'top_p' | 'min_p' | 'xtc' | 'temperature' | 'adaptive_p' | 'infill'

/** A penalty for tokens that would prolong a repetition of earlier text. */
export interface DryOptions {
  /** The strength of the penalty; 0 turns it off. */
  readonly multiplier: number
  /** The penalty grows by this factor with each repeated token. At least 1. Default 1.75. */
  readonly base?: number
  /** Repetitions of up to this many tokens are free. Default 2. */
  readonly allowedLength?: number
  /** In how many of the latest tokens repetitions are searched. Default 64. */
  readonly lastN?: number
  /** Texts that no repetition crosses; at most 32 texts of up to 40 bytes. Default: newline, colon, quote and asterisk. */
  readonly breakers?: readonly string[]
}

/** Limits on the tokens of an answer. */
export interface AnswerLimits {
  /** The fewest tokens of an answer. Before that, no token that ends it is drawn, unless the grammar leaves no other. Default 0. */
  readonly minTokens?: number
  /** Whether to draw none of the vocabulary's end tokens, unless the grammar leaves no other token. Default false. */
  readonly ignoreEnd?: boolean
  /** Further tokens that end the answer. They are not part of its text. Default: none. */
  readonly stopTokens?: readonly number[]
  /** The only tokens that the answer may have. Default: all. */
  readonly allowedTokens?: readonly number[]
  /** Texts that the answer does not contain, also not within longer words; at most 64 texts of up to 256 bytes. Default: none. */
  readonly badWords?: readonly string[]
}

export interface SamplerOptions {
  /** 0 always takes the likeliest token. Default 0.8. */
  readonly temperature?: number
  /**
   * The temperature lies within `range` of `temperature`, and grows with the entropy of the candidates to the power `exponent`. Default:
   * off.
   */
  readonly dynatemp?: { readonly range: number; readonly exponent: number }
  /** Keeps this many of the likeliest tokens. 0 keeps all. */
  readonly topK?: number
  readonly topP?: number
  readonly minP?: number
  readonly typicalP?: number
  /** Keeps tokens whose logit is at most this many standard deviations below the best. 0: off. */
  readonly topNSigma?: number
  /** With `probability`, removes all but the least likely of the tokens at or above `threshold`. A threshold above 0.5 turns it off. */
  readonly xtc?: { readonly probability: number; readonly threshold: number }
  /** A DRY sampler from `prepareDry`. */
  readonly dry?: NativeDry
  /** Draws tokens near the probability `target`. `decay` (0 to 0.99) says how long earlier draws have an effect. Default: off. */
  readonly adaptive?: { readonly target: number; readonly decay: number }
  /** The fewest tokens that the filters must leave. Default 0. */
  readonly minKeep?: number
  /**
   * The parts of the chain, in this order. Parts that it does not name are left out. Default: llama.cpp's order (sampler-chain.cc).
   * Mirostat ignores it.
   */
  readonly order?: readonly SamplerName[]
  /** The tokens before the answer, oldest first. DRY and the repetition penalty look at them, too. Default: none. */
  readonly seen?: Int32Array
  /** Limits on the answer. `badWords` comes from `prepareWords`. */
  readonly limits?: Omit<AnswerLimits, 'badWords'> & { readonly badWords?: NativeWords }
  /** The repetition penalty over the last `penaltyLastN` tokens (default 64). 1: off. */
  readonly repeatPenalty?: number
  readonly frequencyPenalty?: number
  readonly presencePenalty?: number
  readonly penaltyLastN?: number
  /** Mirostat of version 1 or 2, which replaces all filters. */
  readonly mirostat?: { readonly version: 1 | 2; readonly tau: number; readonly eta: number }
  /** 0 to 2^32 - 2. Default: another seed for every sampler. */
  readonly seed?: number
  /** A grammar in GBNF with the root rule `root`. A text is compiled at once, on the event loop. */
  readonly grammar?: string | NativeGrammar
  /**
   * The grammar applies only from the first trigger in the answer's text on. The grammar must match the trigger itself, too. Needs
   * `grammar`.
   */
  readonly lazy?: {
    readonly triggers: readonly string[]
    /** More triggers. A space in them matches any whitespace that JSON allows, or none. They must not begin with a space. */
    readonly spaced?: readonly string[]
    /** Triggers between these tags have no effect. With `isFirst`, the tags have a meaning only before any other text. */
    readonly reasoning: readonly { readonly open: string; readonly close: string; readonly isFirst?: boolean }[]
    /** The triggers and tags with which the prompt ends, as text; empty if it ends with none. */
    readonly opened: string
  }
  /** Bounds the tokens of the answer's reasoning. Default: no bound. */
  readonly budget?: {
    /**
     * The most tokens of reasoning, over all stretches of reasoning in the answer. Then `forced` is written as soon as the grammar allows
     * it.
     */
    readonly tokens: number
    readonly open: string
    readonly close: string
    /** Whether the prompt ends with `open`. */
    readonly opened: boolean
    /** The tokens that close the reasoning. */
    readonly forced: Int32Array
  }
  /** Numbers that are added to the logits of these tokens; -Infinity bans a token. */
  readonly logitBias?: readonly { readonly token: number; readonly bias: number }[]
}

export interface MemoryFigures {
  /** Bytes of the KV cache as allocated. */
  readonly cache: number
  /** Bytes of compute buffers as estimated or reported. */
  readonly compute: number
  /** Bytes of the model's tensors. */
  readonly model: number
}

/**
 * A loaded model. Two rules hold for all native objects. After dispose() every call throws `native/disposed`. While a decode runs, calls
 * that use its context throw `native/busy`.
 */
export interface NativeModel {
  readonly info: ModelInfo
  readonly special: SpecialTokens
  tokenize(text: string, options?: TokenizeOptions): Int32Array
  /**
   * Tokenizes each text on another thread, so that the event loop stays free. Short texts are tokenized at once, on this thread. In a
   * process, at most two calls run at a time.
   * @throws KvfoldError native/bad-argument for a text of more than a GiB; as `tokenize`
   */
  tokenizeAll(texts: readonly string[], options?: TokenizeOptions): Promise<readonly Int32Array[]>
  /**
   * Returns the tokens' bytes as UTF-8 text; invalid sequences become U+FFFD. Control tokens are left out unless `special` is true (default
   * false).
   */
  detokenize(tokens: Int32Array | readonly number[], special?: boolean): string
  /** Returns the bytes of one token's text. They are empty for control tokens if `special` is false (default for this function: true). */
  piece(token: number, special?: boolean): Uint8Array
  /** Whether the token ends generation: EOS, EOT and the like. */
  isEndOfGeneration(token: number): boolean
  /** Whether the token is a control token or an unknown one. Plain text never gives such a token. */
  isControl(token: number): boolean
  /**
   * Returns how many cells a context with these options gets by default: `usual`, or fewer where these do not fit, at least 4,096. With
   * `grows` and the whole model on GPUs it may be more, up to the trained context.
   */
  cellsThatFit(usual: number, options: Omit<ContextOptions, 'cells'>, fit: FitOptions): FittingCells
  createContext(options?: ContextOptions): Promise<NativeContext>
  /**
   * Loads a LoRA adapter of this model. llama.cpp plans the graphs of a context for the adapters that are loaded when the context is made.
   * So load adapters before the first context, one after another. They are freed with the model.
   * @throws KvfoldError native/busy while the model has contexts or is used on another thread; model/not-found; model/bad-file for a file
   * that is no adapter, or one of another model; native/unsupported; memory/insufficient; native/disposed
   */
  loadAdapter(path: string): Promise<NativeAdapter>
  /**
   * Compiles GBNF off the event loop. Refuses a grammar that would take longer than a tenth of a second.
   * @throws KvfoldError engine/bad-grammar, native/disposed
   */
  compileGrammar(text: string): Promise<NativeGrammar>
  /**
   * Prepares a DRY sampler off the event loop. The last few are kept, so equal options need not be prepared again.
   * @throws KvfoldError native/bad-argument, native/disposed
   */
  prepareDry(options: DryOptions): Promise<NativeDry>
  /**
   * Finds forbidden words in the vocabulary, off the event loop. The last few results are kept, so equal words need not be searched again.
   * @throws KvfoldError native/bad-argument, native/disposed, model/unsupported without a vocabulary
   */
  prepareWords(words: readonly string[]): Promise<NativeWords>
  createSampler(options?: SamplerOptions): NativeSampler
  /** Disposes the model's contexts and samplers first, then the model. Further calls do nothing. */
  dispose(): Promise<void>
}

/** A loaded LoRA adapter. */
export interface NativeAdapter {
  readonly path: string
  /** How many tensors of its file llama.cpp ignores. It does not apply changed norms. */
  readonly ignored: number
  /** Frees the adapter before its model is freed. Further calls do nothing. @throws KvfoldError native/busy while the model has contexts */
  dispose(): void
}

/** An adapter, and the factor by which its change of the model's weights is multiplied. */
export interface AppliedAdapter {
  readonly adapter: NativeAdapter
  readonly scale: number
}

export interface NativeContext {
  readonly cells: number
  readonly sequences: number
  readonly batch: number
  readonly ubatch: number
  /** Whether flash attention is on; `auto` was decided when the context was made. */
  readonly flashAttention: boolean
  /** How many tokens llama.cpp has accepted into the cache since the context was made. */
  readonly submitted: number
  readonly memory: MemoryFigures
  readonly canShift: boolean
  /**
   * SHA-256 of everything that must agree before a saved sequence is loaded: library, the model's metadata and size, cache types and
   * layout.
   */
  readonly identity: Buffer
  /**
   * For each layer: its number of attention heads; 0 if it has no softmax (a recurrent layer). Null if the context was made without
   * `attention`.
   */
  readonly attention: readonly number[] | null
  /**
   * Sets the adapters of later decodes; no other adapters apply. They apply to every sequence of a batch. Cells that are in the cache
   * already do not change. After a change the next decode takes a few milliseconds longer.
   * @throws KvfoldError native/bad-argument for an adapter of another model, one that is named twice, or a scale that is no finite number
   */
  useAdapters(applied: readonly AppliedAdapter[]): void
  /** Decodes a batch off the event loop. Each sequence must go on at the position after its last one, as llama.cpp requires. */
  decode(batch: Batch, watched?: readonly Watched[]): Promise<DecodeStatus>
  /**
   * Decodes and samples off the event loop, step after step. The run ends when a sequence ends (its last sampled token ends generation, or
   * is a stop token). It also ends when a limit is reached, or after `interrupt`. `heard` receives finished steps in order; the last steps
   * come with the result. Until the end no other code may use the context or the samplers; disposing a sampler ends the run. Contexts with
   * `attention` or `embeddings` refuse runs.
   * @throws KvfoldError native/*, before anything was decoded
   */
  generate(run: DecodeRun, heard: (drawn: DrawnTokens) => void): Promise<RunEnd>
  /** Ends the running `generate` after its current step. Does nothing if no run is going on. */
  interrupt(): void
  /**
   * Makes a capture. @throws KvfoldError attention/unavailable without `attention`, native/bad-argument for layers or heads that do not
   * exist
   */
  createCapture(options: CaptureOptions): NativeCapture
  /** Stops the running decode: on a CPU within a graph, on a GPU at the next ubatch. Does nothing if no decode runs. */
  abort(): void
  /** Returns a copy of a token's logits, one number for each token of the vocabulary. `index` is the token's index in the last batch. */
  logits(index: number): Float32Array
  /**
   * Returns a copy of an embedding of the last decode, not normalised. `at` is a batch index if the context does not pool. Otherwise `at`
   * is a sequence, and the embedding covers its tokens of the last ubatch only. @throws KvfoldError native/bad-argument if there is none
   */
  embedding(at: number): Float32Array
  tag(from: SeqId, to: SeqId, span: Span): void
  untag(seq: SeqId, span: Span): void
  /**
   * Moves the positions of a sequence's cells in the span by `delta` (llama_memory_seq_add). @throws KvfoldError model/unsupported if
   * llama.cpp would assert
   */
  shift(seq: SeqId, span: Span, delta: number): void
  positions(seq: SeqId): { readonly min: number; readonly max: number } | null
  /**
   * Returns all occupied cells, parsed from llama_state_get_data. It copies the cache, so it is for tests only. For a sliding-window model
   * these are the cells of the layers that see all positions.
   */
  readback(): readonly Cell[]
  clear(): void
  /** Returns the state of one whole sequence (llama_state_seq_get_data), sealed: only an equal model and context will load it. */
  saveSequence(seq: SeqId): Uint8Array
  /**
   * Loads a state into an empty sequence. Returns false, and changes nothing, if the cache has no room, or if the data is foreign or cut
   * off. Values in it are not checked: a state must come from this process, or the caller must have checked it.
   */
  loadSequence(seq: SeqId, state: Uint8Array): boolean
  /**
   * Does the same as saveSequence, but off the event loop. The context is busy meanwhile. The memory is pinned if the
   * GPU's backend offers that, and is reused when a state is gone.
   */
  copyOut(seq: SeqId): Promise<Uint8Array>
  /**
   * Does the same as loadSequence, but off the event loop. The context is busy meanwhile, and the caller must not write to the state.
   */
  copyIn(seq: SeqId, state: Uint8Array): Promise<boolean>
  dispose(): Promise<void>
}

/** A compiled grammar, for any number of samplers of the model that compiled it. */
export interface NativeGrammar {
  readonly text: string
}

/** A prepared DRY part, for any number of samplers of the model that prepared it. */
export interface NativeDry {
  readonly options: DryOptions
}

/** Forbidden words for any number of samplers of the model that prepared them. */
export interface NativeWords {
  readonly words: readonly string[]
}

export interface NativeSampler {
  /** Samples a token from the logits of batch index `index`, and accepts it. @throws engine/bad-grammar if the grammar allows no token */
  sample(context: NativeContext, index: number): number
  /**
   * Passes a token that this sampler did not sample, e.g. a token of the prompt, to the penalties and the grammar. @throws
   * engine/bad-grammar if the grammar does not allow it; then nothing changes
   */
  accept(token: number): void
  /** Uses up the rest of the reasoning budget, so that reasoning is closed at the next draw. Nothing happens without a budget. */
  endReasoning(): void
  reset(): void
  dispose(): void
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

export interface Native {
  readonly backend: BackendInfo
  loadModel(path: string, options?: ModelOptions): Promise<NativeModel>
  /**
   * Reads one tensor of a model's file as floats, whatever its number format.
   * @throws KvfoldError native/bad-argument when the model has no such tensor; native/unsupported; model/not-found, model/bad-file
   */
  readTensor(path: string, name: string): TensorValues
  /**
   * From now on SIGTERM or SIGINT ends the process within this many milliseconds, even while a native call blocks the event loop. A second
   * signal ends it within one second. Call it after the process has added its own listeners for these signals. Only the first call counts.
   */
  endWithin(milliseconds: number): void
}
