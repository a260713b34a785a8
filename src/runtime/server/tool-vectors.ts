/** Vectors for searches of tools by meaning, made by the server's model for embeddings. */
import type { ToolEmbedder } from '../tools/catalogue.js'

/** How many vectors are kept, the latest used. A vector of 384 numbers takes 1.5 KB. */
const MOST_KEPT = 20_000

/** An embedder that keeps its latest vectors in memory, because clients send the same tools with every request. */
export class RecentVectors implements ToolEmbedder {
  readonly #kept = new Map<string, Float32Array>()

  constructor(
    readonly name: string,
    private readonly make: (texts: readonly string[], signal?: AbortSignal) => Promise<readonly Float32Array[]>,
    private readonly most = MOST_KEPT,
  ) {}

  /** @throws what the model throws */
  async embed(texts: readonly string[], signal?: AbortSignal): Promise<readonly Float32Array[]> {
    const missing = [...new Set(texts.filter((text) => !this.#kept.has(text)))]
    const made = missing.length === 0 ? [] : await this.make(missing, signal)
    const fresh = new Map(missing.map((text, at) => [text, made[at]!]))
    const vectors = texts.map((text) => fresh.get(text) ?? this.#kept.get(text)!)
    for (const [at, text] of texts.entries()) {
      this.#kept.delete(text)
      this.#kept.set(text, vectors[at]!)
    }
    for (const oldest of this.#kept.keys()) {
      if (this.#kept.size <= this.most) break
      this.#kept.delete(oldest)
    }
    return vectors
  }
}
