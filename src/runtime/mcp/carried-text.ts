/**
 * Owns how schemas and results of MCP servers keep their digits and the order of their keys. The library parses messages itself and hands out checked
 * copies, so a message carries the text of what such a copy loses in `_meta`, which the library passes on.
 */
import { randomUUID } from 'node:crypto'
import type { CallToolResult, Tool } from '@modelcontextprotocol/client'
import { fieldOf, isRecord, listAt } from '../core/json.js'
import { isNoted, readJson, writeJson } from '../core/written-json.js'

/** The field of `_meta` that has the text. No server can guess it. */
const TEXT = `kvfold/${randomUUID()}`

const HAS_DATA = /"(?:inputSchema|structuredContent)"/

/** The text of a message, or of a list of messages, for the library to parse. What is no JSON stays as it is; so does what nests too deep. */
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

/** The library refuses a list of tools for a number that is too large for JavaScript. */
const finite = (_key: string, value: unknown): unknown =>
  value === Infinity || value === -Infinity ? Math.sign(value) * Number.MAX_VALUE : value

function carry(holder: unknown, field: string): void {
  if (!isRecord(holder) || !isNoted(holder[field])) return
  const meta = isRecord(holder['_meta']) ? holder['_meta'] : {}
  Object.assign(holder, { _meta: { ...meta, [TEXT]: writeJson(holder[field]) } })
}

/** The tool with its schema as the server wrote it. */
export const writtenTool = (tool: Tool): Tool => uncarried(tool, 'inputSchema')

/** The result with its data as the server wrote them. */
export const writtenResult = (result: CallToolResult): CallToolResult => uncarried(result, 'structuredContent')

function uncarried<T extends { readonly _meta?: Readonly<Record<string, unknown>> | undefined }>(holder: T, field: keyof T): T {
  const text = holder._meta?.[TEXT]
  return typeof text === 'string' ? { ...holder, [field]: readJson(text) } : holder
}
