/** Reads request bodies: refuses invalid UTF-8 and JSON, deep nesting, and keys that could change a prototype. */
import { isUtf8 } from 'node:buffer'
import { StringDecoder } from 'node:string_decoder'
import { isRecord } from '../core/json.js'
import { inTurns, type Steps } from '../core/turns.js'
import { readJson } from '../core/written-json.js'
import type { FastifySchemaValidationError } from 'fastify/types/schema.js'
import { jsonInSteps, JsonFault, TooManyMembers } from './json-slices.js'
import { FieldError } from './problem.js'

/** The deepest allowed nesting of lists and objects. JSON schemas of tools nest deepest; those stay below 50. */
const DEEPEST = 100

/** Bodies up to this many bytes are parsed without a yield to the event loop. */
const AT_ONCE = 64 * 1024

/** Bytes decoded between two yields to the event loop. */
const DECODED = 2 ** 20

/** Parses a JSON body. Yields to the event loop while it reads a long one. @throws FieldError server/bad-request */
export async function readJsonBody(body: Buffer): Promise<unknown> {
  if (body.length <= AT_ONCE) return parseJsonBody(body)
  try {
    return await inTurns(readInSteps(body))
  } catch (error) {
    if (error instanceof TooManyMembers)
      throw new FieldError('body', `The body has ${error.where} with more than ${error.most} ${error.what}.`)
    throw error instanceof JsonFault ? notJson(error.position) : error
  }
}

function* readInSteps(body: Buffer): Steps<unknown> {
  if (!isUtf8(body)) throw notUtf8()
  const decoder = new StringDecoder('utf8')
  const parts: string[] = []
  for (let at = 0; at < body.length; at += DECODED) {
    yield
    parts.push(decoder.write(body.subarray(at, at + DECODED)))
  }
  const text = parts.join('')
  yield
  return yield* jsonInSteps(text.startsWith('\ufeff') ? text.slice(1) : text, parsed, refusePoison)
}

/** Parses a JSON body without a yield. @throws FieldError server/bad-request */
export function parseJsonBody(body: Buffer): unknown {
  const text = decoded(body)
  if (text.trim() === '') throw new FieldError('body', 'The body is empty; send a JSON object.')
  try {
    return parsed(text)
  } catch (error) {
    if (error instanceof FieldError) throw error
    throw error instanceof SyntaxError ? notJson(place(error)) : new FieldError('body', 'The server cannot read the body.')
  }
}

/**
 * Parses a part of a JSON body.
 * @param depth how many lists and objects surround the part
 * @throws FieldError server/bad-request when it nests too deep or has a forbidden key; SyntaxError
 */
function parsed(text: string, depth = 0): unknown {
  // The reader passes a long string alone, and a string has neither depth nor keys.
  if (text.charCodeAt(0) === QUOTE) return JSON.parse(text)
  if (tooDeep(text, depth)) throw new FieldError('body', `The body nests deeper than ${DEEPEST} levels.`)
  const value = readJson(text)
  const key = /__proto__|constructor|\\u/.test(text) ? poison(value) : null
  if (key !== null) throw refusedKey(key)
  return value
}

function refusePoison(key: string, value: unknown): void {
  if (isPoison(key, value)) throw refusedKey(key)
}

const refusedKey = (key: string): FieldError => new FieldError('body', `The body has the key ${key}, which the server refuses.`)

const notJson = (position: number | null): FieldError =>
  new FieldError(
    'body',
    `The body is not JSON: ${position === null ? 'it ends too early, or has no JSON at all' : `it is wrong at position ${position}`}.`,
  )

/** Returns the first key that could change a prototype when code copies the object key by key; else null. */
function poison(value: unknown): string | null {
  if (typeof value !== 'object' || value === null) return null
  for (const [key, inner] of Object.entries(value)) {
    if (isPoison(key, inner)) return key
    const deeper = poison(inner)
    if (deeper !== null) return deeper
  }
  return null
}

const isPoison = (key: string, value: unknown): boolean =>
  key === '__proto__' || (key === 'constructor' && isRecord(value) && Object.hasOwn(value, 'prototype'))

function decoded(body: Buffer): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(body)
  } catch {
    throw notUtf8()
  }
}

const notUtf8 = (): FieldError => new FieldError('body', 'The body is not UTF-8.')

/**
 * Returns whether JSON nests deeper than bodies may. Counts brackets outside strings; the text need not be valid JSON.
 * @param depth how many lists and objects surround the text
 */
export function tooDeep(text: string, depth = 0): boolean {
  let quoted = false
  for (let at = 0; at < text.length; at++) {
    const char = text.charCodeAt(at)
    if (quoted) {
      if (char === BACKSLASH) at++
      else if (char === QUOTE) quoted = false
    } else if (char === QUOTE) quoted = true
    else if (char === BRACE || char === BRACKET) {
      if (++depth > DEEPEST) return true
    } else if (char === BRACE_END || char === BRACKET_END) depth--
  }
  return false
}

/** Returns the character position of the syntax error, because the parser's message would quote the body; null at the end of the text. */
function place({ message }: SyntaxError): number | null {
  const at = /position (\d+)/.exec(message)?.[1]
  return at === undefined ? null : Number(at)
}

const [BACKSLASH, QUOTE, BRACE, BRACE_END, BRACKET, BRACKET_END] = [0x5c, 0x22, 0x7b, 0x7d, 0x5b, 0x5d] as const

// Describes which field the schema refuses, and why.

/** Chooses the validation error to report. The most deeply nested one says most: of a union, every branch reports an error. */
export function schemaError(errors: readonly FastifySchemaValidationError[], where: string): FieldError {
  const depth = ({ instancePath }: FastifySchemaValidationError) => instancePath.split('/').length
  const [error] = [...errors].sort((a, b) => depth(b) - depth(a))
  if (error === undefined) return new FieldError(where, `The ${where} does not have the form that this route expects.`)
  const missing = error.keyword === 'required' ? error.params['missingProperty'] : undefined
  const extra = error.keyword === 'additionalProperties' ? error.params['additionalProperty'] : undefined
  const path = fieldPath(error.instancePath, missing ?? extra)
  const param = path === '' ? where : path
  if (missing !== undefined) return new FieldError(param, `${param} is missing.`)
  if (extra !== undefined) return new FieldError(param, `${param} is not a field of this route.`)
  return new FieldError(param, `${param} ${reason(error)}.`)
}

function reason({ keyword, params, message = 'does not have the expected form' }: FastifySchemaValidationError): string {
  const allowed = params['allowedValues']
  if (keyword === 'enum' && Array.isArray(allowed))
    return `must be one of ${allowed.map((value) => JSON.stringify(value)).join(', ')}`
  if (keyword === 'const') return `must be ${JSON.stringify(params['allowedValue'])}`
  if (keyword === 'type') return `must be ${[params['type']].flat().map(named).join(' or ')}`
  return message
}

const NAMES: Readonly<Record<string, string>> = {
  array: 'a list',
  object: 'an object',
  string: 'a string',
  number: 'a number',
  integer: 'a whole number',
  boolean: 'true or false',
}

const named = (type: unknown): string => NAMES[String(type)] ?? String(type)

/** Returns a field's path as clients write it: `/messages/0/content` with `text` becomes `messages[0].content.text`. */
function fieldPath(pointer: string, last: unknown): string {
  const steps = pointer.split('/').slice(1)
  if (typeof last === 'string') steps.push(last)
  return steps
    .map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'))
    .reduce((path, step) => (/^\d+$/.test(step) ? `${path}[${step}]` : path === '' ? step : `${path}.${step}`), '')
}
