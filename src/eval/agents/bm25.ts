/**
 * Owns the ranking of texts by the words they share with a query: Okapi BM25 as the package rank_bm25 has it, which LongBench's retrieval runs.
 * A search library will not do: those (minisearch, for one) score by BM25+ with another idf, which ranks otherwise.
 */

export interface Bm25Options {
  /** Where repetition ceases to count. Default 1.5. */
  readonly k1?: number
  /** How much length counts, 0..1. Default 0.75. */
  readonly b?: number
  /** What terms in more than half of the texts weigh, as a share of the mean idf. Default 0.25. */
  readonly epsilon?: number
}

interface Posting {
  readonly text: number
  readonly frequency: number
}

export class Bm25 {
  readonly #postings = new Map<string, Posting[]>()
  readonly #lengths: readonly number[]
  readonly #meanLength: number
  readonly #commonIdf: number
  readonly #k1: number
  readonly #b: number

  /** @param texts the terms of each */
  constructor(texts: readonly (readonly string[])[], { k1 = 1.5, b = 0.75, epsilon = 0.25 }: Bm25Options = {}) {
    this.#k1 = k1
    this.#b = b
    this.#lengths = texts.map(({ length }) => length)
    this.#meanLength = this.#lengths.reduce((sum, length) => sum + length, 0) / texts.length
    for (const [text, terms] of texts.entries())
      for (const [term, frequency] of frequenciesOf(terms)) {
        const postings = this.#postings.get(term) ?? []
        this.#postings.set(term, postings)
        postings.push({ text, frequency })
      }
    const idfs = [...this.#postings.values()].map((postings) => this.#idf(postings))
    this.#commonIdf = (epsilon * idfs.reduce((sum, idf) => sum + idf, 0)) / Math.max(1, idfs.length)
  }

  /** Every text's score; a term that stands twice in the query counts twice. */
  scores(query: readonly string[]): Float64Array {
    const scores = new Float64Array(this.#lengths.length)
    for (const [term, times] of frequenciesOf(query)) {
      const postings = this.#postings.get(term) ?? []
      const idf = this.#idf(postings)
      const weight = times * (idf < 0 ? this.#commonIdf : idf) * (this.#k1 + 1)
      for (const { text, frequency } of postings) {
        const length = this.#lengths[text]! / this.#meanLength
        scores[text]! += (weight * frequency) / (frequency + this.#k1 * (1 - this.#b + this.#b * length))
      }
    }
    return scores
  }

  /** Negative for a term in more than half of the texts. */
  #idf({ length }: readonly Posting[]): number {
    return Math.log(this.#lengths.length - length + 0.5) - Math.log(length + 0.5)
  }
}

/** Words in lower case; Chinese characters are words of their own. */
export const wordsOf = (text: string): string[] =>
  text.toLowerCase().match(/\p{Script=Han}|(?:(?!\p{Script=Han})[\p{L}\p{N}\p{M}_])+/gu) ?? []

/** Indexes by score, the best first; the earlier of two that are equal. */
export const bestFirst = (scores: ArrayLike<number>): number[] =>
  Array.from(scores, (_, index) => index).sort((one, other) => scores[other]! - scores[one]! || one - other)

function frequenciesOf(terms: readonly string[]): Map<string, number> {
  const frequencies = new Map<string, number>()
  for (const term of terms) frequencies.set(term, (frequencies.get(term) ?? 0) + 1)
  return frequencies
}
