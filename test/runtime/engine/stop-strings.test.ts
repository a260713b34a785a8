import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { StopStrings } from '../../../src/runtime/engine/job.js'

/** Searches the whole text at once: returns the text to show, whatever the chunking. */
function naive(text: string, stops: readonly string[]): string {
  const cuts = stops.map((stop) => text.indexOf(stop)).filter((at) => at >= 0)
  // A chunked search finds the stop string that is *completed* first; with one stop string the cut is the same.
  return cuts.length === 0 ? text : text.slice(0, Math.min(...cuts))
}

function chunked(chunks: readonly string[], stops: readonly string[]): string {
  const watch = new StopStrings(stops)
  let shown = ''
  for (const chunk of chunks) {
    const { text, stop } = watch.push(chunk)
    shown += text
    if (stop !== null) return shown
  }
  return shown + watch.finish()
}

describe('StopStrings', () => {
  it('holds back a possible stop string, and releases it when it is none', () => {
    const watch = new StopStrings(['END'])
    expect(watch.push('the E')).toEqual({ text: 'the ', stop: null })
    expect(watch.push('N')).toEqual({ text: '', stop: null })
    expect(watch.push('emy')).toEqual({ text: 'ENemy', stop: null })
    expect(watch.push(' END of it')).toEqual({ text: ' ', stop: 'END' })
  })

  it('gives the same text under any chunking', () => {
    const word = fc.string({ unit: fc.constantFrom('a', 'b'), maxLength: 12 })
    fc.assert(
      fc.property(
        fc.array(word, { maxLength: 8 }),
        fc.string({ unit: fc.constantFrom('a', 'b'), minLength: 1, maxLength: 4 }),
        (chunks, stop) => {
          expect(chunked(chunks, [stop])).toBe(naive(chunks.join(''), [stop]))
        },
      ),
    )
  })

  it('reports the stop string that comes first in the text', () => {
    expect(new StopStrings(['two', 'one']).push('zero one two')).toEqual({ text: 'zero ', stop: 'one' })
  })

  it('ignores empty stop strings', () => {
    expect(chunked(['abc'], [''])).toBe('abc')
  })
})
