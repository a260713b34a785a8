/** Owns `--sizes`: prompts of about so many tokens as the model under evaluation counts them, by each task's own measure of length. */
import { KvfoldError } from '../../core/errors.js'
import type { Engine } from '../../engine/engine.js'
import type { Task, TaskSpec } from '../../eval/task.js'
import type { AskedTask } from './specs.js'

export type OpenTask = (spec: TaskSpec) => Promise<Task>

/** Tokens of the first sample; all of a cell are alike. */
type Measure = (options: TaskSpec['options']) => Promise<number>

/** The task's spec with lengths for the sizes that it was asked for. @throws KvfoldError cli/bad-usage for a size that is too small */
export async function sized({ spec, sizes }: AskedTask, engine: Engine, openTask: OpenTask): Promise<TaskSpec> {
  if (sizes.length === 0) return spec
  const measure: Measure = async (options) => {
    const task = await openTask({ task: spec.task, options: { ...spec.options, ...options, samples: 1 } })
    return engine.count((await task.sample(0)).messages, [])
  }
  const lengths = spec.task === 'pi-llm' ? await updatesFor(sizes, measure) : await charactersFor(sizes, measure)
  return { task: spec.task, options: { ...spec.options, ...lengths } }
}

/** More than any words suffice for. */
const MOST_UPDATES = 10_000

/** The most updates a key whose prompt is no longer than each size. */
async function updatesFor(sizes: readonly number[], measure: Measure): Promise<TaskSpec['options']> {
  const updates: number[] = []
  for (const size of sizes) {
    const tokens = (n: number) => measure({ updates: [n] })
    const one = await tokens(1)
    if (one > size)
      throw new KvfoldError(
        'cli/bad-usage',
        `A PI-LLM prompt with one update a key has ${one} tokens; --sizes ${size} is too small.`,
      )
    // Nearly linear: the first guess is close, and what follows corrects it.
    const step = (await tokens(2)) - one
    let n = Math.max(1, Math.min(MOST_UPDATES, 1 + Math.floor((size - one) / step)))
    while (n > 1 && (await tokens(n)) > size) n--
    while (n < MOST_UPDATES && (await tokens(n + 1)) <= size) n++
    updates.push(n)
  }
  return { updates: [...new Set(updates)] }
}

/** How often characters for a token are corrected: text of one length is not quite like text of another. */
const ROUNDS = 4

/** Lengths are the sizes, and a token is as many characters as keep the longest prompts within them. */
async function charactersFor(sizes: readonly number[], measure: Measure): Promise<TaskSpec['options']> {
  let charsPerToken = 4
  for (let round = 0; round < ROUNDS; round++) {
    const shares: number[] = []
    for (const size of sizes) shares.push((await measure({ lengths: [size], charsPerToken })) / size)
    const most = Math.max(...shares)
    if (most <= 1 && most > 0.97) break
    charsPerToken = Math.floor((charsPerToken / most) * 0.99 * 100) / 100
  }
  return { lengths: [...sizes], charsPerToken }
}
