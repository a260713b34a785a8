/** Owns the report of a study: one HTML page that needs nothing else, in light and dark, for screen and paper. */
import { escaped, figureHtml, page } from '../figures/page.js'
import { probability, signed } from '../figures/numbers.js'
import { type Column, html, table } from '../figures/table.js'
import { changes, episode, headMaps, interference, scatter, spanFigure } from './figures.js'
import { type Figure, type Finding, summarise, type Summary, type SummaryInput } from './findings.js'
import { FROM_NAMES } from './pairs.js'
import type { EpisodeRecord, PromptRecord, RunFolder, StripRecord, StudyRecord } from './run-folder.js'
import type { SpanStudy } from './spans.js'
import { type ColumnType, episodeTable, headTable, interferenceTable, pairTable, parquet, type Row as DataRow } from './tables.js'
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
${tables(summary)}
<p class="faint">${NOTES.map(escaped).join(' ')}</p>
${pictures.map(figureHtml).join('\n')}
${strip === null ? '' : stripHtml(strip)}
<h2>How it was made</h2>
<pre>${escaped(command)}</pre>
<pre>${escaped(JSON.stringify({ model: { ...model }, options }, null, 2))}</pre>
<p class="faint">Beside this page: summary.json, pairs.parquet, heads.parquet, interference.parquet, episode.parquet where there was one, the figures as SVG, and records.jsonl, from which the run goes on.</p>`,
    { style: STRIP_STYLE, script: STRIP_SCRIPT },
  )
}

const NOTES = [
  'A change is that of the mean weight on one token of the current value, folded against complete, in percent of complete.',
  'Arithmetic alone: a fold takes tokens out of a softmax, so the weights of what stays rise by w / (1 - mass on the folded text); predicted from the complete prompt, layer by layer, head by head, token by token. Excess: observed less that, pair by pair.',
  'Placebo: as many tokens of made-up words, in the same place of a prompt that is otherwise the same, are folded.',
  'Brackets: 95 % bootstrap intervals over prompts, because pairs of one prompt are not independent.',
  'pairs, p: one-sample t test (t) and Wilcoxon signed-rank test (W) on the changes of all pairs as if they were independent, as in the paper; prompts, p: the same on the mean change of each prompt.',
  'Below even: pairs whose weight in the complete prompt is less than one over the number of shown tokens, so that the value is not looked for from there; percentages of such weights say little.',
  "The paper's row is quoted from Sculptor, section 4.3: another model, one prompt.",
]

/** The first contract in words. */
function verdict({ findings }: Summary): string {
  const sentences = findings.slice(0, 2).map((finding) => {
    const { from, contract, pairs, improved, medianChange, meanChange, belowEven } = finding
    if (medianChange === null || meanChange === null) return `No pair could be measured ${FROM_NAMES[from]}.`
    const low =
      belowEven * 2 > pairs
        ? ` In ${belowEven} pairs that weight is less than an even share: from there the model does not look for the value.`
        : ''
    return `Under ${contract}, ${improved} of ${pairs} pairs gain attention ${FROM_NAMES[from]} (median ${signed(medianChange.value)} %, mean ${signed(meanChange.value)} %).${aloneOf(finding)}${low}`
  })
  return sentences.join(' ')
}

/** What of the mean change needs no model that reads better. */
function aloneOf({ baselineMeanChange: alone, excessMeanChange: excess, placeboMeanChange: placebo }: Finding): string {
  if (alone === null || excess === null) return ''
  const { value, interval: ends } = excess
  const left = `${signed(value)} %${ends === null ? '' : ` (${ends.map(signed).join(' to ')})`} is left`
  const control = placebo === null ? '' : `, and folding as many made-up words gives ${signed(placebo.value)} %`
  return ` Softmax arithmetic alone makes ${signed(alone.value)} % of the mean; ${left}${control}.`
}

/** The paper's row is null. */
type Row = Finding | null

function tables({ findings, paper }: Summary): string {
  const column = (title: string, ours: (finding: Finding) => string, theirs = '–'): Column<Row> => ({
    ...{ title, text: (finding) => (finding === null ? theirs : ours(finding)) },
  })
  const named = [
    column('', ({ contract }) => `folded, ${contract}`, 'the paper'),
    column('tokens looking', ({ from }) => (from === 'value' ? 'value (paper)' : 'predicting'), 'value'),
  ]
  const range = (ends: readonly [number, number]) => `${signed(ends[0])} to ${signed(ends[1])}`
  const changed = [
    ...named,
    column('pairs', counted, String(paper.pairs)),
    column('gain', share, `${paper.improved} (${(100 * paper.improvedShare).toFixed(1)} %)`),
    column('mean change, %', ({ meanChange }) => withInterval(meanChange), signed(paper.meanChange)),
    column('arithmetic alone, %', ({ baselineMeanChange }) => withInterval(baselineMeanChange)),
    column('excess, %', ({ excessMeanChange }) => withInterval(excessMeanChange)),
    column('placebo, %', ({ placeboMeanChange }) => withInterval(placeboMeanChange)),
    column('median change, %', ({ medianChange }) => withInterval(medianChange), signed(paper.medianChange)),
    column('range, %', (finding) => (finding.range === null ? '–' : range(finding.range)), range(paper.range)),
    column('R²', ({ r2 }) => withInterval(r2, (value) => value.toFixed(3)), String(paper.r2)),
  ]
  const p = (test: { readonly p: number } | null): string => (test === null ? '–' : probability(test.p))
  const tested = [
    ...named,
    column('pairs: t, p', ({ overPairs }) => p(overPairs.t), paper.p),
    column('W, p', ({ overPairs }) => p(overPairs.wilcoxon)),
    column('prompts: t, p', ({ overSeeds }) => p(overSeeds.t)),
    column('W, p', ({ overSeeds }) => p(overSeeds.wilcoxon)),
    column('below even', ({ belowEven }) => String(belowEven)),
    column('weight on the value', ({ complete, folded }) => arrow(complete?.weight, folded?.weight)),
    column('mass on earlier values', ({ complete, folded }) => arrow(complete?.older, folded?.older)),
  ]
  const theirs = (finding: Row): boolean => finding === null
  return [changed, tested].map((columns) => html(table(columns, [...findings, null], { theirs }))).join('')
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
const withInterval = (figure: Figure | null, write = signed): string =>
  figure === null ? '–' : write(figure.value) + interval(figure, write)
const interval = ({ interval: ends }: Figure, write: (value: number) => string): string =>
  ends === null ? '' : ` [${write(ends[0])}, ${write(ends[1])}]`
const arrow = (before: number | undefined, after: number | undefined): string =>
  before === undefined || after === undefined
    ? '–'
    : [before, after].map((value) => (value < 0.001 ? value.toExponential(2) : value.toFixed(4))).join(' → ')

// Which figures a study gets, and the names of their files.

export interface Picture {
  /** File name without its ending. */
  readonly name: string
  readonly svg: string
}

/** In the order of the report; none for what has no data. */
export function picturesOf(
  { contracts, findings, interference: points, n }: Summary,
  records: readonly StudyRecord[],
): Picture[] {
  const prompts = records.filter((record): record is PromptRecord => record.part === 'prompt' && record.n === n)
  const episodes = records.filter((record): record is EpisodeRecord => record.part === 'episode')
  const all = [
    ...contracts.flatMap((contract): Picture[] => {
      const own = findings.filter((finding) => finding.contract === contract)
      return [
        { name: `scatter-${contract}`, svg: scatter(prompts, contract, own) },
        { name: `changes-${contract}`, svg: changes(prompts, contract, own) },
        { name: `heads-${contract}`, svg: headMaps(prompts, contract) },
      ]
    }),
    { name: 'interference', svg: interference(points) },
    ...episodes.map((record) => ({
      name: `episode-${record.seed}`,
      svg: episode(record),
    })),
  ]
  return all.filter(({ svg }) => svg !== '')
}

/** The report on watched spans: a bar for every span, complete and folded, and the answers. */
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

// Writing what a study found into its folder: summary, tables, figures, report.

/** The summary, and where the report is. Files of an earlier run of the folder are overwritten. */
export function publish(folder: RunFolder, input: SummaryInput): { readonly summary: Summary; readonly report: string } {
  const { records } = input
  const summary = summarise(input)
  folder.write('summary.json', `${JSON.stringify(summary, null, 2)}\n`)
  const about = JSON.stringify({ schema: summary.schema, model: summary.model, options: summary.options })
  const save = (
    name: string,
    { columns, rows }: { readonly columns: Readonly<Record<string, ColumnType>>; readonly rows: readonly DataRow[] },
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
