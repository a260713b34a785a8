import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { Job, StopStrings } from '../../../src/runtime/engine/job.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { TEST_GPU } from '../../support/device.js'
import { tinyModel } from '../../support/models.js'

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

describe('the end of a job', () => {
  it('gives held text before a character that was cut off', async () => {
    const model = await (await openNative({ gpu: TEST_GPU })).loadModel(await tinyModel())
    try {
      const tokens = Array.from({ length: model.info.vocabulary }, (_, token) => token)
      const tokenOf = (byte: number) => tokens.find((token) => Buffer.from([byte]).equals(model.piece(token, true)))!
      const texts: string[] = []
      const request = {
        asked: { conversation: conversationId('c'), stop: ['ab'] },
        listener: { onText: (text: string) => void texts.push(text) },
        prompt: { tokens: Int32Array.of(1), messages: [] },
        sampler: {},
      }
      const job = new Job(request, model, 0)
      job.take(tokenOf(0x61), null)
      job.take(tokenOf(0xf0), null)
      job.flush()
      expect(job.text).toBe('a\ufffd')
      expect(texts.join('')).toBe(job.text)
      job.sampler.dispose()
    } finally {
      await model.dispose()
    }
  })
})
