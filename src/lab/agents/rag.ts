/** Two agents that search a text for passages and answer from them. One ranks passages by BM25, the other by vectors (Sculptor, D.4). */
import Type from 'typebox'
import { strict } from '../../runtime/core/schema.js'
import type { AgentSetting, Answered } from '../agent.js'
import type { TaskSample } from '../task.js'
import { type AgentDefinition, answered, count, passagesPrompt, type SampleEngine } from './define.js'
import { CountedEmbedder, likeness } from './embedders.js'
import { type TextChunk, fitting, LongText } from './long-text.js'

// The common part of both agents. It divides the text into chunks, makes the query, and answers from the best chunks.

/** When the two ends of the text serve as the query, it has this many tokens of each end (Sculptor, D.4). */
export const END_TOKENS = 500

export const retrievalOptions = {
  chunkTokens: count(200),
  /** The agent adds chunks, the best first, until they have this many tokens together. */
  retrievedTokens: count(1500),
  /**
   * The text that chunks are compared with. `question`: the sample's question. `ends`: the first and the last `endTokens` tokens of the
   * text, which also serve when the sample has no question.
   */
  query: Type.Enum(['question', 'ends'], { default: 'question' }),
  endTokens: count(END_TOKENS),
}

export interface RetrievalOptions {
  readonly chunkTokens: number
  readonly retrievedTokens: number
  readonly query: 'question' | 'ends'
  readonly endTokens: number
}

/** Ranks chunks for a query. `order`: the indexes of the chunks, the best first. `details`: counts for the details of the answer. */
export type Rank = (
  query: string,
  chunks: readonly string[],
) => Promise<{ readonly order: readonly number[]; readonly details: Answered['details'] }>

/**
 * Answers a sample from the chunks of its text that `rank` finds best.
 * @throws KvfoldError any error of the engine or the ranking; context/full when no chunk fits beside the question
 */
export async function answerFromBest(
  engine: SampleEngine,
  { sample, task }: AgentSetting,
  options: RetrievalOptions,
  rank: Rank,
): Promise<Answered> {
  const text = new LongText(sample.context, engine)
  const chunks = await text.chunks(options.chunkTokens)
  const query = options.query === 'ends' ? pseudoQuery(text, options.endTokens) : questionOf(sample, text, options.endTokens)
  const { order, details } = await rank(
    query,
    chunks.map((chunk) => chunk.text),
  )
  const best = bestUpTo(
    order.map((index) => chunks[index]!),
    options.retrievedTokens,
  )
  const promptOf = (passages: readonly TextChunk[]) =>
    passagesPrompt(
      sample.question,
      passages.map((passage) => passage.text),
    )
  const passages = fitting(engine, best, promptOf, task.maxTokens)
  const reply = await engine.ask('answer', promptOf(passages), { maxTokens: task.maxTokens })
  return answered(reply, {
    contextTokens: text.tokens,
    chunks: chunks.length,
    passages: passages.length,
    passageTokens: passages.reduce((sum, { tokens }) => sum + tokens, 0),
    ...details,
  })
}

/** Returns the sample's question; or the two ends of the text when the sample has no question. */
export const questionOf = ({ question }: TaskSample, text: LongText, endTokens: number): string =>
  question.trim() === '' ? pseudoQuery(text, endTokens) : question

const pseudoQuery = (text: LongText, each: number): string =>
  text
    .ends(each)
    .map((end) => end.trim())
    .join('\n')
    .trim()

/** Takes chunks from the best on until they have `enough` tokens together. The last one may exceed that number, as in LongBench. */
function bestUpTo(ranked: readonly TextChunk[], enough: number): readonly TextChunk[] {
  let tokens = 0
  const end = ranked.findIndex((chunk) => (tokens += chunk.tokens) >= enough)
  return end < 0 ? ranked : ranked.slice(0, end + 1)
}

// Ranks texts by the words that they share with a query. It is Okapi BM25 as in the Python package rank_bm25, which LongBench's
// retrieval uses. Search libraries such as minisearch rank otherwise, because they compute BM25+ with another idf.

