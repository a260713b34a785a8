/**
 * Replays recorded dialogues of tau-bench and tau2 as scenarios. The user's messages, the tools' results and the agent's words and calls
 * come from the record. So the frameworks differ only in the work for the engine.
 */
import { createHash } from 'node:crypto'
import { extractionSchema, memorySchema } from '../../runtime/agents/u-fold/helpers.js'
import type { ClientTool } from '../../runtime/agents/toolbox.js'
import type { ToolDefinition } from '../../runtime/chat/message.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import { fieldOf, isRecord, listAt, textAt } from '../../runtime/core/json.js'
import { objectOf, readJson, writeJson, writtenEntries } from '../../runtime/core/written-json.js'
import type { EngineRequest } from '../../runtime/engine/engine.js'
import type { ScriptedReply, Teacher } from '../taught-engine.js'
import type { Answered } from '../agent.js'
import type { TurnAsk, Environment } from '../episode/episode.js'
import type { Score } from '../task.js'
import { linesWith, type Scenario, searchedFirst, told } from './dialogue.js'

interface RecordedCall {
  readonly name: string
  readonly arguments: Readonly<Record<string, unknown>>
  readonly result: string
}

interface ReplayedStep {
  readonly content: string
  readonly calls: readonly RecordedCall[]
}

interface RecordedTurn {
  readonly says: string
  readonly steps: readonly ReplayedStep[]
  readonly answer: string
}

export interface RecordedDialogue {
  readonly name: string
  readonly system: string
  readonly turns: readonly RecordedTurn[]
}

/** The number of turns is rounded up to a multiple of LENGTH, so that a cell of the table holds dialogues of similar length. */
const LENGTH = 4

/**
 * Reads the recorded dialogues of a file.
 * @param json the file's text: a file of tau-bench's `historical_trajectories`, or results of tau2
 * @param source the file's name, for error messages
 * @throws KvfoldError eval/bad-data
 */
export function readDialogues(json: string, source: string): readonly RecordedDialogue[] {
  const wrong = (why: string) =>
    new KvfoldError('eval/bad-data', `${source} ${why}; give a file of tau-bench's historical_trajectories, or results of tau2.`)
  let data: unknown
  try {
    data = readJson(json)
  } catch (cause) {
    throw new KvfoldError('eval/bad-data', `${source} is not JSON.`, { cause })
  }
  const runs = Array.isArray(data) ? data : fieldOf(data, 'simulations')
  if (!Array.isArray(runs)) throw wrong('has no dialogues')
  const policy = textAt(fieldOf(fieldOf(data, 'info'), 'environment_info'), 'policy') ?? ''
  const dialogues = runs.filter(isRecord).flatMap((run, at): RecordedDialogue[] => {
    const messages = run['traj'] ?? run['messages']
    if (!Array.isArray(messages)) throw wrong(`has no messages in its dialogue ${at}`)
    const turns = turnsOf(messages.filter(isRecord))
    const system: unknown = messages.find((message: unknown) => fieldOf(message, 'role') === 'system')
    const name = [run['task_id'] ?? at, run['trial'] ?? 0].map((part) => JSON.stringify(part).replaceAll('"', '')).join('.')
    return turns.length === 0 ? [] : [{ name, system: system === undefined ? policy : contentOf(system), turns }]
  })
  if (dialogues.length === 0) throw wrong('has no dialogue in which an agent answers')
  return dialogues
}

const contentOf = (message: unknown): string => textAt(message, 'content') ?? ''

/**
 * Returns the turns that the agent answers. Leaves out what the agent says before the user's first message, and tool calls that tau2's user
 * makes.
 */
function turnsOf(messages: readonly unknown[]): RecordedTurn[] {
  const turns: { says: string; steps: ReplayedStep[]; answer: string }[] = []
  messages.forEach((message, at) => {
    const role = textAt(message, 'role')
    const calls = listAt(message, 'tool_calls').filter(isRecord)
    if (role === 'user' && calls.length === 0) turns.push({ says: contentOf(message), steps: [], answer: '' })
    const turn = turns.at(-1)
    if (role !== 'assistant' || turn === undefined) return
    if (calls.length === 0) turn.answer = contentOf(message)
    else {
      // A result is found by its position behind the call, because a call's id may occur twice in a dialogue.
      const result = (index: number) => contentOf(messages[at + 1 + index])
      turn.steps.push({
        content: contentOf(message),
        calls: calls.map((call, index) => ({ ...calledBy(call), result: result(index) })),
      })
    }
  })
  return turns.filter(({ steps, answer }) => steps.length > 0 || answer !== '')
}

function calledBy(call: Readonly<Record<string, unknown>>): Omit<RecordedCall, 'result'> {
  const of = isRecord(call['function']) ? call['function'] : call
  let given: unknown = of['arguments']
  if (typeof given === 'string') {
    try {
      given = readJson(given)
    } catch {
      given = { text: given }
    }
  }
  return { name: textAt(of, 'name') ?? '', arguments: isRecord(given) ? given : {} }
}

/**
 * Makes a scenario of each dialogue. Dialogues of similar length share a cell of the table. A dialogue may be too long for the window; the
 * framework has to cope with that.
 */
