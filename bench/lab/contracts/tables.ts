/** Owns what the bench says in words: tables for a terminal and for Markdown, and when to use which contract. */
import { count, percent } from '../../../src/runtime/figures/numbers.js'
import { type Column, left, markdown, right, table, type Table, terminal } from '../../../src/runtime/figures/table.js'
import { median } from '../../random-tokens.js'
import { mean } from '../../statistics.js'
import { scoresOf, type Folder, type Score } from './accuracy.js'
import { cellsOf, type Cell } from './grid.js'
import type { Results } from './results.js'
import { VARIANTS, type Variant } from './variants.js'

/** What the project asks of `splice`: to lose no more accuracy than this. */
const CLOSE = 0.02

const milliseconds = (value: number): string => value.toFixed(value < 10 ? 1 : 0)
/** Below, the logarithms themselves are rounded by as much. */
const nats = (value: number): string => (value < 1e-6 ? '< 1e-6' : value.toExponential(0))
const points = (share: number): string => `${share < 0 ? '-' : '+'}${Math.abs(share * 100).toFixed(1)}`

/** What the first two columns say opens a group. */
const grouped = (columns: readonly Column[], rows: readonly (readonly string[])[]): Table =>
  table(columns, rows, { opens: (row, before) => row[0] !== before[0] || row[1] !== before[1] })

/** Every model, context and variant: medians over places and shares, and the worst of them. */
export function summary(cells: readonly Cell[]): Table {
  const figures = ['ms', 'exact / it', 'tokens', 'KL median', 'KL most', 'same answer'].map(right)
  const columns = [left('model'), right('context'), left('variant'), ...figures]
  const groups = new Map<string, Cell[]>()
  for (const cell of cells) {
    const key = `${cell.model}|${cell.context}`
    groups.set(key, [...(groups.get(key) ?? []), cell])
  }
  const rows = [...groups.values()].flatMap((group) => VARIANTS.map((variant) => summaryRow(group, variant)))
  return grouped(
    columns,
    rows.filter((row) => row.length > 0),
  )
}

function summaryRow(group: readonly Cell[], variant: Variant): string[] {
  const own = group.filter((cell) => cell.variant === variant)
  const [first] = own
  if (first === undefined) return []
  const divergences = own.map(({ divergence }) => divergence)
  return [
    first.model,
    count(first.context),
    variant,
    milliseconds(median(own.map((cell) => cell.milliseconds))),
    faster(group, own).toFixed(1),
    count(median(own.map(({ computed }) => computed))),
    // What is compared with itself has nothing to say.
    ...(first.variant.startsWith('exact')
      ? []
      : [nats(median(divergences)), nats(Math.max(...divergences)), percent(mean(own.map(({ agreement }) => agreement)), 0)]),
  ]
}

/** How many times the time of these is that of the exact way to do the same: median over places and shares. */
function faster(group: readonly Cell[], own: readonly Cell[]): number {
  const ratios = own.flatMap((cell) => {
    const reference = cell.variant.endsWith('restored') ? 'exact, restored' : 'exact'
    const exact = group.find((other) => other.variant === reference && other.place === cell.place && other.share === cell.share)
    return exact === undefined ? [] : [exact.milliseconds / cell.milliseconds]
  })
  return median(ratios)
}

/** One model and context: a row for every place and share. */
function holes(cells: readonly Cell[]): Table {
  const columns = [left('place'), right('folded'), ...VARIANTS.map(right)]
  const keys = [...new Set(cells.map(({ place, share }) => `${place}|${share}`))]
  const rows = keys.map((key) => {
    const own = cells.filter(({ place, share }) => `${place}|${share}` === key)
    const { place, share } = own[0]!
    return [place, percent(share, 0), ...VARIANTS.map((variant) => holeCell(own.find((cell) => cell.variant === variant)))]
  })
  return table(columns, rows)
}

function holeCell(cell: Cell | undefined): string {
  if (cell === undefined) return '-'
  const { milliseconds: time, computed, divergence, agreement } = cell
  const cost = `${milliseconds(time)} ms, ${count(computed)} t`
  return cell.variant.startsWith('exact') ? cost : `${cost}, ${nats(divergence)}, ${percent(agreement, 0)}`
}

