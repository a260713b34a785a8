/** Owns what the retrieving agents share: the text in chunks, the query, and the answer from the chunks that rank best. */
import { z } from 'zod'
import type { AgentSetting, Answered } from '../agent.js'
import type { TaskSample } from '../task.js'
import { answered, count } from './define.js'
import { fitting } from './fitting.js'
import { LongText, type Chunk } from './long-text.js'
import { passagesPrompt } from './prompts.js'
import type { SampleEngine } from './sample-engine.js'

/** Tokens that a question made of the text's ends takes from each (Sculptor, D.4). */
export const END_TOKENS = 500

export const retrievalOptions = {
  chunkTokens: count(200),
  /** Chunks are added, the best first, until they have so many tokens. */
  retrievedTokens: count(1500),
  /** What chunks are compared with: the sample's question, or the first and last `endTokens` of the text. Without a question always those. */
  query: z.enum(['question', 'ends']).default('question'),
  endTokens: count(END_TOKENS),
}

export interface RetrievalOptions {
  readonly chunkTokens: number
  readonly retrievedTokens: number
  readonly query: 'question' | 'ends'
  readonly endTokens: number
}

/** Scores of chunks for a query, higher is better. */
export type Rank = (
  query: string,
  chunks: readonly string[],
) => Promise<{ readonly order: readonly number[]; readonly details: Answered['details'] }>

/** @throws KvfoldError what the engine or the ranking throws; context/full when not one chunk fits beside the question */
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
  const promptOf = (passages: readonly Chunk[]) =>
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

/** The sample's question, or one made of the text's ends where there is none. */
export const questionOf = ({ question }: TaskSample, text: LongText, endTokens: number): string =>
  question.trim() === '' ? pseudoQuery(text, endTokens) : question

const pseudoQuery = (text: LongText, each: number): string =>
  text
    .ends(each)
    .map((end) => end.trim())
    .join('\n')
    .trim()

/** From the first on until there are `enough` tokens; the last one may go beyond, as in LongBench. */
function bestUpTo(ranked: readonly Chunk[], enough: number): readonly Chunk[] {
  let tokens = 0
  const end = ranked.findIndex((chunk) => (tokens += chunk.tokens) >= enough)
  return end < 0 ? ranked : ranked.slice(0, end + 1)
}
