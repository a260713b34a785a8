/** Owns a run of `kvfold eval`, from its options to the table: what is loaded, in which order, and given back. */
import { availableParallelism } from 'node:os'
import { KvfoldError } from '../../core/errors.js'
import type { Engine } from '../../engine/engine.js'
import { LlamaEngine } from '../../engine/llama.js'
import { modelFingerprint } from '../../engine/model-fingerprint.js'
import { readKey } from '../../engine/remote/key.js'
import { RemoteEngine } from '../../engine/remote/remote.js'
import { isBuiltinTrained, openAgent } from '../../eval/agents/open.js'
import type { LogHeader } from '../../eval/log.js'
import { headerOf } from '../../eval/run/header.js'
import type { Judge } from '../../eval/run/judge.js'
import { LogWriter } from '../../eval/run/log-writer.js'
import { itemsOf, type Result } from '../../eval/run/plan.js'
import { openBench } from '../../eval/run/pool.js'
import { run, type RunOptions } from '../../eval/run/runner.js'
import type { Task } from '../../eval/task.js'
import { openTask } from '../../eval/tasks/open.js'
import { BUILTIN } from '../builtin.js'
import { engineSource } from '../engine-source.js'
import { given, type ModelFlags } from '../options.js'
import { loadEngine } from '../runtime.js'
import type { Shell } from '../shell.js'
import { embedderFor } from './embedder.js'
import type { EvalFlags } from './flags.js'
import { machineLine, ProgressLine, remarks, tableLines } from './lines.js'
import { placeOf } from './place.js'
import { sized } from './sizes.js'
import { namedOptions, type AskedTask } from './specs.js'

/** Samples at once. */
const SLOTS = 4
/**
 * Every token looks over all cells of its cache, others' conversations too; with a model this small that is most of the work (a fifth more CPU time
 * with 2 or 4 slots). So each sample has an engine of its own, on a core of its own.
 */
const OWN_ENGINES = 4

const AGENTS = ['plain', 'sculptor'] as const

/** Samples of a run from which on they are made and scored in a thread of their own: starting it takes longer than a few of them. */
const MANY = 50

/** Something to give back at the end; in the other order. */
type Closing = { dispose(): Promise<unknown> } | { close(): Promise<unknown> }

export async function evaluate(asked: readonly AskedTask[], flags: EvalFlags, shell: Shell): Promise<void> {
  const { notes, interrupt } = shell
  const open: Closing[] = []
  try {
    const { contract: contracts, seed } = flags
    const kinds = flags.agent ?? AGENTS
    const agentOptions = namedOptions('--agent-option', kinds, flags.agentOption ?? [])
    const agents = kinds.map((kind) => openAgent(kind, agentOptions.get(kind)))
    const modelFlags: ModelFlags = { ...flags, contract: contracts[0] ?? 'exact' }
    const isBuiltin = flags.engine === undefined && flags.model === BUILTIN
    const { engines, slots } = await enginesFor(flags, modelFlags, isBuiltin, open, shell)
    const engine = engines[0]!
    const tasks = await Promise.all(asked.map(async (one) => within(await openTask(await sized(one, engine, openTask)), flags)))
    const embedder = await embedderFor(kinds, flags.embedder, modelFlags, engine, shell)
    if (embedder !== null) open.push(embedder)
    const judge = await judgeFor(tasks, flags, engine, shell)
    if (judge !== null && judge.engine !== engine) open.push(judge.engine)

    const local = engine instanceof LlamaEngine
    const header = await headerOf({
      command: commandLine(),
      engine: engine.info,
      fingerprint: local ? (await modelFingerprint(engine.modelInfo.path)).toString('hex') : null,
      embedder: embedder?.name ?? null,
      judge: judge?.name ?? null,
      sampling: { temperature: flags.temperature ?? 'of each task', maxTokens: flags.maxTokens ?? 'of each task' },
      trained: isBuiltin ? isBuiltinTrained : null,
      ...{ seed, contracts, tasks, agents },
    })
    const total = itemsOf({ sizes: tasks.map(({ size }) => size), agents: kinds, contracts }).length
    const path = flags.log ?? (await placeOf(header, total))
    const log = await LogWriter.open(path, header)
    open.push(log)
    const bench = openBench(tasks, total < MANY ? 0 : 1)
    open.push(bench)
    sayWhere(log, total, shell, flags.json === true)
    const results = await running(
      {
        tasks,
        agents,
        contracts,
        engines,
        slots,
        embedder,
        judge,
        seed,
        bench,
        log,
        cells: local ? engine.info.context : null,
        signal: interrupt.signal,
      },
      header,
      flags,
      shell,
    )
    notes.close()
    if (interrupt.interrupted) notes.print(`What is finished is kept in ${path}; the same command goes on from there.`)
    else conclude(header, results, path, flags, shell)
  } finally {
    notes.close()
    for (const one of open.reverse()) await ('dispose' in one ? one.dispose() : one.close())
  }
}