/** PI-LLM: a row for every folder, n and way. */
export function accuracies(scores: readonly Score[]): Table {
  const columns = [
    left('folds'),
    right('n'),
    left('way'),
    right('right, %'),
    right('95 %'),
    right('points against exact'),
    right('95 %'),
    right('tokens'),
    right('ms'),
    right('clean'),
  ]
  const cells = [...scores]
    .sort(inOrder)
    .map(({ folder, n, way, accuracy, interval, against, ...cost }) => [
      `the ${folder}`,
      String(n),
      way,
      (accuracy * 100).toFixed(1),
      `${(interval[0] * 100).toFixed(1)} - ${(interval[1] * 100).toFixed(1)}`,
      against === null ? '' : points(against.difference),
      against === null ? '' : `${points(against.interval[0])} .. ${points(against.interval[1])}`,
      count(cost.computed),
      milliseconds(cost.milliseconds),
      percent(cost.clean, 0),
    ])
  return grouped(columns, cells)
}

/** The program's folds first; ways stay in the order of measuring. */
const inOrder = (a: Score, b: Score): number => b.folder.localeCompare(a.folder) || a.n - b.n

export function forTerminal(results: Results): string[] {
  const { folds, noise, answers, notMeasured } = results
  return [
    ...(folds.length === 0 ? [] : [...terminal(summary(cellsOf(folds))), noiseLine(noise), '']),
    ...(answers.length === 0 ? [] : [...terminal(accuracies(scoresOf(answers))), '']),
    ...notMeasured.map((what) => `not measured: ${what}`),
    '',
    ...advice(results),
  ]
}

/** Below this, a divergence on the same model and length says nothing. */
function noiseLine(noise: Results['noise']): string {
  const groups = [...new Set(noise.map(({ model, context }) => `${model} at ${count(context)}`))]
  const most = groups.map(
    (group) => `${nats(noiseOf(noise.filter((one) => `${one.model} at ${count(one.context)}` === group)))} on ${group}`,
  )
  return `Noise, a fresh prefill of the folded prompt against an exact fold: KL at most ${most.join(', ')} tokens.`
}

const noiseOf = (noise: Results['noise']): number => Math.max(...noise.map(({ divergence }) => divergence))

export function forMarkdown(results: Results): string {
  const { folds, noise, answers, machine, model, notMeasured } = results
  const cells = cellsOf(folds)
  const keys = [...new Set(cells.map((cell) => `${cell.model}, ${count(cell.context)} tokens`))]
  const parts = [
    '# Contracts, measured',
    `\`${results.command}\`, commit \`${results.commit}\`, ${results.date.slice(0, 10)}; ${machine.cpu}, ${machine.cores} cores, ` +
      `${machine.threads ?? 'all'} thread, load ${machine.load.before} before and ${machine.load.after} at the end (times were taken on a machine ` +
      `that was doing other work if that is much above 1); Node ${machine.node}, llama.cpp ${machine.llamaCpp}; model ${model.name}, ` +
      `sha256 \`${model.sha256.slice(0, 12)}\`. Raw figures: \`contracts.json\`.` +
      (results.interrupted ? ' **The run was ended early.**' : ''),
    '## When to use which',
    advice(results).join(' '),
    '![Accuracy and cost by contract](../../docs/contracts.svg)',
    '## PI-LLM',
    `Greedy, 46 keys, ${streamsOf(answers)} streams a row, the same ones every way; 95 % bootstrap intervals over streams, differences stream by ` +
      'stream. "tokens": prompt tokens computed after the whole stream was read. "the program": the plain prompt, the first three quarters of ' +
      'the stream folded. With so few streams the intervals are somewhat narrow; where all streams came out the same they are a point, which is no proof ' +
      'of a difference of nothing. "the model": it cuts and folds by itself, calls and results count; clean: cut, fold, answer, and nothing else.',
    answers.length === 0 ? 'Nothing so far.' : markdown(accuracies(scoresOf(answers))),
    ...notMeasured.map((what) => `Not measured: ${what}.`),
    '## One fold',
    `Medians over places and sizes of the fold; each of these a median over seeds (${Math.max(0, ...cells.map(({ seeds }) => seeds))} of them). ` +
      '"exact / it": how many times as long the exact way to do ' +
      'the same takes. KL: of the next token (where a value of the answer has to be known) from `exact`, in nats. "same answer": share of 32 greedy tokens up to ' +
      'the first that differs. "restored": folded, a tool result of about 60 tokens decoded, restored; against a conversation that never folded.',
    markdown(summary(cells)),
    noise.length === 0 ? '' : noiseLine(noise),
    '## Every fold',
    'Milliseconds, tokens computed, KL from `exact`, share of the same greedy answer.',
    ...keys.flatMap((key) => [
      `### ${key}`,
      markdown(holes(cells.filter((cell) => `${cell.model}, ${count(cell.context)} tokens` === key))),
    ]),
  ]
  return parts.filter((part) => part !== '').join('\n\n') + '\n'
}

