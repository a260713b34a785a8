/** Owns what a request body must be before anything looks into it: UTF-8, JSON, not too deep, no keys that poison prototypes. */
import { isRecord } from '../core/json.js'
import { readJson } from '../core/written-json.js'
import type { FastifySchemaValidationError } from 'fastify/types/schema.js'
import { FieldError } from './problem.js'

/** Lists and objects inside each other. JSON schemas of tools are the deepest things clients send; they stay below 50. */
const DEEPEST = 100

/** The value of a JSON body. @throws FieldError server/bad-request */
export function parseJsonBody(body: Buffer): unknown {
  const text = decoded(body)
  if (text.trim() === '') throw new FieldError('body', 'The body is empty; send a JSON object.')
  if (tooDeep(text)) throw new FieldError('body', `The body nests deeper than ${DEEPEST} levels.`)
  let value: unknown
  try {
    value = readJson(text)
  } catch (error) {
    throw new FieldError('body', `The body is not JSON: ${error instanceof SyntaxError ? place(error) : 'it cannot be read'}.`)
  }
  const key = /__proto__|constructor|\\u/.test(text) ? poison(value) : null
  if (key !== null) throw new FieldError('body', `The body has a key ${key}, which is refused.`)
  return value
}

/** The first key that would reach a prototype if somebody copied the object by its keys. */
function poison(value: unknown): string | null {
  if (typeof value !== 'object' || value === null) return null
  for (const [key, inner] of Object.entries(value)) {
    if (key === '__proto__') return key
    if (key === 'constructor' && isRecord(inner) && Object.hasOwn(inner, 'prototype')) return key
    const deeper = poison(inner)
    if (deeper !== null) return deeper
  }
  return null
}

function decoded(body: Buffer): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(body)
  } catch {
    throw new FieldError('body', 'The body is not UTF-8.')
  }
}

/** Whether JSON nests deeper than bodies may. Looks at brackets outside of strings only; whether the text is JSON is not its question. */
export function tooDeep(text: string): boolean {
  let depth = 0
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

/** Where the text stops being JSON, without quoting any of it. */
function place({ message }: SyntaxError): string {
  const at = /position (\d+)/.exec(message)?.[1]
  return at === undefined ? 'it ends too early, or is no JSON at all' : `wrong at position ${at}`
}

const [BACKSLASH, QUOTE, BRACE, BRACE_END, BRACKET, BRACKET_END] = [0x5c, 0x22, 0x7b, 0x7d, 0x5b, 0x5d] as const

// The sentence that says which field of a request its schema refuses, and why.

/** The error to show of those a validator found: the one furthest inside, for branches of a union fail together. */
export function schemaError(errors: readonly FastifySchemaValidationError[], where: string): FieldError {
  const depth = ({ instancePath }: FastifySchemaValidationError) => instancePath.split('/').length
  const [error] = [...errors].sort((a, b) => depth(b) - depth(a))
  if (error === undefined) return new FieldError(where, `The ${where} is not what this route expects.`)
  const missing = error.keyword === 'required' ? error.params['missingProperty'] : undefined
  const extra = error.keyword === 'additionalProperties' ? error.params['additionalProperty'] : undefined
  const path = fieldPath(error.instancePath, missing ?? extra)
  const param = path === '' ? where : path
  if (missing !== undefined) return new FieldError(param, `${param} is missing.`)
  if (extra !== undefined) return new FieldError(param, `${param} is not a field that is known here.`)
  return new FieldError(param, `${param} ${reason(error)}.`)
}

function reason({ keyword, params, message = 'is not what is expected here' }: FastifySchemaValidationError): string {
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

/** `/messages/0/content` and `text`: `messages[0].content.text`. */
function fieldPath(pointer: string, last: unknown): string {
  const steps = pointer.split('/').slice(1)
  if (typeof last === 'string') steps.push(last)
  return steps
    .map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'))
    .reduce((path, step) => (/^\d+$/.test(step) ? `${path}[${step}]` : path === '' ? step : `${path}.${step}`), '')
}
