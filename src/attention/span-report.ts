/** Owns the report on watched spans: one page with a bar for every span, complete and folded. */
import { signed } from './figures/changes.js'
import { COLOURS, drawing, element, escaped, hint, legend, linear, line, text } from './figures/svg.js'
import { page } from './report.js'
import type { SpanStudy } from './spans.js'

const WIDTH = 960
const LEFT = 300
const RIGHT = 900
const BAR = 13

export function spanReport(model: string, study: SpanStudy): string {
  const shown = study.answers.map(({ side, shown: tokens }) => `${side}: ${tokens} tokens`).join(', ')
  const answers = study.answers.map(({ side, answer }) => `<h3>${escaped(side)}</h3><pre>${escaped(answer)}</pre>`)
  return page(
    `Attention under folding: ${model}`,
    `<h1>Where the answer looks, complete and folded</h1>
<p class="faint">${escaped(model)} · shown to the answer: ${escaped(shown)}</p>
<figure>${spanFigure(study)}</figure>
<h2>The answers</h2>
${answers.join('\n')}`,
  )
}

/** Mass on each span from the whole answer. */
function spanFigure({ rows, answers }: SpanStudy): string {
  const names = [...new Set(rows.map(({ name }) => name))]
  const sides = answers.map(({ side }) => side)
  const block = sides.length * (BAR + 2) + 16
  const top = 70
  const bottom = top + names.length * block
  const most = Math.max(...rows.flatMap(({ complete, folded }) => [complete, folded ?? 0]), Number.MIN_VALUE)
  const x = linear(0, most, LEFT, RIGHT)
  return drawing(WIDTH, bottom + 52, 'Share of the attention of the whole answer on each span', [
    legend(
      LEFT,
      28,
      sides.map((side) => ({ label: side === 'complete' ? 'complete' : `folded, ${side}`, colour: COLOURS[side] })),
    ),
    text(LEFT, 54, `${names.length} spans; mean over layers, heads and the tokens of the answer`, { class: 'kf-faint' }),
    ...x.ticks.flatMap(({ value, label }) => [
      line(x.at(value), top, x.at(value), bottom),
      text(x.at(value), bottom + 18, label, { class: 'kf-faint', 'text-anchor': 'middle' }),
    ]),
    text((LEFT + RIGHT) / 2, bottom + 40, 'attention mass on the span, 0 to 1', { class: 'kf-faint', 'text-anchor': 'middle' }),
    ...names.flatMap((name, index) => {
      const own = rows.filter((row) => row.name === name)
      const at = top + index * block + 8
      return [
        text(LEFT - 10, at + block / 2 - 4, name.replace(/\s+/gu, ' ').slice(0, 36), { 'text-anchor': 'end' }),
        ...sides.flatMap((side, row) => {
          const one = own.find(({ contract }) => contract === side)
          const mass = side === 'complete' ? own[0]?.complete : one?.folded
          const y = at + row * (BAR + 2)
          if (mass === undefined) return []
          if (mass === null) return [text(LEFT + 4, y + BAR - 2, 'not shown', { class: 'kf-faint', 'font-size': 11 })]
          const change = one?.change ?? null
          const says = `${side}: ${mass.toPrecision(3)}${change === null ? '' : ` (${signed(change)} %)`}`
          return [
            element(
              'rect',
              { x: LEFT, y, width: Math.max(0.5, x.at(mass) - LEFT), height: BAR, fill: COLOURS[side] },
              hint(says),
            ),
          ]
        }),
      ]
    }),
  ])
}
