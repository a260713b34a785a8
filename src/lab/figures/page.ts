/** Builds the HTML page of a report: one self-contained file, in light or dark colours, for screen and paper. */
import type { Table } from '../../runtime/figures/table.js'

/** Returns the page. `body`, `style` and `script` are inserted unchanged as HTML, CSS and JavaScript; only the title is escaped. */
export const page = (
  title: string,
  body: string,
  more: { readonly style: string; readonly script: string } | null = null,
): string =>
  `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>${escaped(title)}</title>
<style>${STYLE}${more?.style ?? ''}</style>
</head>
<body>
<main>
${body}
</main>
${more === null ? '' : `<script>${more.script}</script>\n`}</body>
</html>
`

/** Returns a link to a file in the page's folder. */
export const fileLink = (name: string): string => `<a href="${escaped(encodeURIComponent(name))}">${escaped(name)}</a>`

/** Escapes untrusted text for XML and HTML. */
export const escaped = (content: string): string =>
  printable(content).replace(/[&<>"]/gu, (character) => `&#${character.charCodeAt(0)};`)

/** Replaces characters that XML cannot hold, such as most control characters, by U+FFFD. */
export const printable = (content: string): string =>
  // eslint-disable-next-line no-control-regex -- the function replaces control characters
  content.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/gu, '\ufffd')

/** A table with at most this many rows is printed on one page. */
const SHORT = 16
/** Tables with at least this many columns are printed smaller. */
const MANY = 13

/** Returns the HTML of a table. If it is wider than the page, it can be scrolled. */
export function html({ columns, rows }: Table): string {
  const side = (at: number): string => (columns[at]!.align === 'right' ? ' class="right"' : '')
  const head = columns.map(({ title }, at) => `<th scope="col"${side(at)}>${escaped(title).replaceAll('_', '_<wbr>')}</th>`)
  const body = rows.map(({ texts, theirs, opens }) => {
    const marks = [...(theirs ? ['theirs'] : []), ...(opens ? ['opens'] : [])].join(' ')
    return `<tr${marks === '' ? '' : ` class="${marks}"`}>${texts.map((text, at) => `<td${side(at)}>${cell(text)}</td>`).join('')}</tr>`
  })
  return `<div class="wide${rows.length <= SHORT ? ' short' : ''}${columns.length >= MANY ? ' many' : ''}"><table>
<thead><tr>${head.join('')}</tr></thead>
<tbody>
${body.join('\n')}
</tbody>
</table></div>
`
}

/** Returns the HTML of a cell's text. A line may break before an interval in brackets, but not inside a number. */
const cell = (text: string): string =>
  text
    .split(/ (?=\[)/u)
    .map((part) => (/^[[\d+−]/u.test(part) ? `<span>${escaped(part)}</span>` : escaped(part)))
    .join(' ')

const STYLE = `
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
.wide { overflow-x: auto } .wide + .wide { margin-top: 18px }
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
