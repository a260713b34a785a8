/** The surface of the C++ addon as the rest of kvfold sees it; binding.ts makes the objects, nothing else does. */
import type { SeqId } from '../core/ids.js'
import type { Span } from '../core/span.js'

export type GpuChoice = 'auto' | 'cpu' | 'cuda' | 'vulkan' | 'metal'
export type CacheType = 'f32' | 'f16' | 'bf16' | 'q8_0' | 'q4_0' | 'q4_1' | 'q5_0' | 'q5_1' | 'iq4_nl'

/** One occupied cell of the cache: its position and every sequence that tags it. */
export interface Cell {
  readonly position: number
  readonly sequences: readonly SeqId[]
}

/** Which build of llama.cpp this process runs on. */
export interface BackendInfo {
  /** `cpu`, `cuda`, ... */
  readonly gpu: Exclude<GpuChoice, 'auto'>
  /** The release tag that node-llama-cpp pins, e.g. `v0.5.0`. */
  readonly release: string
  readonly devices: readonly string[]
  readonly systemInfo: string
  /**
   * Files of the library that computes on the processor: the one that node-llama-cpp ships, where the one compiled here is or would be
   * (`kvfold compile`), and which of them (or what `KVFOLD_CPU_LIBRARY` names) is used. Null where the library has no file of its own.
   */
  readonly cpuLibrary: { readonly shipped: string; readonly compiled: string; readonly used: string } | null
}

export interface ModelOptions {
  /** Layers to offload; default: all that the device can hold on a GPU build, 0 on CPU. */
  readonly gpuLayers?: number
  /** Default true. */
  readonly mmap?: boolean
  readonly mlock?: boolean
  /** Only tokenizer and metadata. */
  readonly vocabOnly?: boolean
  readonly checkTensors?: boolean
  /** 0..1 */
  readonly onProgress?: (progress: number) => void
}

/**
 * How the vectors of a text's tokens become one. `none`: they do not. `mean` of all, `cls`: the first one's, `last`: the last one's. `rank`:
 * the scores of a reranker.
 */
export type Pooling = 'none' | 'mean' | 'cls' | 'last' | 'rank'

export type VocabType = 'none' | 'spm' | 'bpe' | 'wpm' | 'ugm' | 'rwkv' | 'plamo2' | 'unknown'

export interface ModelInfo {
  readonly path: string
  /** e.g. `llama 1.2M F16`. */
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
  /** Tokens in the vocabulary. */
  readonly vocabulary: number
  /** Bytes of the longest token, control tokens written out; 1 without a vocabulary. */
  readonly longestToken: number
  readonly vocabType: VocabType
  readonly recurrent: boolean
  readonly hybrid: boolean
  /** No next token comes out of it: text encoders, encoders of translators, diffusion, speech. */
  readonly encoder: boolean
  /** A head scores its texts, as rerankers' do. */
  readonly scores: boolean
  /** 0: none. */
  readonly slidingWindow: number
  /** `none`, `norm`, `neox`, `mrope`, `vision`, `imrope`, ... */
  readonly rope: string
  /** GGUF metadata, scalar values as text. */
  readonly metadata: Readonly<Record<string, string>>
  /** `tokenizer.chat_template`, null when the file has none. */
  readonly chatTemplate: string | null
}

export interface TokenizeOptions {
  /** Adds BOS / EOS as the vocabulary says. Default false. */
  readonly addSpecial?: boolean
  /** Recognises control tokens in the text. Default false: text is text. */
  readonly parseSpecial?: boolean
}

export interface SpecialTokens {
  readonly bos: number | null
  readonly eos: number | null
  readonly eot: number | null
  /** Stands between two texts that are read as one, as a question and a document are. */
  readonly sep: number | null
  readonly newline: number | null
  readonly addBos: boolean
  readonly addEos: boolean
  readonly addSep: boolean
}

