/**
 * The process of a model's trial. It receives the order over IPC, tries the model, sends the answer and ends. Its parent also reads how it
 * ended.
 */
import { writeFileSync } from 'node:fs'
import { KvfoldError } from '../core/errors.js'
import { openNative } from '../native/binding.js'
import { type TrialAnswer, type TrialOrder, tryModel } from './tried-models.js'

// A damaged file may ask for all memory. Then the kernel should end this process and no other one.
try {
  writeFileSync('/proc/self/oom_score_adj', '1000')
} catch {
  // Only Linux has this file.
}
process.once('message', (order: TrialOrder) => {
  void answer(order).then((said) => {
    process.send?.(said, () => {
      process.exit(0)
    })
  })
})
// The parent ended, so it no longer needs the answer.
process.once('disconnect', () => {
  process.exit(0)
})

async function answer({ path, gpu, options }: TrialOrder): Promise<TrialAnswer> {
  try {
    await tryModel(await openNative({ gpu }), path, options)
    return { kind: 'works' }
  } catch (error) {
    if (error instanceof KvfoldError) return { kind: 'refused', code: error.code, message: error.message }
    return { kind: 'refused', code: 'native/failed', message: String(error) }
  }
}
