/** Owns a report as files: the folder of tables, figures and summary, and the page, one HTML file that needs nothing else. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { KvfoldError } from '../../core/errors.js'
import type { Baseline } from './estimates.js'
import { gather, readForReport, type ReadLog } from './gather.js'
import { accuracyPictures } from './pictures/accuracy.js'
import { costPictures } from './pictures/cost.js'
import type { Drawn, LeftOut, Picture } from './pictures/picture.js'
import { usePictures } from './pictures/use.js'
import { summarise, type Made, type Summary, type LogFacts, machineName } from './summary.js'
import { accuracyTables, costTables } from './tables/results.js'
import { paperTables } from './tables/paper.js'
import { csv, markdownFile, type DataTable } from './tables/data-table.js'
import { useTables } from './tables/tools.js'
import { escaped, figureHtml, fileLink, page } from '../../figures/page.js'
import { html, left, table } from '../../figures/table.js'
import { about, cautions, claims } from './findings.js'
import { Labels } from './tables/labels.js'

/**
 * What the logs say; their order decides how groups are named.
 * @throws KvfoldError eval/bad-log for what is no log, and where no log has a sample yet
 */
export async function summaryOf(logs: readonly string[], baseline: Baseline, made: Made): Promise<Summary> {
  const read: ReadLog[] = []
  // One after the other: a log may be large.
  for (const path of logs) read.push(await readForReport(path))
  if (read.every(({ records }) => records.length === 0))
    throw new KvfoldError('eval/bad-log', `There is no sample yet in ${logs.join(', ')}; report the run when it has got further.`)
  return summarise(gather(read), baseline, made)
}

/** Writes the files into the folder, made where it is missing; those of an earlier report are overwritten. Returns the path of the page. */
export function publish(summary: Summary, folder: string): string {
  const [tables, drawn] = [tablesOf(summary), picturesOf(summary)]
  mkdirSync(folder, { recursive: true })
  const write = (name: string, content: string): string => {
    const path = join(folder, name)
    writeFileSync(path, content)
    return path
  }
  for (const table of tables) {
    write(`${table.name}.csv`, csv(table))
    write(`${table.name}.md`, markdownFile(table))
  }
  for (const picture of drawn) if ('svg' in picture) write(`${picture.name}.svg`, picture.svg)
  write('summary.json', `${JSON.stringify(summary, null, 2)}\n`)
  return write('report.html', reportPage(summary, tables, drawn))
}

export const tablesOf = (summary: Summary): DataTable[] => [
  ...accuracyTables(summary),
  ...costTables(summary),
  ...useTables(summary),
  ...paperTables(summary),
]

const picturesOf = (summary: Summary): Drawn[] => [
  ...accuracyPictures(summary),
  ...costPictures(summary),
  ...usePictures(summary),
]

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

function reportPage(summary: Summary, tables: readonly DataTable[], drawn: readonly Drawn[]): string {
  const pictures = drawn.filter((one): one is Picture => 'svg' in one)
  const left = drawn.filter((one): one is LeftOut => 'why' in one)
  const sections = SECTIONS.flatMap((section) => {
    const inside = [...picked(section.figures, pictures).map(figureHtml), ...picked(section.tables, tables).map(tableHtml)]
    return inside.length === 0 ? [] : [{ ...section, inside: inside.join('\n') }]
  })
  const { title, facts } = about(summary)
  const links = [...sections, { id: 'sources', title: 'What was run' }]
  return page(
    title,
    `<h1>${escaped(title)}</h1>
<p class="faint">${facts.map(escaped).join(' · ')}</p>
${list(claims(summary))}
${mind(cautions(summary))}
<nav aria-label="Contents"><ul>${links.map(({ id, title: name }) => `<li><a href="#${id}">${escaped(name)}</a></li>`).join('')}</ul></nav>
${sections.map(({ id, title: name, inside }) => `<section id="${id}">\n<h2>${escaped(name)}</h2>\n${inside}\n</section>`).join('\n')}
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
</section>`,
  )
}

/** In the order of the names. */
function picked<T extends { readonly name: string }>(names: readonly string[], all: readonly T[]): T[] {
  const found = names.flatMap((name) => all.filter((one) => (name.endsWith('-') ? one.name.startsWith(name) : one.name === name)))
  return [...new Set(found)]
}

