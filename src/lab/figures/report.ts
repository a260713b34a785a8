/**
 * Describes a report as data (sentences, tables and figures under headings), and writes it as one self-contained page. Figures and data
 * tables also get files of their own.
 */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Table } from '../../runtime/figures/table.js'
import { csv, type DataTable, markdownFile } from './data-table.js'
import type { Picture } from './figure.js'
import { escaped, fileLink, html, page } from './page.js'

export interface Report {
  readonly title: string
  /** The heading at the top of the page. Default: the title. */
  readonly heading?: string
  /** Short facts under the top heading, such as the date. */
  readonly facts: readonly string[]
  readonly parts: readonly ReportPart[]
  /** CSS and JavaScript that a part of the page needs. */
  readonly more?: { readonly style: string; readonly script: string }
}

export type ReportPart = Section | Picture | Pick<Picture, 'svg'> | DataTable | Table | Prose | Pairs | Contents | Raw

export interface Section {
  readonly heading: string
  /** The id for links from the same page. Default: none. */
  readonly id?: string
  readonly parts: readonly ReportPart[]
}

/**
 * Sentences. By default each is a paragraph. `faint`: paragraphs in a faint colour. `list`: bullets. `notes`: small bullets. `mind`:
 * bullets in a box with a warning above. `code`: one code block each.
 */
export interface Prose {
  readonly says: readonly string[]
  readonly look?: 'faint' | 'list' | 'notes' | 'mind' | 'code'
}

/** A list of names with values, one pair per line. */
export interface Pairs {
  readonly pairs: readonly (readonly [name: string, value: string])[]
}

/** A table of contents: links to sections of the page. */
export interface Contents {
  readonly contents: readonly { readonly id?: string; readonly heading: string }[]
}

/** HTML that is inserted unchanged. */
export interface Raw {
  readonly html: string
}

export const reportPage = ({ title, heading = title, facts, parts, more }: Report): string =>
  page(
    title,
    [`<h1>${escaped(heading)}</h1>`, `<p class="faint">${facts.map(escaped).join(' · ')}</p>`, ...parts.map(rendered)].join('\n'),
    more ?? null,
  )

/**
 * Writes the page, the files of its figures and tables, and `files` into the folder, over those of an earlier report. Creates a missing
 * folder.
 * @returns the path of the page
 */
export function publishReport(folder: string, report: Report, files: Readonly<Record<string, string | Uint8Array>> = {}): string {
  mkdirSync(folder, { recursive: true })
  const write = (name: string, content: string | Uint8Array): string => {
    const path = join(folder, name)
    writeFileSync(path, content)
    return path
  }
  for (const [name, content] of Object.entries(files)) write(name, content)
  for (const part of report.parts.flatMap(within)) {
    if ('svg' in part && 'name' in part) write(`${part.name}.svg`, part.svg)
    if (!('values' in part)) continue
    write(`${part.name}.csv`, csv(part))
    write(`${part.name}.md`, markdownFile(part))
  }
  return write('report.html', reportPage(report))
}

const within = (part: ReportPart): readonly ReportPart[] => ('parts' in part ? part.parts.flatMap(within) : [part])

const rendered = (part: ReportPart): string => drawn(part, 2)

function drawn(part: ReportPart, level: number): string {
  if ('svg' in part) {
    const caption = 'name' in part ? `<figcaption>${fileLink(`${part.name}.svg`)}</figcaption>\n` : ''
    return `<figure>\n${part.svg}${caption}</figure>`
  }
  if ('parts' in part) {
    const inside = [`<h${level}>${escaped(part.heading)}</h${level}>`, ...part.parts.map((one) => drawn(one, level + 1))].join(
      '\n',
    )
    return part.id === undefined ? inside : `<section id="${escaped(part.id)}">\n${inside}\n</section>`
  }
  if ('values' in part) return dataHtml(part, level)
  if ('columns' in part) return html(part)
  if ('pairs' in part)
    return `<dl>${part.pairs.map(([name, value]) => `<dt>${escaped(name)}</dt><dd>${escaped(value)}</dd>`).join('')}</dl>`
  if ('contents' in part) {
    const links = part.contents.map(({ id = '', heading }) => `<li><a href="#${escaped(id)}">${escaped(heading)}</a></li>`)
    return `<nav aria-label="Contents"><ul>${links.join('')}</ul></nav>`
  }
  return 'html' in part ? part.html : prose(part)
}

/** Returns a table's HTML with its title, notes and links to its files. Returns only the links if the page does not show the table. */
function dataHtml(table: DataTable, level: number): string {
  const { name, title, brief, onPage } = table
  const files = `<p class="files">${onPage ? '' : `${escaped(title)}: `}${fileLink(`${name}.csv`)} · ${fileLink(`${name}.md`)}</p>`
  const notes = prose({ says: brief, look: 'notes' })
  return onPage ? `<h${level}>${escaped(title)}</h${level}>\n${html(table)}${notes}${files}` : files
}

function prose({ says, look }: Prose): string {
  if (says.length === 0) return ''
  const each = (tag: string, of = '') => says.map((one) => `<${tag}${of}>${escaped(one)}</${tag}>`).join('\n')
  if (look === undefined) return each('p')
  switch (look) {
    case 'code':
      return each('pre')
    case 'mind':
      return `<aside class="mind"><strong>Before you read on</strong><ul>${each('li')}</ul></aside>`
    case 'list':
      return `<ul>${each('li')}</ul>`
    case 'notes':
      return `<ul class="notes">${each('li')}</ul>`
    case 'faint':
      return each('p', ' class="faint"')
  }
}