export interface ContextOptions {
  /** n_ctx: cells shared by all sequences. Default: the trained context. */
  readonly cells?: number
  /** n_seq_max, 1..256. Default 64. */
  readonly sequences?: number
  /** n_batch; default 2048. */
  readonly batch?: number
  /** n_ubatch; default 512. */
  readonly ubatch?: number
  readonly threads?: number
  readonly batchThreads?: number
  readonly flashAttention?: 'auto' | 'on' | 'off'
  readonly keyType?: CacheType
  readonly valueType?: CacheType
  /**
   * Given: decoding leaves embeddings, pooled like this, and no logits; every token is an output. Text encoders get only such a context, and
   * they and others that are not causal take `ubatch` tokens a decode. Default: none.
   */
  readonly embeddings?: Pooling
  /** Default false. Needed for edits on sliding-window models. */
  readonly fullSlidingWindow?: boolean
  /** True: attention can be captured, which takes flash attention off for good and makes the compute buffer larger. Default false. */
  readonly attention?: boolean
}

/** One decode call: parallel arrays, one entry a token. */
export interface Batch {
  readonly tokens: Int32Array
  readonly positions: Int32Array
  readonly sequences: Int32Array
  /** 1: logits of this token are wanted. */
  readonly outputs: Uint8Array
}

/** What a capture keeps of every row; rows are those of one softmax: a layer's, a head's, a looking token's. */
export interface CaptureOptions {
  /** Ascending; each has a softmax (NativeContext.attention). */
  readonly layers: readonly number[]
  /** Ascending; each layer has them. */
  readonly heads: readonly number[]
  /** Number of disjoint sets of places that weights are summed over. */
  readonly atoms: number
  /** The most attended places of every row. Default 0. */
  readonly top?: number
  /** Whole rows, too. Default false. */
  readonly rows?: boolean
}

/** A capture's part in one decode. */
export interface Watched {
  readonly capture: NativeCapture
  /** Whose tokens look. */
  readonly sequence: SeqId
  /** Batch indices of the tokens that look, ascending. */
  readonly queries: Int32Array
  /** The position of every token that can be seen, ascending; its index is its place. Those of the looking tokens are among them. */
  readonly positions: Int32Array
  /** The atom of every place, -1 for none; may be shorter than `positions`. */
  readonly atoms: Int32Array
}

/** What a decode left: [layer, head, query, ...] in the order of the capture's options, the last axis varying fastest. Weights are those after the softmax. */
export interface Captured {
  /** [.., atom]: sum of the weights on its places. */
  readonly mass: Float32Array
  /** Sum of the row. */
  readonly total: Float32Array
  /** In nats. */
  readonly entropy: Float32Array
  /** Weight on place 0. */
  readonly sink: Float32Array
  /** [.., rank]: -1 where the row has fewer. Empty without `top`. */
  readonly topPlaces: Int32Array
  readonly topWeights: Float32Array
  /** [.., place]: as many places as there were positions. Empty without `rows`. */
  readonly rows: Float32Array
}

/** Belongs to one context and one running step. What it holds goes with the object. */
export interface NativeCapture {
  /**
   * What the last decode left for it; can be taken once.
   * @throws KvfoldError attention/unavailable when rows were not computed as expected; the decode itself is not harmed by that.
   */
  take(): Captured
}

/**
 * `done`: everything is in the cache. `no-room`: llama.cpp found no cells, nothing changed. `aborted`: some ubatches may be in
 * the cache (re-read positions). Failures throw.
 */
export type DecodeStatus = 'done' | 'no-room' | 'aborted'

/** Decodes one after another: each takes the token that was drawn for every sequence before it. One entry a sequence. */
export interface DecodeRun {
  /** What the first decode takes. */
  readonly tokens: Int32Array
  readonly positions: Int32Array
  /** Each at most once. */
  readonly sequences: Int32Array
  readonly samplers: readonly NativeSampler[]
  /** The run ends when so many tokens were drawn for one of them; at least 1. */
  readonly limits: Int32Array
  /** The most decodes, at least 1. Every one needs a cell a sequence. */
  readonly steps: number
}

/** Steps of a run: each decoded the tokens before it and drew these. */
export interface DrawnTokens {
  /** Step by step, in the order of the run's sequences. */
  readonly tokens: Int32Array
  /** Of each step. */
  readonly milliseconds: Float64Array
}

