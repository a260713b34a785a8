import fc from 'fast-check'
import { expect, test } from 'vitest'
import { trackedJson } from '../../../src/runtime/chat/jinja/filters.js'
import { strip, TrackedString } from '../../../src/runtime/chat/jinja/values.js'
import { type Origin, Tracked } from '../../../src/runtime/chat/tracked.js'

const content: Origin = { field: 'content', message: 0 }

/** A naive model: every character with the place it was copied from; null for the template's own text. */
type Marked = readonly (readonly [char: string, from: number | null])[]

const marks = (text: Tracked): Marked =>
  text.pieces.flatMap(({ text: shown, origin, from, exact }) =>
    shown.split('').map((char, at): readonly [string, number | null] => [char, origin === content && exact ? from + at : null]),
  )
const fresh = (text: string, copied: boolean): Marked =>
  text.split('').map((char, at): readonly [string, number | null] => [char, copied ? at : null])

type Step =
  | { readonly kind: 'slice'; readonly start: number; readonly end: number }
  | { readonly kind: 'prepend' | 'append'; readonly text: string }
  | { readonly kind: 'strip'; readonly side: 'both' | 'left' | 'right' }
  | { readonly kind: 'split'; readonly separator: string }
  | { readonly kind: 'upper' }

const steps: fc.Arbitrary<Step[]> = fc.array(
  fc.oneof(
    fc.record({ kind: fc.constant('slice' as const), start: fc.nat(20), end: fc.nat(40) }),
    fc.record({ kind: fc.constantFrom('prepend' as const, 'append' as const), text: fc.string({ maxLength: 5 }) }),
    fc.record({ kind: fc.constant('strip' as const), side: fc.constantFrom('both' as const, 'left' as const, 'right' as const) }),
    fc.record({ kind: fc.constant('split' as const), separator: fc.constantFrom('a', ' ', 'ab') }),
    fc.record({ kind: fc.constant('upper' as const) }),
  ),
  { maxLength: 8 },
)

function track(text: Tracked, step: Step): Tracked {
  switch (step.kind) {
    case 'slice':
      return text.slice(step.start, step.end)
    case 'prepend':
      return Tracked.join([Tracked.of(step.text, 'template'), text])
    case 'append':
      return Tracked.join([text, Tracked.of(step.text, 'template')])
    case 'strip':
      return strip(text, step.side)
    case 'split':
      return text.split(step.separator).at(-1) ?? text
    case 'upper':
      return text.mapCase((part) => part.toUpperCase())
  }
}

function model(text: Marked, step: Step): Marked {
  const plain = text.map(([char]) => char).join('')
  switch (step.kind) {
    case 'slice':
      return text.slice(step.start, step.end)
    case 'prepend':
      return [...fresh(step.text, false), ...text]
    case 'append':
      return [...text, ...fresh(step.text, false)]
    case 'strip': {
      const start = step.side === 'right' ? 0 : plain.length - plain.trimStart().length
      const end = step.side === 'left' ? plain.length : plain.trimEnd().length
      return text.slice(start, Math.max(start, end))
    }
    case 'split':
      return text.slice(plain.lastIndexOf(step.separator) === -1 ? 0 : lastPart(plain, step.separator))
    case 'upper':
      return text.map(([char, from]) => [char.toUpperCase(), from])
  }
}

function lastPart(text: string, separator: string): number {
  const parts = text.split(separator)
  return text.length - (parts.at(-1) ?? '').length
}

test('every character keeps the place it was copied from, through any operation', () => {
  fc.assert(
    fc.property(fc.string({ maxLength: 30 }), steps, (text, done) => {
      let tracked = Tracked.of(text, content)
      let naive = fresh(text, true)
      for (const step of done) {
        tracked = track(tracked, step)
        naive = model(naive, step)
      }
      expect(tracked.value).toBe(naive.map(([char]) => char).join(''))
      expect(marks(tracked)).toEqual(naive)
    }),
    { numRuns: 500 },
  )
})

test('the replacement of a span keeps the place of that span', () => {
  const text = Tracked.of('one two one', content).replace(/one/g, () => '1')
  expect(text.value).toBe('1 two 1')
  expect(text.pieces.map(({ from, to, exact }) => [from, to, exact])).toEqual([
    [0, 3, false],
    [3, 8, true],
    [8, 11, false],
  ])
})

test('JSON keeps track of escaped characters', () => {
  fc.assert(
    fc.property(fc.string({ unit: 'binary', maxLength: 30 }), (text) => {
      const json = trackedJson(new TrackedString(Tracked.of(text, content)))
      expect(JSON.parse(json.value)).toBe(text)
      const [first, last] = [json.pieces[1], json.pieces.at(-2)]
      if (text === '') return
      expect(first?.from).toBe(0)
      expect(last?.to).toBe(text.length)
    }),
  )
})

test('JSON is written as Python writes it', () => {
  const value = new TrackedString(Tracked.of('é\u2028\u0001"', content))
  expect(trackedJson(value).value).toBe('"é\u2028\\u0001\\""')
  expect(trackedJson(value, { indent: null, ascii: true, sorted: false, separators: null }).value).toBe(
    '"\\u00e9\\u2028\\u0001\\""',
  )
})
