/** Names the conditions of a report and formats numbers, for its tables and figures. */
import { count } from '../../../runtime/figures/numbers.js'
import { type DataColumn, NONE } from '../../figures/data-table.js'
import { edits } from '../../run/plan.js'
import type { Estimate } from '../../accuracy.js'
import type { ConditionResult, Summary } from '../summary.js'

/** Names a summary's tasks, agents and variants. A name includes an option only if two items of the summary differ in it. */
export class Labels {
  readonly #contracts: boolean

  constructor(private readonly summary: Summary) {
    const contracts = summary.conditions
      .filter(({ agent }) => edits(summary.agents[agent]!.agent))
      .map(({ contract }) => contract)
    this.#contracts = new Set(contracts).size > 1
  }

  task(index: number): string {
    const { task, title, options } = this.summary.tasks[index]!
    const others = this.summary.tasks.filter((other) => other.task === task)
    return (
      title +
      apart(
        options[0] ?? {},
        others.map((other) => other.options[0] ?? {}),
      )
    )
  }

  /** Returns the agent's title. If the summary has the agent with several settings, adds the options that differ. */
  agent(index: number): string {
    const { agent, title, options, embedder } = this.summary.agents[index]!
    const others = this.summary.agents.filter((other) => other.agent === agent)
    const all = (one: { readonly options: object; readonly embedder: string | null }) => ({
      ...one.options,
      embedder: one.embedder,
    })
    return title + apart(all({ options, embedder }), others.map(all))
  }

  variant(index: number): string {
    return this.summary.variants[index]!.name
  }

  /** Returns the contract. `NONE` for agents that do not edit their context, because contracts are about edits. */
  contract({ agent, contract }: ConditionResult): string {
    return edits(this.summary.agents[agent]!.agent) ? contract : NONE
  }

  /** Returns a condition's name: the agent and, where they matter, the contract, the variant and the word `untrained`. */
  condition(condition: ConditionResult): string {
    const { variant, agent, trained } = condition
    return [
      this.agent(agent),
      ...(this.#contracts && this.contract(condition) !== NONE ? [this.contract(condition)] : []),
      ...(this.summary.variants.length > 1 ? [this.variant(variant)] : []),
      ...(trained === false ? ['untrained'] : []),
    ].join(', ')
  }

  /** Returns the columns that name a row's condition. For a row of the paper `of` returns null, and `theirs` names the row. */
  columns<Row>(of: (row: Row) => ConditionResult | null, theirs: (row: Row) => string = () => NONE): DataColumn<Row>[] {
    const from = (row: Row, name: (condition: ConditionResult) => string): string => {
      const condition = of(row)
      return condition === null ? NONE : name(condition)
    }
    return [
      {
        name: 'log',
        title: this.summary.variants.length > 1 ? 'logs' : null,
        value: (row) => from(row, ({ variant }) => this.variant(variant)),
      },
      {
        name: 'agent',
        title: 'agent',
        value: (row) => from(row, ({ agent }) => this.agent(agent)),
        text: (row) => {
          const condition = of(row)
          if (condition === null) return theirs(row)
          return this.agent(condition.agent) + (condition.trained === false ? ' (untrained)' : '')
        },
      },
      {
        name: 'contract',
        title: this.#contracts ? 'contract' : null,
        value: (row) => from(row, (condition) => this.contract(condition)),
      },
      { name: 'trained', title: null, value: (row) => of(row)?.trained ?? null },
    ]
  }
}

/** Returns, in brackets, the values in `own` of the options in which `others` differ; '' if they do not differ. */
function apart(own: Readonly<Record<string, unknown>>, others: readonly Readonly<Record<string, unknown>>[]): string {
  const names = [...new Set(others.flatMap((other) => Object.keys(other)))].filter((name) => !Array.isArray(own[name]))
  const different = names.filter((name) => new Set(others.map((other) => JSON.stringify(other[name]))).size > 1)
  const said = different.filter((name) => own[name] !== undefined && own[name] !== null)
  return said.length === 0 ? '' : ` (${said.map((name) => `${name} ${text(own[name])}`).join(', ')})`
}

const text = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value))

/** Formats a share (0 to 1) in percent, without the percent sign. */
export const percent = (share: number): string => (100 * share).toFixed(1)
/** Formats milliseconds as seconds. */
export const seconds = (milliseconds: number): string => {
  const value = milliseconds / 1000
  return value >= 100 ? count(value) : value.toFixed(value >= 10 ? 1 : 2)
}
/** Formats a difference of shares in percentage points, with its sign. */
export const points = (share: number): string => {
  const value = (100 * share).toFixed(1)
  return Number(value) === 0 ? '0.0' : value.startsWith('-') ? `−${value.slice(1)}` : `+${value}`
}
export const withInterval = ({ value, interval }: Estimate): string =>
  `${percent(value)} [${percent(interval[0])}, ${percent(interval[1])}]`
/** Formats a p value. */
export const probability = (p: number): string => (p < 0.0001 ? '< 0.0001' : p < 0.001 ? p.toFixed(4) : p.toFixed(3))
