/** Owns the page of a report: one HTML file that needs nothing else and says all that a reader needs to judge its numbers. */
import { escaped } from '../../attention/figures/svg.js'
import type { Drawn, LeftOut, Picture } from './figures/frame.js'
import { about, cautions, claims } from './findings.js'
import { sources } from './sources.js'
import type { Summary } from './summary.js'
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

// How the page looks: light and dark, on a screen and on paper.

export const STYLE = `
:root { color-scheme: light dark; --paper: #fff; --ink: #27272a; --faint: #62626b; --rule: #e4e4e7; --soft: #f4f4f5; --link: #0f766e; --mark: #b45309 }
@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --ink: #e4e4e7; --faint: #a1a1aa; --rule: #30363d; --soft: #161b22; --link: #5eead4; --mark: #fbbf24 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif }
main { max-width: 1120px; margin: 0 auto; padding: 24px 20px 60px }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px } h2 { font-size: 20px; margin: 44px 0 8px; padding-top: 12px; border-top: 2px solid var(--rule) } h3 { font-size: 16px; margin: 28px 0 6px }
a { color: var(--link) }
nav ul { display: flex; flex-wrap: wrap; gap: 4px 18px; list-style: none; margin: 10px 0; padding: 0 }
.faint, .notes { color: var(--faint); font-size: 13px }
.notes { margin: 6px 0 0; padding-left: 18px } .notes li { margin: 2px 0 }
.mind { border-left: 4px solid var(--mark); background: var(--soft); padding: 8px 14px; margin: 14px 0; border-radius: 0 6px 6px 0 } .mind ul { margin: 4px 0; padding-left: 20px }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: 12.5px; line-height: 1.4; font-variant-numeric: tabular-nums; width: 100% }
th { text-align: left; font-weight: 600; color: var(--faint); vertical-align: bottom }
th, td { padding: 4px 8px; border-bottom: 1px solid var(--rule) }
td { vertical-align: top } .right { text-align: right } td.right { white-space: nowrap }
tr.opens td { border-top: 2px solid var(--rule) }
tr.theirs td { background: var(--soft); color: var(--faint) }
.files { font-size: 12px; color: var(--faint); margin: 4px 0 0 }
figure { margin: 24px 0 } figure svg { width: 100%; height: auto; border: 1px solid var(--rule); border-radius: 6px } figcaption { font-size: 12px; color: var(--faint) }
pre, code { font-family: ui-monospace, 'DejaVu Sans Mono', monospace; font-size: 12px }
pre { background: var(--soft); padding: 8px 12px; border-radius: 6px; white-space: pre-wrap; overflow-wrap: anywhere; margin: 6px 0 }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; font-size: 13px; margin: 6px 0 } dt { color: var(--faint) } dd { margin: 0; overflow-wrap: anywhere }
@page { margin: 14mm 12mm }
@media print {
  :root { color-scheme: light; --paper: #fff; --ink: #18181b; --faint: #52525b; --rule: #d4d4d8; --soft: #f4f4f5; --link: #0f766e; --mark: #b45309 }
  body { font-size: 10pt } main { max-width: none; padding: 0 } nav { display: none }
  h1 { font-size: 17pt } h2 { font-size: 13pt; margin-top: 22px } h3 { font-size: 11pt }
  h1, h2, h3 { break-after: avoid } figure, tr, .mind, dl, .short { break-inside: avoid } thead { display: table-header-group }
  .wide { overflow: visible } table { font-size: 7.4pt } th, td { padding: 2.5px 4px } td.right { white-space: normal } td.right span { white-space: nowrap } .many table { font-size: 6.4pt } .many th, .many td { padding: 2.5px 2px }
  tr.theirs td, pre, .mind { -webkit-print-color-adjust: exact; print-color-adjust: exact }
  .notes, .faint, dl { font-size: 8.5pt } pre, code { font-size: 7.5pt } figure svg { border: 0 }
}
`