export function replayScenarios(dialogues: readonly RecordedDialogue[]): readonly Scenario[] {
  const definitions = definitionsOf(dialogues)
  return dialogues.map((dialogue, seed) => ({
    turns: LENGTH * Math.ceil(dialogue.turns.length / LENGTH),
    fields: 0,
    seed,
    about: { replay: dialogue.name, agent: 'recorded', record: printOf(dialogue, definitions) },
    open(state) {
      const environment = new RecordedEnvironment(dialogue, state)
      const tools = definitions.map((definition): ClientTool => ({ definition, execute: () => environment.next() }))
      return { environment, system: dialogue.system, tools, teacher: replayTeacher(environment) }
    },
  }))
}

/**
 * Returns a hash of everything that a replay shows to a model. The name alone does not suffice: other recordings also have names like
 * `0.0`.
 */
const printOf = (dialogue: RecordedDialogue, definitions: readonly ToolDefinition[]): string =>
  createHash('sha256').update(writeJson({ dialogue, definitions })).digest('hex')

/** Makes tool definitions from the names and arguments of the calls, because the records have no definitions. */
function definitionsOf(dialogues: readonly RecordedDialogue[]): readonly ToolDefinition[] {
  const tools = new Map<string, Map<string, unknown>>()
  for (const { name, arguments: args } of dialogues.flatMap(({ turns }) => turns.flatMap(callsOf))) {
    const known = tools.get(name) ?? new Map<string, unknown>()
    for (const { key, value } of writtenEntries(args)) known.set(key, { type: typeOf(value) })
    tools.set(name, known)
  }
  return [...tools].map(([name, properties]) => ({
    name,
    description: `The record's ${name.replaceAll('_', ' ')}.`,
    parameters: { type: 'object', properties: objectOf(properties) },
  }))
}

const typeOf = (value: unknown): string =>
  Array.isArray(value) ? 'array' : value === null || typeof value === 'object' ? 'object' : typeof value

const callsOf = ({ steps }: RecordedTurn): readonly RecordedCall[] => steps.flatMap(({ calls }) => calls)

/** An environment that replays a recorded dialogue. Each call returns the next recorded result, whichever tool it calls. */
class RecordedEnvironment implements Environment {
  #turn = 0
  /** Number of calls made in this turn. */
  #made = 0

  constructor(
    private readonly dialogue: RecordedDialogue,
    state: unknown,
  ) {
    if (typeof state === 'number') this.#turn = state
  }

  get state(): number {
    return this.#turn
  }

  get turn(): RecordedTurn {
    return this.dialogue.turns[Math.max(0, this.#turn - 1)]!
  }

  get past(): readonly RecordedTurn[] {
    return this.dialogue.turns.slice(0, Math.max(0, this.#turn - 1))
  }

  /** The next recorded step of the turn. Null if all calls of the turn were made, so that the answer is next. */
  get step(): ReplayedStep | null {
    let before = 0
    return this.turn.steps.find(({ calls }) => (before += calls.length) > this.#made) ?? null
  }

  next(): string {
    return callsOf(this.turn)[this.#made++]?.result ?? ''
  }

  ask(): TurnAsk | null {
    const next = this.dialogue.turns[this.#turn]
    if (next === undefined) return null
    this.#turn++
    this.#made = 0
    return { messages: [{ role: 'user', content: next.says }] }
  }

  /** Scores 1 if the turn was replayed to its end, with all its calls and its answer; else 0. */
  score({ answer }: Pick<Answered, 'answer'>): Score {
    const whole = this.#made === callsOf(this.turn).length && answer.trim() === this.turn.answer.trim()
    return { points: Number(whole), outcome: whole ? 'right' : 'wrong', details: {} }
  }
}

/** Two chosen ranges are joined if up to this many other lines are between them, as a model would do. */
const GAP = 4

/** Characters of the user's message that a summary quotes for each turn. */
const NOTE = 120

/**
 * Makes a script that replies as the recorded agent did, whatever the prompt shows. As a helper, it notes the beginnings of the user's
 * messages, and chooses lines with values that the turn uses.
 */
function replayTeacher(replay: RecordedEnvironment): Teacher {
  const notes = () => replay.past.map(({ says }) => says.slice(0, NOTE)).join(' ')
  const helper = (request: EngineRequest): string => {
    const { turn } = replay
    const todo = turn.says.slice(0, NOTE)
    if (request.schema === memorySchema) return JSON.stringify({ summary: notes() || 'Nothing yet.', todo: [todo] })
    if (request.schema !== extractionSchema) return `${notes()} Still to do: ${todo}`
    const used = valuesIn([turn.answer, ...callsOf(turn).map((call) => writeJson(call.arguments))].join(' '))
    return linesWith(request, (line) => valuesIn(line).some((value) => used.includes(value)), { gap: GAP })
  }
  return (request): ScriptedReply => {
    if (request.kind === 'summary') return { content: helper(request) }
    const { step } = replay
    if (step === null) return { content: replay.turn.answer }
    const calls = step.calls.map(({ name, arguments: args }) => ({ name, arguments: args }))
    return searchedFirst(request, { content: told(request, notes) ?? step.content, calls })
  }
}

/** Returns the words of a text that contain a digit, such as ids, dates and prices. */
const valuesIn = (text: string): readonly string[] => text.match(/\b\w*\d\w{2,}\b/g) ?? []
