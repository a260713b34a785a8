/** Owns the agents that read a text part by part and answer from what they kept of it: one memory that is rewritten, or facts in a store (Sculptor, D.4). */
import Type, { type Static } from 'typebox'
import { KvfoldError } from '../../runtime/core/errors.js'
import { checked, strict } from '../../runtime/core/schema.js'
import {
  type AgentDefinition,
  answered,
  count,
  decisionsPrompt,
  factsPrompt,
  fromFactsPrompt,
  fromMemoryPrompt,
  memoryPrompt,
  type SampleEngine,
} from './define.js'
import { CountedEmbedder, likeness } from './embedders.js'
import { fitting, LongText, nextPart } from './long-text.js'
import { END_TOKENS, questionOf } from './rag.js'

const MemAgentOptions = strict({
  /** Longer texts lose their middle. */
  contextTokens: count(120_000),
  /** Of one part, which ends with a sentence; fewer where the window has no room. */
  chunkTokens: count(5000),
  /** Of a memory, and of the answer if the task does not set less. */
  newTokens: count(1024),
  /** Of each end of the text, where the sample has no question. */
  endTokens: count(END_TOKENS),
})

export const memAgent: AgentDefinition<typeof MemAgentOptions> = {
  kind: 'memagent',
  title: 'MemAgent',
  options: MemAgentOptions,
  answer: async (engine, { sample, task }, { contextTokens, chunkTokens, newTokens, endTokens }) => {
    const all = new LongText(sample.context, engine)
    const text = all.middleTrimmed(contextTokens)
    const question = questionOf(sample, all, endTokens)
    let memory = ''
    let parts = 0
    let cutOff = 0
    const next = (at: number) =>
      nextPart(engine, text, at, {
        most: chunkTokens,
        reserve: newTokens,
        promptOf: (part) => memoryPrompt(question, memory, part),
      })
    for (let part = next(0); part !== null; part = next(part.end)) {
      const { message, finish } = await engine.ask('memory', memoryPrompt(question, memory, part.text), { maxTokens: newTokens })
      memory = message.content
      parts++
      if (finish === 'length') cutOff++
    }
    const reply = await engine.ask('answer', fromMemoryPrompt(question, memory), {
      maxTokens: Math.min(newTokens, task.maxTokens),
    })
    return answered(reply, {
      contextTokens: all.tokens,
      trimmedTokens: all.tokens - text.tokens,
      parts,
      memoriesCutOff: cutOff,
      memoryTokens: engine.countText(memory),
    })
  },
}

// The agent that stores facts of the text, kept in order as they come, and answers from those it finds again (Sculptor, D.4, after Mem0).

const Mem0Options = strict({
  /** Of one part, which ends with a sentence; fewer where the window has no room. */
  chunkTokens: count(5000),
  /** Stored facts that each new one is compared with. */
  nearest: count(5),
  /** Stored facts that the answer may see, as many as the window holds. */
  retrieved: count(100),
  /** Of a list of facts or decisions. */
  newTokens: count(1024),
  /** Whether the engine is made to hold to the JSON schema; false for endpoints that cannot. */
  schema: Type.Boolean({ default: true }),
  /** Of each end of the text, where the sample has no question. */
  endTokens: count(END_TOKENS),
})

type Mem0Settings = Static<typeof Mem0Options>

export const mem0: AgentDefinition<typeof Mem0Options> = {
  kind: 'mem0',
  title: 'Mem0-style',
  options: Mem0Options,
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
    private readonly options: Mem0Settings,
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

const facts = { facts: Type.Array(Type.String()) }
const decision = { event: Type.Enum(['ADD', 'UPDATE', 'DELETE', 'NONE']), id: Type.String(), text: Type.String() }

// What is read may have more in it.
const Facts = Type.Object(facts)
const Decisions = Type.Object({ decisions: Type.Array(Type.Object(decision)) })

export type Decision = Static<typeof Decisions>['decisions'][number]

/** JSON schemas for engines that can hold an answer to one: every property is required, none is left open. */
export const factsSchema = strict(facts)
export const decisionsSchema = strict({ decisions: Type.Array(strict(decision)) })

/** The facts, blank ones left out; null for what is no such JSON, such as an answer that was cut off. */
export function factsIn(said: string): readonly string[] | null {
  const read = checked(Facts, jsonIn(said))
  return read.ok ? read.value.facts.map((fact) => fact.trim()).filter((fact) => fact !== '') : null
}

/** The decisions in their order; null for what is no such JSON. */
export function decisionsIn(said: string): readonly Decision[] | null {
  const read = checked(Decisions, jsonIn(said))
  return read.ok ? read.value.decisions : null
}

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

interface KeptFact extends StoredFact {
  readonly vector: Float32Array
}

export class FactStore {
  readonly #facts = new Map<number, KeptFact>()
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
