/** Owns the session of the MemTool task: what is asked in every turn, which calls it takes, and what its answers are worth. */
import { Random } from '../../core/random.js'
import { isDeepStrictEqual } from 'node:util'
import type { ToolCall } from '../../chat/message.js'
import type { Answered } from '../agent.js'
import type { Ask, Environment } from '../episode/episode.js'
import type { Score } from '../task.js'
import { type Figure, metrics, type World, YEARS } from './companies.js'

/** What a turn has to do with the one before: its companies, its metrics, or nothing; `mixed`: each in its turn. */
export const relations = ['mixed', 'same-company', 'same-metric', 'unrelated'] as const
export type Relation = (typeof relations)[number]

export interface SessionOptions {
  readonly seed: number
  readonly turns: number
  readonly relation: Relation
}

/** One turn: the request and what it takes. */
export interface Request {
  readonly text: string
  readonly figures: readonly Figure[]
}

/** Calls of a turn: one to ten, five in the mean of every block. */
const CALLS = [1, 9, 2, 8, 3, 7, 4, 6, 5, 5, 10, 1, 4, 5]

/** The turns of a session. Pure: the same world and options give the same. */
export function requestsOf(world: World, { seed, turns, relation }: SessionOptions): Request[] {
  const random = new Random(seed, 2)
  const counts = random.shuffled(Array.from({ length: turns }, (_, turn) => CALLS[turn % CALLS.length]!))
  const requests: Request[] = []
  for (const [turn, count] of counts.entries()) {
    const own = relation === 'mixed' ? relations[1 + (turn % 3)]! : relation
    const figures = figuresOf(world, random, count, own, requests.at(-1)?.figures ?? [])
    requests.push({ figures, text: textOf(figures) })
  }
  return requests
}

function figuresOf(world: World, random: Random, count: number, relation: Relation, before: readonly Figure[]): Figure[] {
  const figures = new Map<string, Figure>()
  const known = [...new Set(before.map(({ company }) => company))]
  const asked = [...new Set(before.map(({ metric }) => metric))]
  for (let tries = 0; figures.size < count; tries++) {
    // Few companies have only so many figures; then others come in.
    const related = tries < 40
    const companies = relation === 'same-company' && related && known.length > 0 ? known : world.companies
    const kinds = relation === 'same-metric' && related && asked.length > 0 ? asked : metrics
    const company = companies[random.below(companies.length)]!
    const metric = kinds[random.below(kinds.length)]!
    const figure = { company, metric, ...(world.takesYear(metric) ? { year: YEARS[random.below(YEARS.length)]! } : {}) }
    figures.set(nameOf(figure), figure)
  }
  return [...figures.values()]
}

const nameOf = ({ company, metric, year }: Figure): string =>
  `${metric} of ${company.name}${year === undefined ? '' : ` in ${year}`}`

const textOf = (figures: readonly Figure[]): string => `Please tell me the ${figures.map(nameOf).join(', the ')}.`

/** The answer that says everything, as a script gives it. */
export const answerOf = (world: World, figures: readonly Figure[]): string =>
  `${figures.map((figure) => world.value(figure)).join('; ')}.`

/** A keyword for a figure's tool, as a script searches. */
export const keywordOf = ({ company, metric }: Figure): string => `${company.name} ${metric}`

/** Says the requests one after another, carries calls out, and counts which of them were right. */
export class CompanyDesk implements Environment {
  readonly #requests: readonly Request[]
  #turn: number
  #calls: Pick<ToolCall, 'name' | 'arguments'>[] = []

  constructor(
    readonly world: World,
    options: SessionOptions,
    state: { readonly turn: number } = { turn: 0 },
  ) {
    this.#requests = requestsOf(world, options)
    this.#turn = state.turn
  }

  /** The turn that runs. */
  get request(): Request {
    return this.#requests[this.#turn]!
  }

  get state(): { readonly turn: number } {
    return { turn: this.#turn }
  }

  ask(): Ask | null {
    this.#calls = []
    const request = this.#requests[this.#turn]
    return request === undefined ? null : { messages: [{ role: 'user', content: request.text }] }
  }

  execute(call: Pick<ToolCall, 'name' | 'arguments'>): string {
    this.#calls.push(call)
    return this.world.answer(call)
  }

  /** `points`: the share of the values that the answer has. Calls are compared one by one: by name, and with their arguments. */
  score({ answer }: Pick<Answered, 'answer'>): Score {
    const { figures } = this.request
    this.#turn++
    const expected = figures.map((figure) => this.world.callOf(figure))
    const exact = matched(this.#calls, expected, (call, other) => isDeepStrictEqual({ ...call.arguments }, other.arguments))
    const said = figures.filter((figure) => answer.includes(this.world.value(figure))).length
    const points = said / figures.length
    return {
      points,
      outcome: points === 1 ? 'right' : points === 0 ? 'wrong' : 'partial',
      details: {
        expected: expected.length,
        called: this.#calls.length,
        namesRight: matched(this.#calls, expected, () => true),
        callsRight: exact,
        valuesSaid: said,
      },
    }
  }
}

/** Calls that an expected one stands for; each of these counts once. */
function matched(
  calls: readonly Pick<ToolCall, 'name' | 'arguments'>[],
  expected: readonly Pick<ToolCall, 'name' | 'arguments'>[],
  same: (call: Pick<ToolCall, 'name' | 'arguments'>, other: Pick<ToolCall, 'name' | 'arguments'>) => boolean,
): number {
  const open = [...expected]
  return calls.filter((call) => {
    const at = open.findIndex((other) => other.name === call.name && same(call, other))
    if (at >= 0) open.splice(at, 1)
    return at >= 0
  }).length
}
