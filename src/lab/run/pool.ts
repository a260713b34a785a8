/** Makes and scores samples, in this thread or in worker threads. With worker threads the engine never waits for this work. */
import { Piscina } from 'piscina'
import { forSources } from '../../runtime/core/processes.js'
import { type ErrorCode, KvfoldError } from '../../runtime/core/errors.js'
import type { Score, Task, TaskSample, TaskSpec } from '../task.js'
import { openTask } from '../tasks/open.js'

type Order =
  | { readonly what: 'sample'; readonly spec: TaskSpec; readonly index: number }
  | {
      readonly what: 'score'
      readonly spec: TaskSpec
      readonly sample: TaskSample
      readonly answer: string
      readonly verdict?: boolean | null
    }

/** The result that a worker thread sends back. An error loses its class and code between threads, so a failure has its code as data. */
type Delivery =
  | { readonly kind: 'sample'; readonly sample: TaskSample }
  | { readonly kind: 'score'; readonly score: Score }
  | { readonly kind: 'failed'; readonly code: ErrorCode; readonly message: string }

/** Makes and scores samples of the run's tasks. `task` is the index of a task. */
export interface Bench {
  /** Makes the sample with this index. @throws KvfoldError eval/bad-data */
  sample(task: number, index: number): Promise<TaskSample>
  score(task: number, sample: TaskSample, answer: string, verdict?: boolean | null): Promise<Score>
  close(): Promise<void>
}

/** Opens the bench of a run. With 0 threads all work runs in this thread. That starts faster, and suits few or small samples. */
export const openBench = (tasks: readonly Task[], threads: number): Bench =>
  threads === 0 ? new OwnThread(tasks) : new WorkerPool(tasks, threads)

class OwnThread implements Bench {
  constructor(private readonly tasks: readonly Task[]) {}

  sample(task: number, index: number): Promise<TaskSample> {
    return this.tasks[task]!.sample(index)
  }

  async score(task: number, sample: TaskSample, answer: string, ...verdict: [(boolean | null)?]): Promise<Score> {
    return Promise.resolve(this.tasks[task]!.score(sample, answer, ...verdict))
  }

  async close(): Promise<void> {
    // There is nothing to end.
  }
}

class WorkerPool implements Bench {
  readonly #threads: Piscina<Order, Delivery>
  /** Rejects when the threads cannot work at all. */
  readonly #broken: Promise<never>

  constructor(
    private readonly tasks: readonly Task[],
    threads: number,
  ) {
    const source = import.meta.url.endsWith('.ts')
    this.#threads = new Piscina({
      filename: import.meta.url,
      minThreads: 1,
      maxThreads: threads,
      // When kvfold runs from source, a thread needs tsx to translate TypeScript, however this process was started.
      ...(source ? { execArgv: forSources() } : {}),
    })
    this.#broken = new Promise((_, reject) => {
      this.#threads.on('error', reject)
    })
    this.#broken.catch(() => undefined)
  }

  async sample(task: number, index: number): Promise<TaskSample> {
    const done = await this.#do({ what: 'sample', spec: this.tasks[task]!.spec, index })
    if (done.kind === 'sample') return done.sample
    throw new KvfoldError('internal/invariant', `A thread answered a request for a sample with a ${done.kind}.`)
  }

  async score(task: number, sample: TaskSample, answer: string, ...[verdict]: [(boolean | null)?]): Promise<Score> {
    const { spec } = this.tasks[task]!
    const judged = verdict === undefined ? {} : { verdict }
    const done = await this.#do({ what: 'score', spec, sample, answer, ...judged })
    if (done.kind === 'score') return done.score
    throw new KvfoldError('internal/invariant', `A thread answered a request for a score with a ${done.kind}.`)
  }

  close(): Promise<void> {
    return this.#threads.destroy()
  }

  async #do(order: Order): Promise<Exclude<Delivery, { kind: 'failed' }>> {
    const done = await Promise.race([this.#threads.run(order), this.#broken])
    if (done.kind === 'failed') throw new KvfoldError(done.code, done.message)
    return done
  }
}

/** The tasks that this worker thread has opened, by their specs as JSON. */
const tasks = new Map<string, Promise<Task>>()

/** The entry of a worker thread: makes and scores samples of tasks that it opens by their specs. @public */
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
