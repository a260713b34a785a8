/** Owns the world of the MemTool task: invented companies, a tool for each of their figures, and the values that the tools return. */
import type { ToolDefinition } from '../../chat/message.js'
import { Random } from '../../core/random.js'

export const metrics = ['stock price', 'revenue', 'net income', 'employees', 'market value'] as const
export type Metric = (typeof metrics)[number]

export interface Company {
  readonly name: string
  readonly symbol: string
}

/** What a tool returns for one set of arguments. */
export interface Figure {
  readonly company: Company
  readonly metric: Metric
  /** Of the metrics that are told by year. */
  readonly year?: number
}

export const YEARS = [2021, 2022, 2023, 2024] as const

/** Metrics whose tools take an argument, in the family with arguments. */
const yearly: readonly Metric[] = ['revenue', 'net income']

const ONSETS = [
  'b',
  'br',
  'c',
  'cr',
  'd',
  'dr',
  'f',
  'g',
  'gr',
  'h',
  'k',
  'l',
  'm',
  'n',
  'p',
  'pr',
  'qu',
  'r',
  's',
  'st',
  't',
  'tr',
  'v',
  'w',
  'z',
]
const VOWELS = ['a', 'e', 'i', 'o', 'u', 'ai', 'ea', 'io']
const ENDS = ['l', 'n', 'r', 's', 'x', 'nd', 'rk', 'lt', 'm', 'st']
/** Companies that share a stem differ in their trade: the distractors of a name. */
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
  /** Tools in all; a multiple of the metrics, so that every company has all of them. */
  readonly tools: number
  /** Whether some metrics' tools take a year. */
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

  /** Whether its tool wants a year. */
  takesYear(metric: Metric): boolean {
    return this.options.arguments && yearly.includes(metric)
  }

  /** The call that returns a figure. */
  callOf({ company, metric, year }: Figure): { readonly name: string; readonly arguments: Readonly<Record<string, unknown>> } {
    return { name: toolName(company, metric), arguments: year === undefined ? {} : { year } }
  }

  /** What a call returns: the value, or what is wrong with it. */
  answer({ name, arguments: given }: { readonly name: string; readonly arguments: Readonly<Record<string, unknown>> }): string {
    const tool = this.#byTool.get(name)
    if (tool === undefined) return `Error: there is no tool ${name}.`
    const { company, metric } = tool
    if (!this.takesYear(metric)) return this.value({ company, metric })
    const { year } = given
    if (typeof year !== 'number' || !YEARS.some((one) => one === year))
      return `Error: ${name} wants the argument year, a number from ${YEARS[0]} to ${YEARS.at(-1)}.`
    return this.value({ company, metric, year })
  }

  /** The figure itself, the same for the same seed, unlike others' by its digits. */
  value({ company, metric, year = 0 }: Figure): string {
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
    // Three of a stem.
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
