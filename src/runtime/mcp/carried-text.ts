/**
 * Keeps the digits of numbers and the key order in schemas and results of MCP servers. The MCP library parses messages itself and loses
 * both, so the original text travels along in the message's `_meta`, which the library passes on.
 */
import { randomUUID } from 'node:crypto'
import type { CallToolResult, Tool } from '@modelcontextprotocol/client'
import { fieldOf, isRecord, listAt } from '../core/json.js'
import { isNoted, readJson, writeJson } from '../core/written-json.js'

/** The key in `_meta` for the original text. It is random, so that no server can set it. */
const TEXT = `kvfold/${randomUUID()}`

const HAS_DATA = /"(?:inputSchema|structuredContent)"/

/**
 * Adds its original text to a message, or to each message of a list, before the library parses it. Text that is no JSON or nests too deep
 * is returned unchanged.
 */
export function carrying(text: string): string {
  if (!HAS_DATA.test(text)) return text
  try {
    const value = readJson(text)
    if (!isNoted(value)) return text
    for (const message of Array.isArray(value) ? (value as unknown[]) : [value]) {
      const result = fieldOf(message, 'result')
      for (const tool of listAt(result, 'tools')) carry(tool, 'inputSchema')
      carry(result, 'structuredContent')
    }
    return JSON.stringify(value, finite)
  } catch {
    return text
  }
}

/** Clamps numbers beyond JavaScript's range: for one such number the library would refuse the whole list of tools. */
const finite = (_key: string, value: unknown): unknown =>
  value === Infinity || value === -Infinity ? Math.sign(value) * Number.MAX_VALUE : value

function carry(holder: unknown, field: string): void {
  if (!isRecord(holder) || !isNoted(holder[field])) return
  const meta = isRecord(holder['_meta']) ? holder['_meta'] : {}
  Object.assign(holder, { _meta: { ...meta, [TEXT]: writeJson(holder[field]) } })
}

/** Returns the tool with its schema as the server wrote it, digits and key order included. */
export const writtenTool = (tool: Tool): Tool => uncarried(tool, 'inputSchema')

/** Returns the result with its data as the server wrote them, digits and key order included. */
export const writtenResult = (result: CallToolResult): CallToolResult => uncarried(result, 'structuredContent')

function uncarried<T extends { readonly _meta?: Readonly<Record<string, unknown>> | undefined }>(holder: T, field: keyof T): T {
  const text = holder._meta?.[TEXT]
  return typeof text === 'string' ? { ...holder, [field]: readJson(text) } : holder
}
