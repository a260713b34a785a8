/** Reads and joins the logs of a report, groups their records by condition, and decides which of a sample's records counts. */
import { createHash } from 'node:crypto'
import { stat } from 'node:fs/promises'
import { basename } from 'node:path'
import { grouped } from '../accuracy.js'
import { type AgentKind, agentKinds } from '../agent.js'
import type { ErrorRecord, LogHeader, LogRecord, Resumption } from '../log.js'
import { bad } from '../run/json-lines.js'
import { logLines, nameOf } from '../run/log-file.js'
import { type SampleAnswer, resultOf } from '../run/plan.js'
import type { TaskName } from '../task.js'

/** Logs with the same model, engine, sampling, seed and version. Only within a variant are records joined and conditions compared. */
export interface Variant {
  /** The variant's name: `A`, `B`, and so on, in the order of the logs. */
  readonly name: string
  readonly facts: Readonly<Record<string, string>>
}

/** A task of one or more logs. Runs that differ only in cells or number of samples have the same task. */
export interface ReportTask {
  readonly task: TaskName
  /** The task's name in file names. The same task with different options ends in `-2`, then `-3`. */
  readonly slug: string
  readonly title: string
  /** The distinct sets of options with which the logs ran the task. */
  readonly options: readonly Readonly<Record<string, unknown>>[]
  readonly differs: readonly string[]
  /** The names of the axes of the task's cells, such as `needles` and `length`. */
  readonly axes: readonly string[]
}

export interface ReportAgent {
  readonly agent: AgentKind
  readonly title: string
  readonly options: Readonly<Record<string, unknown>>
  /** The embedder of an agent that searches by similarity; null for other agents, or if the log names none. */
  readonly embedder: string | null
}

export interface Condition {
  /** Index in `Gathered.variants`. `task` and `agent` are indexes in `Gathered.tasks` and `Gathered.agents`. */
  readonly variant: number
  readonly task: number
  readonly agent: number
  readonly contract: string
  readonly trained: boolean | null
  /** The answers, one per sample. */
  readonly answers: readonly PrintedAnswer[]
  /** The errors of samples without an answer, one per sample. */
  readonly errors: readonly ErrorRecord[]
  /** Number of samples that the condition's runs were meant to answer. */
  readonly planned: number
}

export interface Gathered {
  readonly logs: readonly ReadLog[]
  readonly variants: readonly Variant[]
  /** For each log, the index of its variant. */
  readonly variantOf: readonly number[]
  readonly tasks: readonly ReportTask[]
  readonly agents: readonly ReportAgent[]
  readonly conditions: readonly Condition[]
  /** Number of answers left out because a later log or line has the same sample under the same condition. */
  readonly repeated: number
  /** Number of samples with an error that another try answered. */
  readonly retried: number
}

/** A record with its log's header. `variant`, `task` and `agent` are keys: equal variants, tasks and agents have equal keys. */
interface GatheredRecord {
  readonly variant: string
  readonly task: string
  readonly agent: string
  readonly header: LogHeader
  readonly record: PrintedAnswer | ErrorRecord
}

export function gather(logs: readonly ReadLog[]): Gathered {
  const entries = logs.flatMap(entriesOf)
  const variants = [...new Map(logs.map(({ header }) => [canonical(factsOf(header)), factsOf(header)]))]
  const variantKeys = variants.map(([key]) => key)
  const taskKeys = [...new Set(logs.flatMap(({ header }) => header.tasks.map((task) => taskKey(header, task))))]
  const agents = [
    ...new Map(logs.flatMap(({ header }) => header.agents.map((agent) => [agentKey(header, agent), about(header, agent)]))),
  ].sort(([, a], [, b]) => agentKinds.indexOf(a.agent) - agentKinds.indexOf(b.agent))
  const agentKeys = agents.map(([key]) => key)
  const groups = grouped(byDate(entries), ({ variant, task, agent, record }) =>
    canonical([variant, task, agent, record.contract]),
  )
  const conditions = groups.map((group) => {
    const { variant, task, agent } = group[0]!
    return condition(group, [variantKeys.indexOf(variant), taskKeys.indexOf(task), agentKeys.indexOf(agent)])
  })
  const order = (one: Condition): readonly number[] => [one.task, one.variant, one.agent]
  return {
    logs,
    variants: variants.map(([, facts], index) => ({ name: letters(index), facts })),
    variantOf: logs.map(({ header }) => variantKeys.indexOf(canonical(factsOf(header)))),
    tasks: tasksOf(logs, entries, taskKeys),
    agents: agents.map(([, agent]) => agent),
    conditions: conditions
      .map(({ condition }) => condition)
      .sort(
        (a, b) =>
          order(a)
            .map((at, index) => at - order(b)[index]!)
            .find((apart) => apart !== 0) ?? compare(a.contract, b.contract),
      ),
    repeated: conditions.reduce((sum, { repeated }) => sum + repeated, 0),
    retried: conditions.reduce((sum, { retried }) => sum + retried, 0),
  }
}