function tableHtml(table: DataTable): string {
  const { name, title, brief, onPage } = table
  const files = `<p class="files">${onPage ? '' : `${escaped(title)}: `}${fileLink(`${name}.csv`)} · ${fileLink(`${name}.md`)}</p>`
  return onPage ? `<h3>${escaped(title)}</h3>\n${html(table)}${list(brief, 'notes')}${files}` : files
}

const list = (items: readonly string[], kind = ''): string =>
  items.length === 0
    ? ''
    : `<ul${kind === '' ? '' : ` class="${kind}"`}>${items.map((item) => `<li>${escaped(item)}</li>`).join('')}</ul>\n`

const mind = (items: readonly string[]): string =>
  items.length === 0 ? '' : `<aside class="mind"><strong>Mind, before you read on</strong>${list(items)}</aside>`

// The part of the page that says what was run: logs, how they differ, tasks, agents, and how the page was made.

function sources(summary: Summary): string {
  const { logs, tasks, agents, made } = summary
  const labels = new Labels(summary)
  return [
    apart(summary),
    ...logs.map((log) => logHtml(summary, log)),
    '<h3>Tasks</h3>',
    ...tasks.map(
      ({ options, differs }, index) =>
        `<p><strong>${escaped(labels.task(index))}</strong></p>\n${options.map((one) => `<pre>${json(one)}</pre>`).join('\n')}\n${
          differs.length === 0
            ? '<p class="faint">As its authors have it.</p>'
            : `<p class="faint">Differs from the original:</p><ul class="notes">${differs.map((one) => `<li>${escaped(one)}</li>`).join('')}</ul>`
        }`,
    ),
    '<h3>Agents</h3>',
    facts(
      agents.map(({ options, embedder }, index) => [
        labels.agent(index),
        `${JSON.stringify(options)}${embedder === null ? '' : `, embeds with ${embedder}`}`,
      ]),
    ),
    '<h3>This report</h3>',
    `<pre>${escaped(made.command)}</pre>`,
    `<p class="faint">kvfold ${escaped(made.kvfold)}, ${escaped(made.date)}. Beside this page: summary.json with all of its numbers, every table as Markdown and CSV, every figure as SVG.</p>`,
  ].join('\n')
}

/** Nothing where all logs are alike. */
function apart({ variants }: Summary): string {
  if (variants.length < 2) return ''
  const names = Object.keys(variants[0]!.facts)
  const different = names.filter((name) => new Set(variants.map(({ facts }) => facts[name])).size > 1)
  const rows = variants.map(({ name, facts }) => [name, ...different.map((fact) => facts[fact] ?? '')])
  return `<h3>What sets the groups of logs apart</h3>
${html(table(['', ...different].map(left), rows))}<p class="faint">Only within a group are records put together and agents compared. Everything else that decides an answer is the same.</p>`
}

function logHtml({ variants }: Summary, log: LogFacts): string {
  const { model, engine, machine, resumed } = log
  return `<h3>Log ${escaped(log.name)}${variants.length > 1 ? ` (group ${escaped(variants[log.variant]!.name)})` : ''}</h3>
<pre>${escaped(log.command)}</pre>
${facts([
  ['date', log.date],
  ['machine', machineName(machine)],
  ['model', `${model.name}, SHA-256 ${model.fingerprint ?? 'unknown'}`],
  ['engine', `${engine.engine} ${engine.release}, context of ${engine.context} tokens`],
  ['kvfold', `${log.kvfold}, commit ${log.commit ?? 'unknown'}`],
  ['seed', String(log.seed)],
  ['sampling', Object.keys(log.sampling).length === 0 ? 'as the tasks have it' : JSON.stringify(log.sampling)],
  ['contracts', log.contracts.join(', ')],
  ...(log.embedder === null ? [] : [['embeds with', log.embedder] as const]),
  ...(log.judge === null ? [] : [['judged by', log.judge] as const]),
  ['records', `${log.answers} answers, ${log.errors} errors`],
  ...(resumed.length === 0
    ? []
    : [
        [
          'went on',
          resumed.map(({ date, other }) => (other.length === 0 ? date : `${date} with ${other.join(', ')}`)).join('; '),
        ] as const,
      ]),
])}`
}

const facts = (pairs: readonly (readonly [string, string])[]): string =>
  `<dl>${pairs.map(([name, value]) => `<dt>${escaped(name)}</dt><dd>${escaped(value)}</dd>`).join('')}</dl>`

const json = (value: unknown): string => escaped(JSON.stringify(value))
