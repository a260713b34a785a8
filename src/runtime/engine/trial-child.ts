/** The process of a model's trial: it is told which over IPC, tries it, says how it went, and ends. Whoever started it reads its end. */
import { writeFileSync } from 'node:fs'
import { KvfoldError } from '../core/errors.js'
import { openNative } from '../native/binding.js'
import { type TrialAnswer, type TrialOrder, tryModel } from './tried-models.js'

// A damaged file may ask for all memory: then the kernel ends this process and no other.
try {
  writeFileSync('/proc/self/oom_score_adj', '1000')
} catch {
  // Linux alone has it.
}
process.once('message', (order: TrialOrder) => {
  void answer(order).then((said) => {
    process.send?.(said, () => {
      process.exit(0)
    })
  })
})
// Nobody waits for the answer any more.
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
