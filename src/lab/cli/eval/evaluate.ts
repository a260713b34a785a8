/** Runs `kvfold eval`, from its options to the printed table. Opens engines, tasks, judge and log in order, and closes them at the end. */
import { definedFields } from '../../../runtime/core/json.js'
import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { KvfoldError } from '../../../runtime/core/errors.js'
import type { Engine } from '../../../runtime/engine/engine.js'
import { Embedder } from '../../../runtime/engine/embedder.js'
import { LlamaEngine } from '../../../runtime/engine/llama.js'
import { onnxNamed } from '../../../runtime/engine/onnx-model.js'
import { readKey } from '../../../fleet/engines/endpoint.js'
import { RemoteEngine } from '../../../fleet/engines/remote.js'
import type { AgentKind } from '../../agent.js'
import { fallbackEmbedder, ggufEmbedder, onnxEmbedder, type OwnedTextEmbedder } from '../../agents/embedders.js'
import { embeddingAgents, isBuiltinTrained, openAgent } from '../../agents/open.js'
import { type LogHeader, runLog } from '../../log.js'
import { headerOf, itemsOf, type ItemResult } from '../../run/plan.js'
import type { Judge } from '../../run/trial.js'
import { isTaken } from '../../run/json-lines.js'
import { logLines, nameOf, openRunLog, type RunLogFile } from '../../run/log-file.js'
import { stepOf } from '../../recorder.js'
import { openBench } from '../../run/pool.js'
import { run, type RunOptions } from '../../run/runner.js'
import type { Task, TaskSpec } from '../../task.js'
import { openTask } from '../../tasks/open.js'
import { BUILTIN } from '../../../runtime/cli/builtin.js'
import { engineSource, isRemote } from '../../../runtime/cli/remote-engines.js'
import { embedderOptions, loadEngine, loadReader, weightsOf } from '../../../runtime/cli/runtime.js'
import { answerSettings, type ModelFlags } from '../../../runtime/cli/options.js'
import { commandOf, type Shell } from '../../../runtime/cli/shell.js'
import { type AskedTask, type EvalFlags, namedOptions } from './flags.js'
import { Follower } from './follow.js'
import { cellText, machineLine, remarks, resultText, tableLines } from './lines.js'
import { ProgressLine } from '../progress.js'

/** The default number of samples that run at once, for models other than the built-in one. */
const SLOTS = 4
/**
 * The default number of engines for the built-in model, if there are as many CPU cores. Each engine answers one sample at a time. In slots
 * of one shared engine, every token would also read the cells of the other conversations. For so small a model that costs a fifth more CPU
 * time (measured with 2 and 4 slots).
 */
const OWN_ENGINES = 4

const AGENTS = ['plain', 'sculptor'] as const

/** From this many samples on, a worker thread makes and scores them. For fewer, starting the thread takes longer than the work. */
const MANY = 50

/** A resource of the run. At the end they are closed in reverse order of opening. */
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
    const isBuiltin = !isRemote(flags) && flags.model === BUILTIN
    const { engines, slots } = await enginesFor(flags, modelFlags, isBuiltin, open, shell)
    const engine = engines[0]!
    const tasks = await Promise.all(asked.map(async (one) => within(await openTask(await sized(one, engine, openTask)), flags)))
    const embedder = await embedderFor(kinds, flags.embedder, modelFlags, engine, shell)
    if (embedder !== null) open.push(embedder)
    const judge = await judgeFor(tasks, flags, engine, shell)
    if (judge !== null && judge.engine !== engine) open.push(judge.engine)

    const header = await headerOf({
      command: commandOf(shell),
      engine: engine.info,
      settings: answerSettings(flags),
      fingerprint: await weightsOf(engine),
      embedder: embedder?.name ?? null,
      judge: judge?.name ?? null,
      sampling: { temperature: flags.temperature ?? 'of each task', maxTokens: flags.maxTokens ?? 'of each task' },
      trained: isBuiltin ? isBuiltinTrained : null,
      ...{ seed, contracts, tasks, agents },
    })
    const total = itemsOf({ sizes: tasks.map(({ size }) => size), agents: kinds, contracts }).length
    const path = flags.log ?? (await placeOf(header, total))
    const log = await openRunLog(path, header)
    open.push(log)
    const bench = openBench(tasks, total < MANY ? 0 : 1)
    open.push(bench)
    sayWhere(log, total, shell, flags.json === true)
    const progress = new ProgressLine(notes, flags.json === true)
    const follower = flags.follow === true ? new Follower(notes) : null
    const results = await run({
      ...{ tasks, agents, contracts, engines, slots, embedder, judge, seed, bench, log },
      cells: engine instanceof LlamaEngine ? engine.info.context : null,
      signal: interrupt.signal,
      onProgress: ({ done, total: all, errors, left, last }) => {
        progress.say(done, all, { left, errors, what: last === null ? '' : resultText(header, last) })
      },
      ...(follower === null ? {} : { onStep: following(follower, header, log) }),
    })
    notes.close()
    if (interrupt.interrupted) notes.print(`${path} has the finished samples; the same command continues the run.`)
    else conclude(header, results, path, flags, shell)
  } finally {
    notes.close()
    for (const one of open.reverse()) await ('dispose' in one ? one.dispose() : one.close())
  }
}

