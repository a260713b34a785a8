/** Owns the table of a run of the order desk: a row for each framework at each length and verbosity. */
import { count, percent } from '../../figures/numbers.js'
import { number, table, type Table } from '../../figures/table.js'
import type { ServiceRow } from './run.js'

export function serviceTable(rows: readonly ServiceRow[]): Table {
  const react = (row: ServiceRow) =>
    rows.find((one) => one.name === 'react' && one.turns === row.turns && one.fields === row.fields)
  const columns = [
    { title: 'framework', text: ({ name }: ServiceRow) => name },
    number('turns', ({ turns }: ServiceRow) => String(turns)),
    number('fields', ({ fields }: ServiceRow) => String(fields)),
    number('reward', ({ reward }: ServiceRow) => percent(reward, 0)),
    number('turns right', ({ turnsRight }: ServiceRow) => percent(turnsRight, 0)),
    number('calls', ({ toolCalls }: ServiceRow) => toolCalls.toFixed(1)),
    number('shown', ({ tokensShown }: ServiceRow) => count(tokensShown)),
    number('computed', ({ tokensComputed }: ServiceRow) => count(tokensComputed)),
    number('of react', (row: ServiceRow) => {
      const other = react(row)
      return other === undefined ? '-' : `${(row.tokensComputed / other.tokensComputed).toFixed(2)} x`
    }),
    number('helpers', ({ tokensHelpers }: ServiceRow) => count(tokensHelpers)),
    number('folder', ({ tokensFolder }: ServiceRow) => count(tokensFolder)),
    number('priced', ({ priced }: ServiceRow) => count(priced)),
    number('last', ({ contextLast }: ServiceRow) => count(contextLast)),
    number('most', ({ contextMost }: ServiceRow) => count(contextMost)),
    number('overflowed', ({ overflowed }: ServiceRow) => overflowed.toFixed(1)),
  ]
  return table(columns, rows, { opens: (row, before) => row.turns !== before.turns || row.fields !== before.fields })
}

export const SERVICE_NOTES = [
  'Means per dialogue, by the ledger. reward: every turn right, by the state of the desk and by what had to be said. shown, computed: tokens of all steps, helpers included; folder: of another model that was named for helpers, not among them. priced: computed, and a tenth of what was reused. last, most: tokens of the context at the last answer and at most. overflowed: turns that did not fit into the window.',
] as const
