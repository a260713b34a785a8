/** Writes the report of an attention study: tables, figures, sentences, and the heat map of one value. */
import type { Picture } from '../figures/figure.js'
import { probability, signed } from '../../runtime/figures/numbers.js'
import { publishReport, type Report, reportPage } from '../figures/report.js'
import { type Column, table, type Table } from '../../runtime/figures/table.js'
import { changes, controls, episode, headMaps, interference, scatter, spanFigure } from './figures.js'
import { CHANGES, type FindingFigure, type Finding, summarise, type StudySummary, type SummaryInput } from './findings.js'
import { FROM_NAMES } from './pairs.js'
import { heatMapPart, HEAT_MAP } from './heat-map.js'
import type { EpisodeRecord, PromptRecord, HeatMapRecord, StudyRecord } from './records.js'
import type { SpanStudy } from './spans.js'
import { episodeTable, headTable, interferenceTable, pairTable, parquet } from './tables.js'

function reportOf(summary: StudySummary, pictures: readonly Picture[], heatMap: HeatMapRecord | null): Report {
  const { model, options, date, command, versions, n } = summary
  return {
    title: `Attention under folding: ${model.name}`,
    heading: 'How folding changes where the model looks',
    facts: [
      `${model.name}, ${model.layers} layers of ${model.heads} heads`,
      `n = ${n} updates per key`,
      ...Object.entries(versions).map(([name, version]) => `${name} ${version}`),
      date,
    ],
    parts: [
      { says: [verdict(summary)] },
      {
        heading: 'Folded prompts against complete ones',
        parts: [...tables(summary), { says: [NOTES.join(' ')], look: 'faint' }, ...pictures],
      },
      ...(heatMap === null ? [] : [heatMapPart(heatMap)]),
      {
        heading: 'How this study was made',
        parts: [
          { says: [command, JSON.stringify({ model: { ...model }, options }, null, 2)], look: 'code' },
          {
            says: [
              'Beside this page are summary.json, pairs.parquet, heads.parquet, interference.parquet and the figures as SVG; also episode.parquet if the study watched an episode. A stopped run continues from records.jsonl.',
            ],
            look: 'faint',
          },
        ],
      },
    ],
    more: HEAT_MAP,
  }
}

const NOTES = [
  'Change: how much the mean weight on one token of the current value changes by folding, in percent of the weight in the complete prompt.',
  'Arithmetic alone: a fold takes tokens out of a softmax, so each remaining weight w rises to w / (1 - mass on the folded text). It is predicted from the complete prompt for every layer, head and token. Excess: the observed change less this prediction, pair by pair.',
  'Two controls fold other text at the same place of an otherwise equal prompt, with as many tokens: made-up words (placebo), and the same updates under made-up keys, which the question does not ask for (unasked). Beyond placebo, beyond unasked: the excess less that of the control, pair by pair. Only that is due to what the hidden text says. Others: the change of the mass on all other tokens of the stream that stay open.',
  'Brackets: 95 % bootstrap intervals over prompts, because pairs of one prompt are not independent.',
  'pairs, p: one-sample t test (t) and Wilcoxon signed-rank test (W) on the changes of all pairs. Like the paper, they treat pairs as independent. prompts, p: the same tests on the mean change of each prompt. excess, p: the same tests on the mean excess of each prompt; beyond unasked, p: on that less the control’s. Change of the mean: that of the mean weight of all pairs, in which pairs with little weight count little.',
  'Below even: pairs whose weight in the complete prompt is less than one over the number of shown tokens. The model does not look for the value from there, so percentages of such weights say little.',
  "The paper's row is quoted from Sculptor, section 4.3. It has another model and one prompt.",
]

/** Returns sentences on what the study found under the first contract. */
function verdict({ findings }: StudySummary): string {
  const sentences = findings.slice(0, 2).map((finding) => {
    const { from, contract, pairs, improved, medianChange, meanChange, belowEven } = finding
    if (medianChange === null || meanChange === null) return `The study measured no pair ${FROM_NAMES[from]}.`
    const low =
      belowEven * 2 > pairs
        ? ` In ${belowEven} pairs that weight is less than an even share, so the model does not look for the value from there.`
        : ''
    return `Under ${contract}, ${improved} of ${pairs} pairs gain attention ${FROM_NAMES[from]} (median ${signed(medianChange.value)} %, mean ${signed(meanChange.value)} %).${aloneOf(finding)}${low}`
  })
  return sentences.join(' ')
}