const streamsOf = (answers: Results['answers']): number => 1 + Math.max(-1, ...answers.map(({ stream }) => stream))

/** When to use which contract, in sentences that are true whichever way the figures came out. */
export function advice({ folds, noise, answers }: Results): string[] {
  const scores = scoresOf(answers)
  return [
    ...costSentences(cellsOf(folds), noise),
    ...(['program', 'model'] as const).flatMap((folder) => accuracySentences(scores, folder)),
  ]
}

/** For every model, from the longest prompts. */
function costSentences(cells: readonly Cell[], noise: Results['noise']): string[] {
  const longest = Math.max(...cells.map(({ context }) => context))
  return [...new Set(cells.map(({ model }) => model))].flatMap((model) => {
    const own = cells.filter((cell) => cell.model === model && cell.context === longest)
    const of = (variant: Variant) => own.filter((cell) => cell.variant === variant)
    if (VARIANTS.some((variant) => of(variant).length === 0)) return []
    const tokens = (variant: Variant) => count(median(of(variant).map(({ computed }) => computed)))
    const lost = (variant: Variant) => nats(median(of(variant).map(({ divergence }) => divergence)))
    const floor = noise.filter((one) => one.model === model && one.context === longest)
    const noisy = floor.length === 0 ? '' : ` (noise: ${nats(noiseOf(floor))})`
    return [
      `${model} at ${count(longest)} tokens, medians over places and sizes of a fold: \`exact\` computes ${tokens('exact')} tokens, \`splice\` ` +
        `${tokens('splice')}, ${faster(own, of('splice')).toFixed(0)} times faster; the KL of the next token from \`exact\`${noisy} is ${lost('splice')} nats under ` +
        `\`splice\`, ${lost('blend 0.1')} and ${lost('blend 0.3')} under \`blend\` at ratios 0.1 and 0.3, ${lost('splice, gaps closed')} when the ` +
        `splice's gap in the positions is closed; a restore after a tool result computes ${tokens('splice, restored')} token instead of ` +
        `${tokens('exact, restored')} at ${lost('splice, restored')} nats.`,
    ]
  })
}

/** How far the ways of one folder are from `exact` where they are furthest, and what that means. */
function accuracySentences(scores: readonly Score[], folder: Folder): string[] {
  const own = scores.filter((score) => score.folder === folder)
  const losses = new Map([...new Set(own.map(({ way }) => way))].flatMap((way) => worstOf(own, way)))
  losses.delete('whole')
  if (losses.size === 0) return []
  const who = folder === 'program' ? 'a program folds and the model only answers' : 'the model cuts and folds by itself'
  const listed = [...losses].map(
    ([way, { n, difference, interval }]) =>
      `${way} ${points(difference)} (${points(interval[0])} .. ${points(interval[1])}, n = ${n})`,
  )
  return [
    `Where ${who}, the worst difference from \`exact\` on PI-LLM, in points of accuracy: ${listed.join('; ')}.`,
    ...verdict(losses),
  ]
}

interface Loss {
  readonly n: number
  readonly difference: number
  readonly interval: readonly [low: number, high: number]
  /** The lowest end of an interval at any n. */
  readonly lowest: number
}

function worstOf(scores: readonly Score[], way: string): [string, Loss][] {
  const compared = scores.flatMap(({ n, against, ...score }) =>
    score.way === way && against !== null ? [{ n, ...against }] : [],
  )
  if (compared.length === 0) return []
  const worst = compared.reduce((a, b) => (b.difference < a.difference ? b : a))
  return [[way, { ...worst, lowest: Math.min(...compared.map(({ interval }) => interval[0])) }]]
}

function verdict(losses: ReadonlyMap<string, Loss>): string[] {
  const close = (way: string) => (losses.get(way)?.lowest ?? -1) >= -CLOSE
  const by = `${CLOSE * 100} points`
  if (close('splice')) return [`So there \`splice\` stays within ${by}, intervals included.`]
  const blends = [...losses.keys()].filter((way) => way.startsWith('blend'))
  const closing = blends.filter(close)
  return [
    `So there \`splice\` is not shown to stay within ${by}; ${closing.length > 0 ? `${closing.join(', ')} is` : `no ratio of \`blend\` that was tried is`}` +
      (!close('splice, gaps closed')
        ? ', and closing the gaps in the positions does not bring it there: use `exact`.'
        : ', but with the gaps in the positions closed it is: on this task it is the gaps that mislead the model, not the trace of hidden text.'),
  ]
}
