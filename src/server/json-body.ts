/** Owns what a request body must be before anything looks into it: UTF-8, JSON, not too deep, no keys that poison prototypes. */
import { FieldError } from './field-error.js'

/** Lists and objects inside each other. JSON schemas of tools are the deepest things clients send; they stay below 50. */
const DEEPEST = 100

/** The value of a JSON body. @throws FieldError server/bad-request */
export function parseJsonBody(body: Buffer): unknown {
  const text = decoded(body)
  if (text.trim() === '') throw new FieldError('body', 'The body is empty; send a JSON object.')
  if (tooDeep(text)) throw new FieldError('body', `The body nests deeper than ${DEEPEST} levels.`)
  let value: unknown
  try {
    value = JSON.parse(text) as unknown
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

export const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

const [BACKSLASH, QUOTE, BRACE, BRACE_END, BRACKET, BRACKET_END] = [0x5c, 0x22, 0x7b, 0x7d, 0x5b, 0x5d] as const
