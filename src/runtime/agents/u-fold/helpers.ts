/**
 * The two helpers of U-Fold: their prompts (after appendix B of the paper, in our words) and the parsing of their answers. Also writes
 * the notes for the agent. Pure.
 */
import Type, { type Static, type TSchema } from 'typebox'
import { checked, inWords } from '../../core/schema.js'
import type { Range } from './view.js'

/** The notes: a summary of the dialogue (U-Fold, 3.2), and the steps still to do, in order. */
export interface Memory {
  readonly summary: string
  readonly todo: readonly string[]
}

/** Lines of tool results that a helper chose to stay visible, and what it wrote about them. */
export interface ChosenLines {
  readonly lines: Range
  readonly summary: string
  readonly constraints: readonly string[]
  readonly hint: string
}

export interface Extraction {
  readonly blocks: readonly ChosenLines[]
  /**
   * Line ranges that could not be used, as the helper wrote them: reversed, beyond the last line, or not numbers. Their blocks are
   * dropped.
   */
  readonly refused: readonly string[]
}

/** A helper's answer, parsed; or the reason why it could not be parsed. */
export type Parsed<T> = { readonly ok: true; readonly value: T } | { readonly ok: false; readonly why: string }

/** The longest list accepted in an answer. A model that repeats itself may write an endless one. */
const MOST = 100

/** A string that is not only white space. */
const line = Type.String({ pattern: '\\S' })

const MemoryJson = Type.Object({ summary: line, todo: Type.Array(line, { maxItems: MOST, default: [] }) })

const BlockJson = Type.Object({
  lines: Type.Union([Type.String(), Type.Number()]),
  summary: Type.String({ default: '' }),
  constraints: Type.Array(Type.String(), { default: [] }),
  hint: Type.String({ default: '' }),
})

const ExtractionJson = Type.Object({ blocks: Type.Array(BlockJson, { maxItems: MOST }) })

const text = { type: 'string' }
const objectOf = (properties: Readonly<Record<string, unknown>>) => ({
  type: 'object',
  properties,
  required: Object.keys(properties),
  additionalProperties: false,
})

/** JSON schemas of the helpers' two answers, for engines that can enforce a schema. */
export const memorySchema = objectOf({ summary: text, todo: { type: 'array', items: text } })
export const extractionSchema = objectOf({
  blocks: {
    type: 'array',
    items: objectOf({ lines: text, summary: text, constraints: { type: 'array', items: text }, hint: text }),
  },
})

export function memoryOf(said: string): Parsed<Memory> {
  const parsed = jsonIn(said, MemoryJson)
  if (!parsed.ok) return parsed
  const { summary, todo } = parsed.value
  return { ok: true, value: { summary: summary.trim(), todo: todo.map((step) => step.trim()) } }
}

/** Parses the answer of the helper that chooses lines. @param last number of the dialogue's last line */
export function extractionOf(said: string, last: number): Parsed<Extraction> {
  // In the paper, an empty answer means that no line is relevant.
  if (said.trim() === '') return { ok: true, value: { blocks: [], refused: [] } }
  const parsed = jsonIn(said, ExtractionJson)
  if (!parsed.ok) return parsed
  const refused: string[] = []
  const blocks = parsed.value.blocks.flatMap(({ lines: given, ...block }): ChosenLines[] => {
    const range = rangeOf(String(given), last)
    if (range === null) refused.push(String(given).slice(0, 40))
    return range === null ? [] : [{ ...block, lines: range }]
  })
  return { ok: true, value: { blocks, refused } }
}

/** Parses a range of lines, `12-40` or `12`. Returns null for anything else, and for lines that the dialogue does not have. */
function rangeOf(given: string, end: number): Range | null {
  const found = /^\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*$/.exec(given)
  if (found === null) return null
  const first = Number(found[1])
  const last = Number(found[2] ?? found[1])
  return first >= 1 && first <= last && last <= end ? { first, last } : null
}

/** Parses the JSON object in an answer. Words or a code fence around it are ignored. */
function jsonIn<T extends TSchema>(said: string, form: T): Parsed<Static<T>> {
  if (said.trim() === '') return { ok: false, why: 'the helper answered nothing' }
  const [from, to] = [said.indexOf('{'), said.lastIndexOf('}')]
  if (from === -1 || to < from) return { ok: false, why: 'the answer of the helper has no JSON object' }
  let value: unknown
  try {
    value = JSON.parse(said.slice(from, to + 1))
  } catch {
    return { ok: false, why: 'the answer of the helper is not JSON' }
  }
  const parsed = checked(form, value)
  return parsed.ok ? parsed : { ok: false, why: `the JSON of the helper has the wrong form (${inWords(parsed.faults[0])})` }
}

