/** Owns what is made of the words of the two helpers: a summary with a to-do list, and lines with what is to be heeded about them. Pure. */
import { z } from 'zod'
import type { Range } from './lines.js'

/** The summary of a dialogue (U-Fold, 3.2), and what is still to be done, in order. */
export interface Memory {
  readonly summary: string
  readonly todo: readonly string[]
}

/** Lines that matter now, and what is to be heeded about them. */
export interface Block {
  readonly lines: Range
  readonly summary: string
  readonly constraints: readonly string[]
  readonly hint: string
}

export interface Extraction {
  readonly blocks: readonly Block[]
  /** Ranges as they were given that are none: reversed, beyond the end, or no numbers. Their blocks are left out. */
  readonly refused: readonly string[]
}

/** A helper's words as what they should be, or why they are not. */
export type Parsed<T> = { readonly ok: true; readonly value: T } | { readonly ok: false; readonly why: string }

/** More than a view has use for; a list that goes on for ever is no list. */
const MOST = 100

const line = z.string().trim().min(1)

const MemoryJson = z.object({ summary: line, todo: z.array(line).max(MOST).default([]) })

const BlockJson = z.object({
  lines: z.union([z.string(), z.number()]),
  summary: z.string().default(''),
  constraints: z.array(z.string()).default([]),
  hint: z.string().default(''),
})

const ExtractionJson = z.object({ blocks: z.array(BlockJson).max(MOST) })

const text = { type: 'string' }
const objectOf = (properties: Readonly<Record<string, unknown>>) => ({
  type: 'object',
  properties,
  required: Object.keys(properties),
  additionalProperties: false,
})

/** JSON schemas of the two outputs, for engines that can force a form. */
export const memorySchema = objectOf({ summary: text, todo: { type: 'array', items: text } })
export const extractionSchema = objectOf({
  blocks: {
    type: 'array',
    items: objectOf({ lines: text, summary: text, constraints: { type: 'array', items: text }, hint: text }),
  },
})

export function memoryOf(said: string): Parsed<Memory> {
  return jsonIn(said, MemoryJson)
}

/** @param last number of the last line that there is */
export function extractionOf(said: string, last: number): Parsed<Extraction> {
  // The paper's form for "nothing relevant".
  if (said.trim() === '') return { ok: true, value: { blocks: [], refused: [] } }
  const parsed = jsonIn(said, ExtractionJson)
  if (!parsed.ok) return parsed
  const refused: string[] = []
  const blocks = parsed.value.blocks.flatMap(({ lines: given, ...block }): Block[] => {
    const range = rangeOf(String(given), last)
    if (range === null) refused.push(String(given).slice(0, 40))
    return range === null ? [] : [{ ...block, lines: range }]
  })
  return { ok: true, value: { blocks, refused } }
}

/** `12-40` or `12`; null for lines that there are not. */
function rangeOf(given: string, end: number): Range | null {
  const found = /^\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*$/.exec(given)
  if (found === null) return null
  const first = Number(found[1])
  const last = Number(found[2] ?? found[1])
  return first >= 1 && first <= last && last <= end ? { first, last } : null
}

/** The JSON object in a text that may have words or a fence around it. */
function jsonIn<T>(said: string, form: z.ZodType<T>): Parsed<T> {
  if (said.trim() === '') return { ok: false, why: 'it said nothing' }
  const [from, to] = [said.indexOf('{'), said.lastIndexOf('}')]
  if (from === -1 || to < from) return { ok: false, why: 'there is no JSON object in what it said' }
  let value: unknown
  try {
    value = JSON.parse(said.slice(from, to + 1))
  } catch {
    return { ok: false, why: 'what it said is not JSON' }
  }
  const parsed = form.safeParse(value)
  if (parsed.success) return { ok: true, value: parsed.data }
  const issue = parsed.error.issues[0]
  return { ok: false, why: `its JSON has the wrong form (${issue?.path.join('.') ?? ''}: ${issue?.message ?? ''})` }
}

/** Whether two lists ask for the same; spaces and case aside. */
export const sameTodo = (a: Memory | null, b: Memory): boolean => a !== null && plainly(a.todo) === plainly(b.todo)

const plainly = (todo: readonly string[]): string => todo.map((step) => step.toLowerCase().replace(/\s+/g, ' ')).join('\n')
