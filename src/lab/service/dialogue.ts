/**
 * Dialogues at the order desk: the environment (customer, tools, score), the scripted agents, and the scenarios that every framework runs.
 */
import { isDeepStrictEqual } from 'node:util'
import { COMPRESS, compressed, REPORT } from '../agents/rounds.js'
import type { ClientTool } from '../../runtime/agents/toolbox.js'
import { extractionSchema, memorySchema } from '../../runtime/agents/u-fold/helpers.js'
import { linesOf, textOf } from '../../runtime/agents/u-fold/view.js'
import type { EngineRequest } from '../../runtime/engine/engine.js'
import type { ScriptedReply, Teacher } from '../taught-engine.js'
import { SEARCH_TOOLS } from '../../runtime/tools/management.js'
import type { Answered } from '../agent.js'
import type { TurnAsk, Environment } from '../episode/episode.js'
import type { Score } from '../task.js'
import { type Goal, makeStory, type Story } from './customer.js'
import { type Call, carryOut, type Desk, Draw, POLICY, toolDefinitions, worded } from './desk.js'

export interface ServiceDialogueOptions {
  readonly seed: number
  readonly turns: number
  /** Number of useless fields in each record of a tool result. They make the results long. */
  readonly fields: number
}

/** The environment's state between two turns, as plain JSON. `results`: number of tool results so far. */
interface ServiceState {
  readonly desk: Desk
  readonly turn: number
  readonly results: number
}

export class ServiceEnvironment implements Environment {
  readonly #story: Story
  readonly #gold: Desk
  #desk: Desk
  /** Number of turns that have begun. */
  #turn = 0
  #results = 0
  /** `#done`: this turn's successful calls. `#calls`: the number of all its calls. */
  #done: Call[] = []
  #calls = 0

