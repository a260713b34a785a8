/** Writes the report of a study: one self-contained HTML page in light and dark, for screen and paper, with the heat map of one value. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Picture } from '../figures/figure.js'
import { probability, signed } from '../../runtime/figures/numbers.js'
import { escaped, figureHtml, html, page } from '../figures/page.js'
import { type Column, table } from '../../runtime/figures/table.js'
import { changes, controls, episode, headMaps, interference, scatter, spanFigure } from './figures.js'
import { type FindingFigure, type Finding, summarise, type StudySummary, type SummaryInput } from './findings.js'
import { type From, FROM_NAMES } from './pairs.js'
import type { EpisodeRecord, PromptRecord, HeatMapRecord, HeatMapToken, StudyRecord } from './records.js'
import type { SpanStudy } from './spans.js'
import {
  type ColumnType,
  episodeTable,
  headTable,
  interferenceTable,
  pairTable,
  parquet,
  type StudyRow as DataRow,
} from './tables.js'
import type { Span } from '../../runtime/core/span.js'
import type { Measurement } from '../../runtime/attention/measurement.js'

export function report(summary: StudySummary, pictures: readonly Picture[], heatMap: HeatMapRecord | null): string {
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
${heatMap === null ? '' : heatMapHtml(heatMap)}
<h2>How it was made</h2>
<pre>${escaped(command)}</pre>
<pre>${escaped(JSON.stringify({ model: { ...model }, options }, null, 2))}</pre>
<p class="faint">Beside this page: summary.json, pairs.parquet, heads.parquet, interference.parquet, episode.parquet where there was one, the figures as SVG, and records.jsonl, from which the run goes on.</p>`,
    { style: HEAT_MAP_STYLE, script: HEAT_MAP_SCRIPT },
  )
}

const NOTES = [
  'A change is that of the mean weight on one token of the current value, folded against complete, in percent of complete.',
  'Arithmetic alone: a fold takes tokens out of a softmax, so the weights of what stays rise by w / (1 - mass on the folded text); predicted from the complete prompt, layer by layer, head by head, token by token. Excess: observed less that, pair by pair.',
  'Placebo: as many tokens of made-up words, in the same place of a prompt that is otherwise the same, are folded. Unasked: as many of updates of keys that nobody asks for. Others: the change of the mass on all other tokens of the stream that stay open.',
  'Brackets: 95 % bootstrap intervals over prompts, because pairs of one prompt are not independent.',
  'pairs, p: one-sample t test (t) and Wilcoxon signed-rank test (W) on the changes of all pairs as if they were independent, as in the paper; prompts, p: the same on the mean change of each prompt; excess, p: on its mean excess.',
  'Below even: pairs whose weight in the complete prompt is less than one over the number of shown tokens, so that the value is not looked for from there; percentages of such weights say little.',
  "The paper's row is quoted from Sculptor, section 4.3: another model, one prompt.",
]

/** Says in words what the study finds for the first contract. */
function verdict({ findings }: StudySummary): string {
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

/** Says how much of the mean change softmax arithmetic explains, how much is left, and what folding made-up words gives. */
function aloneOf({ baselineMeanChange: alone, excessMeanChange: excess, placeboMeanChange: placebo }: Finding): string {
  if (alone === null || excess === null) return ''
  const { value, interval: ends } = excess
  const left = `${signed(value)} %${ends === null ? '' : ` (${ends.map(signed).join(' to ')})`} is left`
  const control = placebo === null ? '' : `, and folding as many made-up words gives ${signed(placebo.value)} %`
  return ` Softmax arithmetic alone makes ${signed(alone.value)} % of the mean; ${left}${control}.`
}

/** Null stands for the paper's row. */
type FindingRow = Finding | null

function tables({ findings, paper }: StudySummary): string {
  const column = (title: string, ours: (finding: Finding) => string, theirs = '–'): Column<FindingRow> => ({
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
    column('unasked, %', ({ unaskedMeanChange }) => withInterval(unaskedMeanChange)),
    column('others, %', ({ othersMeanChange }) => withInterval(othersMeanChange)),
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
    column('excess: t, p', ({ excessOverSeeds }) => p(excessOverSeeds.t)),
    column('W, p', ({ excessOverSeeds }) => p(excessOverSeeds.wilcoxon)),
    column('below even', ({ belowEven }) => String(belowEven)),
    column('weight on the value', ({ complete, folded }) => arrow(complete?.weight, folded?.weight)),
    column('mass on earlier values', ({ complete, folded }) => arrow(complete?.older, folded?.older)),
  ]
  const theirs = (finding: FindingRow): boolean => finding === null
  const far = findings.flatMap((finding) => finding.byDistance.map((row) => ({ ...row, finding })))
  type Far = (typeof far)[number]
  const distances: Column<Far>[] = [
    { title: '', text: ({ finding }) => `folded, ${finding.contract}` },
    { title: 'tokens looking', text: ({ finding }) => (finding.from === 'value' ? 'value' : 'predicting') },
    { title: 'updates behind the value', text: ({ from, to }) => (to === null ? `${from} or more` : `${from} to ${to}`) },
    { title: 'pairs', text: ({ pairs }) => String(pairs) },
    { title: 'not answered', text: ({ unanswered }) => String(unanswered) },
    { title: 'mean change, %', text: ({ meanChange }) => withInterval(meanChange) },
    { title: 'excess, %', text: ({ excessMeanChange }) => withInterval(excessMeanChange) },
  ]
  const ours = [changed, tested].map((columns) => html(table(columns, [...findings, null], { theirs })))
  return [...ours, html(table(distances, far))].join('')
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
const withInterval = (figure: FindingFigure | null, write = signed): string =>
  figure === null ? '–' : write(figure.value) + interval(figure, write)
const interval = ({ interval: ends }: FindingFigure, write: (value: number) => string): string =>
  ends === null ? '' : ` [${write(ends[0])}, ${write(ends[1])}]`
const arrow = (before: number | undefined, after: number | undefined): string =>
  before === undefined || after === undefined
    ? '–'
    : [before, after].map((value) => (value < 0.001 ? value.toExponential(2) : value.toFixed(4))).join(' → ')

// The figures of a study and the names of their files.

/** Returns the figures in the order of the report, without those that have no data. */
export function picturesOf(
  { contracts, findings, interference: points, n }: StudySummary,
  records: readonly StudyRecord[],
): Picture[] {
  const prompts = records.filter((record): record is PromptRecord => record.part === 'prompt' && record.n === n)
  const episodes = records.filter((record): record is EpisodeRecord => record.part === 'episode')
  const all = [
    { name: 'controls', svg: controls(findings) },
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

/** Returns the report on watched spans: a bar for every span, complete and folded, and the answers. */
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

// Writes the results of a study into its folder: summary, tables, figures, report.

/** Writes all result files, over those of an earlier run in the folder. Returns the summary and the path of the report. */
export function publish(folder: string, input: SummaryInput): { readonly summary: StudySummary; readonly report: string } {
  const { records } = input
  const summary = summarise(input)
  const write = (name: string, content: string | Uint8Array): string => {
    const path = join(folder, name)
    writeFileSync(path, content)
    return path
  }
  write('summary.json', `${JSON.stringify(summary, null, 2)}\n`)
  const about = JSON.stringify({ schema: summary.schema, model: summary.model, options: summary.options })
  const save = (
    name: string,
    { columns, rows }: { readonly columns: Readonly<Record<string, ColumnType>>; readonly rows: readonly DataRow[] },
  ) => (rows.length === 0 ? null : write(`${name}.parquet`, parquet(columns, rows, about)))
  save('pairs', pairTable(records))
  save('heads', headTable(records))
  save('interference', interferenceTable(summary.interference))
  save('episode', episodeTable(records))
  const pictures = picturesOf(summary, records)
  for (const { name, svg } of pictures) write(`${name}.svg`, svg)
  const heatMap = records.find((record: StudyRecord): record is HeatMapRecord => record.part === 'heat-map') ?? null
  return { summary, report: write('report.html', report(summary, pictures, heatMap)) }
}

// The heat map of one value: the weight on every token, from whole rows of attention.

/**
 * Returns the shown tokens up to the last looking one, with their weights from the value of `name` in the answer.
 * Weights are averaged over the captured layers, the heads and the looking tokens.
 * Returns an empty list when the measurement has no rows or the answer does not give the value.
 */
export function heatMapOf(
  { pattern, prompt, said, sets }: Measurement,
  name: string,
  from: From,
  text: (token: number) => string,
): HeatMapToken[] {
  const one = said.get(name)
  const places = one === undefined ? [] : from === 'value' ? one.value : [one.reading]
  const rows = pattern?.rows
  if (pattern === null || rows === null || rows === undefined || places.length === 0) return []
  const wide = rows.shape.at(-1)!
  const { layers, heads, queries } = pattern
  const weights = new Float64Array(wide)
  const looking = places.map((at) => queries.indexOf(at)).filter((row) => row >= 0)
  const maps = layers.length * heads.length
  for (let map = 0; map < maps; map++)
    for (const row of looking)
      for (let at = 0; at < wide; at++) weights[at]! += rows.data[(map * queries.length + row) * wide + at]!
  const end = Math.max(...places) + 1
  const answer = prompt.messages.findLast(({ content }) => content !== null)?.span.start ?? prompt.tokens.length
  const within = (spans: readonly Span[], at: number): boolean => spans.some((span) => span.start <= at && at < span.end)
  const current = sets.get(`current ${name}`)?.tokens ?? []
  const older = sets.get(`older ${name}`)?.tokens ?? []
  return Array.from(prompt.tokens.slice(0, end), (token, at): HeatMapToken => ({
    text: text(token),
    weight: Number((weights[at]! / (maps * looking.length)).toPrecision(6)),
    kind: within(current, at)
      ? 'current'
      : within(older, at)
        ? 'older'
        : within(prompt.markers, at)
          ? 'marker'
          : at >= answer
            ? 'answer'
            : 'other',
  }))
}

// The heat map on the page: a token is darker the more the value's tokens look at it; pointing at a token shows its weight.

/** Tokens below this share of the strongest weight look alike, so adjacent ones of the same kind become one element. */
const FAINT = 0.004

/** Draws all sides on the same scale. */
function heatMapHtml({ key, value, n, seed, sides, layers }: HeatMapRecord): string {
  const most = Math.max(...sides.flatMap(({ tokens }) => tokens.map(({ weight }) => weight)), Number.MIN_VALUE)
  return `<section><h2>One value, token by token</h2>
<p>Where the right answer looks when it says <b>${escaped(value)}</b> (key <b>${escaped(key)}</b>, n = ${n}, seed ${seed}; mean over ${layers.length} layers, their heads and the looking tokens). The pair is the one with the middle change of its prompt. Solid frame: the current value; dashed: earlier values of the key; dotted: markers of folded text; underlined: the answer so far. Darkest: ${(100 * most).toPrecision(3)} %.</p>
${sides.map(({ name, tokens }) => `<h3>${escaped(name)}, ${tokens.length} tokens</h3>\n<p class="kf-heat-map">${stretches(tokens, most)}</p>`).join('\n')}
<p id="kf-said" class="faint" aria-live="polite">Point at a token.</p></section>`
}

function stretches(tokens: readonly HeatMapToken[], most: number): string {
  const parts: string[] = []
  for (let at = 0; at < tokens.length;) {
    const { weight, kind } = tokens[at]!
    let end = at + 1
    const faint = (token: HeatMapToken): boolean =>
      token.kind === kind && token.weight < FAINT * most && (kind === 'other' || kind === 'answer')
    if (faint(tokens[at]!)) while (end < tokens.length && faint(tokens[end]!)) end++
    const group = tokens.slice(at, end)
    const sum = group.reduce((total, token) => total + token.weight, 0)
    const place = end - at === 1 ? `token ${at}` : `tokens ${at} to ${end - 1}, together`
    const strength = end - at === 1 ? Math.sqrt(weight / most) : 0
    parts.push(
      `<span class="kf-${kind}" style="--w:${strength.toFixed(3)}" data-w="${place}: ${(100 * sum).toPrecision(3)} %">${escaped(group.map(({ text }) => text).join(''))}</span>`,
    )
    at = end
  }
  return parts.join('')
}

const HEAT_MAP_STYLE = `
h3 { font-size: 14px; margin: 14px 0 4px }
.kf-heat-map { font: 12px/1.7 ui-monospace, 'DejaVu Sans Mono', monospace; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 320px; overflow-y: auto; border: 1px solid var(--rule); border-radius: 6px; padding: 10px; margin: 4px 0 }
.kf-heat-map span { background: rgb(13 148 136 / calc(var(--w) * 0.85)); border-radius: 3px; -webkit-print-color-adjust: exact; print-color-adjust: exact }
.kf-heat-map span:hover { outline: 2px solid #3b82f6 }
.kf-current { box-shadow: inset 0 0 0 1.5px var(--ink) } .kf-older { box-shadow: none; border: 1px dashed var(--faint) } .kf-marker { border: 1px dotted var(--faint) } .kf-answer { text-decoration: underline; text-decoration-color: var(--rule) }
#kf-said { position: sticky; bottom: 0; background: var(--paper); padding: 6px 0; margin: 0 }
@media print { .kf-heat-map { max-height: none } #kf-said { display: none } }
`

const HEAT_MAP_SCRIPT = `
for (const heatMap of document.querySelectorAll('.kf-heat-map')) {
  const current = heatMap.querySelector('.kf-current')
  if (current) heatMap.scrollTop = current.offsetTop - heatMap.offsetTop - heatMap.clientHeight / 2
}
document.addEventListener('pointerover', (event) => {
  const span = event.target instanceof Element ? event.target.closest('[data-w]') : null
  const said = document.getElementById('kf-said')
  if (span && said) said.textContent = span.dataset.w + '  ' + JSON.stringify(span.textContent.slice(0, 80))
})
`
