/** Owns likeness of texts by their vectors, and what was spent on making them. */
import { invariant, KvfoldError } from '../../core/errors.js'
import type { AgentKind, AgentSetting, TextEmbedder } from '../agent.js'

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
