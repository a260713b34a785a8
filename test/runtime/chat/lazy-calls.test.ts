/**
 * Tests every text that a family's grammar of calls accepts, for random tools: it calls these tools, with arguments that satisfy their
 * schemas.
 */
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { ToolDefinition } from '../../../src/runtime/chat/message.js'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import { Random } from '../../../src/runtime/core/random.js'
import { callingFamilies, familyTemplate, ruledFormat } from '../../support/chat-formats.js'
import { Grammar } from '../../support/gbnf.js'
import { anyWholeSchema, validator } from '../../support/schemas.js'
import { LONG } from '../../support/long.js'

/** How many random sets of tools are drawn, over all families. */
const CASES = LONG ? 10_000 : 75
const EACH = Math.ceil(CASES / callingFamilies.length)

const anyTools = fc.uniqueArray(
  fc
    .tuple(fc.constantFrom('now', 'get_weather', 'a', 'files.read', 'mcp__x__do-it'), anyWholeSchema)
    .map(([name, schema]): ToolDefinition => ({ name, description: 'Does it.', parameters: { ...schema, type: 'object' } })),
  { minLength: 1, maxLength: 3, selector: ({ name }) => name },
)

describe('calls of random tools', () => {
  test.each(callingFamilies)('%s', { timeout: 900_000 }, (family) => {
    const { format } = ruledFormat(familyTemplate(family))
    // Between tags, patterns and lengths of texts are left out for tools that are not strict, because code contains the sign that begins a
    // tag.
    const isTagged = /Seed|GLM|Qwen3-Coder/.test(family ?? '')
    const isSayable = (tools: readonly ToolDefinition[]): boolean => {
      try {
        return format.lazyCalls(tools.map((tool) => ({ ...tool, strict: true }))) !== null
      } catch (error) {
        if (error instanceof KvfoldError && error.code === 'engine/bad-grammar') return false
        throw error
      }
    }
    let [made, called] = [0, 0]
    fc.assert(
      fc.property(anyTools, isTagged ? fc.constant(true) : fc.boolean(), fc.integer(), (drawn, strict, seed) => {
        const tools = drawn.map((tool) => ({ ...tool, strict }))
        // A grammar cannot express every schema. Strict tools with such a schema are refused by name; for others the rest of the schema
        // holds.
        if (!isSayable(drawn)) return
        const lazy = format.lazyCalls(tools)!
        const rights = new Map(tools.map(({ name, parameters }) => [name, validator(parameters)]))
        if ([...rights.values()].includes(null)) return
        made++
        const grammar = new Grammar(lazy.grammar)
        const chance = new Random(seed)
        for (let draw = 0; draw < 3; draw++) {
          const text = grammar.draw(() => chance.word() / 2 ** 32)
          const parser = format.parser(tools)
          // If the prompt opened the reasoning, it is closed first.
          const thought = lazy.opened === '' ? '' : `hm ${lazy.reasoning[0]!.close}`
          parser.push(lazy.triggers.length === 0 ? text : `${thought}Sure. ${text}`)
          for (const call of parser.finish().toolCalls) {
            called++
            const right = rights.get(call.name)
            if (right === undefined || right === null) throw new Error(`${text} calls ${call.name}`)
            if (call.malformed !== undefined) throw new Error(`${text} is malformed: ${JSON.stringify(call)}`)
            if (!right(call.arguments))
              throw new Error(
                `${text} violates ${JSON.stringify(tools.find(({ name }) => name === call.name))}: ${JSON.stringify(right.errors)}`,
              )
          }
        }
      }),
      { numRuns: 3 * EACH },
    )
    expect(made).toBeGreaterThan(EACH / 3)
    expect(called).toBeGreaterThan(0)
  })
})
