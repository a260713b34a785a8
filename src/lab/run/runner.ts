/**
 * Runs all samples with all agents, several at once. Each sample's record goes to the log as soon as it is done. The run ends when all
 * samples are done, or when the caller stops it.
 */
import { randomUUID } from 'node:crypto'
import type { ContractChoice } from '../../runtime/core/contract.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import type { Engine } from '../../runtime/engine/engine.js'
import type { EvalAgent, TextEmbedder } from '../agent.js'
import type { LogRecord } from '../log.js'
import type { DoneStep } from '../recorder.js'
import type { Task, TaskSample } from '../task.js'
import { Cells, Pace, playAll } from './loop.js'
import { type Judge, failed, trial, type TrialOptions } from './trial.js'
import { nameOf } from './log-file.js'
import { type Item, itemsOf, type ItemResult, resultOf } from './plan.js'
import type { Bench } from './pool.js'

export interface RunOptions {
  readonly tasks: readonly Task[]
  readonly agents: readonly EvalAgent[]
  readonly contracts: readonly ContractChoice[]
  /** Engines of the same model, at least one, among which the samples are distributed. */
  readonly engines: readonly Engine[]
  /** How many samples each engine runs at once. */
  readonly slots: number
  /** Cells of the cache that all samples on one engine share; null if each conversation has a context of its own. */
  readonly cells: number | null
  readonly embedder: TextEmbedder | null
  readonly judge: Judge | null
  readonly seed: number
  readonly bench: Bench
  /** Stores this run's records, and holds the results of earlier runs of the log. `LogFile` implements it. */
  readonly log: RunLog
  readonly signal: AbortSignal
  readonly onProgress?: (progress: RunProgress) => void
  /** Called after every step of every sample. */
  readonly onStep?: (item: Item, sample: TaskSample, step: DoneStep) => void
}

export interface RunLog {
  readonly before: readonly ItemResult[]
  add(record: LogRecord): Promise<void>
}

export interface RunProgress {
  readonly done: number
  readonly total: number
  /** Number of this run's samples that have failed so far. */
  readonly errors: number
  /** Estimated milliseconds until all samples are done; null before the first measurement. */
  readonly left: number | null
  /** The latest result; null at the start. */
  readonly last: ItemResult | null
}

/** The run stops after this many consecutive errors, counted over all engines. The samples are then probably not the cause. */
export const MOST_ERRORS = 10

/** Estimated cells of a sample beyond its messages and its answer: system prompt, tool calls and results. */
const BESIDE = 2048

/**
 * Runs the samples that have no answer in the log yet, including those that ended with an error. Resolves when all are done, or when
 * `signal` stopped the run. Samples in progress at that time are not logged.
 * @returns the result of every finished sample, errors included
 * @throws KvfoldError eval/too-many-errors, eval/bad-log
 */
export const run = (options: RunOptions): Promise<readonly ItemResult[]> => new EvalRun(options).all()

/** A slot's engine, and the cells that all slots of this engine share. */
interface WorkPlace {
  readonly engine: Engine
  /** The number of cells that the slots share; null if no slot has to wait for cells. */
  readonly total: number | null
  readonly cells: Cells
}

class EvalRun {
  readonly #results: Map<string, ItemResult>
  readonly #items: readonly Item[]
  readonly #left: readonly Item[]
  readonly #pace: Pace
  readonly #name = randomUUID().slice(0, 8)
  readonly #samples = new Map<string, Promise<TaskSample>>()
  #inARow = 0
  #errors = 0

  constructor(private readonly options: RunOptions) {
    const { tasks, agents, contracts, engines, log, slots } = options
    const sizes = tasks.map(({ size }) => size)
    this.#items = itemsOf({ sizes, agents: agents.map(({ kind }) => kind), contracts })
    this.#results = new Map(log.before.filter(({ kind }) => kind === 'sample').map((result) => [nameOf(result), result]))
    this.#left = this.#items.filter((item) => !this.#results.has(nameOf(item)))
    this.#pace = new Pace(this.#left, slots * engines.length)
    for (const result of this.#results.values()) if (result.kind === 'sample') this.#pace.knows(result, result.milliseconds.total)
  }

  async all(): Promise<readonly ItemResult[]> {
    const { engines, slots, signal } = this.options
    this.#report(null)
    const places = engines.flatMap((engine) => {
      // A single slot has all cells, so it never waits.
      const total = slots === 1 ? null : this.options.cells
      const place: WorkPlace = { engine, total, cells: new Cells(total) }
      return Array.from({ length: slots }, () => place)
    })
    await playAll(this.#left, places, signal, (item, place, either) => this.#do(item, place, either))
    return this.#items.flatMap((item) => this.#results.get(nameOf(item)) ?? [])
  }

  async #do(item: Item, place: WorkPlace, signal: AbortSignal): Promise<void> {
    const begun = performance.now()
    const record = await this.#record(item, place, signal)
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
      `${MOST_ERRORS} samples in a row failed. The last error: ${message} The log has the finished samples. Solve the problem, then run the same command again to continue.`,
    )
  }

  async #record(item: Item, { engine, total, cells }: WorkPlace, signal: AbortSignal): Promise<LogRecord | null> {
    const { tasks, agents, bench, judge, embedder, seed, onStep } = this.options
    const task = tasks[item.task]!
    const agent = agents.find(({ kind }) => kind === item.agent)!
    let sample: TaskSample
    let needed = 0
    try {
      sample = await this.#sample(item)
      if (total !== null) needed = engine.count(sample.messages, []) + task.maxTokens + BESIDE
    } catch (error) {
      return signal.aborted ? null : failed(item, null, error)
    }
    const name = `${this.#name}.${item.task}.${item.agent}.${item.contract}.${item.index}`
    const settings = { item, task, agent, engine, bench, judge, seed, window: engine.info.context, signal }
    let isCutOff = false
    const options: Omit<TrialOptions, 'name' | 'alone'> = {
      ...settings,
      ...(embedder === null ? {} : { embedder }),
      onStep: (step) => {
        const { finish, timing } = step.reply
        if (finish === 'length' && timing.generatedTokens < (step.request.maxTokens ?? Infinity)) isCutOff = true
        onStep?.(item, sample, step)
      },
    }
    const alone = total === null || needed >= total
    const within = async (wanted: number, more: { readonly name: string; readonly alone: boolean }) => {
      const giveBack = await cells.take(wanted, signal)
      try {
        return await trial(sample, { ...options, ...more })
      } finally {
        giveBack()
      }
    }
    const record = await within(needed, { name, alone })
    // An agent may need more cells than estimated while other samples hold the rest. Then a prompt fails, or an answer ends before its
    // limit. The outcome must not depend on other samples, so the sample is repeated alone on its engine.
    const isFull = record?.kind === 'error' && record.code === 'context/full'
    const isCrowded = !alone && record !== null && (isFull || isCutOff)
    return isCrowded ? within(total, { name: `${name}.alone`, alone: true }) : record
  }

  /** Returns the item's sample. All agents answer it one after another, so it is made once and kept in memory for a while. */
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