/** How a run ended. */
export interface RunEnd {
  /** Of the last decode. Not `done`: the tokens that it took may not be in the cache. */
  readonly status: DecodeStatus | 'failed'
  /** Why it failed; null where it did not. */
  readonly failure: Error | null
  /** The steps that were not told before. */
  readonly drawn: DrawnTokens
  /** By sequence: why the last step could draw no token (its token is -1); null where it could. */
  readonly refused: readonly (Error | null)[]
}

export interface SamplerOptions {
  /** 0: greedy. Default 0.8. */
  readonly temperature?: number
  /** 0: off. */
  readonly topK?: number
  readonly topP?: number
  readonly minP?: number
  readonly typicalP?: number
  /** Repetition penalty, 1: off; over the last `penaltyLastN` tokens (default 64). */
  readonly repeatPenalty?: number
  readonly frequencyPenalty?: number
  readonly presencePenalty?: number
  readonly penaltyLastN?: number
  /** Version 1 or 2; replaces top-k / top-p / min-p / typical. */
  readonly mirostat?: { readonly version: 1 | 2; readonly tau: number; readonly eta: number }
  /** 0 .. 2^32 - 2; default: another one every time. */
  readonly seed?: number
  /** GBNF with root rule `root`; a text is compiled here and now, on the event loop. */
  readonly grammar?: string | NativeGrammar
  /** The grammar holds only from where one of the triggers stands in the text, and the trigger is part of it. Needs `grammar`. */
  readonly lazy?: {
    readonly triggers: readonly string[]
    /** Between these tags nothing triggers. */
    readonly reasoning: readonly { readonly open: string; readonly close: string }[]
    /** What the prompt ends with of triggers and tags; empty: nothing. */
    readonly opened: string
  }
  /** How long the text may reason. Default: without end. */
  readonly budget?: {
    /** Of reasoning, over all its stretches; then `forced` is written, where the grammar allows it. */
    readonly tokens: number
    readonly open: string
    readonly close: string
    /** Whether the prompt ends with `open`. */
    readonly opened: boolean
    /** What closes the reasoning. */
    readonly forced: Int32Array
  }
  /** Added to logits; -Infinity bans. */
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

/** Rules of every native object: after dispose() any call throws `native/disposed`; while a decode runs, calls that touch the context throw `native/busy`. */
export interface NativeModel {
  readonly info: ModelInfo
  readonly special: SpecialTokens
  tokenize(text: string, options?: TokenizeOptions): Int32Array
  /**
   * The same of each text, on another thread, so that the event loop goes on; short texts are done at once. Two calls of a process run at a time.
   * @throws KvfoldError native/bad-argument for a text of more than a GiB; as `tokenize`
   */
  tokenizeAll(texts: readonly string[], options?: TokenizeOptions): Promise<readonly Int32Array[]>
  /** Exact bytes of the tokens as UTF-8 text (invalid sequences become U+FFFD). Control tokens are shown when `special` is true (default false). */
  detokenize(tokens: Int32Array | readonly number[], special?: boolean): string
  /** The bytes of one token as it is written out; empty for control tokens unless `special` (default true here). */
  piece(token: number, special?: boolean): Uint8Array
  /** End of generation: EOS, EOT and their like. */
  isEndOfGeneration(token: number): boolean
  /** Control or unknown token (never produced by plain text). */
  isControl(token: number): boolean
  createContext(options?: ContextOptions): Promise<NativeContext>
  /**
   * Compiles GBNF off the event loop, in a tenth of a second at most: what would take longer is refused.
   * @throws KvfoldError engine/bad-grammar, native/disposed
   */
  compileGrammar(text: string): Promise<NativeGrammar>
  createSampler(options?: SamplerOptions): NativeSampler
  /** Disposes contexts and samplers made from it first. Idempotent. */
  dispose(): Promise<void>
}

export interface NativeContext {
  readonly cells: number
  readonly sequences: number
  readonly batch: number
  readonly ubatch: number
  /** What is in force; `auto` is settled when the context is made. */
  readonly flashAttention: boolean
  /** Tokens submitted to llama_decode that llama.cpp accepted into the cache, since the context was made. */
  readonly submitted: number
  readonly memory: MemoryFigures
  readonly canShift: boolean
  /** SHA-256 of what must agree for a saved sequence to be loaded: library, model's metadata and size, cache types and layout. */
  readonly identity: Buffer
  /** By layer: heads of its attention, 0 where there is none (a recurrent layer). Null: the context was not made with `attention`. */
  readonly attention: readonly number[] | null
  /** Runs off the event loop. Positions and sequences must follow llama.cpp's rules (a batch for s starts at max(s) + 1). */
  decode(batch: Batch, watched?: readonly Watched[]): Promise<DecodeStatus>
  /**
   * Decodes and draws off the event loop, step after step, until a sequence ends (its end of generation is the last token drawn for it), one
   * of the limits is reached, or `interrupt`. `heard` gets the steps as they are done, in order; the last ones come with the end. Memory and
   * samplers are the run's until then: samplers that are disposed end it. Not for contexts with `attention` or `embeddings`.
   * @throws KvfoldError native/*, before anything was decoded
   */
  generate(run: DecodeRun, heard: (drawn: DrawnTokens) => void): Promise<RunEnd>
  /** The running `generate` ends behind the step that is under way. No-op when there is none. */
  interrupt(): void
  /** @throws KvfoldError attention/unavailable without `attention`, native/bad-argument for layers or heads that are not there */
  createCapture(options: CaptureOptions): NativeCapture
  /** Stops the running decode: within a graph on CPU, at the next ubatch on a GPU. No-op when idle. */
  abort(): void
  /** Copy of the logits of output `index` (index of the token in the last batch); length = vocabulary. */
  logits(index: number): Float32Array
  /**
   * Copy of an embedding that the last decode left, not normalised: of batch index `at` where the context does not pool, else of sequence
   * `at`, over its tokens of the last ubatch only. @throws KvfoldError native/bad-argument where there is none
   */
  embedding(at: number): Float32Array
  tag(from: SeqId, to: SeqId, span: Span): void
  untag(seq: SeqId, span: Span): void
  /** llama_memory_seq_add on [span): refused with model/unsupported where llama.cpp would assert. */
  shift(seq: SeqId, span: Span, delta: number): void
  positions(seq: SeqId): { readonly min: number; readonly max: number } | null
  /** All occupied cells, parsed from llama_state_get_data's header part (copies the cache: tests only). Of a sliding-window model, those of the layers that see everything. */
  readback(): readonly Cell[]
  clear(): void
  /**
   * llama_state_seq_get_data of one whole sequence, sealed: only an equal model and context will load it. `checksum` (default true): a
   * damaged one will not be loaded either; without, saving and loading run at the speed of memory.
   */
  saveSequence(seq: SeqId, options?: { readonly checksum: boolean }): Uint8Array
  /**
   * Into an empty sequence; false when there is no room or the data is foreign or damaged (then nothing changed). `verify` (default true):
   * false for data saved without a checksum, which must come from this process or from whoever checked it.
   */
  loadSequence(seq: SeqId, state: Uint8Array, options?: { readonly verify: boolean }): boolean
  dispose(): Promise<void>
}

/** A compiled grammar, for any number of samplers of the model that compiled it. */
export interface NativeGrammar {
  readonly text: string
}

export interface NativeSampler {
  /** Samples from the logits of batch index `index` and accepts the token. Throws engine/bad-grammar when the grammar allows none. */
  sample(context: NativeContext, index: number): number
  /** Tells penalties and grammar of a token that was not sampled here (e.g. the prompt's). One the grammar does not allow throws engine/bad-grammar and changes nothing. */
  accept(token: number): void
  reset(): void
  dispose(): void
}

export interface Native {
  readonly backend: BackendInfo
  loadModel(path: string, options?: ModelOptions): Promise<NativeModel>
  /**
   * From now on SIGTERM or SIGINT ends the process after so many milliseconds at most, a second one after a second, even while a native call holds
   * the event loop. To be called behind the process's own listeners of these signals; counts once.
   */
  endWithin(milliseconds: number): void
}
