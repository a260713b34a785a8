/** What a thread of the pool does: makes and scores samples of tasks that it opens by their specs. */
import { KvfoldError, type ErrorCode } from '../../core/errors.js'
import type { Score, Task, TaskSample, TaskSpec } from '../task.js'
import { openTask } from '../tasks/open.js'

export type Order =
  | { readonly what: 'sample'; readonly spec: TaskSpec; readonly index: number }
  | {
      readonly what: 'score'
      readonly spec: TaskSpec
      readonly sample: TaskSample
      readonly answer: string
      readonly verdict?: boolean | null
    }

/** Errors cross threads without their class and code, so they are told. */
export type Delivery =
  | { readonly kind: 'sample'; readonly sample: TaskSample }
  | { readonly kind: 'score'; readonly score: Score }
  | { readonly kind: 'failed'; readonly code: ErrorCode; readonly message: string }

const tasks = new Map<string, Promise<Task>>()

export default async function work(order: Order): Promise<Delivery> {
  try {
    const task = await opened(order.spec)
    if (order.what === 'sample') return { kind: 'sample', sample: await task.sample(order.index) }
    const { sample, answer } = order
    const score = 'verdict' in order ? task.score(sample, answer, order.verdict) : task.score(sample, answer)
    return { kind: 'score', score }
  } catch (error) {
    if (!(error instanceof KvfoldError)) throw error
    return { kind: 'failed', code: error.code, message: error.message }
  }
}

function opened(spec: TaskSpec): Promise<Task> {
  const name = JSON.stringify(spec)
  const known = tasks.get(name)
  if (known !== undefined) return known
  const task = openTask(spec)
  tasks.set(name, task)
  return task
}