function entriesOf({ header, records }: ReadLog): GatheredRecord[] {
  const variant = canonical(factsOf(header))
  const tasks = header.tasks.map((task) => taskKey(header, task))
  const agents = new Map(header.agents.map((agent) => [agent.agent, agentKey(header, agent)]))
  const last = new Map(records.map((record) => [nameOf(record), record]))
  return records.map((record) => {
    // If a sample could not be made, its error has no real id and no cell. A later try may have them.
    const { id, cell } = record.kind === 'error' ? last.get(nameOf(record))! : record
    return {
      ...{ variant, task: tasks[record.task]!, agent: agents.get(record.agent)! },
      ...{ header, record: { ...record, id, cell } },
    }
  })
}

/** Sorts by the date of the log. The sort is stable, so records of one log keep their order. */
const byDate = (entries: readonly GatheredRecord[]): GatheredRecord[] =>
  [...entries].sort((a, b) => compare(a.header.date, b.header.date))

function condition(group: readonly GatheredRecord[], [variant, task, agent]: readonly [number, number, number]) {
  const answers = new Map<string, PrintedAnswer>()
  const failed = new Map<string, ErrorRecord>()
  const asked = new Map<string, LogHeader['tasks'][number]>()
  let [trained, contract, given] = [null as boolean | null, '', 0]
  for (const { header, record } of group) {
    const run = header.tasks[record.task]!
    asked.set(canonical([run.task, run.options]), run)
    trained = trainedFor(header, record)
    contract = record.contract
    if (record.kind === 'sample') answers.set(`${record.id}\n${record.print}`, record)
    else failed.set(record.id, record)
    if (record.kind === 'sample') given++
  }
  const ids = new Set([...answers.values()].map(({ id }) => id))
  const errors = [...failed.values()].filter(({ id }) => !ids.has(id))
  const condition: Condition = {
    ...{ variant, task, agent, contract, trained, answers: [...answers.values()], errors },
    planned: plannedBy([...asked.values()]),
  }
  return { condition, repeated: given - answers.size, retried: failed.size - errors.length }
}

/**
 * Returns how many samples the runs of one task were meant to answer. A cell of several runs counts once, with the largest planned number.
 */
function plannedBy(runs: readonly Pick<LogHeader['tasks'][number], 'options' | 'size'>[]): number {
  const samples = new Map<string, number>()
  for (const { options, size } of runs) {
    const axes = Object.entries(options).filter((axis): axis is [string, unknown[]] => Array.isArray(axis[1]))
    const cells = axes
      .reduce<readonly Readonly<Record<string, unknown>>[]>(
        (all, [name, values]) => all.flatMap((cell) => values.map((value) => ({ ...cell, [name]: value }))),
        [{}],
      )
      // A logbook of the kind `rules` uses only the first of `places`.
      .filter(({ kinds, places }) => kinds !== 'rules' || places === (options['places'] as unknown[])[0])
    for (const cell of cells.map(canonical)) samples.set(cell, Math.max(samples.get(cell) ?? 0, size / cells.length))
  }
  return Math.round([...samples.values()].reduce((sum, each) => sum + each, 0))
}

/** Returns whether the model was trained for the agent; null if unknown. If the log lists the trained tasks, only this task matters. */
function trainedFor({ agents, tasks }: LogHeader, { agent, task }: PrintedAnswer | ErrorRecord): boolean | null {
  const { trained, trainedTasks } = agents.find((one) => one.agent === agent)!
  return trainedTasks === undefined ? trained : trainedTasks.includes(tasks[task]!.task)
}

function tasksOf(logs: readonly ReadLog[], entries: readonly GatheredRecord[], keys: readonly string[]): ReportTask[] {
  const asked = logs.flatMap(({ header }) => header.tasks.map((task) => ({ key: taskKey(header, task), ...task })))
  return keys.map((key, index) => {
    const same = asked.filter((one) => one.key === key)
    const { task, title } = same[0]!
    const before = keys.slice(0, index).filter((other) => asked.find((one) => one.key === other)?.task === task).length
    const own = entries.filter((entry) => entry.task === key)
    return {
      ...{ task, title, slug: before === 0 ? task : `${task}-${before + 1}` },
      options: [...new Map(same.map(({ options }) => [canonical(options), options])).values()],
      differs: [...new Set(same.flatMap(({ differs }) => differs))],
      axes: [...new Set(own.flatMap(({ record }) => Object.keys(record.cell)))],
    }
  })
}

