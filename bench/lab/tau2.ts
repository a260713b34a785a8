/**
 * Runs the real harness of tau2-bench (v0.2.0) against the server, with each way of managing the context: whether the server understands
 * every request, and what it costs. The harness, its tasks, tools and reward are the originals. What customer and agent say comes from the
 * task's own solution (no model that fits this machine could do it), over a real engine that computes every prompt. So the reward shows
 * that calls, results and folds arrive correctly, and says nothing about a model. The Python environment is made once, outside the
 * repository.
 * `npm run --silent bench -- tau2 --checkout <tau2-bench at v0.2.0> [--domain retail] [--tasks 5] [--acm off,u-fold,resum,tools] [--model
 * path] [--context 32768] [--contract splice] [--json] [--write name]`
 */
import { execFile } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync } from 'node:fs'
import type { ServerResponse } from 'node:http'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { parseArgs, promisify } from 'node:util'
import { extractionSchema, memorySchema } from '../../src/runtime/agents/u-fold/helpers.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import type { EngineRequest } from '../../src/runtime/engine/engine.js'
import { type ScriptedReply, SpokenEngine, type Teacher } from '../../src/lab/taught-engine.js'
import { Recorder } from '../../src/lab/recorder.js'
import { linesWith } from '../../src/lab/service/dialogue.js'
import { number, table, terminal } from '../../src/runtime/figures/table.js'
import { count } from '../../src/runtime/figures/numbers.js'
import type { Contract } from '../../src/runtime/core/contract.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { Server } from '../../src/runtime/server/app.js'
import type { Acm } from '../../src/runtime/server/ask.js'
import { ThreadService } from '../../src/runtime/server/service.js'
import { SETTINGS } from './contracts/stage.js'
import { Watch } from './contracts/watch.js'
import { beginRecord, keep, OPTIONS } from '../record.js'

const run = promisify(execFile)

/** The newest version that works with v0.2.0. Later ones need packages that v0.2.0 does not declare. */
const LITELLM = 'litellm==1.74.9'
/** Steps of the solution after which the agent asks whether to continue. These questions turn a task into a dialogue. */
const AT_ONCE = 2
const LAST = 'That is all I can do.'

interface Task {
  readonly id: string
  readonly user_scenario: { readonly instructions: { readonly reason_for_call: string } }
  readonly evaluation_criteria: {
    readonly actions: readonly { readonly name: string; readonly arguments: Record<string, unknown> }[] | null
    readonly communicate_info: readonly string[] | null
  }
}

/** The file that the harness writes. */
interface Results {
  readonly simulations: readonly {
    readonly task_id: string
    readonly termination_reason: string
    readonly reward_info: { readonly reward: number } | null
    readonly messages: readonly { readonly role: string; readonly tool_calls: readonly unknown[] | null }[]
  }[]
}

interface Row {
  readonly acm: Acm
  readonly tasks: number
  readonly rewarded: number
  readonly requests: number
  /** Number of requests that the server did not answer. */
  readonly refused: number
  readonly toolCalls: number
  readonly turns: number
  readonly shown: number
  readonly computed: number
  /** How many dialogues ended in each way, by tau2's names. */
  readonly ends: Readonly<Record<string, number>>
}

