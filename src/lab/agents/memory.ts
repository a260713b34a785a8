/** The agents that read a text chunk by chunk: MemAgent rewrites one memory, the Mem0-style agent stores facts (Sculptor, D.4). */
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
  /** The most tokens of text that the agent reads. It skips the middle of a longer text. */
  contextTokens: count(120_000),
  /** Tokens of one chunk, which ends with a sentence. Chunks are smaller if the window lacks room. */
  chunkTokens: count(5000),
  /** The most tokens of a memory, and of the answer unless the task sets a lower limit. */
  newTokens: count(1024),
  /** If the sample has no question, this many tokens from the text's beginning and as many from its end are searched for instead. */
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

// The Mem0-style agent. It stores facts of the text, updates them as it reads on, and answers from the facts nearest to the question
// (Sculptor, D.4, after Mem0).

const Mem0Options = strict({
  /** Tokens of one chunk, which ends with a sentence. Chunks are smaller if the window lacks room. */
  chunkTokens: count(5000),
  /** The number of stored facts with which each new fact is compared. */
  nearest: count(5),
  /** The most stored facts in the final prompt. It has fewer if the window lacks room. */
  retrieved: count(100),
  /** The most tokens of a reply with facts or decisions. */
  newTokens: count(1024),
  /** Whether requests carry a JSON schema that the reply must follow. Set it to false for endpoints without this feature. */
  schema: Type.Boolean({ default: true }),
  /** If the sample has no question, this many tokens from the text's beginning and as many from its end are searched for instead. */
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

/** The facts that the Mem0-style agent has stored for one sample, and counts of their changes. */
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

  /** Asks the model for the facts of one chunk, and stores them. A reply that does not match the schema counts as empty, as in Mem0. */
  async read(question: string, part: string): Promise<void> {
    const { engine, options } = this
    const { message } = await engine.ask('facts', factsPrompt(question, part), this.#limits(factsSchema))
    const facts = this.#readable(factsIn(message.content))
    if (facts.length === 0) return
    this.#counts.facts += facts.length

    const vectors = await this.embedder.embed(facts)
    const near = new Map(vectors.flatMap((vector) => this.#store.nearest(vector, options.nearest)).map((fact) => [fact.id, fact]))
    const stored = [...near.values()]
    // As in Mem0, the prompt numbers the facts from 0 and does not show their ids: a model copies a short number easily.
    const prompt = decisionsPrompt(
      stored.map(({ text }, number) => ({ id: String(number), text })),
      facts,
    )
    const decided = await engine.ask('decisions', prompt, this.#limits(decisionsSchema))
    for (const decision of this.#readable(decisionsIn(decided.message.content))) await this.#carryOut(decision, stored)
  }

  /** Returns the stored facts nearest to the question, the most similar first. */
  async search(question: string): Promise<readonly StoredFact[]> {
    if (this.#store.size === 0) return []
    const [vector] = await this.embedder.embed([question])
    return this.#store.nearest(vector!, this.options.retrieved)
  }

  /** Carries out one decision of the model. Counts it as ignored if it lacks the text, or names no stored fact where one is needed. */
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

// Below: the JSON schemas of the replies that the Mem0-style agent asks for, and the functions that read the replies.

const facts = { facts: Type.Array(Type.String()) }
const decision = { event: Type.Enum(['ADD', 'UPDATE', 'DELETE', 'NONE']), id: Type.String(), text: Type.String() }

// For reading replies. Unlike the strict schemas below, these accept additional properties.
const Facts = Type.Object(facts)
const Decisions = Type.Object({ decisions: Type.Array(Type.Object(decision)) })

export type Decision = Static<typeof Decisions>['decisions'][number]

/** For engines that can force an answer into a JSON schema. Every property is required, and no other is allowed. */
export const factsSchema = strict(facts)
export const decisionsSchema = strict({ decisions: Type.Array(strict(decision)) })

/**
 * Returns the facts in a reply, without blank ones. Returns null if the reply is not JSON that matches `factsSchema`, e.g. because it is
 * cut off.
 */
export function factsIn(said: string): readonly string[] | null {
  const read = checked(Facts, jsonIn(said))
  return read.ok ? read.value.facts.map((fact) => fact.trim()).filter((fact) => fact !== '') : null
}

/** Returns the decisions in a reply, in their order. Returns null if the reply is not JSON that matches `decisionsSchema`. */
export function decisionsIn(said: string): readonly Decision[] | null {
  const read = checked(Decisions, jsonIn(said))
  return read.ok ? read.value.decisions : null
}

/**
 * Parses the text from the first `{` to the last `}`, because models often put JSON in a code fence. Returns undefined if it is not JSON.
 */
function jsonIn(said: string): unknown {
  try {
    return JSON.parse(said.slice(said.indexOf('{'), said.lastIndexOf('}') + 1))
  } catch {
    return undefined
  }
}

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

  /** Replaces a fact's text and vector. Returns false if there is no such fact. */
  update(id: number, text: string, vector: Float32Array): boolean {
    if (!this.#facts.has(id)) return false
    this.#facts.set(id, { id, text, vector })
    return true
  }

  /** Removes the fact. Returns false if there is no such fact. */
  delete(id: number): boolean {
    return this.#facts.delete(id)
  }

  /** Returns at most `most` facts, the most similar first. Of two equally similar facts, the older one comes first. */
  nearest(vector: Float32Array, most: number): StoredFact[] {
    return [...this.#facts.values()]
      .map(({ id, text, vector: own }) => ({ id, text, likeness: likeness(vector, own) }))
      .sort((one, other) => other.likeness - one.likeness || one.id - other.id)
      .slice(0, most)
      .map(({ id, text }) => ({ id, text }))
  }
}
