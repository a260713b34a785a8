/**
 * Two agents that search a text for passages and answer from them. One ranks the passages by BM25, the other by embeddings (Sculptor, D.4).
 */
import Type from 'typebox'
import { strict } from '../../runtime/core/schema.js'
import type { AgentSetting, Answered } from '../agent.js'
import type { TaskSample } from '../task.js'
import { type AgentDefinition, answered, count, passagesPrompt, type SampleEngine } from './define.js'
import { CountedEmbedder, likeness } from './embedders.js'
import { type TextChunk, fitting, LongText } from './long-text.js'

// Below: what both agents share. They divide the text into chunks, make the query, and answer from the best chunks.

/** Tokens of each end of the text, if both ends together serve as the query (Sculptor, D.4). */
export const END_TOKENS = 500

export const retrievalOptions = {
  chunkTokens: count(200),
  /** The prompt gets the best chunks until they have this many tokens together. */
  retrievedTokens: count(1500),
  /**
   * The query that the chunks are ranked for. `question`: the sample's question. `ends`: the first and the last `endTokens` tokens of the
   * text. Samples without a question always use `ends`.
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

/** Ranks chunks for a query. `order`: indexes of the chunks, the best first. `details`: counts for the answer's details. */
export type Rank = (
  query: string,
  chunks: readonly string[],
) => Promise<{ readonly order: readonly number[]; readonly details: Answered['details'] }>

/**
 * Answers a sample from the chunks of its text that `rank` puts first.
 * @throws KvfoldError any error of the engine or of `rank`; context/full when no chunk fits beside the question
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

/** Returns the sample's question, or the text's beginning and end if it has none. */
export const questionOf = ({ question }: TaskSample, text: LongText, endTokens: number): string =>
  question.trim() === '' ? pseudoQuery(text, endTokens) : question

const pseudoQuery = (text: LongText, each: number): string =>
  text
    .ends(each)
    .map((end) => end.trim())
    .join('\n')
    .trim()

/** Returns the best chunks until they have `enough` tokens together. The last chunk may exceed that, as in LongBench. */
function bestUpTo(ranked: readonly TextChunk[], enough: number): readonly TextChunk[] {
  let tokens = 0
  const end = ranked.findIndex((chunk) => (tokens += chunk.tokens) >= enough)
  return end < 0 ? ranked : ranked.slice(0, end + 1)
}

// Below: Okapi BM25, the same as in the Python package rank_bm25, which LongBench's retrieval uses. Libraries such as minisearch compute
// BM25+ with another idf, and so rank differently.

export interface Bm25Options {
  /** The larger `k1`, the more each further occurrence of a term in a text counts. Default: 1.5. */
  readonly k1?: number
  /** How much long texts are penalised for their length: 0 (not at all) to 1. Default: 0.75. */
  readonly b?: number
  /** The idf of terms that more than half of the texts contain, as a share of the mean idf. Default: 0.25. */
  readonly epsilon?: number
  /** Whether to use an idf that is always above 0, even for common terms. `epsilon` then has no effect. Default: false. */
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

  /** Returns the score of every text. A term that the query has twice counts twice. */
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
   * Returns a term's idf: the rarer the term, the higher. Without `positive`, it is 0 for a term in half of the texts, and negative for a
   * more common one.
   */
  #idf({ length }: readonly Posting[]): number {
    const odds = (this.#lengths.length - length + 0.5) / (length + 0.5)
    return Math.log(this.#positive ? 1 + odds : odds)
  }
}

/** Returns the words of a text in lower case. Each Chinese character is a word. */
export const wordsOf = (text: string): string[] =>
  text.toLowerCase().match(/\p{Script=Han}|(?:(?!\p{Script=Han})[\p{L}\p{N}\p{M}_])+/gu) ?? []

/** Returns the indexes of the scores, the highest score first. Equal scores keep their order. */
export const bestFirst = (scores: ArrayLike<number>): number[] =>
  Array.from(scores, (_, index) => index).sort((one, other) => scores[other]! - scores[one]! || one - other)

function frequenciesOf(terms: readonly string[]): Map<string, number> {
  const frequencies = new Map<string, number>()
  for (const term of terms) frequencies.set(term, (frequencies.get(term) ?? 0) + 1)
  return frequencies
}

// The agent that ranks passages by BM25 (Sculptor, D.4, after LongBench's retrieval).

const RagBm25Options = strict({
  ...retrievalOptions,
  /** What BM25 counts as a term. LongBench's code passes strings, not lists of words, so it counts characters, probably by mistake. */
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

// The agent that ranks passages by the similarity of their vectors to the question's vector (Sculptor, D.4).

const DenseOptions = strict({
  ...retrievalOptions,
  /** Text put before the query, for embedders that were trained with an instruction there. */
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
