/** From the raw text of a call to a ToolCall; what is not a JSON object is kept as `malformed`. */
import type { ToolCall } from '../message.js'

/** A call as the model wrote it. */
export interface RawCall {
  readonly name: string
  /** JSON text, or values already read. */
  readonly arguments: string | Readonly<Record<string, unknown>>
  readonly id?: string
}

export function toolCall({ name, arguments: given, id }: RawCall, fallbackId: string): ToolCall {
  const call = { id: id ?? fallbackId, name }
  if (typeof given !== 'string') return { ...call, arguments: given }
  const parsed = parseObject(given)
  return parsed === null ? { ...call, arguments: {}, malformed: given } : { ...call, arguments: parsed }
}

/** A JSON object, or a JSON string that holds one; null for anything else. */
export function parseObject(text: string): Readonly<Record<string, unknown>> | null {
  const value = parseJson(text)
  const inner = typeof value === 'string' ? parseJson(value) : value
  return isRecord(inner) ? inner : null
}

export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown
  } catch {
    return undefined
  }
}

export function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

const BROKEN = /^\s*\{\s*"name"\s*:\s*"([^"]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*([^]*?)\s*\}?\s*$/

/** `{"name": ..., "arguments" or "parameters": ...}` as text. Broken JSON keeps its name when it has got one. */
export function namedCall(text: string): RawCall {
  const call = namedCallOf(parseJson(text))
  if (call !== null) return call
  const [, name, rest] = BROKEN.exec(text) ?? []
  return name === undefined || rest === undefined ? { name: '', arguments: text.trim() } : { name, arguments: rest }
}

/** The same as a value; null when it is no call. */
export function namedCallOf(value: unknown): RawCall | null {
  if (!isRecord(value)) return null
  const { name, id } = value
  const given = value['arguments'] ?? value['parameters'] ?? ('arguments' in value || 'parameters' in value ? null : {})
  if (typeof name !== 'string') return null
  return {
    name,
    arguments: isRecord(given) ? given : typeof given === 'string' ? given : JSON.stringify(given),
    ...(typeof id === 'string' && id !== '' ? { id } : {}),
  }
}