/**
 * Returns a sentence on the mean change: how much of it softmax arithmetic explains, and how much remains. Of the remainder, it gives the
 * amount beyond a fold of unasked keys.
 */
function aloneOf({ baselineMeanChange: alone, excessMeanChange: excess, beyondUnasked: beyond }: Finding): string {
  if (alone === null || excess === null) return ''
  const said = ({ value, interval: ends }: FindingFigure) =>
    `${signed(value)} %${ends === null ? '' : ` (${ends.map(signed).join(' to ')})`}`
  const control = beyond === null ? '' : `, ${said(beyond)} of it beyond what a fold of unasked keys does`
  return ` Softmax arithmetic alone makes ${signed(alone.value)} % of the mean; ${said(excess)} remains${control}.`
}

/** A row of the findings table. Null: the row with the paper's numbers. */
type FindingRow = Finding | null

function tables({ findings, paper }: StudySummary): Table[] {
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
    ...CHANGES.map(([title, of]) => column(`${title}, %`, (finding) => withInterval(finding[of]))),
    column('median change, %', ({ medianChange }) => withInterval(medianChange), signed(paper.medianChange)),
    column('change of the mean, %', ({ changeOfMean }) => withInterval(changeOfMean)),
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
    column('beyond unasked: t, p', ({ beyondUnaskedOverSeeds }) => p(beyondUnaskedOverSeeds.t)),
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
    { title: 'updates after the value', text: ({ from, to }) => (to === null ? `${from} or more` : `${from} to ${to}`) },
    { title: 'pairs', text: ({ pairs }) => String(pairs) },
    { title: 'not answered', text: ({ unanswered }) => String(unanswered) },
    { title: 'mean change, %', text: ({ meanChange }) => withInterval(meanChange) },
    { title: 'excess, %', text: ({ excessMeanChange }) => withInterval(excessMeanChange) },
  ]
  return [...[changed, tested].map((columns) => table(columns, [...findings, null], { theirs })), table(distances, far)]
}

function counted({ pairs, counts, fellBack }: Finding): string {
  const left = [
    ...(counts['folded-away'] > 0 ? [`${counts['folded-away']} folded away`] : []),
    ...(counts.unanswered > 0 ? [`${counts.unanswered} not answered`] : []),
    ...(fellBack > 0 ? [`${fellBack} prompts left out: their step was exact instead`] : []),
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

/** Returns the figures, with their file names, in the report's order. Leaves out figures without data. */
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

/** Returns the page about watched spans: a bar per span, complete and folded, and the answers. */
export const spanReport = (model: string, study: SpanStudy): string =>
  reportPage({
    title: `Attention under folding: ${model}`,
    heading: 'Where the answer looks in the complete and in the folded prompt',
    facts: [model, `shown to the answer: ${study.answers.map(({ side, shown }) => `${side}: ${shown} tokens`).join(', ')}`],
    parts: [
      { svg: spanFigure(study) },
      {
        heading: 'The answers',
        parts: study.answers.map(({ side, answer }) => ({ heading: side, parts: [{ says: [answer], look: 'code' }] })),
      },
    ],
  })

/**
 * Writes all result files of a study into the folder: summary, tables, figures and report. Overwrites those of an earlier run. Returns the
 * summary and the report's path.
 */
export function publish(folder: string, input: SummaryInput): { readonly summary: StudySummary; readonly report: string } {
  const { records } = input
  const summary = summarise(input)
  const about = JSON.stringify({ schema: summary.schema, model: summary.model, options: summary.options })
  const data = Object.entries({
    pairs: pairTable(records),
    heads: headTable(records),
    interference: interferenceTable(summary.interference),
    episode: episodeTable(records),
  }).flatMap(([name, { columns, rows }]) => (rows.length === 0 ? [] : [[`${name}.parquet`, parquet(columns, rows, about)]]))
  const heatMap = records.find((record: StudyRecord): record is HeatMapRecord => record.part === 'heat-map') ?? null
  const report = publishReport(folder, reportOf(summary, picturesOf(summary, records), heatMap), {
    'summary.json': `${JSON.stringify(summary, null, 2)}\n`,
    ...(Object.fromEntries(data) as Readonly<Record<string, Uint8Array>>),
  })
  return { summary, report }
}
