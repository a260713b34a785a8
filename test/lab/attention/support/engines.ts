/** Helpers of tests that compare engines: llama.cpp's logits token by token, and differences. */
import { expect } from 'vitest'
import type { Span } from '../../../../src/runtime/core/span.js'
import type { NativeModel } from '../../../../src/runtime/native/types.js'
import { batchOf, feed, seq } from '../../../runtime/native/support/fixture.js'

/** As close to full precision as llama.cpp gets on a CPU, and independent of the number of threads. */
export const PRECISE = { threads: 1, batchThreads: 1, flashAttention: 'off', keyType: 'f32', valueType: 'f32' } as const

/**
 * Returns the logits of every token from `from` on, [token, vocabulary]. A hole before it is first computed and then removed from the
 * cache.
 */
export async function llamaLogits(
  model: NativeModel,
  tokens: Int32Array,
  { from = 0, hole }: { readonly from?: number; readonly hole?: Span } = {},
): Promise<Float32Array> {
  const size = { cells: tokens.length + 64, sequences: 1, batch: tokens.length }
  const context = await model.createContext({ ...size, ...PRECISE })
  if (from > 0) await feed(context, tokens.subarray(0, from))
  if (hole !== undefined) context.untag(seq(0), hole)
  expect(await context.decode(batchOf(tokens.subarray(from), from, 0, 'all'))).toBe('done')
  const width = model.info.vocabulary
  const all = new Float32Array((tokens.length - from) * width)
  for (let place = 0; place < tokens.length - from; place++) all.set(context.logits(place), place * width)
  await context.dispose()
  return all
}

/** Returns the largest absolute difference. */
export function largest(a: ArrayLike<number>, b: ArrayLike<number>): number {
  if (a.length !== b.length) throw new Error(`${a.length} numbers against ${b.length}`)
  let worst = 0
  for (let at = 0; at < a.length; at++) {
    const difference = Math.abs(a[at]! - b[at]!)
    if (!(difference <= worst)) worst = difference
  }
  return worst
}
