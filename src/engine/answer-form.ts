/** Owns the form that an answer is held to: a grammar, a schema, or calls that are forced; and whether a cut answer closes what it opened. */
import type { ChatFormat } from '../chat/format.js'
import type { ChatMessage, ToolDefinition } from '../chat/message.js'
import { KvfoldError } from '../core/errors.js'
import type { Native, NativeModel } from '../native/types.js'
import type { EngineRequest } from './engine.js'

/** What an answer's whole text must be; nothing: anything. */
export interface Form {
  readonly grammar?: string | undefined
  /** A JSON schema. */
  readonly schema?: unknown
}

/** @throws KvfoldError engine/bad-request for a grammar and a schema */
export function refuseTwoForms({ grammar, schema }: Form): void {
  if (grammar !== undefined && schema !== undefined)
    throw new KvfoldError('engine/bad-request', 'Give a grammar or a schema, not both.')
}

/** The form as a sampler takes it. @throws KvfoldError engine/bad-request for a schema that cannot be converted */
export async function formGrammar(native: Native, { grammar, schema }: Form): Promise<{ grammar?: string }> {
  if (schema !== undefined) return { grammar: await native.grammarFromSchema(schema) }
  return grammar === undefined ? {} : { grammar }
}

/**
 * What a request holds its answer to: a form, else calls of the callable tools where a call is required.
 * @throws KvfoldError engine/bad-request for a schema that cannot be converted, and where the template's way to write calls cannot be forced
 */
export async function grammarOf(native: Native, format: ChatFormat, request: EngineRequest): Promise<{ grammar?: string }> {
  const { grammar, schema, tools = [], toolChoice, callable, endsWith = () => false } = request
  if (grammar !== undefined || schema !== undefined) return formGrammar(native, request)
  if (toolChoice !== 'required') return {}
  const allowed = tools.filter(({ name }) => callable?.includes(name) ?? true)
  const calls = format.callGrammar(allowed, allowed.every(endsWith))
  if (calls === null)
    throw new KvfoldError(
      'engine/bad-request',
      `This model's template has no tool-call syntax that kvfold can force (${format.syntax.name}); use toolChoice auto.`,
    )
  return { grammar: calls }
}

/** An answer, what it was given after, and the text it was sampled as. */
export interface CutAnswer {
  readonly messages: readonly ChatMessage[]
  readonly tools: readonly ToolDefinition[]
  readonly answer: ChatMessage
  readonly sampled: string
}

/**
 * Whether an answer that was cut after a call closes all that the template closes behind it. Where the template would still close a list of
 * calls, its own wording must be shown.
 */
export function isClosed(format: ChatFormat, model: NativeModel, { messages, tools, answer, sampled }: CutAnswer): boolean {
  const written = format.render({ messages: [...messages, answer], tools, generationPrompt: false })
  const { start, end } = written.messages.at(-1)!.span
  const own = written.tokens.subarray(start, end)
  const turn = own.findLastIndex((token) => model.isEndOfGeneration(token))
  const text = model.detokenize(turn < 0 ? own : own.subarray(0, turn), true)
  // Behind the JSON of the last call; where calls are written as tags alone, the last of them.
  const from = text.includes('}') ? text.lastIndexOf('}') + 1 : text.lastIndexOf('<')
  return sampled.trimEnd().endsWith(text.slice(from).trim())
}