/** Returns the facts that records must share to be joined. Dates, commands and machines may differ. */
function factsOf({ model, engine, seed, sampling, kvfold, commit }: LogHeader): Readonly<Record<string, string>> {
  return {
    model: model.name,
    fingerprint: model.fingerprint ?? 'unknown',
    engine: `${engine.engine} ${engine.release}`,
    context: String(engine.context),
    settings: canonical(engine.settings ?? {}),
    seed: String(seed),
    sampling: canonical(sampling),
    kvfold: commit === null ? kvfold : `${kvfold}, commit ${commit}`,
  }
}

/**
 * Returns a task's key. It leaves out numbers of samples, and options that only select cells (lists). For `frames`, which a model judges,
 * it includes the judge.
 */
function taskKey({ judge }: LogHeader, { task, options }: LogHeader['tasks'][number]): string {
  const deciding = Object.entries(options).filter(
    ([name, value]) => !['samples', 'limit'].includes(name) && !Array.isArray(value),
  )
  return canonical([task, Object.fromEntries(deciding), task === 'frames' ? judge : null])
}

/** Returns the embedder for agents that search by similarity, whose answers depend on it; null for other agents. */
const embedderOf = (header: LogHeader, agent: AgentKind): string | null =>
  agent === 'rag-dense' || agent === 'mem0' ? header.embedder : null

const agentKey = (header: LogHeader, { agent, options }: LogHeader['agents'][number]): string =>
  canonical([agent, options, embedderOf(header, agent)])

const about = (header: LogHeader, { agent, title, options }: LogHeader['agents'][number]): ReportAgent => ({
  ...{ agent, title, options, embedder: embedderOf(header, agent) },
})

/** Returns a variant's name by its index: A, B, ..., Z, AA, ... */
const letters = (index: number): string =>
  (index < 26 ? '' : letters(Math.floor(index / 26) - 1)) + String.fromCharCode(65 + (index % 26))

const compare = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0)

// Below: reads logs for a report. Memory holds only the fields that tables and figures need; transcripts stay on disk.

/** An answer with `print`, a hash of the sample's right answer, which tells samples with the same id apart. */
export type PrintedAnswer = SampleAnswer & { readonly print: string }

export interface ReadLog {
  /** The file name without folders, as the report shows it. */
  readonly name: string
  readonly header: LogHeader
  readonly resumed: readonly Resumption[]
  /** The records, in the order in which they were written. */
  readonly records: readonly (PrintedAnswer | ErrorRecord)[]
  /** Whether the last line is incomplete, and so not in `records`. */
  readonly torn: boolean
}

/** Reads a log line by line. @throws KvfoldError eval/bad-log that names the file and the line */
export async function readForReport(path: string): Promise<ReadLog> {
  const records: (PrintedAnswer | ErrorRecord)[] = []
  const resumed: Resumption[] = []
  let header: LogHeader | null = null
  let whole = 0
  for await (const { line, number, end } of logLines(path)) {
    whole = end
    if (line.kind === 'header') header = line
    else if (line.kind === 'resumed') resumed.push(line)
    else if (header !== null && line.kind !== 'step') records.push(recordOf(line, header, path, number))
  }
  if (header === null) throw bad(path, 'is empty; `kvfold eval` writes logs')
  return { name: basename(path), header, resumed, records, torn: (await stat(path)).size > whole }
}

function recordOf(line: LogRecord, { tasks, agents }: LogHeader, path: string, number: number): PrintedAnswer | ErrorRecord {
  if (tasks[line.task] === undefined)
    throw bad(path, `has a line ${number} of task ${line.task}, but its header has only ${tasks.length} tasks`)
  if (!agents.some(({ agent }) => agent === line.agent))
    throw bad(path, `has a line ${number} of the agent ${line.agent}, which its header does not have`)
  const result = resultOf(line)
  if (result.kind === 'error') return result
  const truth = line.kind === 'sample' ? line.truth : null
  return {
    ...result,
    print: createHash('sha256')
      .update(canonical(truth ?? null))
      .digest('base64url')
      .slice(0, 16),
  }
}

/** Returns JSON in which every object's keys are sorted, so equal values give equal texts. The value must not be undefined. */
export const canonical = (value: unknown): string =>
  JSON.stringify(value, (_key, inner: unknown) =>
    typeof inner === 'object' && inner !== null && !Array.isArray(inner)
      ? Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1)))
      : inner,
  )
