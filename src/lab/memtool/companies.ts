/**
 * The world of the MemTool task: invented companies, and one tool for each of their figures, such as the revenue. Computes the values that
 * the tools return, and a session's requests.
 */
import { isDeepStrictEqual } from 'node:util'
import type { ToolCall, ToolDefinition } from '../../runtime/chat/message.js'
import { Random } from '../../runtime/core/random.js'
import type { Answered } from '../agent.js'
import type { TurnAsk, Environment } from '../episode/episode.js'
import type { Score } from '../task.js'

export const metrics = ['stock price', 'revenue', 'net income', 'employees', 'market value'] as const
export type Metric = (typeof metrics)[number]

export interface Company {
  readonly name: string
  readonly symbol: string
}

/** Identifies one value: a company, a metric, and for some metrics a year. */
export interface CompanyFigure {
  readonly company: Company
  readonly metric: Metric
  /** Present for metrics whose tool takes a year. */
  readonly year?: number
}

export const YEARS = [2021, 2022, 2023, 2024] as const

/** The metrics whose tools take a year, in a world with `arguments`. */
const yearly: readonly Metric[] = ['revenue', 'net income']

const ONSETS = 'b br c cr d dr f g gr h k l m n p pr qu r s st t tr v w z'.split(' ')
const VOWELS = ['a', 'e', 'i', 'o', 'u', 'ai', 'ea', 'io']
const ENDS = ['l', 'n', 'r', 's', 'x', 'nd', 'rk', 'lt', 'm', 'st']
/** The last words of company names. Companies that differ only in this word make the search for one of them harder. */
const TRADES = ['Foods', 'Metals', 'Energy', 'Systems', 'Freight', 'Pharma', 'Textiles', 'Capital', 'Robotics', 'Paper']

const ABOUT: Readonly<Record<Metric, string>> = {
  'stock price': 'Latest price of a share of',
  revenue: 'Yearly revenue of',
  'net income': 'Yearly profit after taxes of',
  employees: 'Number of people working for',
  'market value': 'Value of all shares of',
}

export interface WorldOptions {
  readonly seed: number
  /** Number of tools. If it is not a multiple of the number of metrics, the last company lacks some of its tools. */
  readonly tools: number
  /** Whether the tools of some metrics take a year. */
  readonly arguments: boolean
}

export class World {
  readonly companies: readonly Company[]
  readonly tools: readonly ToolDefinition[]
  readonly #byTool = new Map<string, { readonly company: Company; readonly metric: Metric }>()

  constructor(readonly options: WorldOptions) {
    this.companies = companiesOf(Math.ceil(options.tools / metrics.length), options.seed)
    const all = this.companies.flatMap((company) => metrics.map((metric) => ({ company, metric })))
    this.tools = all.slice(0, options.tools).map(({ company, metric }) => {
      const tool = this.#definition(company, metric)
      this.#byTool.set(tool.name, { company, metric })
      return tool
    })
  }

  takesYear(metric: Metric): boolean {
    return this.options.arguments && yearly.includes(metric)
  }

  /** Returns the tool call that asks for a figure. */
  callOf({ company, metric, year }: CompanyFigure): {
    readonly name: string
    readonly arguments: Readonly<Record<string, unknown>>
  } {
    return { name: toolName(company, metric), arguments: year === undefined ? {} : { year } }
  }

  /** Carries out a call and returns the value. @throws Error whose message tells the model what is wrong with the call */
  answer({ name, arguments: given }: { readonly name: string; readonly arguments: Readonly<Record<string, unknown>> }): string {
    const tool = this.#byTool.get(name)
    if (tool === undefined) throw new Error('there is no such tool.')
    const { company, metric } = tool
    if (!this.takesYear(metric)) return this.value({ company, metric })
    const { year } = given
    if (typeof year !== 'number' || !YEARS.some((one) => one === year))
      throw new Error(`it wants the argument year, a number from ${YEARS[0]} to ${YEARS.at(-1)}.`)
    return this.value({ company, metric, year })
  }

  /**
   * Returns a figure's value, which depends only on the seed and the figure. It has six random digits, so two figures rarely share a value.
   */
  value({ company, metric, year = 0 }: CompanyFigure): string {
    const drawn = new Random(this.options.seed, hashOf(company.symbol), metrics.indexOf(metric), year)
    const number = drawn.below(900_000) + 100_000
    if (metric === 'employees') return `${number}`
    if (metric === 'stock price') return `${(number / 1000).toFixed(3)} dollars`
    return `${(number / 100).toFixed(2)} million dollars`
  }

  #definition(company: Company, metric: Metric): ToolDefinition {
    const properties = this.takesYear(metric) ? { year: { type: 'integer', enum: [...YEARS] } } : {}
    return {
      name: toolName(company, metric),
      description: `${ABOUT[metric]} ${company.name} (${company.symbol}).`,
      parameters: { type: 'object', properties, ...(this.takesYear(metric) ? { required: ['year'] } : {}) },
    }
  }
}

const toolName = ({ name }: Company, metric: Metric): string => `${name} ${metric}`.toLowerCase().replace(/ /g, '_')