export interface Bm25Options {
  /** The larger this number, the more do further occurrences of a term in a text add to its score. Default: 1.5. */
  readonly k1?: number
  /** How much a long text is scored down for its length, from 0 (not at all) to 1. Default: 0.75. */
  readonly b?: number
  /** The weight of terms that occur in more than half of the texts, as a share of the mean idf. Default: 0.25. */
  readonly epsilon?: number
  /** Whether a term adds to the score of every text that contains it, however common it is. `epsilon` has no effect then. Default: no. */
  readonly positive?: boolean
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
  readonly #positive: boolean

  /** Counts the terms of all texts once, for any number of queries. @param texts the terms of each text */
  constructor(texts: readonly (readonly string[])[], { k1 = 1.5, b = 0.75, epsilon = 0.25, positive = false }: Bm25Options = {}) {
    this.#k1 = k1
    this.#b = b
    this.#positive = positive
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

  /** Returns the score of every text. A term that occurs twice in the query counts twice. */
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

  /**
   * Returns the idf of a term: the rarer it is, the higher. Unless it is to be positive, it is 0 when half of the texts contain the term,
   * and negative when more do.
   */
  #idf({ length }: readonly Posting[]): number {
    const odds = (this.#lengths.length - length + 0.5) / (length + 0.5)
    return Math.log(this.#positive ? 1 + odds : odds)
  }
}

/** Returns the words of a text in lower case. Every Chinese character counts as a word. */
export const wordsOf = (text: string): string[] =>
  text.toLowerCase().match(/\p{Script=Han}|(?:(?!\p{Script=Han})[\p{L}\p{N}\p{M}_])+/gu) ?? []

/** Returns the indexes of the scores, the highest score first. Of two equal scores the earlier one comes first. */
export const bestFirst = (scores: ArrayLike<number>): number[] =>
  Array.from(scores, (_, index) => index).sort((one, other) => scores[other]! - scores[one]! || one - other)

function frequenciesOf(terms: readonly string[]): Map<string, number> {
  const frequencies = new Map<string, number>()
  for (const term of terms) frequencies.set(term, (frequencies.get(term) ?? 0) + 1)
  return frequencies
}

// The agent that picks passages by BM25 (Sculptor, D.4, after LongBench's retrieval).

const RagBm25Options = strict({
  ...retrievalOptions,
  /** The terms that BM25 counts. LongBench's code passes chunks as strings, so it counts characters, probably by mistake. */
  terms: Type.Enum(['words', 'characters'], { default: 'words' }),
  k1: Type.Number({ minimum: 0, default: 1.5 }),
  b: Type.Number({ minimum: 0, maximum: 1, default: 0.75 }),
  epsilon: Type.Number({ minimum: 0, default: 0.25 }),
})

export const ragBm25: AgentDefinition<typeof RagBm25Options> = {
  kind: 'rag-bm25',
  title: 'RAG (BM25)',
  options: RagBm25Options,
  answer: (engine, setting, options) => {
    const termsOf = options.terms === 'words' ? wordsOf : (text: string) => Array.from(text)
    return answerFromBest(engine, setting, options, (query, chunks) => {
      const scores = new Bm25(chunks.map(termsOf), options).scores(termsOf(query))
      return Promise.resolve({ order: bestFirst(scores), details: {} })
    })
  },
}

// The agent that picks the passages whose vectors are nearest to the question's (Sculptor, D.4).

const DenseOptions = strict({
  ...retrievalOptions,
  /** A text that is put before the query, for embedders that were trained with an instruction before queries. */
  queryPrefix: Type.String({ default: '' }),
})

export const ragDense: AgentDefinition<typeof DenseOptions> = {
  kind: 'rag-dense',
  title: 'RAG (embeddings)',
  options: DenseOptions,
  answer: (engine, setting, options) => {
    const embedder = CountedEmbedder.of(setting, 'rag-dense')
    return answerFromBest(engine, setting, options, async (query, chunks) => {
      const [asked, ...vectors] = await embedder.embed([options.queryPrefix + query, ...chunks])
      return { order: bestFirst(vectors.map((vector) => likeness(asked!, vector))), details: embedder.details }
    })
  },
}
