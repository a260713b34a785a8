/** Owns what the two helpers of U-Fold are told (after appendix B of the paper, in our words), and how what they said reads to the agent. */
import type { Block, Memory } from './helper-output.js'

/** What a helper is told first: it speaks beside the dialogue. */
const ASIDE =
  'Leave the user waiting for a moment: call no tool and answer nobody. This is about your notes on the conversation above.'

const MEMORY_RULES = `Write down where the conversation stands, for somebody who sees only your notes and the lines of tool results that are chosen next.
summary: one plain paragraph in order of time and in the user's language. Keep what the user wants and how that changed, facts, constraints and decisions, what was done by which tool with which ids, what came of it and why.
todo: what is still to be done, in the order of doing, one step a string, each with the facts and constraints it needs. Leave out what is done and invent nothing; an empty list when nothing is left.
Answer with one JSON object alone: {"summary": "...", "todo": ["...", "..."]}`

const EXTRACTION_RULES = `Now choose the lines of tool results above that the to-do list needs. A result shows its line numbers as "number|"; count on from there where a line shows none.
Choose what answers a step, what a call will need and what would have to be fetched again; leave out the rest, and repeat no text of a result.
One block for each stretch: lines ("12-40" or "12"), summary (what it is and which step needs it), constraints (all that the user or the rules lay down about it), hint (how to go on).
Answer with one JSON object alone: {"blocks": [{"lines": "12-40", "summary": "...", "constraints": ["..."], "hint": "..."}]}, with no blocks when nothing matters.`

/** What errors on VitaBench taught the authors of the paper (U-Fold, B.2): about tasks, not about folding, so they are an option. */
const PRINCIPLES = `Heed when you write constraints and hints:
An earlier order, booking or person is named for certain or asked about, never guessed. Ids come from tools: say which one. Dates are written in full, and time spans have both ends. What is missing is asked for. How many is said by the user alone. A structured field is used as one and not written into a note. To change something: look it up, cancel or update it, then create. "The same as last time" has its parameters looked up. Places become coordinates by a tool, and a way with changes comes from tool results alone. Questions lead to no answer. A step that was left out is named. What a record's tags do not list it does not have. Times of dispatch and of arrival are told apart, and closing times are looked at.`

export interface MemoryAsk {
  /** Notes to bring up to date; null: they are written anew from all that is shown. */
  readonly before: Memory | null
  /** What the user has just said. */
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
  /** Where the notes are not in sight of the helper. */
  readonly memory?: Memory
  /** Lines with their numbers, where the dialogue does not show them. */
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

/** What the agent sees in place of what is hidden. */
export function notesText({ summary, todo }: Memory, blocks: readonly Block[]): string {
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
