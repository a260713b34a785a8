/**
 * Runs all samples with all agents, several at once. Each record goes to the log as soon as the sample is done. The run ends when all are
 * done or the caller stops it.
 */
import { randomUUID } from 'node:crypto'
import type { ContractChoice } from '../../runtime/core/contract.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import type { Engine } from '../../runtime/engine/engine.js'
import type { EvalAgent, TextEmbedder } from '../agent.js'
import type { LogRecord } from '../log.js'
import type { Task, TaskSample } from '../task.js'
import { type Judge, failed, trial } from './trial.js'
import { nameOf } from './log-file.js'
import { type Item, itemsOf, type ItemResult, resultOf } from './plan.js'
import type { Bench } from './pool.js'

export interface RunOptions {
  readonly tasks: readonly Task[]
  readonly agents: readonly EvalAgent[]
  readonly contracts: readonly ContractChoice[]
  /** Engines of the same model, at least one. The run distributes its samples over them. */
  readonly engines: readonly Engine[]
  /** How many samples each engine runs at once. */
  readonly slots: number
  /** Cells that all samples of one engine share; null when each conversation has a context of its own. */
  readonly cells: number | null
  readonly embedder: TextEmbedder | null
  readonly judge: Judge | null
  readonly seed: number
  readonly bench: Bench
  /** Stores the records and holds the earlier results. `LogWriter` implements it. */
  readonly log: RunLog
  readonly signal: AbortSignal
  readonly onProgress?: (progress: RunProgress) => void
}

export interface RunLog {
  readonly before: readonly ItemResult[]
  add(record: LogRecord): Promise<void>
}

export interface RunProgress {
  readonly done: number
  readonly total: number
  /** Samples of this run, so far, that could not be answered. */
  readonly errors: number
  /** Estimated milliseconds until all samples are done; null before the first measurement. */
  readonly left: number | null
  /** The latest result; null at the start. */
  readonly last: ItemResult | null
}

/** The run stops after this many errors in a row, over all engines: the cause is then probably not in the samples. */
export const MOST_ERRORS = 10

/** Cells for everything beside the sample and its answer: system prompt, tool calls and their results, the agent's own prompts. */
const BESIDE = 2048

/**
 * Runs the samples that the log does not have yet, and again those with an error. Resolves when all are done or `signal` stopped the run;
 * samples in progress are then not recorded.
 * @returns the result of every finished sample, errors included
 * @throws KvfoldError eval/too-many-errors, eval/bad-log
 */
export const run = (options: RunOptions): Promise<readonly ItemResult[]> => new EvalRun(options).all()

/** The engine of a slot, and the cells that its slots share. */
interface WorkPlace {
  readonly engine: Engine
  /** All cells that the slots share; null when no slot has to wait for cells. */
  readonly total: number | null
  readonly cells: Cells
}

class EvalRun {
  readonly #results: Map<string, ItemResult>
  readonly #items: readonly Item[]
  readonly #left: Item[]
  readonly #pace: Pace
  /** Stops all samples in progress: at the caller's request, or because the run cannot continue. */
  readonly #stop = new AbortController()
  readonly #signal: AbortSignal
  readonly #name = randomUUID().slice(0, 8)
  readonly #samples = new Map<string, Promise<TaskSample>>()
  #failure: Error | null = null
  #inARow = 0
  #errors = 0

