/**
 * A cache of grammars made from schemas and tools, because clients send the same tools with every request. A grammar that takes more than a
 * few milliseconds is made on another thread.
 */
import type { Piscina } from 'piscina'
import { type Delivery, delivered, openThreads, received } from '../core/threads.js'
import { readJson, writeJson } from '../core/written-json.js'
import type { TemplateForm } from './conversation.js'
import { jsonSchemaGrammar, type LazyGrammar, leftOutOfTools } from './grammar.js'
import type { ToolDefinition } from './message.js'
import { TooMuchHere, within } from './schema/merge.js'
import { detectSyntax } from './syntax/detect.js'

/** How a model writes calls: the inputs of `detectSyntax`, and the generation prompt. */
export interface CallWriting {
  readonly source: string
  readonly form: Pick<TemplateForm, 'tools' | 'calls'>
  /** The text of the generation prompt. */
  readonly prompt: string
}

interface SchemaOrder {
  readonly what: 'schema'
  readonly schema: unknown
  readonly loose: boolean
}

interface ToolsOrder {
  readonly what: 'tools'
  readonly tools: readonly ToolDefinition[]
}

interface CallsOrder extends CallWriting {
  readonly what: 'lazy' | 'forced'
  readonly tools: readonly ToolDefinition[]
  readonly single: boolean
  /** Only for `lazy`: whether the grammar also applies to bare calls (syntax/bare-calls.ts). */
  readonly bare?: boolean
}

type Order = SchemaOrder | ToolsOrder | CallsOrder

/**
 * Makes GBNF for the values of a JSON schema. With `loose`, unsupported keywords are left out, and `leftOut` has their positions. @throws
 * KvfoldError engine/bad-grammar
 */
export const grammarOfSchema = (
  schema: unknown,
  loose: boolean,
): Promise<{ readonly grammar: string; readonly leftOut: readonly string[] }> => made({ what: 'schema', schema, loose })

/** Lists what the tools' grammars do not enforce of their schemas (`leftOutOfTools`). @throws KvfoldError engine/bad-grammar */
export const leftOutByCalls = (tools: readonly ToolDefinition[]): Promise<readonly string[]> =>
  made({ what: 'tools', tools: tools.map(callable) })

/** Makes a grammar that applies once the model begins a call (`ToolSyntax.lazy`). @throws KvfoldError engine/bad-grammar */
export const lazyGrammar = (
  by: CallWriting,
  tools: readonly ToolDefinition[],
  single: boolean,
  bare = false,
): Promise<LazyGrammar | null> => made({ what: 'lazy', tools: tools.map(callable), single, bare, ...by })

/** Makes a grammar that forces calls of these tools (`ToolSyntax.grammar`). @throws KvfoldError engine/bad-grammar */
export const forcedGrammar = (by: CallWriting, tools: readonly ToolDefinition[], single: boolean): Promise<string | null> =>
  made({ what: 'forced', tools: tools.map(callable), single, ...by })

/** Returns a tool with only the fields that change its grammar, so that the cache finds it under other descriptions too. */
const callable = ({ name, parameters, strict = false }: ToolDefinition): ToolDefinition => ({
  name,
  description: '',
  parameters,
  strict,
})

// The cache. An order says which grammar to make; its JSON text is the key.

/** The most characters of all keys together. Grammars are about as long as their keys. */
const KEPT = 4_000_000

/** Grammars by key, in order of use; the last one was used last. */
const kept = new Map<string, Promise<unknown>>()
let characters = 0

function made<T>(order: Order): Promise<T> {
  const text = writeJson(order)
  const known = kept.get(text)
  kept.delete(text)
  const making = known ?? make(text)
  kept.set(text, making)
  if (known === undefined) {
    characters += text.length
    // A failed order is tried again at the next request.
    making.catch(() => {
      drop(text)
    })
    for (const oldest of kept.keys()) if (characters > KEPT) drop(oldest)
  }
  return making as Promise<T>
}

function drop(text: string): void {
  if (kept.delete(text)) characters -= text.length
}

// Carrying out an order: on this thread if it takes only a few milliseconds, else on another.

/** Limits for an order that runs on the event loop's thread: characters of its key, and steps of `Work`. */
const HERE = { characters: 16 * 1024, steps: 5000 }

async function make(text: string): Promise<unknown> {
  if (text.length <= HERE.characters)
    try {
      return within(HERE.steps, () => carriedOut(text))
    } catch (error) {
      if (!(error instanceof TooMuchHere)) throw error
    }
  pool ??= openThreads(import.meta.url, { minThreads: 0, maxThreads: 2, idleTimeout: IDLE * 1000 })
  return received(await (await pool).run(text))
}

function carriedOut(text: string): unknown {
  const order = readJson(text) as Order
  switch (order.what) {
    case 'schema': {
      const leftOut = new Set<string>()
      const grammar = jsonSchemaGrammar(order.schema, order.loose ? (place) => leftOut.add(place) : undefined)
      return { grammar, leftOut: [...leftOut] }
    }
    case 'tools':
      return leftOutOfTools(order.tools)
    case 'lazy':
      return detectSyntax(order.source, order.form).lazy(order.tools, order.prompt, order.single, order.bare)
    case 'forced':
      return detectSyntax(order.source, order.form).grammar(order.tools, order.prompt, order.single)
  }
}

/** An idle thread ends after this many seconds. */
const IDLE = 60

/** The thread pool; null until it is first needed. */
let pool: Promise<Piscina<string, Delivery>> | null = null

/** The entry point of a pool thread: carries out the order with this JSON text. @public */
export default function work(text: string): Promise<Delivery> {
  return delivered(() => carriedOut(text))
}
