/** Makes and scores samples, in this thread or in worker threads. With worker threads, this work never delays the engine. */
import { Piscina } from 'piscina'
import { type Delivery, delivered, poolOptions, received } from '../../runtime/core/threads.js'
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

/** Makes and scores the samples of a run's tasks. `task`: the index of a task. */
export interface Bench {
  /** Makes the sample with this index. @throws KvfoldError eval/bad-data */
  sample(task: number, index: number): Promise<TaskSample>
  score(task: number, sample: TaskSample, answer: string, verdict?: boolean | null): Promise<Score>
  close(): Promise<void>
}

/** Opens the bench of a run. With 0 threads all work runs in this thread, which starts faster and suits few or small samples. */
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
  /** Rejects if the threads cannot work at all. */
  readonly #broken: Promise<never>

  constructor(
    private readonly tasks: readonly Task[],
    threads: number,
  ) {
    this.#threads = new Piscina({ ...poolOptions(import.meta.url), minThreads: 1, maxThreads: threads })
    this.#broken = new Promise((_, reject) => {
      this.#threads.on('error', reject)
    })
    this.#broken.catch(() => undefined)
  }

  async sample(task: number, index: number): Promise<TaskSample> {
    return (await this.#do({ what: 'sample', spec: this.tasks[task]!.spec, index })) as TaskSample
  }

  async score(task: number, sample: TaskSample, answer: string, ...[verdict]: [(boolean | null)?]): Promise<Score> {
    const { spec } = this.tasks[task]!
    const judged = verdict === undefined ? {} : { verdict }
    return (await this.#do({ what: 'score', spec, sample, answer, ...judged })) as Score
  }

  close(): Promise<void> {
    return this.#threads.destroy()
  }

  async #do(order: Order): Promise<unknown> {
    return received(await Promise.race([this.#threads.run(order), this.#broken]))
  }
}

/** The tasks that this worker thread has opened, by their specs as JSON. */
const tasks = new Map<string, Promise<Task>>()

/** The entry of a worker thread: makes and scores samples of tasks that it opens by their specs. @public */
export default function work(order: Order): Promise<Delivery> {
  return delivered(async () => {
    const task = await opened(order.spec)
    if (order.what === 'sample') return task.sample(order.index)
    const { sample, answer } = order
    return 'verdict' in order ? task.score(sample, answer, order.verdict) : task.score(sample, answer)
  })
}

function opened(spec: TaskSpec): Promise<Task> {
  const name = JSON.stringify(spec)
  const known = tasks.get(name)
  if (known !== undefined) return known
  const task = openTask(spec)
  tasks.set(name, task)
  return task
}
