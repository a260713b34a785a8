/** The agent that stores facts of the text, kept in order as they come, and answers from those it finds again (Sculptor, D.4, after Mem0). */
import { z } from 'zod'
import { KvfoldError } from '../../core/errors.js'
import { answered, count, type AgentDefinition } from './define.js'
import { decisionsIn, decisionsSchema, factsIn, factsSchema, type Decision } from './fact-replies.js'
import { FactStore, type StoredFact } from './fact-store.js'
import { fitting, nextPart } from './fitting.js'
import { LongText } from './long-text.js'
import { decisionsPrompt, factsPrompt, fromFactsPrompt } from './prompts.js'
import { END_TOKENS, questionOf } from './retrieval.js'
import type { SampleEngine } from './sample-engine.js'
import { CountedEmbedder } from './vectors.js'

const Options = z.strictObject({
  /** Of one part, which ends with a sentence; fewer where the window has no room. */
  chunkTokens: count(5000),
  /** Stored facts that each new one is compared with. */
  nearest: count(5),
  /** Stored facts that the answer may see, as many as the window holds. */
  retrieved: count(100),
  /** Of a list of facts or decisions. */
  newTokens: count(1024),
  /** Whether the engine is made to hold to the JSON schema; false for endpoints that cannot. */
  schema: z.boolean().default(true),
  /** Of each end of the text, where the sample has no question. */
  endTokens: count(END_TOKENS),
})

type Mem0Options = z.infer<typeof Options>

export const mem0: AgentDefinition<Mem0Options> = {
  kind: 'mem0',
  title: 'Mem0-style',
  options: Options,
  answer: async (engine, setting, options) => {
    const { sample, task } = setting
    const memory = new Mem0(engine, CountedEmbedder.of(setting, 'mem0'), options)
    const text = new LongText(sample.context, engine)
    const question = questionOf(sample, text, options.endTokens)
    let parts = 0
    const next = (at: number) =>
      nextPart(engine, text, at, {
        most: options.chunkTokens,
        reserve: options.newTokens,
        promptOf: (part) => factsPrompt(question, part),
      })
    for (let part = next(0); part !== null; part = next(part.end)) {
      await memory.read(question, part.text)
      parts++
    }
    const found = await memory.search(question)
    const promptOf = (facts: readonly StoredFact[]) =>
      fromFactsPrompt(
        question,
        facts.map((fact) => fact.text),
      )
    const facts = fitting(engine, found, promptOf, task.maxTokens)
    const reply = await engine.ask('answer', promptOf(facts), { maxTokens: task.maxTokens })
    return answered(reply, { contextTokens: text.tokens, parts, ...memory.details, retrieved: facts.length })
  },
}

/** The memory of one sample. */
class Mem0 {
  readonly #store = new FactStore()
  readonly #counts = { facts: 0, added: 0, updated: 0, deleted: 0, kept: 0, ignored: 0, unreadable: 0 }

  constructor(
    private readonly engine: SampleEngine,
    private readonly embedder: CountedEmbedder,
    private readonly options: Mem0Options,
  ) {}

  get details(): Readonly<Record<string, number>> {
    return { ...this.#counts, stored: this.#store.size, ...this.embedder.details }
  }

  /** Stores what a part of the text has to say. A reply that is no JSON counts as an empty one, as in the original. */
  async read(question: string, part: string): Promise<void> {
    const { engine, options } = this
    const { message } = await engine.ask('facts', factsPrompt(question, part), this.#limits(factsSchema))
    const facts = this.#readable(factsIn(message.content))
    if (facts.length === 0) return
    this.#counts.facts += facts.length

    const vectors = await this.embedder.embed(facts)
    const near = new Map(vectors.flatMap((vector) => this.#store.nearest(vector, options.nearest)).map((fact) => [fact.id, fact]))
    const stored = [...near.values()]
    // Small numbers instead of ids, as the original does, so that a model has little to copy wrongly.
    const prompt = decisionsPrompt(
      stored.map(({ text }, number) => ({ id: String(number), text })),
      facts,
    )
    const decided = await engine.ask('decisions', prompt, this.#limits(decisionsSchema))
    for (const decision of this.#readable(decisionsIn(decided.message.content))) await this.#carryOut(decision, stored)
  }

  /** Stored facts by likeness to the question, the likest first. */
  async search(question: string): Promise<readonly StoredFact[]> {
    if (this.#store.size === 0) return []
    const [vector] = await this.embedder.embed([question])
    return this.#store.nearest(vector!, this.options.retrieved)
  }

  /** A decision that names no stored fact where it must, or has no text where it must, counts as ignored. */
  async #carryOut({ event, id, text }: Decision, stored: readonly StoredFact[]): Promise<void> {
    const known = /^\d+$/.test(id.trim()) ? stored[Number(id)]?.id : undefined
    const fact = text.trim()
    const store = this.#store
    switch (event) {
      case 'ADD':
        if (fact === '') break
        store.add(fact, await this.#vector(fact))
        this.#counts.added++
        return
      case 'UPDATE':
        if (fact === '' || known === undefined || !store.update(known, fact, await this.#vector(fact))) break
        this.#counts.updated++
        return
      case 'DELETE':
        if (known === undefined || !store.delete(known)) break
        this.#counts.deleted++
        return
      case 'NONE':
        if (known === undefined) break
        this.#counts.kept++
        return
    }
    this.#counts.ignored++
  }

  async #vector(text: string): Promise<Float32Array> {
    const [vector] = await this.embedder.embed([text])
    if (vector === undefined) throw new KvfoldError('internal/invariant', 'A text has no vector.')
    return vector
  }

  #limits(schema: object): { readonly maxTokens: number; readonly schema?: object } {
    const { newTokens, schema: holds } = this.options
    return { maxTokens: newTokens, ...(holds ? { schema } : {}) }
  }

  #readable<T>(items: readonly T[] | null): readonly T[] {
    if (items === null) this.#counts.unreadable++
    return items ?? []
  }
}