function companiesOf(count: number, seed: number): Company[] {
  const random = new Random(seed, 1)
  const pick = (from: readonly string[]) => from[random.below(from.length)]!
  const companies: Company[] = []
  const stems = new Set<string>()
  const symbols = new Set<string>()
  while (companies.length < count) {
    const stem = pick(ONSETS) + pick(VOWELS) + pick(ONSETS) + pick(VOWELS) + pick(ENDS)
    if (stems.has(stem)) continue
    stems.add(stem)
    // Up to three companies share the first word of their names.
    for (const trade of random.shuffled(TRADES).slice(0, Math.min(3, count - companies.length))) {
      let symbol: string
      do
        symbol =
          stem.slice(0, 2).toUpperCase() + trade.charAt(0) + String.fromCharCode(65 + random.below(26), 65 + random.below(26))
      while (symbols.has(symbol))
      symbols.add(symbol)
      companies.push({ name: `${stem.charAt(0).toUpperCase()}${stem.slice(1)} ${trade}`, symbol })
    }
  }
  return companies
}

function hashOf(text: string): number {
  let hash = 0x811c9dc5
  for (let at = 0; at < text.length; at++) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193)
  return hash >>> 0
}

// Below: a session of the MemTool task: the request of each turn, the calls that it needs, and the score of its answer.

/** How a turn's request relates to the one before: same company, same metric, or unrelated. `mixed`: these three in rotation. */
export const relations = ['mixed', 'same-company', 'same-metric', 'unrelated'] as const
export type Relation = (typeof relations)[number]

export interface ToolSessionOptions {
  readonly seed: number
  readonly turns: number
  readonly relation: Relation
}

/** The request of one turn, and the figures that it asks for. */
export interface Request {
  readonly text: string
  readonly figures: readonly CompanyFigure[]
}

/** The numbers of calls that a session's turns need. Longer sessions repeat the list; then it is shuffled. The mean is 5. */
const CALLS = [1, 9, 2, 8, 3, 7, 4, 6, 5, 5, 10, 1, 4, 5]

/** Returns a session's requests. Pure: the same world and options give the same requests. */
export function requestsOf(world: World, { seed, turns, relation }: ToolSessionOptions): Request[] {
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

function figuresOf(
  world: World,
  random: Random,
  count: number,
  relation: Relation,
  before: readonly CompanyFigure[],
): CompanyFigure[] {
  const figures = new Map<string, CompanyFigure>()
  const known = [...new Set(before.map(({ company }) => company))]
  const asked = [...new Set(before.map(({ metric }) => metric))]
  for (let tries = 0; figures.size < count; tries++) {
    // The related companies or metrics may have too few figures. After 40 tries, any company and metric will do.
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

const nameOf = ({ company, metric, year }: CompanyFigure): string =>
  `${metric} of ${company.name}${year === undefined ? '' : ` in ${year}`}`

const textOf = (figures: readonly CompanyFigure[]): string => `Please tell me the ${figures.map(nameOf).join(', the ')}.`

/** Returns the complete answer to a request, in the words of the script. */
export const answerOf = (world: World, figures: readonly CompanyFigure[]): string =>
  `${figures.map((figure) => world.value(figure)).join('; ')}.`

/** Returns the keyword with which the script searches for a figure's tool. */
export const keywordOf = ({ company, metric }: CompanyFigure): string => `${company.name} ${metric}`

const MILLION = 'millions?|mio|mln|mn|mm|m'
const SCALE = `${MILLION}|thousands?|k|billions?|bn|b|trillions?|tn`

/**
 * Returns whether an answer states a value. The number must have the same digits and not be part of a longer number; commas may group its
 * digits. Dollars may be written in any way or left out. A value in millions must be given in millions, and any other value must not. Pure.
 */
export function says(answer: string, value: string): boolean {
  const [number = '', unit] = value.split(' ')
  const plain = answer.replace(/(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d)/gu, (grouped) => grouped.replaceAll(',', ''))
  const scaled = `[ \\u00a0*_]*(?:${unit === 'million' ? MILLION : SCALE})\\b`
  const alone = `(?<!\\d|\\d\\.)${number.replace('.', '\\.')}(?!\\d|\\.\\d)`
  return new RegExp(`${alone}${unit === 'million' ? '(?=' : '(?!'}${scaled})`, 'iu').test(plain)
}

/** The environment of a session: gives the requests in order, carries out calls, and scores answers and calls. */
export class Companies implements Environment {
  readonly #requests: readonly Request[]
  #turn: number
  #calls: Pick<ToolCall, 'name' | 'arguments'>[] = []

  constructor(
    readonly world: World,
    options: ToolSessionOptions,
    state: { readonly turn: number } = { turn: 0 },
  ) {
    this.#requests = requestsOf(world, options)
    this.#turn = state.turn
  }

  get request(): Request {
    return this.#requests[this.#turn]!
  }

  get state(): { readonly turn: number } {
    return { turn: this.#turn }
  }

  ask(): TurnAsk | null {
    this.#calls = []
    const request = this.#requests[this.#turn]
    return request === undefined ? null : { messages: [{ role: 'user', content: request.text }] }
  }

  execute(call: Pick<ToolCall, 'name' | 'arguments'>): string {
    this.#calls.push(call)
    return this.world.answer(call)
  }

  /**
   * Scores the current turn and moves on to the next one. `points`: the share of the requested values that the answer contains. `details`
   * compares the calls with the expected ones.
   */
  score({ answer }: Pick<Answered, 'answer'>): Score {
    const { figures } = this.request
    this.#turn++
    const expected = figures.map((figure) => this.world.callOf(figure))
    const exact = matched(this.#calls, expected, (call, other) => isDeepStrictEqual({ ...call.arguments }, other.arguments))
    const said = figures.filter((figure) => says(answer, this.world.value(figure))).length
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

/** Counts the calls that match an expected call. Each expected call can be matched once. */
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
