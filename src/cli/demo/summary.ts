/** Owns what the demo says about its own numbers: the table, and two sentences that are true whichever way they came out. */
import { differ } from '../../eval/accuracy.js'
import { count, percent, plural } from '../../figures/numbers.js'
import { type Column, number, table, terminal } from '../../figures/table.js'
import type { Row } from './trial.js'

/** Widest table without and with the accuracy's interval; narrower terminals get a list. */
const NARROW = 76
const WIDE = 84

/** The table's lines, one row per n and agent, to fit `width`. Everything but n and accuracy is a mean per stream. */
export function rowTable(
  rows: readonly Row[],
  options: { readonly width: number; readonly rule: string; readonly plusMinus: string },
): string[] {
  const { width, rule, plusMinus } = options
  if (width < NARROW) return rows.flatMap(listed)
  const spread = ({ interval: [low, high] }: Row) => (width < WIDE ? '' : ` ${plusMinus}${((high - low) * 50).toFixed(1)}`)
  const columns: Column<Row>[] = [
    number('n', ({ n }) => String(n)),
    { title: 'agent', text: ({ agent }) => agent },
    number('accuracy', (row) => percent(row.accuracy) + spread(row)),
    number('before', ({ tokensBefore }) => count(tokensBefore)),
    number('after', ({ tokensAfter }) => count(tokensAfter)),
    number('reused', ({ reused }) => count(reused)),
    number('recomputed', ({ recomputed }) => count(recomputed)),
    number('time', ({ seconds }) => `${seconds.toFixed(1)} s`),
    number('asked', asked),
  ]
  return terminal(table(columns, rows, { opens: (row, before) => row.n !== before.n }), rule)
}

/** A row for a terminal too narrow for a table. */
const listed = (row: Row): string[] => [
  `n = ${row.n}, ${row.agent}: ${percent(row.accuracy)} (${asked(row)})`,
  `  ${count(row.tokensBefore)}, then ${count(row.tokensAfter)} tokens`,
  `  ${count(row.reused)} reused`,
  `  ${count(row.recomputed)} recomputed`,
  `  ${row.seconds.toFixed(1)} s`,
]

const asked = ({ samples, questions }: Row): string => `${samples} x ${questions / samples}`

/** What was seen at the largest n where both agents answered, in two sentences; fewer when there is nothing to compare. */
export function sentences(rows: readonly Row[]): string[] {
  const plains = rows.filter(({ agent }) => agent === 'plain')
  const plain = plains.findLast(({ n }) => rows.some((row) => row.n === n && row.agent === 'sculptor'))
  const sculptor = rows.find((row) => row.n === plain?.n && row.agent === 'sculptor')
  if (plain === undefined || sculptor === undefined) return []
  return [accuracySentence(plains[0]!, plain, sculptor), costSentence(sculptor)]
}

function accuracySentence(first: Row, plain: Row, sculptor: Row): string {
  const points = (sculptor.accuracy - plain.accuracy) * 100
  const apart = differ(plain, sculptor)
  const trend =
    first.n === plain.n
      ? `With ${plural(plain.n, 'update')} per key the model alone got ${percent(plain.accuracy)} of the last values right`
      : `From ${first.n} to ${plural(plain.n, 'update')} per key the model alone went from ${percent(first.accuracy)} to ${percent(plain.accuracy)} of last values right`
  const errors =
    plain.interference === null
      ? ''
      : ` (${percent(plain.interference, 0)} of its errors there were older values of the same key)`
  const verdict = !apart
    ? `and with its context tools it got ${percent(sculptor.accuracy)}, which is no difference beyond chance with so few streams`
    : points > 0
      ? `and with its context tools it got ${percent(sculptor.accuracy)}: the tools helped by ${points.toFixed(0)} points`
      : `and with its context tools it got ${percent(sculptor.accuracy)}: the tools did not help, they cost ${(-points).toFixed(0)} points`
  return `${trend}${errors}, ${verdict}.`
}

function costSentence(row: Row): string {
  const smaller = row.tokensBefore === 0 ? 0 : 1 - row.tokensAfter / row.tokensBefore
  const shown = row.reused + row.recomputed + row.fresh
  const size =
    smaller > 0
      ? `It answered from ${count(row.tokensAfter)} tokens instead of ${count(row.tokensBefore)} (${percent(smaller, 0)} fewer)`
      : `Its context did not shrink (${count(row.tokensBefore)} tokens before, ${count(row.tokensAfter)} after)`
  const share = shown === 0 ? 0 : row.reused / shown
  return (
    `${size}; over the ${row.steps.toFixed(1)} steps of a turn ${percent(share, 0)} of the tokens shown came from the cache, ` +
    `and its ${plural(row.calls, 'call')} made it compute ${plural(row.recomputed, 'token')} a second time.`
  )
}
