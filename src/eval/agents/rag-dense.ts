/** The agent that answers from passages whose vectors are nearest to the question's (Sculptor, D.4). */
import { z } from 'zod'
import { bestFirst } from './bm25.js'
import type { AgentDefinition } from './define.js'
import { answerFromBest, retrievalOptions } from './retrieval.js'
import { CountedEmbedder, likeness } from './vectors.js'

const Options = z.strictObject({
  ...retrievalOptions,
  /** Put before the query, for embedders that were trained with an instruction there. */
  queryPrefix: z.string().default(''),
})

export const ragDense: AgentDefinition<z.infer<typeof Options>> = {
  kind: 'rag-dense',
  title: 'RAG (embeddings)',
  options: Options,
  answer: (engine, setting, options) => {
    const embedder = CountedEmbedder.of(setting, 'rag-dense')
    return answerFromBest(engine, setting, options, async (query, chunks) => {
      const [asked, ...vectors] = await embedder.embed([options.queryPrefix + query, ...chunks])
      return { order: bestFirst(vectors.map((vector) => likeness(asked!, vector))), details: embedder.details }
    })
  },
}
