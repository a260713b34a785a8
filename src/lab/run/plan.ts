/**
 * Plans a run before its first sample: the order of its items, and its log's header. With this order, a run stopped at any time has done
 * about the same share of every task, cell and agent.
 */
import { createHash } from 'node:crypto'
import { readFileSync, statSync } from 'node:fs'
import { arch, availableParallelism, cpus, platform, release, totalmem } from 'node:os'
import { join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { ContractChoice } from '../../runtime/core/contract.js'
import { packageFacts } from '../../runtime/core/package.js'
import type { EngineInfo } from '../../runtime/engine/engine.js'
import type { AgentKind, EvalAgent } from '../agent.js'
import { type ErrorRecord, LOG_VERSION, type LogHeader, type LogRecord, type SampleRecord } from '../log.js'
import type { Task, TaskName } from '../task.js'

/** One unit of a run: one sample, answered by one agent under one contract. */
export interface Item {
  /** Index of the task in the run's list of tasks. */
  readonly task: number
  readonly agent: AgentKind
  readonly contract: ContractChoice
  /** Index of the sample in its task. */
  readonly index: number
}

export interface RunPlan {
  /** The number of samples of each task. */
  readonly sizes: readonly number[]
  readonly agents: readonly AgentKind[]
  /** The contracts that the run compares; at least one. */
  readonly contracts: readonly ContractChoice[]
}

/**
 * Returns a run's items in order. Tasks advance in proportion to their sizes; `Task.size` says how a task orders its cells. All agents
 * answer a sample under all contracts before the next sample begins. An agent that never edits answers it once, under the first contract.
 */
export function itemsOf({ sizes, agents, contracts }: RunPlan): Item[] {
  const samples = sizes.flatMap((size, task) =>
    Array.from({ length: size }, (_, index) => ({ task, index, place: (index + 0.5) / size })),
  )
  samples.sort((a, b) => a.place - b.place || a.task - b.task)
  return samples.flatMap(({ task, index }) =>
    agents.flatMap((agent) =>
      (edits(agent) ? contracts : contracts.slice(0, 1)).map((contract) => ({ task, agent, contract, index })),
    ),
  )
}

/** Returns whether the agent edits the conversation. Contracts matter only for such agents. */
export const edits = (agent: AgentKind): boolean => agent === 'sculptor' || agent === 'policy'

// The result of a finished sample that stays in memory: its record without the long texts.

export type SampleAnswer = Omit<SampleRecord, 'talks' | 'truth' | 'answer' | 'judgement'>
export type ItemResult = SampleAnswer | ErrorRecord

export function resultOf(record: LogRecord): ItemResult {
  if (record.kind === 'error') return record
  const rest: Partial<SampleRecord> & SampleAnswer = { ...record }
  delete rest.talks
  delete rest.truth
  delete rest.answer
  delete rest.judgement
  return rest
}

// Below: the header of a log: all facts about a run that are known before its first sample.

export interface HeaderOptions {
  readonly command: string
  readonly engine: EngineInfo
  /** The engine's options that change answers and differ from the defaults. Plain JSON. Default: none. */
  readonly settings?: Readonly<Record<string, unknown>>
  /** SHA-256 of the model's file (`modelFingerprint`); null for a model on another server. */
  readonly fingerprint: string | null
  readonly embedder: string | null
  readonly judge: string | null
  readonly seed: number
  /** The run's sampling options; each task has further ones of its own. Plain JSON. */
  readonly sampling: Readonly<Record<string, unknown>>
  readonly contracts: readonly ContractChoice[]
  readonly tasks: readonly Task[]
  readonly agents: readonly EvalAgent[]
  /** Whether the model was trained for an agent's prompts on a task; null if unknown. */
  readonly trained: ((agent: AgentKind, task: TaskName) => boolean) | null
}

/** Returns the header. Makes the first and the last sample of every task, to hash them. @throws KvfoldError eval/bad-data */
export async function headerOf(options: HeaderOptions): Promise<LogHeader> {
  const { command, engine, fingerprint, embedder, judge, seed, sampling, contracts, tasks, agents, trained } = options
  const { settings = {} } = options
  return {
    kind: 'header',
    version: LOG_VERSION,
    ...occasion(command),
    model: { name: engine.model, fingerprint },
    engine: {
      ...{ engine: engine.engine, release: engine.release, context: engine.context },
      ...(Object.keys(settings).length === 0 ? {} : { settings: { ...settings } }),
    },
    embedder,
    judge,
    seed,
    sampling: { ...sampling },
    contracts: [...contracts],
    tasks: await Promise.all(tasks.map(taskOf)),
    agents: agents.map((agent) => agentOf(agent, tasks, trained)),
  }
}

/** Returns this process's program version, commit, date, command and machine, for the records that it makes. */
export const occasion = (command: string): Pick<LogHeader, 'kvfold' | 'commit' | 'date' | 'command' | 'machine'> => ({
  kvfold: kvfoldVersion(),
  commit: commitOf(ROOT),
  date: new Date().toISOString(),
  command,
  machine: machine(),
})

function agentOf(
  { kind, title, options }: EvalAgent,
  tasks: readonly Task[],
  trained: HeaderOptions['trained'],
): LogHeader['agents'][number] {
  const about = { agent: kind, title, options: { ...options } }
  if (trained === null) return { ...about, trained: null }
  const names = [...new Set(tasks.map(({ spec }) => spec.task))]
  const trainedTasks = names.filter((task) => trained(kind, task))
  return { ...about, trained: trainedTasks.length === names.length, trainedTasks }
}

/** The package's root, three folders above this file both in `src` and in `dist`. */
const ROOT = fileURLToPath(new URL('../../../', import.meta.url))

export const kvfoldVersion = (): string => packageFacts().version

/** Returns the properties of this machine on which times depend. `memory` is in bytes. */
function machine(): LogHeader['machine'] {
  return {
    cpu: cpus()[0]?.model.trim() ?? 'unknown',
    cores: availableParallelism(),
    memory: totalmem(),
    os: `${platform()} ${release()} ${arch()}`,
    node: process.version,
  }
}

async function taskOf(task: Task): Promise<LogHeader['tasks'][number]> {
  const { spec, title, differs, size } = task
  const hash = createHash('sha256')
  for (const index of new Set(size === 0 ? [] : [0, size - 1])) hash.update(JSON.stringify(await task.sample(index)))
  return {
    task: spec.task,
    options: { ...spec.options },
    title,
    differs: [...differs],
    size,
    samples: hash.digest('hex'),
  }
}

// Below: reads the commit from the checkout's files, because git may not be installed.

/**
 * Returns the commit that HEAD names in the checkout in `folder`; null if there is no checkout, as in an installed package. Uncommitted
 * changes are ignored.
 */
export function commitOf(folder: string): string | null {
  try {
    const git = join(folder, '.git')
    const own = statSync(git).isDirectory() ? git : resolve(folder, after(readFileSync(git, 'utf8'), 'gitdir: '))
    const head = readFileSync(join(own, 'HEAD'), 'utf8').trim()
    return head.startsWith('ref: ') ? hashOf(after(head, 'ref: '), own) : hash(head)
  } catch {
    return null
  }
}

/**
 * Returns a branch's commit. `own`: the checkout's git folder. The branches of a linked worktree are in the folder that `commondir` names.
 */
function hashOf(branch: string, own: string): string | null {
  const common = textIn(join(own, 'commondir'))
  const folders = common === null ? [own] : [own, resolve(own, common.trim())]
  for (const folder of folders) {
    const loose = textIn(join(folder, branch))
    if (loose !== null) return hash(loose.trim())
    const packed = textIn(join(folder, 'packed-refs'))
      ?.split('\n')
      .find((line) => line.endsWith(` ${branch}`))
    if (packed !== undefined) return hash(packed.slice(0, packed.indexOf(' ')))
  }
  return null
}

function textIn(path: string): string | null {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return null
  }
}

const hash = (text: string): string | null => (/^[0-9a-f]{40,64}$/.test(text) ? text : null)

const after = (text: string, prefix: string): string => (text.startsWith(prefix) ? text.slice(prefix.length).trim() : '')
