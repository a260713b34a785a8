import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { extractionOf, memoryOf, sameTodo } from '../../../../src/runtime/agents/u-fold/helpers.js'

describe("a helper's answer", () => {
  it('is read even with words or a fence around it', () => {
    const json = '{"summary": "She wants a refund.", "todo": ["Ask for the order."]}'
    const memory = { summary: 'She wants a refund.', todo: ['Ask for the order.'] }
    for (const said of [json, `Here you are:\n\`\`\`json\n${json}\n\`\`\``, `${json} That is all.`])
      expect(memoryOf(said)).toEqual({ ok: true, value: memory })
    expect(memoryOf('{"summary": "Done."}')).toEqual({ ok: true, value: { summary: 'Done.', todo: [] } })
  })

  it.each([
    ['', 'the helper answered nothing'],
    ['I cannot do that.', 'the answer of the helper has no JSON object'],
    ['{"summary": ', 'the answer of the helper has no JSON object'],
    ['{"summary": x}', 'the answer of the helper is not JSON'],
    ['{"summary": "", "todo": []}', 'the JSON of the helper has the wrong form (summary:'],
    ['{"summary": "a", "todo": "b"}', 'the JSON of the helper has the wrong form (todo:'],
  ])('without a summary (%j) has a reason', (said, why) => {
    const parsed = memoryOf(said)
    expect(parsed.ok ? '' : parsed.why).toContain(why)
  })

  it('chooses existing lines; other ranges are refused and counted', () => {
    const blocks = ['3-5', '7', '5-3', '0-2', '9-11', 'all', '2 - 4', ''].map((lines) => ({ lines }))
    const parsed = extractionOf(JSON.stringify({ blocks: [...blocks, { lines: 10, hint: 'h' }] }), 10)
    expect(parsed.ok && parsed.value.blocks.map(({ lines }) => [lines.first, lines.last])).toEqual([
      [3, 5],
      [7, 7],
      [2, 4],
      [10, 10],
    ])
    expect(parsed.ok && parsed.value.refused).toEqual(['5-3', '0-2', '9-11', 'all', ''])
    expect(extractionOf('', 10)).toEqual({ ok: true, value: { blocks: [], refused: [] } })
    expect(extractionOf('nothing matters', 10).ok).toBe(false)
  })

  it('never throws, and never chooses a missing line', () => {
    const wild = fc.oneof(
      fc.string(),
      fc.jsonValue().map((value) => JSON.stringify(value)),
      fc
        .array(
          fc.record({
            lines: fc.oneof(
              fc.string(),
              fc.integer(),
              fc.tuple(fc.integer(), fc.integer()).map(([a, b]) => `${a}-${b}`),
            ),
          }),
        )
        .map((blocks) => JSON.stringify({ blocks })),
    )
    fc.assert(
      fc.property(wild, fc.nat(50), (said, end) => {
        memoryOf(said)
        const parsed = extractionOf(said, end)
        if (!parsed.ok) return
        for (const { lines } of parsed.value.blocks) {
          expect(lines.first).toBeGreaterThanOrEqual(1)
          expect(lines.last).toBeGreaterThanOrEqual(lines.first)
          expect(lines.last).toBeLessThanOrEqual(end)
        }
      }),
    )
  })

  it('has the same to-do list when only spaces and case differ', () => {
    const memory = { summary: 'a', todo: ['Cancel  #W1.'] }
    expect(sameTodo(memory, { summary: 'b', todo: ['cancel #w1.'] })).toBe(true)
    expect(sameTodo(memory, { summary: 'a', todo: ['cancel #W2.'] })).toBe(false)
    expect(sameTodo(null, memory)).toBe(false)
  })
})