async function running(
  options: Omit<RunOptions, 'onProgress'>,
  header: LogHeader,
  flags: EvalFlags,
  { notes }: Shell,
): Promise<readonly Result[]> {
  const progress = new ProgressLine(
    notes,
    flags.json === true,
    header.tasks.map(({ title }) => title),
  )
  return run({ ...options, onProgress: progress.say })
}

/** The engines, which are added to `open`, and the slots of each. */
async function enginesFor(
  flags: EvalFlags,
  modelFlags: ModelFlags,
  isBuiltin: boolean,
  open: Closing[],
  { notes, interrupt }: Shell,
): Promise<Pick<RunOptions, 'engines' | 'slots'>> {
  const slots = isBuiltin ? 1 : (flags.slots ?? SLOTS)
  const remote = await engineSource(flags, slots, notes, interrupt.signal)
  const engines: Engine[] = []
  const wanted = isBuiltin ? (flags.slots ?? Math.min(OWN_ENGINES, availableParallelism())) : 1
  while (engines.length < wanted) {
    const engine = remote === null ? await loadEngine(modelFlags, notes, interrupt.signal, { slots }) : await remote.load()
    engines.push(engine)
    open.push(engine)
  }
  return { engines, slots }
}

/** Null where no task is judged. @throws KvfoldError cli/bad-usage, remote/* */
async function judgeFor(
  tasks: readonly Task[],
  flags: EvalFlags,
  engine: Engine,
  { notes, interrupt }: Shell,
): Promise<Judge | null> {
  if (flags.judge === undefined && flags.judgeModel !== undefined)
    throw new KvfoldError('cli/bad-usage', '--judge-model belongs to --judge, which names a server; add it.')
  if (tasks.every(({ judging }) => judging === undefined)) return null
  if (flags.judge === undefined) {
    notes.prose('Answers are judged by the model under evaluation itself; --judge names another.', notes.colours.yellow)
    return { name: `${engine.info.model} (the model itself)`, engine }
  }
  const judge = await RemoteEngine.connect({
    url: flags.judge,
    key: readKey({}),
    signal: interrupt.signal,
    ...given({ model: flags.judgeModel }),
  })
  return { name: `${judge.info.model} at ${new URL(flags.judge).host}`, engine: judge }
}

/** The task with what was asked for instead of its own limits. */
const within = (task: Task, { temperature = task.temperature, maxTokens = task.maxTokens }: EvalFlags): Task => ({
  ...task,
  temperature,
  maxTokens: Math.min(maxTokens, task.maxTokens),
})

/** What is in a URL beside its address is nobody's business. */
const commandLine = (): string => ['kvfold', ...process.argv.slice(2)].join(' ').replace(/(\/\/)[^/\s@]+@/g, '$1')

function sayWhere(log: LogWriter, total: number, { notes }: Shell, quiet: boolean): void {
  const done = log.before.filter(({ kind }) => kind === 'sample').length
  if (log.torn) notes.prose(`The last line of ${log.path} was not whole and is done again.`)
  if (quiet) return
  if (done === 0) notes.prose(`Records go to ${log.path}.`, notes.colours.dim)
  else if (done < total) notes.prose(`Going on in ${log.path}, which has ${done} of ${total} samples.`, notes.colours.dim)
  else notes.prose(`${log.path} has all of this run already; nothing is computed.`)
}

/** @throws KvfoldError eval/too-many-errors when nothing was answered */
function conclude(header: LogHeader, results: readonly Result[], path: string, { json }: EvalFlags, { out }: Shell): void {
  const last = results.at(-1)
  if (last?.kind === 'error' && results.every(({ kind }) => kind === 'error'))
    throw new KvfoldError(
      'eval/too-many-errors',
      `None of ${results.length} samples could be answered, the last one because: ${last.message}`,
    )
  if (json === true) {
    out.print(JSON.stringify(machineLine(header, results, path)))
    return
  }
  for (const line of tableLines(header, results, out.unicode ? '─' : '-')) out.print(line)
  out.print()
  for (const remark of remarks(header, results)) out.prose(remark, out.colours.dim)
  out.print()
  out.print(`Log: ${path}`)
}
