/** Owns the JSON that the Mem0-style agent asks the model for: its schemas, and reading it. */
import { z } from 'zod'

const Facts = z.object({ facts: z.array(z.string()) })

const Decisions = z.object({
  decisions: z.array(z.object({ event: z.enum(['ADD', 'UPDATE', 'DELETE', 'NONE']), id: z.string(), text: z.string() })),
})

export type Decision = z.infer<typeof Decisions>['decisions'][number]

/** JSON schemas for engines that can hold an answer to one: every property is required, none is left open. */
export const factsSchema = {
  type: 'object',
  properties: { facts: { type: 'array', items: { type: 'string' } } },
  required: ['facts'],
  additionalProperties: false,
}

export const decisionsSchema = {
  type: 'object',
  properties: {
    decisions: {
      type: 'array',
      items: {
        type: 'object',
        properties: { event: { enum: ['ADD', 'UPDATE', 'DELETE', 'NONE'] }, id: { type: 'string' }, text: { type: 'string' } },
        required: ['event', 'id', 'text'],
        additionalProperties: false,
      },
    },
  },
  required: ['decisions'],
  additionalProperties: false,
}

/** The facts, blank ones left out; null for what is no such JSON, such as an answer that was cut off. */
export function factsIn(said: string): readonly string[] | null {
  const facts = Facts.safeParse(jsonIn(said)).data?.facts
  return facts?.map((fact) => fact.trim()).filter((fact) => fact !== '') ?? null
}

/** The decisions in their order; null for what is no such JSON. */
export const decisionsIn = (said: string): readonly Decision[] | null => Decisions.safeParse(jsonIn(said)).data?.decisions ?? null

/** What stands between the first and the last brace, parsed: models like to fence JSON. */
function jsonIn(said: string): unknown {
  try {
    return JSON.parse(said.slice(said.indexOf('{'), said.lastIndexOf('}') + 1))
  } catch {
    return undefined
  }
}
