/** Owns vectors of texts: who makes them, of texts of any length, and how alike two are. */
import { existsSync } from 'node:fs'
import { basename, dirname, resolve } from 'node:path'
import type { FeatureExtractionPipeline } from '@huggingface/transformers'
import { invariant, KvfoldError } from '../../runtime/core/errors.js'
import { Embedder, type EmbedderOptions } from '../../runtime/engine/embedder.js'
import type { LlamaEngine } from '../../runtime/engine/llama.js'
import type { AgentKind, AgentSetting, TextEmbedder } from '../agent.js'
import { halvesOf } from './long-text.js'

// Likeness of texts by their vectors, and what was spent on making them.

/** Cosine of two vectors of length 1. */
export function likeness(one: Float32Array, other: Float32Array): number {
  invariant(one.length === other.length, `Vectors of ${one.length} and ${other.length} numbers cannot be compared.`)
  return one.reduce((sum, value, index) => sum + value * other[index]!, 0)
}

/** The setting's embedder, and a count of what it was asked for: it is on no ledger. */
export class CountedEmbedder {
  #texts = 0
  #milliseconds = 0

  constructor(
    private readonly embedder: TextEmbedder,
    private readonly signal: AbortSignal | undefined,
  ) {}

  /** @throws KvfoldError eval/bad-agent when the setting has none */
  static of({ embedder, signal }: AgentSetting, agent: AgentKind): CountedEmbedder {
    if (embedder === undefined)
      throw new KvfoldError(
        'eval/bad-agent',
        `Agent ${agent} looks texts up by their meaning and was given no embedder; name one with --embedder (a GGUF or an ONNX model).`,
      )
    return new CountedEmbedder(embedder, signal)
  }

  /** One vector for each text. @throws KvfoldError what the embedder throws */
  async embed(texts: readonly string[]): Promise<readonly Float32Array[]> {
    if (texts.length === 0) return []
    const begun = performance.now()
    const vectors = await this.embedder.embed(texts, this.signal)
    this.#milliseconds += performance.now() - begun
    this.#texts += texts.length
    invariant(vectors.length === texts.length, `${this.embedder.name} made ${vectors.length} vectors of ${texts.length} texts.`)
    return vectors
  }

