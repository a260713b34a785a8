/**
 * The process of a model's trial. It receives an order over IPC, tries the model, sends the answer and ends. If it dies, the parent learns
 * from its exit code and stderr.
 */
import { writeFileSync } from 'node:fs'
import { KvfoldError } from '../core/errors.js'
import { openNative } from '../native/binding.js'
import { type TrialAnswer, type TrialOrder, tryModel } from './tried-models.js'

// A damaged file may ask for all memory. Let the kernel's OOM killer choose this process first.
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
// The parent has ended, so nothing waits for the answer.
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
