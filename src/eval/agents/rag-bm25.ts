/** The agent that answers from passages picked by BM25 (Sculptor, D.4, after LongBench's retrieval). */
import { z } from 'zod'
import { bestFirst, Bm25, wordsOf } from './bm25.js'
import type { AgentDefinition } from './define.js'
import { answerFromBest, retrievalOptions } from './retrieval.js'

const Options = z.strictObject({
  ...retrievalOptions,
  /** What is counted. LongBench's code hands its chunks to BM25 as strings, which counts characters; words are what it must have meant. */
  terms: z.enum(['words', 'characters']).default('words'),
  k1: z.number().min(0).default(1.5),
  b: z.number().min(0).max(1).default(0.75),
  epsilon: z.number().min(0).default(0.25),
})

export const ragBm25: AgentDefinition<z.infer<typeof Options>> = {
  kind: 'rag-bm25',
  title: 'RAG (BM25)',
  options: Options,
  answer: (engine, setting, options) => {
    const termsOf = options.terms === 'words' ? wordsOf : (text: string) => Array.from(text)
    return answerFromBest(engine, setting, options, (query, chunks) => {
      const scores = new Bm25(chunks.map(termsOf), options).scores(termsOf(query))
      return Promise.resolve({ order: bestFirst(scores), details: {} })
    })
  },
}
