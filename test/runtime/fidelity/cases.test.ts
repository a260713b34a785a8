import { describe, expect, it } from 'vitest'
import { CASE_KINDS, fidelityCases } from '../../../src/runtime/fidelity/cases.js'

describe.each(CASE_KINDS)('generated cases of kind %s', (kind) => {
  const cases = fidelityCases(kind, 9, 5)

  it('are the same for the same seed, and their beginning does not depend on their number', () => {
    expect(cases).toHaveLength(9)
    expect(fidelityCases(kind, 4, 5)).toEqual(cases.slice(0, 4))
    expect(fidelityCases(kind, 9, 6)).not.toEqual(cases)
  })

  it('fold outdated values away and leave the right one', () => {
    for (const { messages, folds, right, outdated, steps } of cases) {
      const folded = folds.map(({ message, span }) => messages[message]!.content.slice(span.start, span.end)).join('\n')
      const shown = messages
        .map(({ content }, index) =>
          folds
            .filter(({ message }) => message === index)
            .reverse()
            .reduce((text, { span, instead = '' }) => text.slice(0, span.start) + instead + text.slice(span.end), content),
        )
        .join('\n')
      expect(shown).toContain(right)
      // Notes say what holds, so the text before them may say it, too.
      if (kind !== 'notes') expect(folded).not.toContain(right)
      for (const value of outdated) {
        expect(folded).toContain(value)
        expect(shown).not.toContain(value)
        expect(value).not.toBe(right)
      }
      for (const [at, step] of steps.entries()) {
        expect(step.messages).toBeLessThanOrEqual(messages.length)
        expect(step.folded).toBeGreaterThanOrEqual(steps[at - 1]?.folded ?? 0)
        // A step can only fold what it has read.
        for (const { message } of folds.slice(0, step.folded)) expect(message).toBeLessThan(step.messages)
      }
    }
  })
})
