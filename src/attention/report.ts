/** Owns the report of a study: one HTML page that needs nothing else, in light and dark, for screen and paper. */
import { changes, signed } from './figures/changes.js'
import { interferenceCurve } from './figures/curve.js'
import { episode } from './figures/episode.js'
import { headMaps } from './figures/head-maps.js'
import { FROM_NAMES, scatter } from './figures/scatter.js'
import { escaped } from './figures/svg.js'
import { type Figure, type Finding, summarise, type Summary, type SummaryInput } from './findings.js'
import type { EpisodeRecord, PromptRecord, RunFolder, StripRecord, StudyRecord } from './run-folder.js'
import { type ColumnType, episodeTable, headTable, interferenceTable, pairTable, parquet, type Row } from './tables.js'
import { STRIP_SCRIPT, STRIP_STYLE, stripHtml } from './token-heat-map.js'

export function report(summary: Summary, pictures: readonly Picture[], strip: StripRecord | null): string {
  const { model, options, date, command, versions, n } = summary
  const facts = [
    `${model.name}, ${model.layers} layers of ${model.heads} heads`,
    `n = ${n} updates per key`,
    ...Object.entries(versions).map(([name, version]) => `${name} ${version}`),
    date,
  ]
  return page(
    `Attention under folding: ${model.name}`,
    `<h1>What folding does to where the model looks</h1>
<p class="faint">${facts.map(escaped).join(' · ')}</p>
<p>${escaped(verdict(summary))}</p>
<h2>Folded against complete</h2>
${table(summary)}
<p class="faint">${NOTES.map(escaped).join(' ')}</p>
${pictures.map(({ title, svg }) => `<figure><figcaption>${escaped(title)}</figcaption>\n${svg}</figure>`).join('\n')}
${strip === null ? '' : stripHtml(strip)}
<h2>How it was made</h2>
<pre>${escaped(command)}</pre>
<pre>${escaped(JSON.stringify({ model: { ...model }, options }, null, 2))}</pre>
<p class="faint">Beside this page: summary.json, pairs.parquet, heads.parquet, interference.parquet, episode.parquet where there was one, the figures as SVG, and records.jsonl, from which the run goes on.</p>`,
  )
}

/** A page of its own, in light and dark; `body` is HTML. */
export const page = (title: string, body: string): string => `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(title)}</title>
<style>${STYLE}${STRIP_STYLE}</style>
</head>
<body>
<main>
${body}
</main>
<script>${STRIP_SCRIPT}</script>
</body>
</html>
`

const NOTES = [
  'A change is that of the mean weight on one token of the current value, folded against complete, in percent of complete.',
  'Brackets: 95 % bootstrap intervals over prompts, because pairs of one prompt are not independent.',
  'pairs, p: one-sample t test (t) and Wilcoxon signed-rank test (W) on the changes of all pairs as if they were independent, as in the paper; prompts, p: the same on the mean change of each prompt.',
  'Below even: pairs whose weight in the complete prompt is less than one over the number of shown tokens, so that the value is not looked for from there; percentages of such weights say little.',
  "The paper's row is quoted from Sculptor, section 4.3: another model, one prompt.",
]

/** The first contract in words. */
function verdict({ findings }: Summary): string {
  const sentences = findings.slice(0, 2).map(({ from, contract, pairs, improved, medianChange, meanChange, belowEven }) => {
    if (medianChange === null || meanChange === null) return `No pair could be measured ${FROM_NAMES[from]}.`
    const low =
      belowEven * 2 > pairs
        ? ` In ${belowEven} pairs that weight is less than an even share: from there the model does not look for the value.`
        : ''
    return `Under ${contract}, ${improved} of ${pairs} pairs gain attention ${FROM_NAMES[from]} (median ${signed(medianChange.value)} %, mean ${signed(meanChange.value)} %).${low}`
  })
  return sentences.join(' ')
}