  constructor(private readonly options: RunOptions) {
    const { tasks, agents, contracts, engines, log, slots, signal } = options
    const sizes = tasks.map(({ size }) => size)
    this.#items = itemsOf({ sizes, agents: agents.map(({ kind }) => kind), contracts })
    this.#results = new Map(log.before.filter(({ kind }) => kind === 'sample').map((result) => [nameOf(result), result]))
    this.#left = this.#items.filter((item) => !this.#results.has(nameOf(item)))
    this.#pace = new Pace(this.#left, slots * engines.length)
    for (const result of this.#results.values()) if (result.kind === 'sample') this.#pace.knows(result, result.milliseconds.total)
    this.#signal = AbortSignal.any([signal, this.#stop.signal])
  }

  async all(): Promise<readonly ItemResult[]> {
    const { engines, slots } = this.options
    this.#report(null)
    await Promise.all(
      engines.flatMap((engine) => {
        // A single slot has all cells for itself.
        const total = slots === 1 ? null : this.options.cells
        const place: WorkPlace = { engine, total, cells: new Cells(total) }
        return Array.from({ length: slots }, () => this.#slot(place))
      }),
    )
    if (this.#failure !== null) throw this.#failure
    return this.#items.flatMap((item) => this.#results.get(nameOf(item)) ?? [])
  }

  async #slot(place: WorkPlace): Promise<void> {
    for (let item = this.#left.shift(); item !== undefined && !this.#signal.aborted; item = this.#left.shift())
      try {
        await this.#do(item, place)
      } catch (error) {
        // A slot that was stopped has not failed.
        if (error === this.#signal.reason) return
        this.#failure ??= error instanceof Error ? error : new Error(String(error))
        this.#stop.abort()
      }
  }

  async #do(item: Item, place: WorkPlace): Promise<void> {
    const begun = performance.now()
    const record = await this.#record(item, place)
    if (record === null) return
    await this.options.log.add(record)
    const result = resultOf(record)
    this.#results.set(nameOf(item), result)
    this.#pace.done(item, performance.now() - begun)
    this.#report(result)
    if (record.kind === 'sample') this.#inARow = 0
    else this.#count(record.message)
  }

  #count(message: string): void {
    this.#errors++
    if (++this.#inARow < MOST_ERRORS) return
    throw new KvfoldError(
      'eval/too-many-errors',
      `${MOST_ERRORS} samples in a row could not be answered, the last one because: ${message} What is finished is kept; mend this, and the same command goes on.`,
    )
  }

  async #record(item: Item, { engine, total, cells }: WorkPlace): Promise<LogRecord | null> {
    const { tasks, agents, bench, judge, embedder, seed } = this.options
    const task = tasks[item.task]!
    const agent = agents.find(({ kind }) => kind === item.agent)!
    let sample: TaskSample
    let needed = 0
    try {
      sample = await this.#sample(item)
      if (total !== null) needed = engine.count(sample.messages, []) + task.maxTokens + BESIDE
    } catch (error) {
      return this.#signal.aborted ? null : failed(item, null, error)
    }
    const name = `${this.#name}.${item.task}.${item.agent}.${item.contract}.${item.index}`
    const settings = { item, task, agent, engine, bench, judge, seed, window: engine.info.context, signal: this.#signal }
    const options = { ...settings, ...(embedder === null ? {} : { embedder }) }
    const alone = total === null || needed >= total
    const record = await this.#within(cells, needed, () => trial(sample, { ...options, name, alone }))
    // An agent may need more cells than estimated and find them taken by other conversations. Its outcome must not depend on those, so it
    // tries again alone.
    const crowded = !alone && record?.kind === 'error' && record.code === 'context/full'
    if (!crowded) return record
    return this.#within(cells, total, () => trial(sample, { ...options, name: `${name}.alone`, alone: true }))
  }

  /** Waits until `needed` cells are free and holds them while `work` runs. */
  async #within<T>(cells: Cells, needed: number, work: () => Promise<T>): Promise<T> {
    const giveBack = await cells.take(needed, this.#signal)
    try {
      return await work()
    } finally {
      giveBack()
    }
  }

  /** Makes each sample once for all its agents, which get it one after another. A few samples stay in memory. */
  #sample({ task, index }: Item): Promise<TaskSample> {
    const name = `${task} ${index}`
    const known = this.#samples.get(name)
    if (known !== undefined) return known
    const sample = this.options.bench.sample(task, index)
    this.#samples.set(name, sample)
    const [oldest] = this.#samples.keys()
    if (this.#samples.size > this.options.slots * this.options.engines.length + 1 && oldest !== undefined)
      this.#samples.delete(oldest)
    return sample
  }

  #report(last: ItemResult | null): void {
    const total = this.#items.length
    const done = this.#results.size
    this.options.onProgress?.({ done, total, errors: this.#errors, left: this.#pace.left(), last })
  }
}

// Divides the cells of one cache among conversations. A conversation that does not fit waits, in order of arrival.

export class Cells {
  readonly #waiting: { readonly count: number; readonly admit: () => void }[] = []
  #free: number

  /** @param total the number of cells; null for no limit */
  constructor(private readonly total: number | null) {
    this.#free = total ?? Infinity
  }

  /**
   * Waits until `wanted` cells are free and takes them; takes all cells when `wanted` is more than the total. Returns the function that
   * gives them back.
   * @throws the reason of `signal` when it aborts
   */
  async take(wanted: number, signal: AbortSignal): Promise<() => void> {
    const count = Math.min(wanted, this.total ?? wanted)
    await new Promise<void>((resolve, reject) => {
      signal.throwIfAborted()
      const leave = () => {
        this.#waiting.splice(this.#waiting.indexOf(waiter), 1)
        reject(signal.reason as Error)
      }
      const waiter = {
        count,
        admit: () => {
          signal.removeEventListener('abort', leave)
          this.#free -= count
          resolve()
        },
      }
      signal.addEventListener('abort', leave, { once: true })
      this.#waiting.push(waiter)
      this.#admit()
    })
    let given = false
    return () => {
      if (given) return
      given = true
      this.#free += count
      this.#admit()
    }
  }

  #admit(): void {
    while (this.#waiting.length > 0 && this.#waiting[0]!.count <= this.#free) this.#waiting.shift()!.admit()
  }
}

// Estimates how long a run will still take, from the times of similar samples.

/** The properties that samples with similar times share. */
interface Kind {
  readonly task: number
  readonly agent: string
  readonly contract: string
}

const kindOf = ({ task, agent, contract }: Kind): string => `${task} ${agent} ${contract}`

export class Pace {
  readonly #taken = new Map<string, { count: number; milliseconds: number }>()
  readonly #left = new Map<string, number>()
  #busy = 0

  /** @param parallel how many samples run at once; an upper bound, used alone until the run has its own measurement */
  constructor(
    left: readonly Kind[],
    private readonly parallel: number,
    private readonly begun = performance.now(),
  ) {
    for (const kind of left) this.#left.set(kindOf(kind), (this.#left.get(kindOf(kind)) ?? 0) + 1)
  }

  /** Adds the time of a sample from an earlier run. */
  knows(kind: Kind, milliseconds: number): void {
    const taken = this.#taken.get(kindOf(kind)) ?? { count: 0, milliseconds: 0 }
    this.#taken.set(kindOf(kind), { count: taken.count + 1, milliseconds: taken.milliseconds + milliseconds })
  }

  /** Adds the time of a sample that this run finished. */
  done(kind: Kind, milliseconds: number): void {
    this.knows(kind, milliseconds)
    this.#busy += milliseconds
    this.#left.set(kindOf(kind), Math.max(0, (this.#left.get(kindOf(kind)) ?? 0) - 1))
  }

  /** Estimated milliseconds until all samples are done; null before any sample has been measured. */
  left(now = performance.now()): number | null {
    const all = [...this.#taken.values()]
    const count = all.reduce((sum, taken) => sum + taken.count, 0)
    if (count === 0) return null
    const usual = all.reduce((sum, { milliseconds }) => sum + milliseconds, 0) / count
    let work = 0
    for (const [kind, left] of this.#left) {
      const taken = this.#taken.get(kind)
      work += left * (taken === undefined ? usual : taken.milliseconds / taken.count)
    }
    const wall = now - this.begun
    // The parallelism is measured only after the first sample is done: `busy` does not include the samples in progress.
    const parallel = this.#busy > 0 && wall > 0 ? Math.min(this.parallel, Math.max(1, this.#busy / wall)) : this.parallel
    return work / parallel
  }
}