  constructor(
    private readonly options: ServiceDialogueOptions,
    state?: unknown,
  ) {
    this.#story = makeStory(options)
    this.#gold = structuredClone(this.#story.desk)
    this.#desk = structuredClone(this.#story.desk)
    if (state !== undefined && state !== null) {
      const before = state as ServiceState
      this.#desk = structuredClone(before.desk)
      this.#results = before.results
      for (const goal of this.#story.goals.slice(0, before.turn)) for (const act of goal.acts) carryOut(this.#gold, act)
      this.#turn = before.turn
    }
  }

  get state(): ServiceState {
    return { desk: this.#desk, turn: this.#turn, results: this.#results }
  }

  get goal(): Goal {
    return this.#story.goals[Math.max(0, this.#turn - 1)]!
  }

  /** The goals of the turns before the current one. */
  get past(): readonly Goal[] {
    return this.#story.goals.slice(0, Math.max(0, this.#turn - 1))
  }

  /** The successful calls of this turn. `calls` is the number of all its calls. */
  get done(): readonly Call[] {
    return this.#done
  }
  get calls(): number {
    return this.#calls
  }

  get tools(): readonly ClientTool[] {
    return toolDefinitions.map((definition) => ({
      definition,
      execute: (args) => this.#execute({ name: definition.name, arguments: args }),
    }))
  }

  ask(): TurnAsk | null {
    const goal = this.#story.goals[this.#turn]
    if (goal === undefined) return null
    this.#turn++
    this.#done = []
    this.#calls = 0
    return { messages: [{ role: 'user', content: goal.says }] }
  }

  /**
   * Scores 1 if the desk is right after this turn and the answer contains every required string; else 0. After a wrong change of the desk,
   * all later turns are wrong too.
   */
  score({ answer }: Pick<Answered, 'answer'>): Score {
    const { acts, told } = this.goal
    for (const act of acts) carryOut(this.#gold, act)
    const desk = isDeepStrictEqual(this.#desk, this.#gold)
    const said = told.every((words) => plain(answer).includes(plain(words)))
    const right = desk && said
    return { points: right ? 1 : 0, outcome: right ? 'right' : 'wrong', details: { desk: Number(desk), said: Number(said) } }
  }

  #execute(call: Call): string {
    this.#calls++
    const result = carryOut(this.#desk, call)
    // The agent's toolbox turns the error into a failed call.
    if (!result.ok) throw new Error(`${result.why}.`)
    this.#done.push(call)
    return worded(result.value, this.options.fields, new Draw(this.options.seed, 2, this.#results++))
  }
}

const plain = (text: string): string => text.toLowerCase().replaceAll(',', '')

// Below: the scripted agents of the order desk, and the texts that they write as helpers.

/**
 * The scripted agents. `taught` looks up every value that it needs and that the prompt does not show. `careless` does what the customer
 * says without a lookup. `forgetful` knows only the customer's last message.
 */
export const manners = ['taught', 'careless', 'forgetful'] as const
export type Manner = (typeof manners)[number]

/** After this many calls in a turn, the script stops looking up and answers from the values in the prompt. */
const ENOUGH = 8

/** Makes an agent's script. It uses only values that the request shows, and must look up again a value that a fold hides. */
const serviceTeacher =
  (environment: ServiceEnvironment, manner: Manner): Teacher =>
  (request) => {
    if (request.kind === 'summary') return { content: helper(request, environment) }
    const reply = searchedFirst(request, decision(request, environment, manner))
    return reply.calls === undefined
      ? reply
      : { ...reply, content: told(request, () => `${notes(environment)} ${found(request, environment.goal)}`) ?? '' }
  }

/** Returns the reply. If it calls tools that are not loaded, and the request offers the tool search, returns a search for these tools. */
export function searchedFirst({ tools = [], unlisted = [] }: EngineRequest, reply: ScriptedReply): ScriptedReply {
  const loaded = new Set([...tools, ...unlisted].map(({ name }) => name))
  const missing = new Set((reply.calls ?? []).map(({ name }) => name).filter((name) => !loaded.has(name)))
  if (missing.size === 0 || !loaded.has(SEARCH_TOOLS)) return reply
  const keywords = [...missing].map((name) => name.replaceAll('_', ' '))
  return { calls: [{ name: SEARCH_TOOLS, arguments: { keywords } }] }
}

/** Returns `text` as the notes that the request asks for (of IterResearch or AgentFold); null if it asks for none. */
export function told({ messages }: EngineRequest, text: () => string): string | null {
  const asked = messages.findLast(({ role }) => role === 'user')?.content ?? ''
  if (asked.includes(REPORT)) return `${REPORT}${text()}</report>`
  return asked.includes(COMPRESS) ? compressed(asked, text()) : null
}

function decision(request: EngineRequest, { goal, done, calls }: ServiceEnvironment, manner: Manner): ScriptedReply {
  const slip = manner === 'taught' ? undefined : goal[manner]
  const [acts, told, lookups] = slip === undefined ? [goal.acts, goal.told, goal.lookups] : [slip.acts, slip.says, []]
  const shown = shownText(request)
  const missing = lookups.find(({ yields }) => yields.some((words) => !shown.includes(words)))
  if (missing !== undefined && calls < ENOUGH) return { calls: [missing.call] }
  const act = acts.find((one) => !done.some((call) => isDeepStrictEqual(call, one)))
  if (act !== undefined && calls < ENOUGH + acts.length) return { calls: [act] }
  const said = told.filter((words) => slip !== undefined || shown.includes(words) || !known(goal, words))
  return { content: said.length === told.length ? `Here you are: ${said.join(', ')}.` : 'I cannot see that any more.' }
}

/** Returns whether the words come from a tool's result, and not from the customer or the policy. */
const known = ({ lookups }: Goal, words: string): boolean => lookups.some(({ yields }) => yields.includes(words))

/** Returns the text that a request shows: each message with its edits applied, and the calls' arguments. */
function shownText({ messages, edits = [] }: EngineRequest): string {
  return messages
    .map(({ content, toolCalls = [] }, index) => {
      let [text, at] = ['', 0]
      for (const { span, replacement } of edits.filter(({ message }) => message === index)) {
        text += content.slice(at, span.start) + replacement
        at = span.end
      }
      return [text + content.slice(at), ...toolCalls.map(({ arguments: args }) => JSON.stringify(args))].join('\n')
    })
    .join('\n')
}

/** Writes a helper's reply. The request's schema decides what it is: notes, chosen lines or, without a schema, a summary. */
function helper(request: EngineRequest, environment: ServiceEnvironment): string {
  const { goal } = environment
  if (request.schema === memorySchema) return JSON.stringify({ summary: notes(environment), todo: [goal.todo] })
  if (request.schema === extractionSchema) return chosen(request, environment)
  return `${notes(environment)} Still to do: ${goal.todo} ${found(request, goal)}`
}

const notes = ({ past }: ServiceEnvironment): string => past.map(({ note }) => note).join(' ')

/**
 * Returns the values that this turn looked up and the prompt still shows. Some frameworks continue a turn from notes alone, which must have
 * them.
 */
function found(request: EngineRequest, { lookups }: Goal): string {
  const shown = shownText(request)
  const seen = lookups.flatMap(({ call, yields }) =>
    yields.every((words) => shown.includes(words)) ? [`${call.name} gave ${yields.join(', ')}.`] : [],
  )
  return seen.join(' ')
}

/** Writes a helper's reply that chooses the lines with values that this turn needs. */
function chosen(request: EngineRequest, { goal }: ServiceEnvironment): string {
  const wanted = goal.lookups.flatMap(({ yields }) => yields)
  const constraints = goal.constraint === undefined ? [] : [goal.constraint]
  return linesWith(request, (text) => wanted.some((words) => text.includes(words)), { constraints })
}

/**
 * Returns a helper's reply that chooses those lines of tool results for which `isWanted` is true. Two ranges are joined if at most `gap`
 * other lines are between them.
 */
export function linesWith(
  { messages }: EngineRequest,
  isWanted: (line: string) => boolean,
  { constraints = [], gap = 0 }: { readonly constraints?: readonly string[]; readonly gap?: number } = {},
): string {
  const last = messages.at(-1)?.content ?? ''
  const listed = Array.from(last.matchAll(/^(\d+)\| (.*)$/gm), ([, number, text = '']) => ({ number: Number(number), text }))
  const lines =
    listed.length > 0 ? listed : linesOf(messages).map((line) => ({ number: line.number, text: textOf(messages, line) }))
  const ranges: [number, number][] = []
  for (const { number } of lines.filter(({ text }) => isWanted(text))) {
    const range = ranges.at(-1)
    if (range !== undefined && number <= range[1] + gap + 1) range[1] = number
    else ranges.push([number, number])
  }
  const blocks = ranges.map(([from, to]) => ({
    lines: `${from}-${to}`,
    summary: 'Needed for the first step.',
    constraints,
    hint: '',
  }))
  return JSON.stringify({ blocks })
}

// Below: scenarios, the dialogues that every framework runs. A scenario belongs to a cell of the result table. It has a customer, tools,
// and perhaps a script that speaks for the agent's model.

export interface Scenario {
  /** `turns`: number of the customer's messages. `fields`: number of useless fields in each record of a tool result. */
  readonly turns: number
  readonly fields: number
  readonly seed: number
  /** Identifies the scenario within its cell, together with the seed. */
  readonly about: Readonly<Record<string, unknown>>
  /** Opens the scenario. @param state the environment's state from which it resumes; undefined at the start */
  open(state: unknown): ScenarioSetup
}

export interface ScenarioSetup {
  readonly environment: Environment
  readonly system: string
  readonly tools: readonly ClientTool[]
  /** The script that speaks for the model; null if the model itself answers. */
  readonly teacher: Teacher | null
}

export interface DeskCells {
  readonly turns: readonly number[]
  readonly fields: readonly number[]
  /** Number of dialogues per cell. Their seeds count up from `seed`. */
  readonly samples: number
  readonly seed: number
  /**
   * `model`: the model itself answers. Any other value: a script decides the replies, and the engine computes as if the model had given
   * them.
   */
  readonly agent: Manner | 'model'
}

export const deskScenarios = ({ turns, fields, samples, seed, agent }: DeskCells): readonly Scenario[] =>
  turns.flatMap((length) =>
    fields.flatMap((verbose) =>
      Array.from({ length: samples }, (_, sample): Scenario => {
        const cell = { turns: length, fields: verbose, seed: seed + sample }
        return {
          ...cell,
          about: { agent },
          open(state) {
            const environment = new ServiceEnvironment(cell, state)
            const teacher = agent === 'model' ? null : serviceTeacher(environment, agent)
            return { environment, system: POLICY, tools: environment.tools, teacher }
          },
        }
      }),
    ),
  )
