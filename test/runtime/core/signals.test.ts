/** Tests signals that combine several others. */
import { getEventListeners } from 'node:events'
import { expect, it } from 'vitest'
import { joined } from '../../../src/runtime/core/signals.js'

it('is aborted with the first of them, with its reason', () => {
  const [one, other] = [new AbortController(), new AbortController()]
  const { signal } = joined([one.signal, null, undefined, other.signal])
  expect(signal.aborted).toBe(false)
  other.abort(new Error('other'))
  one.abort(new Error('one'))
  expect(signal.reason).toEqual(new Error('other'))
  expect(joined([AbortSignal.abort('before')]).signal.reason).toBe('before')
})

it('leaves no listener on signals that live longer, whether it is released or aborted', () => {
  const { signal: long } = new AbortController()
  for (let at = 0; at < 100; at++) {
    const { signal, release } = joined([long, new AbortController().signal])
    release()
    expect(signal.aborted).toBe(false)
    const short = new AbortController()
    joined([long, short.signal])
    short.abort()
  }
  expect(getEventListeners(long, 'abort')).toHaveLength(0)
  // AbortSignal.any adds these symbols to its sources.
  for (const key of Object.getOwnPropertySymbols(long))
    expect((long as unknown as Record<symbol, { size?: number } | undefined>)[key]?.size ?? 0, String(key)).toBe(0)
})
