/** Makes vectors of texts of any length, with a GGUF or an ONNX model, and compares them. */
import { existsSync } from 'node:fs'
import { basename, dirname, resolve } from 'node:path'
import type { FeatureExtractionPipeline } from '@huggingface/transformers'
import { invariant, KvfoldError } from '../../runtime/core/errors.js'
import { Embedder, type EmbedderOptions } from '../../runtime/engine/embedder.js'
import type { LlamaEngine } from '../../runtime/engine/llama.js'
import type { AgentKind, AgentSetting, TextEmbedder } from '../agent.js'
import { halvesOf } from './long-text.js'

// The similarity of two vectors, and an embedder that counts its texts and its time.

/** Returns the cosine of two vectors of length 1. */
export function likeness(one: Float32Array, other: Float32Array): number {
  invariant(one.length === other.length, `Vectors of ${one.length} and ${other.length} numbers cannot be compared.`)
  return one.reduce((sum, value, index) => sum + value * other[index]!, 0)
}

/** The setting's embedder. It counts texts and milliseconds, because no ledger records embeddings. */
export class CountedEmbedder {
  #texts = 0
  #milliseconds = 0

  constructor(
    private readonly embedder: TextEmbedder,
    private readonly signal: AbortSignal | undefined,
  ) {}

  /** @throws KvfoldError eval/bad-agent when the setting has no embedder */
  static of({ embedder, signal }: AgentSetting, agent: AgentKind): CountedEmbedder {
    if (embedder === undefined)
      throw new KvfoldError(
        'eval/bad-agent',
        `Agent ${agent} searches texts by meaning and has no embedder; name one with --embedder (a GGUF or an ONNX model).`,
      )
    return new CountedEmbedder(embedder, signal)
  }

  /** Returns one vector for each text. @throws KvfoldError any error of the embedder */
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

// Vectors of texts that are too long for an embedder: the weighted mean of the vectors of their parts.

export interface PartEmbedder {
  /** Counts the tokens of a text, including the special tokens at its ends. */
  readonly length: (text: string) => number
  /** The most tokens that one text may have. */
  readonly most: number
  /** Returns one vector of length 1 for each part. */
  readonly embed: (parts: readonly string[]) => Promise<readonly Float32Array[]>
}

/**
 * Returns one vector of length 1 for each text. Halves a text that is too long until every
 * part fits. Its vector is the mean of the parts' vectors, weighted by their tokens.
 * @throws any error of `embed`
 */
export async function embedWhole(
  texts: readonly string[],
  { length, most, embed }: PartEmbedder,
): Promise<readonly Float32Array[]> {
  const parts = texts.flatMap((text, index) => partsOf(text, length, most).map((part) => ({ ...part, index })))
  const vectors = await embed(parts.map(({ text }) => text))
  invariant(vectors.length === parts.length, `The embedder made ${vectors.length} vectors of ${parts.length} texts.`)
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

// Vectors by a GGUF: an embedding model or, without one, the model under evaluation itself.

/** An embedder that holds a model or a context until `dispose`. */
export interface OwnedTextEmbedder extends TextEmbedder {
  /** Frees the embedder's model or context. Idempotent. */
  dispose(): Promise<void>
}

/**
 * Wraps `embedder` and takes ownership: `dispose` disposes of it. Texts that
 * are too long are embedded in parts. The log calls the embedder `name`.
 */
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
 * An embedder for runs without an embedding model. It averages the hidden states of the engine's own model, in a separate
 * context. The model was not trained for this, and the embedder's name says so. Dispose of it before the engine.
 * @throws the errors of Embedder.on
 */
export async function fallbackEmbedder(engine: LlamaEngine, options: EmbedderOptions = {}): Promise<OwnedTextEmbedder> {
  const embedder = await Embedder.on(engine.model, { pooling: 'mean', ...options })
  return ggufEmbedder(embedder, `fallback: ${embedder.pooling} of ${engine.info.model}'s own hidden states`)
}

// Vectors by an ONNX model in Transformers.js. The package is imported only when an ONNX embedder is opened.

/** Texts per batch; each batch is padded to its longest text. */
const BATCH = 16
/** The longest text, in tokens; longer texts are embedded in parts. */
const LONGEST = 2048

/**
 * Opens an ONNX embedder. `model` is a folder with config.json, tokenizer.json and onnx/model.onnx, or a name on the hub,
 * downloaded once. `tokens`: the longest text; the tokenizer's and the model's own limits also apply. When a model does not output
 * hidden states, the embedder uses another output; its name says which.
 * @throws KvfoldError eval/bad-agent when Transformers.js is not installed; model/not-found when the model cannot be loaded
 */
export async function onnxEmbedder(model: string, tokens = LONGEST): Promise<OwnedTextEmbedder> {
  const { pipeline, env } = await transformers()
  const folder = resolve(model)
  const isLocal = existsSync(folder)
  if (isLocal) env.localModelPath = `${dirname(folder)}/`
  let extractor: FeatureExtractionPipeline
  try {
    extractor = await pipeline('feature-extraction', isLocal ? basename(folder) : model, {
      dtype: 'fp32',
      local_files_only: isLocal,
      session_options: { intraOpNumThreads: 1, interOpNumThreads: 1 },
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
      const made = await extractor(parts.slice(at, at + BATCH), { pooling: 'mean', normalize: true })
      const [rows = 0, width = 0] = made.dims
      const numbers = Float32Array.from(made.data as ArrayLike<number>)
      for (let row = 0; row < rows; row++) vectors.push(numbers.slice(row * width, (row + 1) * width))
    }
    return vectors
  }
  return {
    name: `${isLocal ? basename(folder) : model} (Transformers.js, mean of ${outputOf(extractor)})`,
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

/** The limits of tokens that the tokenizer and the model set; empty when they set none. */
function limitsOf({ tokenizer, model }: FeatureExtractionPipeline): readonly number[] {
  const limits = [tokenizer.model_max_length, (model.config as { max_position_embeddings?: unknown }).max_position_embeddings]
  // A tokenizer without a limit reports 1e30.
  return limits.filter((limit): limit is number => typeof limit === 'number' && limit > 0 && limit < 1e9)
}

/** Names the output that the pipeline uses as the tokens' vectors: hidden states, else logits, else token embeddings. */
function outputOf({ model }: FeatureExtractionPipeline): string {
  const sessions = Object.values(model.sessions as Record<string, { readonly outputNames?: readonly string[] }>)
  const names = sessions.flatMap(({ outputNames = [] }) => outputNames)
  if (names.includes('last_hidden_state')) return 'hidden states'
  return names.includes('logits') ? 'logits: the model has no hidden states' : 'token embeddings'
}

const reasonOf = (error: unknown): string => (error instanceof Error ? error.message.split('\n', 1)[0]! : String(error))