function table({ findings, paper }: Summary): string {
  const named = ({ contract, from }: Finding): string[] => [
    `folded, ${contract}`,
    from === 'value' ? 'value (paper)' : 'predicting',
  ]
  const changed = findings.map((finding) => [
    ...named(finding),
    counted(finding),
    share(finding),
    withInterval(finding.meanChange),
    withInterval(finding.medianChange),
    finding.range === null ? '–' : `${signed(finding.range[0])} to ${signed(finding.range[1])}`,
    finding.r2 === null ? '–' : finding.r2.value.toFixed(3) + interval(finding.r2, (value) => value.toFixed(3)),
  ])
  const theirs = [
    ...['the paper', 'value', String(paper.pairs), `${paper.improved} (${(100 * paper.improvedShare).toFixed(1)} %)`],
    ...[
      signed(paper.meanChange),
      signed(paper.medianChange),
      `${signed(paper.range[0])} to ${signed(paper.range[1])}`,
      String(paper.r2),
    ],
  ]
  const tested = findings.map((finding) => [
    ...named(finding),
    ...[...tests(finding.overPairs), ...tests(finding.overSeeds)],
    String(finding.belowEven),
    arrow(finding.complete?.weight, finding.folded?.weight),
    arrow(finding.complete?.older, finding.folded?.older),
  ])
  const first = ['', 'tokens looking', 'pairs', 'gain', 'mean change, %', 'median change, %', 'range, %', 'R²']
  const second = [
    '',
    'tokens looking',
    'pairs: t, p',
    'W, p',
    'prompts: t, p',
    'W, p',
    'below even',
    'weight on the value',
    'mass on earlier values',
  ]
  return (
    rows(first, changed, [theirs]) + rows(second, tested, [['the paper', 'value', paper.p, ...new Array<string>(6).fill('–')]])
  )
}

function rows(head: readonly string[], ours: readonly (readonly string[])[], theirs: readonly (readonly string[])[]): string {
  const row = (of: readonly string[], tag: 'td' | 'th', mark = ''): string =>
    `<tr${mark}>${of.map((cell) => `<${tag}>${escaped(cell)}</${tag}>`).join('')}</tr>`
  const body = [...ours.map((of) => row(of, 'td')), ...theirs.map((of) => row(of, 'td', ' class="theirs"'))]
  return `<div class="wide"><table><thead>${row(head, 'th')}</thead><tbody>${body.join('')}</tbody></table></div>`
}

function counted({ pairs, counts }: Finding): string {
  const left = [
    ...(counts['folded-away'] > 0 ? [`${counts['folded-away']} folded away`] : []),
    ...(counts.unanswered > 0 ? [`${counts.unanswered} not answered`] : []),
  ]
  return left.length === 0 ? String(pairs) : `${pairs} (${left.join(', ')})`
}

const share = ({ improved, improvedShare }: Finding): string =>
  improvedShare === null
    ? '–'
    : `${improved} (${(100 * improvedShare.value).toFixed(1)} %)${interval(improvedShare, (value) => (100 * value).toFixed(0))}`
const withInterval = (figure: Figure | null): string => (figure === null ? '–' : signed(figure.value) + interval(figure, signed))
const interval = ({ interval: ends }: Figure, write: (value: number) => string): string =>
  ends === null ? '' : `\n[${write(ends[0])}, ${write(ends[1])}]`
const tests = ({ t, wilcoxon }: Finding['overPairs']): string[] =>
  [t, wilcoxon].map((test) => (test === null ? '–' : probability(test.p)))
const arrow = (before: number | undefined, after: number | undefined): string =>
  before === undefined || after === undefined
    ? '–'
    : [before, after].map((value) => (value < 0.001 ? value.toExponential(2) : value.toFixed(4))).join(' → ')

/** As it is usually written; what is smaller than numbers go is less than the least of them. */
export const probability = (p: number): string => (p === 0 ? '< 1e-300' : p < 0.001 ? p.toExponential(1) : p.toFixed(3))

