/** Owns the order desk as an episode: the customer's words turn by turn, the tools over one state of the desk, and what a turn was worth by that state and by what was said. */
import { isDeepStrictEqual } from 'node:util'
import type { ClientTool } from '../../agents/toolbox.js'
import type { Answered } from '../agent.js'
import type { Ask, Environment } from '../episode/episode.js'
import type { Score } from '../task.js'
import { type Goal, makeStory, type Story } from './customer.js'
import { type Call, carryOut, type Desk, Draw, toolDefinitions, worded } from './desk.js'

export interface ServiceOptions {
  readonly seed: number
  readonly turns: number
  /** Fields in every record of a tool result that nobody asked for. */
  readonly fields: number
}

/** Plain JSON. */
interface ServiceState {
  readonly desk: Desk
  readonly turn: number
  readonly results: number
}

export class ServiceEnvironment implements Environment {
  readonly #story: Story
  readonly #gold: Desk
  #desk: Desk
  /** Turns that were asked for. */
  #turn = 0
  #results = 0
  /** Calls of this turn that worked, and all of them. */
  #done: Call[] = []
  #calls = 0

  constructor(
    private readonly options: ServiceOptions,
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

  /** What the turn that runs is about. */
  get goal(): Goal {
    return this.#story.goals[Math.max(0, this.#turn - 1)]!
  }

  /** Goals before this turn's. */
  get past(): readonly Goal[] {
    return this.#story.goals.slice(0, Math.max(0, this.#turn - 1))
  }

  /** Calls of this turn that worked; and how many there were. */
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

  ask(): Ask | null {
    const goal = this.#story.goals[this.#turn]
    if (goal === undefined) return null
    this.#turn++
    this.#done = []
    this.#calls = 0
    return { messages: [{ role: 'user', content: goal.says }] }
  }

  /** 1: the desk is as it should be after this turn, and what had to be said was. One thing wrong once is wrong for good, as far as the desk goes. */
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
    if (!result.ok) return `Error: ${result.why}.`
    this.#done.push(call)
    return worded(result.value, this.options.fields, new Draw(this.options.seed, 2, this.#results++))
  }
}

const plain = (text: string): string => text.toLowerCase().replaceAll(',', '')