export async function tau2(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      checkout: { type: 'string' },
      domain: { type: 'string', default: 'retail' },
      tasks: { type: 'string', default: '5' },
      acm: { type: 'string', default: 'off,u-fold,resum,tools' },
      context: { type: 'string', default: '32768' },
      contract: { type: 'string', default: 'splice' },
      ...OPTIONS,
    },
  })
  const { checkout, domain } = values
  if (checkout === undefined || !existsSync(join(checkout, 'src/tau2')))
    throw new Error('--checkout: give the folder of a checkout of github.com/sierra-research/tau2-bench at v0.2.0.')
  const harness = { checkout, domain, command: await installed(checkout) }
  const all = JSON.parse(readFileSync(join(checkout, 'data/tau2/domains', domain, 'tasks.json'), 'utf8')) as Task[]
  const tasks = all.filter(isPlayable).slice(0, Number(values.tasks))
  const watch = new Watch()
  const native = await openNative({ gpu: 'cpu' })
  // The record must not contain the checkout's path on this machine.
  const origin = beginRecord(
    ['tau2', ...args.map((arg) => (arg === checkout ? '<checkout>' : arg))],
    values.model,
    native.backend.release,
    SETTINGS.threads,
  )
  const rows: Row[] = []
  for (const acm of values.acm.split(',') as Acm[]) {
    if (watch.over()) break
    watch.say(`${domain}, ${tasks.length} tasks, acm ${acm}`)
    const engine = await LlamaEngine.load(native, values.model, {
      ...SETTINGS,
      contract: values.contract as Contract,
      cells: Number(values.context),
      slots: 2,
    })
    try {
      rows.push(await played(harness, tasks, acm, engine))
    } finally {
      await engine.dispose()
    }
  }
  watch.end()
  const result = { ...origin(), harness: 'tau2-bench v0.2.0', domain, tasks: tasks.map(({ id }) => id), rows }
  await keep(values.write, result)
  if (values.json) console.log(JSON.stringify(result))
  else for (const line of terminal(tableOf(rows), '─')) console.log(line)
}

interface Harness {
  readonly checkout: string
  readonly domain: string
  /** The path of the program `tau2`. */
  readonly command: string
}

/** Runs the harness once against a new server. */
async function played(
  { checkout, domain, command }: Harness,
  tasks: readonly Task[],
  acm: Acm,
  engine: LlamaEngine,
): Promise<Row> {
  const recorder = new Recorder(engine)
  const agent = new SpokenEngine(recorder, agentOf(tasks))
  const customer = new SpokenEngine(engine, customerOf(tasks))
  const models = Object.entries({ agent, customer }).map(([name, each]) => ({
    name,
    slots: 1,
    load: () => Promise.resolve(each),
  }))
  const service = await ThreadService.open({ models, defaults: { acm } })
  const server = await Server.create({ service, version: 'bench', logLevel: 'silent' })
  const statuses: number[] = []
  server.app.server.on('request', (_, response: ServerResponse) => {
    response.on('finish', () => statuses.push(response.statusCode))
  })
  const name = `kvfold-${domain}-${acm}-${process.pid}`
  const file = join(checkout, 'data/simulations', `${name}.json`)
  try {
    const url = await server.listen({ host: '127.0.0.1', port: 0 })
    const settings = JSON.stringify({ api_base: `${url}/v1`, api_key: 'none', temperature: 0 })
    const words = [
      ...['run', '--domain', domain, '--task-ids', ...tasks.map(({ id }) => id), '--save-to', name],
      ...['--agent-llm', 'openai/agent', '--agent-llm-args', settings],
      ...['--user-llm', 'openai/customer', '--user-llm-args', settings],
      ...['--max-concurrency', '1', '--max-steps', '100'],
    ]
    const env = { ...process.env, TAU2_DATA_DIR: join(checkout, 'data'), LITELLM_LOCAL_MODEL_COST_MAP: 'True' }
    await run(command, words, { env, maxBuffer: 2 ** 28 })
    const { simulations } = JSON.parse(readFileSync(file, 'utf8')) as Results
    const messages = simulations.flatMap((simulation) => simulation.messages)
    const ends = new Map<string, number>()
    for (const { termination_reason: end } of simulations) ends.set(end, (ends.get(end) ?? 0) + 1)
    return {
      acm,
      tasks: simulations.length,
      rewarded: simulations.filter(({ reward_info: info }) => info?.reward === 1).length,
      requests: statuses.length,
      refused: statuses.filter((status) => status !== 200).length,
      toolCalls: messages.reduce(
        (total, { role, tool_calls: calls }) => total + (role === 'assistant' ? (calls?.length ?? 0) : 0),
        0,
      ),
      turns: messages.filter(({ role }) => role === 'user').length,
      shown: recorder.cost().work.shown,
      computed: recorder.cost().work.submitted,
      ends: Object.fromEntries(ends),
    }
  } finally {
    rmSync(file, { force: true })
    await server.close()
  }
}