/** Whether two to-do lists are equal, ignoring case and white space. */
export const sameTodo = (a: Memory | null, b: Memory): boolean => a !== null && plainly(a.todo) === plainly(b.todo)

const plainly = (todo: readonly string[]): string => todo.map((step) => step.toLowerCase().replace(/\s+/g, ' ')).join('\n')

// The helpers' prompts (after appendix B of the paper, in our words), and the notes as text.

/** Every question to a helper begins with this. It says that the question is not part of the dialogue. */
const ASIDE =
  'Leave the user waiting for a moment: call no tool and answer nobody. This is about your notes on the conversation above.'

const MEMORY_RULES = `Write down where the conversation stands, for a reader who sees only your notes and the lines of tool results that are chosen next.
summary: one plain paragraph in order of time and in the user's language. Keep what the user wants and how that changed, facts, constraints and decisions, what was done by which tool with which ids, what came of it and why.
todo: what is still to be done, in the order of doing, one step a string, each with the facts and constraints it needs. Leave out what is done and invent nothing; an empty list when nothing is left.
Answer with one JSON object alone: {"summary": "...", "todo": ["...", "..."]}`

const EXTRACTION_RULES = `Now choose the lines of tool results above that the to-do list needs. A result shows its line numbers as "number|"; count on from there where a line shows none.
Choose what answers a step, what a call will need and what would have to be fetched again; leave out the rest, and repeat no text of a result.
One block for each stretch: lines ("12-40" or "12"), summary (what it is and which step needs it), constraints (all that the user or the rules lay down about it), hint (how to go on).
Answer with one JSON object alone: {"blocks": [{"lines": "12-40", "summary": "...", "constraints": ["..."], "hint": "..."}]}, with no blocks when nothing matters.`

/**
 * The principles that the paper's authors drew from errors on VitaBench (U-Fold, B.2). They are about tasks, not about folding, so they
 * are optional.
 */
const PRINCIPLES = `Heed when you write constraints and hints:
An earlier order, booking or person is named for certain or asked about, never guessed. Ids come from tools: say which one. Dates are written in full, and time spans have both ends. What is missing is asked for. How many is said by the user alone. A structured field is used as one and not written into a note. To change something: look it up, cancel or update it, then create. "The same as last time" has its parameters looked up. Places become coordinates by a tool, and a way with changes comes from tool results alone. Questions lead to no answer. A step that was left out is named. What a record's tags do not list it does not have. Times of dispatch and of arrival are told apart, and closing times are looked at.`

export interface MemoryAsk {
  /** The notes to update. Null: the helper writes them from the messages that it sees. */
  readonly before: Memory | null
  /** The user's new message. */
  readonly query: string
}

export const memoryPrompt = ({ before, query }: MemoryAsk): string =>
  [
    ASIDE,
    MEMORY_RULES,
    before === null ? [] : `Your notes so far, to be brought up to date: ${JSON.stringify(before)}`,
    `The user has just said: ${query}`,
  ]
    .flat()
    .join('\n')

export interface ExtractionAsk {
  /** The notes. Absent when the helper wrote them itself, earlier in this conversation. */
  readonly memory?: Memory
  /** The lines with their numbers. Absent when the tool results already show line numbers. */
  readonly lines?: string
  readonly principles: boolean
}

export const extractionPrompt = ({ memory, lines, principles }: ExtractionAsk): string =>
  [
    memory === undefined ? [] : [ASIDE, `Your notes: ${JSON.stringify(memory)}`],
    lines === undefined ? [] : `Tool results, with a number in front of every line:\n${lines}`,
    EXTRACTION_RULES,
    principles ? PRINCIPLES : [],
  ]
    .flat(2)
    .join('\n')

/** Writes the notes as the agent sees them in place of hidden text. */
export function notesText({ summary, todo }: Memory, blocks: readonly ChosenLines[]): string {
  const constraints = [...new Set(blocks.flatMap((block) => block.constraints))]
  const hints = [...new Set(blocks.map(({ hint }) => hint).filter(Boolean))]
  return [
    summary,
    todo.length === 0 ? 'To do: nothing is left.' : ['To do:', ...todo.map((step, at) => `Step ${at + 1}. ${step}`)],
    constraints.length === 0 ? [] : ['Constraints, which come before the to-do list:', ...constraints.map((one) => `- ${one}`)],
    hints.length === 0 ? [] : ['Hints:', ...hints.map((one) => `- ${one}`)],
  ]
    .flat()
    .join('\n')
}