/** Returns a function that prints each step for `--follow` and logs it at once. So the log of a killed run shows how far it came. */
const following =
  (follower: Follower, { tasks }: LogHeader, log: RunLogFile): NonNullable<RunOptions['onStep']> =>
  (item, { id, cell }, step) => {
    const { task, agent, contract } = item
    follower.say(`${tasks[task]?.title ?? ''} ${cellText(cell)}, ${id}, ${agent}, ${contract}`, step)
    // Ignore the error: if the log cannot be written, writing the sample's record fails too, and that error is reported.
    log.add({ kind: 'step', ...item, id, cell: { ...cell }, step: stepOf(step) }).catch(() => undefined)
  }

/** Loads the engines and adds them to `open`. Returns them, and how many slots each has. */
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

/** The value of `--judge` that makes the evaluated model the judge. */
const SELF = 'self'

/** Opens the judge; null if no task needs one. @throws KvfoldError cli/bad-usage, remote/* */
async function judgeFor(
  tasks: readonly Task[],
  flags: EvalFlags,
  engine: Engine,
  { notes, interrupt }: Shell,
): Promise<Judge | null> {
  if ((flags.judge === undefined || flags.judge === SELF) && flags.judgeModel !== undefined)
    throw new KvfoldError('cli/bad-usage', '--judge-model needs --judge with the URL of a server; add it.')
  const judged = tasks.find(({ judging }) => judging !== undefined)
  if (judged === undefined) return null
  if (flags.judge === undefined)
    throw new KvfoldError(
      'cli/bad-usage',
      `A model must judge the answers of ${judged.title}; name it with --judge <url>. With --judge self the evaluated model judges its own answers, and the verdicts cannot be compared with those of other models.`,
    )
  if (flags.judge === SELF) {
    notes.prose('The evaluated model judges its own answers.', notes.colours.yellow)
    return { name: `${engine.info.model} (the model itself)`, engine }
  }
  const judge = await RemoteEngine.connect({
    url: flags.judge,
    key: readKey({}),
    signal: interrupt.signal,
    ...definedFields({ model: flags.judgeModel }),
  })
  return { name: `${judge.info.model} at ${new URL(flags.judge).host}`, engine: judge }
}

/** Returns the task with `--temperature` if it is given. `--max-tokens` can only lower the task's `maxTokens`. */
const within = (task: Task, { temperature = task.temperature, maxTokens = task.maxTokens }: EvalFlags): Task => ({
  ...task,
  temperature,
  maxTokens: Math.min(maxTokens, task.maxTokens),
})

function sayWhere(log: RunLogFile, total: number, { notes }: Shell, quiet: boolean): void {
  const done = log.before.filter(({ kind }) => kind === 'sample').length
  if (log.torn) notes.prose(`The last line of ${log.path} was not complete; the run repeats its sample.`)
  if (quiet) return
  if (done === 0) notes.prose(`Records go to ${log.path}.`, notes.colours.dim)
  else if (done < total)
    notes.prose(`The run continues in ${log.path}, which has ${done} of ${total} samples.`, notes.colours.dim)
  else notes.prose(`${log.path} already has all samples of this run; the command computes nothing.`)
}

/** Prints the results. @throws KvfoldError eval/too-many-errors when every sample ended with an error */
function conclude(header: LogHeader, results: readonly ItemResult[], path: string, { json }: EvalFlags, { out }: Shell): void {
  const last = results.at(-1)
  if (last?.kind === 'error' && results.every(({ kind }) => kind === 'error'))
    throw new KvfoldError('eval/too-many-errors', `All ${results.length} samples failed. The last error: ${last.message}`)
  if (json === true) {
    out.print(JSON.stringify(machineLine(header, results, path)))
    return
  }
  for (const line of tableLines(header, results, out.rule)) out.print(line)
  out.print()
  for (const remark of remarks(header, results)) out.prose(remark, out.colours.dim)
  out.print()
  out.print(`Log: ${path}`)
}

// Below: the default path of a run's log. A repeated command resumes its unfinished log; if that log is finished, it begins a new one.

export const FOLDER = 'kvfold-eval'

