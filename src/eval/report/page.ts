/** Owns the page of a report: one HTML file that needs nothing else and says all that a reader needs to judge its numbers. */
import { escaped } from '../../attention/figures/svg.js'
import { about, cautions, claims } from './findings.js'
import type { Drawn, LeftOut, Picture } from './pictures/picture.js'
import { STYLE } from './style.js'
import type { Summary } from './summary.js'
import { sources } from './sources.js'
import type { Table } from './tables/table.js'

interface Section {
  readonly id: string
  readonly title: string
  /** Names of tables and figures, in order; a name that ends in `-` stands for all that begin with it. */
  readonly tables: readonly string[]
  readonly figures: readonly string[]
}

const SECTIONS: readonly Section[] = [
  { id: 'accuracy', title: 'Accuracy', tables: ['accuracy', 'accuracy-'], figures: ['accuracy', 'accuracy-'] },
  { id: 'cost', title: 'Context, work and time', tables: ['context', 'time', 'context-'], figures: ['context', 'work', 'time'] },
  { id: 'tools', title: 'Tool use', tables: ['tools', 'tool-order'], figures: ['tools', 'tool-'] },
  { id: 'failures', title: 'Failures', tables: ['failures', 'errors', 'counts-', 'agent-counts-'], figures: [] },
  { id: 'paper', title: 'Beside the paper', tables: ['paper-'], figures: [] },
]

export function page(summary: Summary, tables: readonly Table[], drawn: readonly Drawn[]): string {
  const pictures = drawn.filter((one): one is Picture => 'svg' in one)
  const left = drawn.filter((one): one is LeftOut => 'why' in one)
  const sections = SECTIONS.flatMap((section) => {
    const inside = [...picked(section.figures, pictures).map(figure), ...picked(section.tables, tables).map(tableHtml)]
    return inside.length === 0 ? [] : [{ ...section, html: inside.join('\n') }]
  })
  const { title, facts } = about(summary)
  const links = [...sections, { id: 'sources', title: 'What was run' }]
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>${escaped(title)}</title>
<style>${STYLE}</style>
</head>
<body>
<main>
<h1>${escaped(title)}</h1>
<p class="faint">${facts.map(escaped).join(' · ')}</p>
${list(claims(summary))}
${mind(cautions(summary))}
<nav aria-label="Contents"><ul>${links.map(({ id, title: name }) => `<li><a href="#${id}">${escaped(name)}</a></li>`).join('')}</ul></nav>
${sections.map(({ id, title: name, html }) => `<section id="${id}">\n<h2>${escaped(name)}</h2>\n${html}\n</section>`).join('\n')}
<section id="sources">
<h2>What was run</h2>
${sources(summary)}
${
  left.length === 0
    ? ''
    : `<h3>Figures that are not here</h3>\n${list(
        left.map(({ why }) => why),
        'notes',
      )}`
}
</section>
</main>
</body>
</html>
`
}

/** In the order of the names. */
function picked<T extends { readonly name: string }>(names: readonly string[], all: readonly T[]): T[] {
  const found = names.flatMap((name) => all.filter((one) => (name.endsWith('-') ? one.name.startsWith(name) : one.name === name)))
  return [...new Set(found)]
}

const figure = ({ name, svg }: Picture): string =>
  `<figure>\n${svg}<figcaption>${fileLink(`${name}.svg`)}</figcaption>\n</figure>`

/** Tables of so many rows are not cut on paper. */
const SHORT = 16
/** Tables of so many columns are written smaller on paper. */
const MANY = 13

function tableHtml({ name, title, brief, texts, rows, onPage }: Table): string {
  const files = `<p class="files">${onPage ? '' : `${escaped(title)}: `}${fileLink(`${name}.csv`)} · ${fileLink(`${name}.md`)}</p>`
  if (!onPage) return files
  const right = (index: number): string => (texts[index]!.align === 'right' ? ' class="right"' : '')
  const head = texts
    .map((column, index) => `<th scope="col"${right(index)}>${escaped(column.title).replaceAll('_', '_<wbr>')}</th>`)
    .join('')
  const body = rows.map((row) => {
    const marks = [...(row.theirs ? ['theirs'] : []), ...(row.opens ? ['opens'] : [])]
    const cells = row.texts.map((text, index) => `<td${right(index)}>${cell(text)}</td>`)
    return `<tr${marks.length === 0 ? '' : ` class="${marks.join(' ')}"`}>${cells.join('')}</tr>`
  })
  return `<h3>${escaped(title)}</h3>
<div class="wide${rows.length <= SHORT ? ' short' : ''}${texts.length >= MANY ? ' many' : ''}"><table>
<thead><tr>${head}</tr></thead>
<tbody>
${body.join('\n')}
</tbody>
</table></div>
${list(brief, 'notes')}${files}`
}

/** A number keeps together, its interval may go to the next line. */
const cell = (text: string): string =>
  text
    .split(/ (?=\[)/u)
    .map((part) => (/^[[\d+−]/u.test(part) ? `<span>${escaped(part)}</span>` : escaped(part)))
    .join(' ')

const fileLink = (name: string): string => `<a href="${escaped(encodeURIComponent(name))}">${escaped(name)}</a>`

const list = (items: readonly string[], kind = ''): string =>
  items.length === 0
    ? ''
    : `<ul${kind === '' ? '' : ` class="${kind}"`}>${items.map((item) => `<li>${escaped(item)}</li>`).join('')}</ul>\n`

const mind = (items: readonly string[]): string =>
  items.length === 0 ? '' : `<aside class="mind"><strong>Mind, before you read on</strong>${list(items)}</aside>`
