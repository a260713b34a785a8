/**
 * Owns grammars that schemas become: each is made once and kept by what it is made of, for the same tools come with every request. What takes longer than
 * a few milliseconds is made on another thread.
 */
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import type { Piscina } from 'piscina'
import { type ErrorCode, KvfoldError } from '../core/errors.js'
import { readJson, writeJson } from '../core/written-json.js'
import type { TemplateForm } from './conversation.js'
import { jsonSchemaGrammar, type LazyGrammar, leftOutOfTools } from './grammar.js'
import type { ToolDefinition } from './message.js'
import { TooMuchHere, within } from './schema/merge.js'
import { detectSyntax } from './syntax/detect.js'

/** How a template writes calls (`detectSyntax`). */
export interface CallWriting {
  readonly source: string
  readonly form: Pick<TemplateForm, 'tools' | 'calls'>
  /** The generation prompt's text. */
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
}

type Order = SchemaOrder | ToolsOrder | CallsOrder

/** GBNF of a JSON schema's values, and the places of what it leaves out where it may. @throws KvfoldError engine/bad-grammar */
export const grammarOfSchema = (
  schema: unknown,
  loose: boolean,
): Promise<{ readonly grammar: string; readonly leftOut: readonly string[] }> => made({ what: 'schema', schema, loose })

/** As `leftOutOfTools`. @throws KvfoldError engine/bad-grammar */
export const leftOutByCalls = (tools: readonly ToolDefinition[]): Promise<readonly string[]> =>
  made({ what: 'tools', tools: tools.map(callable) })

/** As `ToolSyntax.lazy`. @throws KvfoldError engine/bad-grammar */
export const lazyGrammar = (by: CallWriting, tools: readonly ToolDefinition[], single: boolean): Promise<LazyGrammar | null> =>
  made({ what: 'lazy', tools: tools.map(callable), single, ...by })

/** As `ToolSyntax.grammar`. @throws KvfoldError engine/bad-grammar */
export const forcedGrammar = (by: CallWriting, tools: readonly ToolDefinition[], single: boolean): Promise<string | null> =>
  made({ what: 'forced', tools: tools.map(callable), single, ...by })

/** What of a tool stands in a grammar. */
const callable = ({ name, parameters, strict = false }: ToolDefinition): ToolDefinition => ({
  name,
  description: '',
  parameters,
  strict,
})

// What was made, by the text of its order.

/** Characters of orders that are kept. What they become is about as long. */
const KEPT = 4_000_000

/** The one used last is the last. */
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
    // A refusal is not kept.
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

// Where it is made: here where that takes a few milliseconds.

/** Characters of an order, and steps (`Work`), that are gone through on the thread of the event loop. */
const HERE = { characters: 16 * 1024, steps: 5000 }

async function make(text: string): Promise<unknown> {
  if (text.length <= HERE.characters)
    try {
      return within(HERE.steps, () => carriedOut(text))
    } catch (error) {
      if (!(error instanceof TooMuchHere)) throw error
    }
  const done = await (await threads()).run(text)
  if ('code' in done) throw new KvfoldError(done.code, done.message)
  return done.made
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
      return detectSyntax(order.source, order.form).lazy(order.tools, order.prompt, order.single)
    case 'forced':
      return detectSyntax(order.source, order.form).grammar(order.tools, order.prompt, order.single)
  }
}

/** Errors cross threads without their class and code, so they are told. */
type Delivery = { readonly made: unknown } | { readonly code: ErrorCode; readonly message: string }

/** Seconds that an idle thread stays. */
const IDLE = 60

let pool: Promise<Piscina<string, Delivery>> | null = null

/** Started when it is first needed. It keeps no process alive. */
const threads = (): Promise<Piscina<string, Delivery>> =>
  (pool ??= import('piscina').then(
    ({ Piscina: Threads }) =>
      new Threads<string, Delivery>({
        filename: import.meta.url,
        minThreads: 0,
        maxThreads: 2,
        idleTimeout: IDLE * 1000,
        // From source a thread needs what translates it.
        ...(import.meta.url.endsWith('.ts') ? { execArgv: ['--import', translator()] } : {}),
      }),
  ))

/** By its place: a name would be looked for from the working directory. */
const translator = (): string => pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href

/** What a thread does with the text of an order. @public */
export default function work(text: string): Delivery {
  try {
    return { made: carriedOut(text) }
  } catch (error) {
    if (!(error instanceof KvfoldError)) throw error
    return { code: error.code, message: error.message }
  }
}
