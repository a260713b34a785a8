/** The agent that stores facts of the text, kept in order as they come, and answers from those it finds again (Sculptor, D.4, after Mem0). */
import { z } from 'zod'
import { KvfoldError } from '../../core/errors.js'
import { type AgentDefinition, answered, count } from './define.js'
import { CountedEmbedder, likeness } from './embedders.js'
import { fitting, LongText, nextPart } from './long-text.js'
import { decisionsPrompt, factsPrompt, fromFactsPrompt } from './prompts.js'
import { END_TOKENS, questionOf } from './rag.js'
import type { SampleEngine } from './sample-engine.js'

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

// The JSON that the Mem0-style agent asks the model for: its schemas, and reading it.

const Facts = z.object({ facts: z.array(z.string()) })

const Decisions = z.object({
  decisions: z.array(z.object({ event: z.enum(['ADD', 'UPDATE', 'DELETE', 'NONE']), id: z.string(), text: z.string() })),
})

export type Decision = z.infer<typeof Decisions>['decisions'][number]

/** JSON schemas for engines that can hold an answer to one: every property is required, none is left open. */
export const factsSchema = {
  type: 'object',
  properties: { facts: { type: 'array', items: { type: 'string' } } },
  required: ['facts'],
  additionalProperties: false,
}

export const decisionsSchema = {
  type: 'object',
  properties: {
    decisions: {
      type: 'array',
      items: {
        type: 'object',
        properties: { event: { enum: ['ADD', 'UPDATE', 'DELETE', 'NONE'] }, id: { type: 'string' }, text: { type: 'string' } },
        required: ['event', 'id', 'text'],
        additionalProperties: false,
      },
    },
  },
  required: ['decisions'],
  additionalProperties: false,
}

/** The facts, blank ones left out; null for what is no such JSON, such as an answer that was cut off. */
export function factsIn(said: string): readonly string[] | null {
  const facts = Facts.safeParse(jsonIn(said)).data?.facts
  return facts?.map((fact) => fact.trim()).filter((fact) => fact !== '') ?? null
}

/** The decisions in their order; null for what is no such JSON. */
export const decisionsIn = (said: string): readonly Decision[] | null => Decisions.safeParse(jsonIn(said)).data?.decisions ?? null

/** What stands between the first and the last brace, parsed: models like to fence JSON. */
function jsonIn(said: string): unknown {
  try {
    return JSON.parse(said.slice(said.indexOf('{'), said.lastIndexOf('}') + 1))
  } catch {
    return undefined
  }
}

// The facts that an agent has stored of one sample, found by likeness.

export interface StoredFact {
  readonly id: number
  readonly text: string
}

interface Kept extends StoredFact {
  readonly vector: Float32Array
}

export class FactStore {
  readonly #facts = new Map<number, Kept>()
  #ids = 0

  get size(): number {
    return this.#facts.size
  }

  add(text: string, vector: Float32Array): void {
    const id = this.#ids++
    this.#facts.set(id, { id, text, vector })
  }

  /** Puts a new text in the place of a fact's; false when there is no such fact. */
  update(id: number, text: string, vector: Float32Array): boolean {
    if (!this.#facts.has(id)) return false
    this.#facts.set(id, { id, text, vector })
    return true
  }

  /** False when there is no such fact. */
  delete(id: number): boolean {
    return this.#facts.delete(id)
  }

  /** At most `most` facts, the likest first; the older of two that are equally like. */
  nearest(vector: Float32Array, most: number): StoredFact[] {
    return [...this.#facts.values()]
      .map(({ id, text, vector: own }) => ({ id, text, likeness: likeness(vector, own) }))
      .sort((one, other) => other.likeness - one.likeness || one.id - other.id)
      .slice(0, most)
      .map(({ id, text }) => ({ id, text }))
  }
}
