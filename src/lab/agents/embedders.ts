/** Embeds texts of any length, with a GGUF or an ONNX model, and compares the vectors. */
import { invariant, KvfoldError } from '../../runtime/core/errors.js'
import { Embedder, type EmbedderOptions } from '../../runtime/engine/embedder.js'
import type { LlamaEngine } from '../../runtime/engine/llama.js'
import { openVectors } from '../../runtime/engine/onnx-model.js'
import type { AgentKind, AgentSetting, TextEmbedder } from '../agent.js'
import { halvesOf } from './long-text.js'

/** Returns the cosine of two vectors of length 1. */
export function likeness(one: Float32Array, other: Float32Array): number {
  invariant(one.length === other.length, `Vectors of ${one.length} and ${other.length} numbers cannot be compared.`)
  return one.reduce((sum, value, index) => sum + value * other[index]!, 0)
}

/** Wraps an agent's embedder, and counts the embedded texts and the time, because no ledger records embeddings. */
export class CountedEmbedder {
  #texts = 0
  #milliseconds = 0

  constructor(
    private readonly embedder: TextEmbedder,
    private readonly signal: AbortSignal | undefined,
  ) {}

  /** Wraps the embedder of the agent's setting. @throws KvfoldError eval/bad-agent when the setting has none */
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

// Below: embeds texts that are too long for the model. The vector is the weighted mean of the vectors of the text's parts.

export interface PartEmbedder {
  /** Returns the number of tokens of a text, including the special tokens around it. */
  readonly length: (text: string) => number
  /** The most tokens that one text may have, special tokens included. */
  readonly most: number
  /** Returns one vector of length 1 for each text. */
  readonly embed: (parts: readonly string[]) => Promise<readonly Float32Array[]>
}

/**
 * Returns one vector of length 1 for each text. A text that is too long is halved until every part fits. Its vector is the mean of the
 * parts' vectors, weighted by their tokens.
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

// Below: an embedder from a GGUF file, or, without an embedding model, from the model under evaluation.

/** An embedder that holds a model or a context in memory until `dispose`. */
export interface OwnedTextEmbedder extends TextEmbedder {
  /** Frees the embedder's model or context. Idempotent. */
  dispose(): Promise<void>
}

/**
 * Wraps `embedder` and takes ownership: `dispose` disposes of it. Texts that are too long are embedded in parts. `name`: the name in the
 * log.
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
 * Makes an embedder for runs without an embedding model. It averages the hidden states of the engine's own model, in a context of its own.
 * The model was not trained for this, and the embedder's name says so. Dispose of it before the engine.
 * @throws the errors of Embedder.on
 */
export async function fallbackEmbedder(engine: LlamaEngine, options: EmbedderOptions = {}): Promise<OwnedTextEmbedder> {
  const embedder = await Embedder.on(engine.model, { pooling: 'mean', ...options })
  return ggufEmbedder(embedder, `fallback: ${embedder.pooling} of ${engine.info.model}'s own hidden states`)
}

/**
 * Opens an ONNX embedder in Transformers.js, on this thread (`openVectors`). Texts that are too long are embedded in parts.
 * @throws the errors of openVectors
 */
export async function onnxEmbedder(model: string, tokens?: number): Promise<OwnedTextEmbedder> {
  const { name, most, length, embed, dispose } = await openVectors(model, tokens)
  return {
    name,
    embed: (texts, signal) => embedWhole(texts, { length, most, embed: (parts) => embed(parts, signal) }),
    dispose,
  }
}