const tableOf = (rows: readonly Row[]) =>
  table(
    [
      { title: 'acm', text: ({ acm }: Row) => acm },
      number('tasks', ({ tasks }: Row) => String(tasks)),
      number('rewarded', ({ rewarded }: Row) => String(rewarded)),
      number('requests', ({ requests }: Row) => String(requests)),
      number('not 200', ({ refused }: Row) => String(refused)),
      number('tool calls', ({ toolCalls }: Row) => String(toolCalls)),
      number('user inputs', ({ turns }: Row) => String(turns)),
      number('shown', ({ shown }: Row) => count(shown)),
      number('computed', ({ computed }: Row) => count(computed)),
      {
        title: 'ended',
        text: ({ ends }: Row) =>
          Object.entries(ends)
            .map(([end, times]) => `${times} ${end}`)
            .join(', '),
      },
    ],
    rows,
  )

/** Returns the path of `tau2`. The first call installs the harness in its own Python environment; later calls find it there. */
async function installed(checkout: string): Promise<string> {
  const folder = join(process.env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache'), 'kvfold', 'tau2')
  const command = join(folder, 'bin', 'tau2')
  if (existsSync(command)) return command
  process.stderr.write(`installing tau2 in ${folder}\n`)
  mkdirSync(folder, { recursive: true })
  await run('python3', ['-m', 'venv', folder])
  await run(join(folder, 'bin', 'pip'), ['install', '--quiet', checkout, LITELLM])
  return command
}

// The scripted customer and agent. Like a model, they know only the request.

const wordsOf = ({ user_scenario: { instructions } }: Task): string => instructions.reason_for_call.replace(/\s+/g, ' ').trim()

/** Returns whether the customer's words are unique, because they identify the task. */
const isPlayable = (task: Task, at: number, all: readonly Task[]): boolean =>
  wordsOf(task) !== '' && all.findIndex((other) => wordsOf(other) === wordsOf(task)) === at

const taskIn = (tasks: readonly Task[], { messages }: EngineRequest): Task | undefined => {
  const said = messages.map(({ content }) => content.replace(/\s+/g, ' '))
  return tasks.find((task) => said.some((content) => content.includes(wordsOf(task))))
}

/** Says the task's scenario first, then "yes" until the agent has finished. */
function customerOf(tasks: readonly Task[]): Teacher {
  return (request): ScriptedReply | null => {
    const task = taskIn(tasks, request)
    if (task === undefined) return null
    const { messages } = request
    if (!messages.some(({ role }) => role === 'assistant')) return { content: wordsOf(task) }
    return { content: messages.at(-1)?.content.includes(LAST) === true ? 'Thank you. ###STOP###' : 'Yes, please go on.' }
  }
}

/**
 * Carries out the task's own solution, two calls at a time. With context tools it makes one search first. A request for a summary gets
 * notes on the steps so far.
 */
function agentOf(tasks: readonly Task[]): Teacher {
  return (request): ScriptedReply | null => {
    const task = taskIn(tasks, request)
    if (task === undefined) return null
    const { messages, tools = [], kind, schema } = request
    const { actions, communicate_info: told } = task.evaluation_criteria
    const steps = actions ?? []
    const called = messages.flatMap(({ toolCalls = [] }) => toolCalls)
    const done = called.filter(({ name }) => steps.some((step) => step.name === name)).length
    if (kind === 'summary') {
      const notes = {
        summary: `${wordsOf(task)} ${done} of ${steps.length} steps are done.`,
        todo: steps.slice(done).map(({ name }) => name),
      }
      if (schema === memorySchema) return { content: JSON.stringify(notes) }
      const values = steps.slice(done).flatMap((step) => Object.values(step.arguments).map(String))
      if (schema === extractionSchema)
        return { content: linesWith(request, (line) => values.some((value) => line.includes(value))) }
      return { content: notes.summary }
    }
    const next = steps[done]
    if (next === undefined) return { content: `${(told ?? []).join(', ')} ${LAST}`.trim() }
    const searched = called.some(({ name }) => name === 'search_context')
    if (!searched && tools.some(({ name }) => name === 'search_context'))
      return { calls: [{ name: 'search_context', arguments: { query: 'order', role: 'all' } }] }
    const pauses = done > 0 && done % AT_ONCE === 0 && messages.at(-1)?.role === 'tool'
    return pauses ? { content: `${done} of ${steps.length} steps are done. Shall I go on?` } : { calls: [next] }
  }
}