  get details(): { readonly embeddedTexts: number; readonly embeddingMilliseconds: number } {
    return { embeddedTexts: this.#texts, embeddingMilliseconds: this.#milliseconds }
  }
}

// Vectors of texts that are longer than an embedder takes: those of their parts, put together.

export interface PartEmbedder {
  /** Tokens of a text, those included that are added at its ends. */
  readonly length: (text: string) => number
  /** Tokens that a text may have. */
  readonly most: number
  /** One vector for each, of length 1. */
  readonly embed: (parts: readonly string[]) => Promise<readonly Float32Array[]>
}

/**
 * One vector for each text, of length 1. A text that is too long is cut in halves until its parts are not; its vector is the mean of theirs,
 * each counted by its tokens.
 * @throws what `embed` throws
 */
export async function embedWhole(
  texts: readonly string[],
  { length, most, embed }: PartEmbedder,
): Promise<readonly Float32Array[]> {
  const parts = texts.flatMap((text, index) => partsOf(text, length, most).map((part) => ({ ...part, index })))
  const vectors = await embed(parts.map(({ text }) => text))
  invariant(vectors.length === parts.length, `${vectors.length} vectors came of ${parts.length} texts.`)
  return texts.map((_, index) => {
    const own = parts.flatMap((part, at) => (part.index === index ? [{ weight: part.tokens, vector: vectors[at]! }] : []))
    return own.length === 1 ? own[0]!.vector : meanOf(own)
  })
}

function partsOf(text: string, length: PartEmbedder['length'], most: number): { text: string; tokens: number }[] {
  const tokens = length(text)
  const halves = tokens > most ? halvesOf(text) : null
  return halves === null ? [{ text, tokens }] : halves.flatMap((half) => partsOf(half, length, most))
}

function meanOf(parts: readonly { readonly weight: number; readonly vector: Float32Array }[]): Float32Array {
  const sums = new Float64Array(parts[0]!.vector.length)
  for (const { weight, vector } of parts) vector.forEach((value, place) => (sums[place]! += weight * value))
  const size = Math.sqrt(sums.reduce((sum, value) => sum + value * value, 0))
  return Float32Array.from(sums, (value) => (size === 0 ? 0 : value / size))
}

// Vectors of texts by a GGUF: an embedding model, or, in place of one, the model under evaluation itself.

/** An embedder that has something to give back. */
export interface OwnedTextEmbedder extends TextEmbedder {
  /** Idempotent. */
  dispose(): Promise<void>
}

/** Vectors by `embedder`, which becomes this one's own. Texts too long for it are embedded in parts. `name`: what the log calls it. */
export function ggufEmbedder(embedder: Embedder, name: string): OwnedTextEmbedder {
  const tokens = (text: string) => embedder.model.tokenize(text, { addSpecial: true }).length
  return {
    name,
    embed: (texts, signal) =>
      embedWhole(texts, {
        length: tokens,
        most: embedder.tokens,
        embed: async (parts) => (await embedder.embed(parts, signal === undefined ? {} : { signal })).vectors,
      }),
    dispose: () => embedder.dispose(),
  }
}

/**
 * Where there is no embedding model: means of the hidden states of the engine's own model, in a context of their own. It was not trained for
 * that, and the name says so. Dispose of it before the engine.
 * @throws as Embedder.on
 */
export async function fallbackEmbedder(engine: LlamaEngine, options: EmbedderOptions = {}): Promise<OwnedTextEmbedder> {
  const embedder = await Embedder.on(engine.model, { pooling: 'mean', ...options })
  return ggufEmbedder(embedder, `fallback: ${embedder.pooling} of ${engine.info.model}'s own hidden states`)
}

// Vectors of texts by an ONNX model in Transformers.js, which is loaded when it is first asked for.

export interface OnnxEmbedderOptions {
  /** How a text's vector is made of its tokens'; the model's card says. Default mean. */
  readonly pooling?: 'mean' | 'cls' | 'last_token'
  /** Weights to load. Default fp32. */
  readonly dtype?: 'fp32' | 'fp16' | 'q8' | 'q4'
  /** Default 1. */
  readonly threads?: number
  /** The longest text, in tokens; longer ones are embedded in parts. Default: what tokenizer and model set, at most 2048. */
  readonly tokens?: number
}

/** Texts computed at once; they are padded to the longest. */
const BATCH = 16
const DEFAULT_TOKENS = 2048

/**
 * `model`: a folder with config.json, tokenizer.json and onnx/model.onnx, else a name on the hub, downloaded once. Models without hidden states
 * among their outputs are used by what they have; the name says by what.
 * @throws KvfoldError eval/bad-agent when Transformers.js is not installed; model/not-found when the model cannot be loaded
 */
export async function onnxEmbedder(
  model: string,
  { pooling = 'mean', dtype = 'fp32', threads = 1, tokens = DEFAULT_TOKENS }: OnnxEmbedderOptions = {},
): Promise<OwnedTextEmbedder> {
  const { pipeline, env } = await transformers()
  const folder = resolve(model)
  const isLocal = existsSync(folder)
  if (isLocal) env.localModelPath = `${dirname(folder)}/`
  let extractor: FeatureExtractionPipeline
  try {
    extractor = await pipeline('feature-extraction', isLocal ? basename(folder) : model, {
      dtype,
      local_files_only: isLocal,
      session_options: { intraOpNumThreads: threads, interOpNumThreads: 1 },
    })
  } catch (error) {
    throw new KvfoldError(
      'model/not-found',
      `${model} cannot be loaded as an ONNX embedder (${reasonOf(error)}); give a folder with config.json, tokenizer.json and onnx/model.onnx.`,
      { cause: error },
    )
  }
  const most = Math.min(tokens, ...limitsOf(extractor))
  const length = (text: string) => extractor.tokenizer.encode(text).length
  const embedParts = async (parts: readonly string[], signal: AbortSignal | undefined): Promise<readonly Float32Array[]> => {
    const vectors: Float32Array[] = []
    for (let at = 0; at < parts.length; at += BATCH) {
      if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'The embedding was cancelled.')
      const made = await extractor(parts.slice(at, at + BATCH), { pooling, normalize: true })
      const [rows = 0, width = 0] = made.dims
      const numbers = Float32Array.from(made.data as ArrayLike<number>)
      for (let row = 0; row < rows; row++) vectors.push(numbers.slice(row * width, (row + 1) * width))
    }
    return vectors
  }
  return {
    name: `${isLocal ? basename(folder) : model} (Transformers.js, ${pooling} of ${outputOf(extractor)})`,
    embed: (texts, signal) => embedWhole(texts, { length, most, embed: (parts) => embedParts(parts, signal) }),
    dispose: async () => {
      await extractor.dispose()
    },
  }
}

async function transformers(): Promise<typeof import('@huggingface/transformers')> {
  try {
    return await import('@huggingface/transformers')
  } catch (error) {
    throw new KvfoldError(
      'eval/bad-agent',
      'ONNX embedders need Transformers.js, which is not installed: npm install @huggingface/transformers, or name a GGUF.',
      { cause: error },
    )
  }
}

/** Tokens that tokenizer and model set as the most, where they set any. */
function limitsOf({ tokenizer, model }: FeatureExtractionPipeline): readonly number[] {
  const limits = [tokenizer.model_max_length, (model.config as { max_position_embeddings?: unknown }).max_position_embeddings]
  // A tokenizer without a limit says 1e30.
  return limits.filter((limit): limit is number => typeof limit === 'number' && limit > 0 && limit < 1e9)
}

/** What the pipeline takes for the tokens' vectors: the first of these that the model has. */
function outputOf({ model }: FeatureExtractionPipeline): string {
  const sessions = Object.values(model.sessions as Record<string, { readonly outputNames?: readonly string[] }>)
  const names = sessions.flatMap(({ outputNames = [] }) => outputNames)
  if (names.includes('last_hidden_state')) return 'hidden states'
  return names.includes('logits') ? 'logits: the model has no hidden states' : 'token embeddings'
}

const reasonOf = (error: unknown): string => (error instanceof Error ? error.message.split('\n', 1)[0]! : String(error))