/**
 * Returns the path of the run's log. Tries numbered names, and takes the first that is free or has an unfinished log of the same run. Skips
 * a log that another running process writes.
 * @param total the number of samples in the whole run
 * @throws KvfoldError eval/bad-log when a file with such a name is not a log
 */
export async function placeOf(header: LogHeader, total: number, folder = FOLDER): Promise<string> {
  const print = createHash('sha256')
    .update(JSON.stringify(runLog.essence(header)))
    .digest('hex')
    .slice(0, 8)
  const tasks = [...new Set(header.tasks.map(({ task }) => task))].join('+')
  for (let number = 1; ; number++) {
    const path = join(folder, `${tasks}-${print}${number === 1 ? '' : `-${number}`}.jsonl`)
    if (!existsSync(path)) return path
    if (isTaken(path)) continue
    if ((await answeredIn(path)) < total) return path
  }
}

async function answeredIn(path: string): Promise<number> {
  const names = new Set<string>()
  for await (const { line } of logLines(path)) if (line.kind === 'sample') names.add(nameOf(line))
  return names.size
}

// Below: the option `--sizes`, which chooses a task's lengths so that its prompts have about these numbers of the model's tokens.

export type OpenTask = (spec: TaskSpec) => Promise<Task>

/** Counts the tokens of the first sample with these task options. All samples of a cell have about the same length. */
type Measure = (options: TaskSpec['options']) => Promise<number>

/**
 * Returns the task's spec with lengths that give prompts of the requested sizes. @throws KvfoldError cli/bad-usage for a size that is too
 * small
 */
export async function sized({ spec, sizes }: AskedTask, engine: Engine, openTask: OpenTask): Promise<TaskSpec> {
  if (sizes.length === 0) return spec
  const measure: Measure = async (options) => {
    const task = await openTask({ task: spec.task, options: { ...spec.options, ...options, samples: 1 } })
    return engine.count((await task.sample(0)).messages, [])
  }
  const lengths = spec.task === 'pi-llm' ? await updatesFor(sizes, measure) : await charactersFor(sizes, measure)
  return { task: spec.task, options: { ...spec.options, ...lengths } }
}

/** The most updates per key that the search tries. No word list has as many values. */
const MOST_UPDATES = 10_000

/** Returns PI-LLM's option `updates`: for each size, the most updates per key with which the prompt does not exceed the size. */
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
    // The length is nearly linear in the updates, so the first guess is close, and the loops correct it.
    const step = (await tokens(2)) - one
    let n = Math.max(1, Math.min(MOST_UPDATES, 1 + Math.floor((size - one) / step)))
    while (n > 1 && (await tokens(n)) > size) n--
    while (n < MOST_UPDATES && (await tokens(n + 1)) <= size) n++
    updates.push(n)
  }
  return { updates: [...new Set(updates)] }
}

/** The most rounds in which `charactersFor` corrects the characters per token, which vary a little with the length of the text. */
const ROUNDS = 4

/** Returns the options `lengths` and `charsPerToken` of other tasks, such that no prompt exceeds its size. */
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

// Below: the option `--embedder`, which names the embedding model for agents that search by similarity.

/**
 * Opens the embedder; null if no agent needs one. The caller disposes of it before the engine.
 * @throws KvfoldError cli/bad-usage when the user must name one with `--embedder`; and the errors of loading an embedder
 */
export async function embedderFor(
  agents: readonly AgentKind[],
  model: string | undefined,
  flags: ModelFlags,
  engine: Engine,
  { notes, interrupt }: Shell,
): Promise<OwnedTextEmbedder | null> {
  const needing = agents.filter((agent) => embeddingAgents.includes(agent))
  if (needing.length === 0) {
    if (model !== undefined)
      notes.prose('This run does not use --embedder, because no agent searches by meaning.', notes.colours.dim)
    return null
  }
  if (model === undefined) {
    if (engine instanceof LlamaEngine) return fallbackEmbedder(engine, embedderOptions(flags))
    throw new KvfoldError(
      'cli/bad-usage',
      `${needing.join(' and ')} need vectors of texts; name a model that makes them with --embedder.`,
    )
  }
  return namedEmbedder(model, flags, { notes, interrupt })
}

/** Opens the embedder that an option names: `onnx:<model>`, the folder of an ONNX model, or a GGUF file. @throws KvfoldError model/* */
export async function namedEmbedder(
  model: string,
  flags: ModelFlags,
  { notes, interrupt }: Pick<Shell, 'notes' | 'interrupt'>,
): Promise<OwnedTextEmbedder> {
  const onnx = onnxNamed(model)
  if (onnx !== null) return onnxEmbedder(onnx)
  return ggufEmbedder(await loadReader(Embedder, { ...flags, model }, notes, interrupt.signal), model)
}