const STYLE = `
:root { color-scheme: light dark; --paper: #fff; --ink: #27272a; --faint: #71717a; --rule: #e4e4e7; --soft: #f4f4f5 }
@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --ink: #e4e4e7; --faint: #a1a1aa; --rule: #30363d; --soft: #161b22 } }
@media print { :root { --paper: #fff; --ink: #27272a; --faint: #52525b; --rule: #d4d4d8; --soft: #f4f4f5 } figure, tr { break-inside: avoid } .wide { overflow: visible } }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif }
main { max-width: 1000px; margin: 0 auto; padding: 24px 20px 60px }
h1 { font-size: 26px; margin: 0 0 4px } h2 { font-size: 19px; margin: 36px 0 8px }
.faint { color: var(--faint); font-size: 13px }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: 12px; font-variant-numeric: tabular-nums }
th { text-align: left; font-weight: 600; color: var(--faint); vertical-align: bottom }
th, td { padding: 5px 10px; border-bottom: 1px solid var(--rule); white-space: pre }
table { margin-bottom: 18px; width: 100% }
td { vertical-align: top }
.theirs td { background: var(--soft); color: var(--faint) }
figure { margin: 28px 0 } figcaption { font-weight: 600; margin-bottom: 6px } figure svg { width: 100%; height: auto; border: 1px solid var(--rule); border-radius: 6px }
pre { background: var(--soft); padding: 10px 12px; border-radius: 6px; overflow-x: auto; font-size: 12px; white-space: pre-wrap; overflow-wrap: anywhere }
`

// Which figures a study gets, and the names of their files.

export interface Picture {
  /** File name without its ending. */
  readonly name: string
  readonly title: string
  readonly svg: string
}

/** In the order of the report; none for what has no data. */
export function picturesOf({ contracts, findings, interference, n }: Summary, records: readonly StudyRecord[]): Picture[] {
  const prompts = records.filter((record): record is PromptRecord => record.part === 'prompt' && record.n === n)
  const episodes = records.filter((record): record is EpisodeRecord => record.part === 'episode')
  const all = [
    ...contracts.flatMap((contract): Picture[] => {
      const own = findings.filter((finding) => finding.contract === contract)
      return [
        { name: `scatter-${contract}`, title: `Folded against complete: ${contract}`, svg: scatter(prompts, contract, own) },
        { name: `changes-${contract}`, title: `Changes: ${contract}`, svg: changes(prompts, contract, own) },
        { name: `heads-${contract}`, title: `Layers and heads: ${contract}`, svg: headMaps(prompts, contract) },
      ]
    }),
    { name: 'interference', title: 'Interference against updates', svg: interferenceCurve(interference) },
    ...episodes.map((record) => ({
      name: `episode-${record.seed}`,
      title: "An agent's turn, step by step",
      svg: episode(record),
    })),
  ]
  return all.filter(({ svg }) => svg !== '')
}

// Writing what a study found into its folder: summary, tables, figures, report.

/** The summary, and where the report is. Files of an earlier run of the folder are overwritten. */
export function publish(folder: RunFolder, input: SummaryInput): { readonly summary: Summary; readonly report: string } {
  const { records } = input
  const summary = summarise(input)
  folder.write('summary.json', `${JSON.stringify(summary, null, 2)}\n`)
  const about = JSON.stringify({ schema: summary.schema, model: summary.model, options: summary.options })
  const save = (
    name: string,
    { columns, rows }: { readonly columns: Readonly<Record<string, ColumnType>>; readonly rows: readonly Row[] },
  ) => (rows.length === 0 ? null : folder.write(`${name}.parquet`, parquet(columns, rows, about)))
  save('pairs', pairTable(records))
  save('heads', headTable(records))
  save('interference', interferenceTable(summary.interference))
  save('episode', episodeTable(records))
  const pictures = picturesOf(summary, records)
  for (const { name, svg } of pictures) folder.write(`${name}.svg`, svg)
  const strip = records.find((record: StudyRecord): record is StripRecord => record.part === 'strip') ?? null
  return { summary, report: folder.write('report.html', report(summary, pictures, strip)) }
}
