/** Owns putting logs together: which records belong to one condition, which of several records of a sample counts, and what sets logs apart. */
import { createHash } from 'node:crypto'
import { stat } from 'node:fs/promises'
import { basename } from 'node:path'
import { type AgentKind, agentKinds } from '../agent.js'
import type { ErrorRecord, LogHeader, LogLine, Resumption } from '../log.js'
import { bad, logLines } from '../run/log-file.js'
import { type SampleAnswer, resultOf } from '../run/plan.js'
import type { TaskName } from '../task.js'

/** Logs whose model, engine, sampling, seed and version are the same: only within one are records put together and conditions compared. */
export interface Variant {
  /** `A`, `B`, ... in the order of the logs. */
  readonly name: string
  readonly facts: Readonly<Record<string, string>>
}

/** A task of one or more logs; which cells and how many samples were asked for does not set tasks apart. */
export interface ReportTask {
  readonly task: TaskName
  /** For files; a task that is there with other options, too, has a number. */
  readonly slug: string
  readonly title: string
  /** One for each way it was asked for. */
  readonly options: readonly Readonly<Record<string, unknown>>[]
  readonly differs: readonly string[]
  /** Names of what tells its cells apart. */
  readonly axes: readonly string[]
}

export interface ReportAgent {
  readonly agent: AgentKind
  readonly title: string
  readonly options: Readonly<Record<string, unknown>>
  /** For agents that look for what is alike. */
  readonly embedder: string | null
}

export interface Condition {
  /** Indices. */
  readonly variant: number
  readonly task: number
  readonly agent: number
  readonly contract: string
  readonly trained: boolean | null
  /** Each sample once. */
  readonly answers: readonly PrintedAnswer[]
  /** Samples that could not be answered, each once. */
  readonly errors: readonly ErrorRecord[]
  /** Samples that its logs were to have. */
  readonly planned: number
}

export interface Gathered {
  readonly logs: readonly ReadLog[]
  readonly variants: readonly Variant[]
  /** Index of each log's variant. */
  readonly variantOf: readonly number[]
  readonly tasks: readonly ReportTask[]
  readonly agents: readonly ReportAgent[]
  readonly conditions: readonly Condition[]
  /** Answers that count no more, because a later log or line has the same sample under the same condition. */
  readonly repeated: number
  /** Errors that a later try of the sample made good. */
  readonly retried: number
}

/** A record with what it belongs to. */
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
  const conditions = [...groups.values()].map((group) => {
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
  return records.map((record) => ({
    ...{ variant, task: tasks[record.task]!, agent: agents.get(record.agent)! },
    ...{ header, record },
  }))
}

function grouped<T>(items: readonly T[], name: (item: T) => string): ReadonlyMap<string, readonly T[]> {
  const groups = new Map<string, T[]>()
  for (const item of items) {
    const group = groups.get(name(item))
    if (group === undefined) groups.set(name(item), [item])
    else group.push(item)
  }
  return groups
}

/** Stable: records of one log stay in their order. */
const byDate = (entries: readonly GatheredRecord[]): GatheredRecord[] =>
  [...entries].sort((a, b) => compare(a.header.date, b.header.date))

function condition(group: readonly GatheredRecord[], [variant, task, agent]: readonly [number, number, number]) {
  const answers = new Map<string, PrintedAnswer>()
  const failed = new Map<string, ErrorRecord>()
  const planned = new Map<string, number>()
  let [trained, contract, given] = [null as boolean | null, '', 0]
  for (const { header, record } of group) {
    const asked = header.tasks[record.task]!
    planned.set(canonical([asked.task, asked.options]), asked.size)
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
    planned: [...planned.values()].reduce((sum, size) => sum + size, 0),
  }
  return { condition, repeated: given - answers.size, retried: failed.size - errors.length }
}

/** For this task where the log says so, else for the agent at all. */
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

/** What must be the same for records to be put together. Dates, commands and machines may differ. */
function factsOf({ model, engine, seed, sampling, kvfold, commit }: LogHeader): Readonly<Record<string, string>> {
  return {
    model: model.name,
    fingerprint: model.fingerprint ?? 'unknown',
    engine: `${engine.engine} ${engine.release}`,
    context: String(engine.context),
    seed: String(seed),
    sampling: canonical(sampling),
    kvfold: commit === null ? kvfold : `${kvfold}, commit ${commit}`,
  }
}

/** Without what only says which cells there are and how many samples of each. Where a model judges, it belongs to the task. */
function taskKey({ judge }: LogHeader, { task, options }: LogHeader['tasks'][number]): string {
  const deciding = Object.entries(options).filter(
    ([name, value]) => !['samples', 'limit'].includes(name) && !Array.isArray(value),
  )
  return canonical([task, Object.fromEntries(deciding), task === 'frames' ? judge : null])
}

/** Agents that look for what is alike depend on what embeds. */
const embedderOf = (header: LogHeader, agent: AgentKind): string | null =>
  agent === 'rag-dense' || agent === 'mem0' ? header.embedder : null

const agentKey = (header: LogHeader, { agent, options }: LogHeader['agents'][number]): string =>
  canonical([agent, options, embedderOf(header, agent)])

const about = (header: LogHeader, { agent, title, options }: LogHeader['agents'][number]): ReportAgent => ({
  ...{ agent, title, options, embedder: embedderOf(header, agent) },
})

/** A, B, ..., Z, AA, ... */
const letters = (index: number): string =>
  (index < 26 ? '' : letters(Math.floor(index / 26) - 1)) + String.fromCharCode(65 + (index % 26))

const compare = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0)

// Reading logs for a report: of every record what tables and figures need, so that transcripts stay on the disk.

/** An answer, and what tells its sample from others with the same id: a print of what the scorer compared with. */
export type PrintedAnswer = SampleAnswer & { readonly print: string }

export interface ReadLog {
  /** As the report names it: without folders. */
  readonly name: string
  readonly header: LogHeader
  readonly resumed: readonly Resumption[]
  /** In the order in which they were written. */
  readonly records: readonly (PrintedAnswer | ErrorRecord)[]
  /** The last line was not written to its end, and is left out. */
  readonly torn: boolean
}

/** @throws KvfoldError eval/bad-log naming the file and the line */
export async function readForReport(path: string): Promise<ReadLog> {
  const records: (PrintedAnswer | ErrorRecord)[] = []
  const resumed: Resumption[] = []
  let header: LogHeader | null = null
  let whole = 0
  for await (const { line, number, end } of logLines(path)) {
    whole = end
    if (line.kind === 'header') header = line
    else if (line.kind === 'resumed') resumed.push(line)
    else if (header !== null) records.push(recordOf(line, header, path, number))
  }
  if (header === null) throw bad(path, 'is empty; `kvfold eval` writes logs')
  return { name: basename(path), header, resumed, records, torn: (await stat(path)).size > whole }
}

type RecordLine = Extract<LogLine, { readonly kind: 'sample' | 'error' }>

function recordOf(line: RecordLine, { tasks, agents }: LogHeader, path: string, number: number): PrintedAnswer | ErrorRecord {
  if (tasks[line.task] === undefined)
    throw bad(path, `has a line ${number} of task ${line.task}, and its header has ${tasks.length} tasks`)
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

// Comparing plain data: one text for all values that are the same.

/** JSON with the keys of every object in order. Precondition: not undefined. */
export const canonical = (value: unknown): string =>
  JSON.stringify(value, (_key, inner: unknown) =>
    typeof inner === 'object' && inner !== null && !Array.isArray(inner)
      ? Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1)))
      : inner,
  )
