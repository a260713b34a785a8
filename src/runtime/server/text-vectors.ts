/** Embeddings for searches by meaning, made by the server's model for embeddings. */
import { isContextFull } from '../core/errors.js'
import type { Embed } from '../context/meaning.js'
import type { ToolEmbedder } from '../tools/catalogue.js'

/** The most numbers of all kept vectors together: 64 MB, or 40,000 vectors of 384 numbers. */
const MOST_NUMBERS = 2 ** 24
/** How often texts that are too long for the model are halved before the error is thrown. */
const HALVINGS = 5

/** Returns an embedder that halves the longest texts until its model can read them. */
export const cutting =
  (make: Embed): Embed =>
  async (texts, signal) => {
    let cut = texts
    for (let halvings = 0; ; halvings++)
      try {
        return await make(cut, signal)
      } catch (error) {
        if (!isContextFull(error) || halvings === HALVINGS) throw error
        const longest = Math.max(...cut.map(({ length }) => length)) / 2
        cut = cut.map((text) => text.slice(0, longest))
      }
  }

/** An embedder that keeps its latest vectors: clients send the same tools with every request. */
export class RecentVectors implements ToolEmbedder {
  readonly #kept = new Map<string, Float32Array>()
  #numbers = 0

  constructor(
    readonly name: string,
    private readonly make: Embed,
    private readonly most = MOST_NUMBERS,
  ) {}

  /** Returns one vector per text. A single text is a query, and its vector is not kept. @throws what the model throws */
  async embed(texts: readonly string[], signal?: AbortSignal): Promise<readonly Float32Array[]> {
    const missing = [...new Set(texts.filter((text) => !this.#kept.has(text)))]
    const made = missing.length === 0 ? [] : await this.make(missing, signal)
    const fresh = new Map(missing.map((text, at) => [text, made[at]!]))
    const vectors = texts.map((text) => fresh.get(text) ?? this.#kept.get(text)!)
    if (texts.length > 1) for (const [at, text] of texts.entries()) this.#keep(text, vectors[at]!)
    return vectors
  }

  #keep(text: string, vector: Float32Array): void {
    this.#numbers += vector.length - (this.#kept.get(text)?.length ?? 0)
    this.#kept.delete(text)
    this.#kept.set(text, vector)
    for (const [oldest, { length }] of this.#kept) {
      if (this.#numbers <= this.most) break
      this.#kept.delete(oldest)
      this.#numbers -= length
    }
  }
}
