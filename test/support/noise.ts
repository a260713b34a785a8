/** Measures how far apart two fresh prefills are on the device of the tests, which bounds what a test may ask of it. */
import type { ContextOptions, Native } from '../../src/runtime/native/types.js'
import { ON_GPU } from './device.js'
import { decodeInto, largestDifference, logSoftmax } from './predictions.js'

/** The largest of a few differences is less than the largest of all. */
const MARGIN = 4
const LENGTHS = [144, 192, 288]

/**
 * Returns the bound for differences between log-probabilities that should be equal. On the CPU it is the given one. A GPU computes batches of
 * other sizes by other kernels, so there it is at least what that moves two fresh prefills of the same tokens in batches of these sizes.
 * @param sizes tokens of a batch; the last token is computed alone, too
 */
export async function boundOnDevice(
  native: Native,
  path: string,
  settings: ContextOptions,
  bound: number,
  sizes: readonly number[] = [512, 256, 64, 16],
): Promise<number> {
  if (!ON_GPU) return bound
  const model = await native.loadModel(path)
  try {
    const most = Math.max(...sizes)
    const context = await model.createContext({ ...settings, cells: 512, sequences: 2, batch: most, ubatch: most })
    let noise = 0
    for (const [salt, length] of LENGTHS.entries()) {
      const tokens = Int32Array.from({ length }, (_, at) => 260 + ((at * 7919 + salt * 104_729) % 100))
      const predictions: Float32Array[] = []
      for (const size of sizes)
        for (const rest of [0, 1]) {
          context.clear()
          let last = 0
          for (let start = 0; start < length - rest; start += size) {
            const part = tokens.subarray(start, Math.min(start + size, length - rest))
            await decodeInto(context, 0, start, part)
            last = part.length - 1
          }
          if (rest > 0) await decodeInto(context, 0, length - rest, tokens.subarray(length - rest))
          predictions.push(logSoftmax(context.logits(rest > 0 ? 0 : last)))
        }
      for (const each of predictions) noise = Math.max(noise, largestDifference(each, predictions[0]!))
    }
    return Math.max(bound, MARGIN * noise)
  } finally {
    await model.dispose()
  }
}
