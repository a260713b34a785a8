/**
 * What folds cost a model under each contract: the answer's distance from an exact prefill of the same shown text, right and outdated
 * answers, computed tokens and time. Controls: the whole text, an exact fold, and as many tokens computed again at even distances. Prints a
 * table; `--out` keeps every answer, and a second run with the same file resumes there; `--write` writes a record, which names the commits
 * that computed the answers.
 * `npm run --silent bench -- fidelity --model PATH [--kinds "stale, within;agent"] [--questions 100] [--ways splice,blend] [--seed 2026]
 * [--threads 1] [--out FILE] [--json] [--write name]`
 */
import { appendFileSync, existsSync, readFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { CASE_KINDS, type CaseKind, fidelityCases } from '../../src/runtime/fidelity/cases.js'
import { type FidelityAnswer, type FidelityWay, measureCase } from '../../src/runtime/fidelity/measure.js'
import { percent } from '../../src/runtime/figures/numbers.js'
import { left, right, table, terminal, type Table } from '../../src/runtime/figures/table.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { computersOf, type SampleOrigin } from '../lab/logs.js'
import { Watch } from '../lab/contracts/watch.js'
import { beginRecord, fileOf, keep, oneOf, OPTIONS, SEED } from '../record.js'
import { bootstrap, mean, rankCorrelation, type Interval } from '../statistics.js'

const CELLS = 24_576

/** A control for `blend`: computes as many tokens behind the fold again as `blend` did, at even distances. */
const asManyAsBlend = (before: ReadonlyMap<string, FidelityAnswer>) => {
  const [blend, splice, exact] = ['blend, no limit', 'splice', 'exact again'].map((name) => before.get(name))
  if (blend === undefined || splice === undefined || exact === undefined)
    throw new Error('--ways: "as many, spread" needs "exact again", "splice" and "blend, no limit" before it')
  return { most: 1, spread: Math.min(1, (blend.computed - splice.computed) / Math.max(1, exact.computed - splice.computed)) }
}

export const WAYS: readonly FidelityWay[] = [
  { name: 'unfolded', contract: 'whole' },
  { name: 'exact again', contract: 'exact' },
  { name: 'splice', contract: 'splice' },
  { name: 'blend', contract: 'blend' },
  { name: 'blend, no limit', contract: 'blend', blend: { most: 1 } },
  { name: 'as many, spread', contract: 'blend', blend: asManyAsBlend },
]

/** A line of `--out`: the answers to one question, with the commit and processor that computed them. */
interface Measured extends SampleOrigin {
  readonly model: string
  readonly seed: number
  readonly threads: number
  readonly kind: CaseKind
  readonly index: number
  readonly text: number
  readonly answers: Readonly<Record<string, FidelityAnswer>>
}

export async function fidelity(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      ...OPTIONS,
      ...SEED,
      kinds: { type: 'string', default: CASE_KINDS.slice(0, 4).join(';') },
      questions: { type: 'string', default: '100' },
      ways: { type: 'string' },
      threads: { type: 'string', default: '1' },
      out: { type: 'string' },
    },
  })
  const kinds = values.kinds.split(';').map((name) => oneOf('kinds', CASE_KINDS, name.trim()))
  const names = values.ways?.split(';').map((name) => name.trim())
  for (const name of names ?? [])
    oneOf(
      'ways',
      WAYS.map((way) => way.name),
      name,
    )
  const ways = WAYS.filter(({ name }) => names?.includes(name) ?? true)
  const [seed, threads] = [Number(values.seed), Number(values.threads)]
  const native = await openNative({ gpu: 'cpu' })
  const path = fileOf(values.model)
  const origin = beginRecord(['fidelity', ...args], path, native.backend.release, threads)
  const begun = origin()
  const { commit, date } = begun
  const { cpu } = begun.machine
  const like = { model: begun.model.sha256.slice(0, 16), seed, threads }
  const known = values.out === undefined ? [] : readMeasured(values.out, like)
  const engine = await LlamaEngine.load(native, path, { cells: CELLS, threads, batchThreads: threads, slots: 1, hostBytes: 0 })
  const watch = new Watch()
  const measured: Measured[] = []
  try {
    for (const kind of kinds)
      for (const [index, one] of fidelityCases(kind, Number(values.questions), seed).entries()) {
        if (watch.over()) break
        watch.say(`${kind}: question ${index + 1} of ${values.questions}`)
        let found = known.find(
          (other) => other.kind === kind && other.index === index && ways.every(({ name }) => other.answers[name] !== undefined),
        )
        if (found === undefined) {
          const answers = Object.fromEntries(await measureCase(engine, one, ways))
          found = { ...like, commit, cpu, date, kind, index, text: one.text, answers }
          if (values.out !== undefined) appendFileSync(values.out, `${JSON.stringify(found)}\n`)
        }
        measured.push(found)
      }
  } finally {
    watch.end()
    await engine.dispose()
  }
  const predicted = predictionOf(measured)
  const result = {
    ...origin(),
    computed: computersOf(measured),
    seconds: Math.round(watch.seconds),
    interrupted: watch.over(),
    seed,
    rows: rowsOf(measured),
    predicted,
  }
  await keep(values.write, result)
  console.log(values.json ? JSON.stringify(result) : terminal(tableOf(result.rows)).join('\n'))
  if (!values.json && predicted !== null)
    console.log(
      `The share of the tail that blend chooses and the distance of a splice: rank correlation ${predicted.correlation.toFixed(2)} over ${predicted.questions} questions.`,
    )
}

/**
 * Returns the rank correlation between the share of the text behind the fold that `blend` chooses and the distance of a splice. Null
 * without these ways, or with fewer than three questions in which blend did not choose everything.
 */
function predictionOf(measured: readonly Measured[]): { readonly questions: number; readonly correlation: number } | null {
  const pairs = measured.flatMap(({ answers }): (readonly [number, number])[] => {
    const [blend, splice, exact] = ['blend, no limit', 'splice', 'exact again'].map((name) => answers[name])
    if (blend === undefined || splice === undefined || exact === undefined || blend.computed === exact.computed) return []
    return [[(blend.computed - splice.computed) / (exact.computed - splice.computed), splice.distance]]
  })
  return pairs.length < 3 ? null : { questions: pairs.length, correlation: rankCorrelation(pairs) }
}

/** Reads the lines with this model, seed and number of threads. */
function readMeasured(file: string, { model, seed, threads }: Pick<Measured, 'model' | 'seed' | 'threads'>): Measured[] {
  if (!existsSync(file)) return []
  const lines = readFileSync(file, 'utf8').split('\n')
  // An interrupted run may have left half a line at the end.
  const measured = lines.slice(0, -1).map((line) => JSON.parse(line) as Measured)
  return measured.filter((one) => one.model === model && one.seed === seed && one.threads === threads)
}

interface FidelityRow {
  readonly kind: CaseKind
  readonly way: string
  readonly questions: number
  readonly right: number
  readonly outdated: number
  /** In nats: the mean over the questions, its 95 % interval over the texts, and the largest distance. */
  readonly distance: { readonly mean: number; readonly interval: Interval; readonly worst: number }
  readonly form: number
  readonly word: number
  /** Means over the questions. */
  readonly computed: number
  readonly milliseconds: number
  /** Number of questions for which the step was exact after all. */
  readonly exact: number
}

export function rowsOf(measured: readonly Measured[]): FidelityRow[] {
  const kinds = [...new Set(measured.map(({ kind }) => kind))]
  return kinds.flatMap((kind) => {
    const ofKind = measured.filter((one) => one.kind === kind)
    const texts = [...new Set(ofKind.map(({ text }) => text))]
    return Object.keys(ofKind[0]!.answers).map((way): FidelityRow => {
      const answers = ofKind.map(({ answers }) => answers[way]!)
      const byText = texts.map((text) => mean(ofKind.filter((one) => one.text === text).map((one) => one.answers[way]!.distance)))
      const meanOf = (of: (answer: FidelityAnswer) => number) => mean(answers.map(of))
      return {
        ...{ kind, way, questions: answers.length },
        right: answers.filter(({ isRight }) => isRight).length,
        outdated: answers.filter(({ isOutdated }) => isOutdated).length,
        distance: {
          mean: meanOf(({ distance }) => distance),
          interval: bootstrap(byText),
          worst: Math.max(...answers.map(({ distance }) => distance)),
        },
        form: meanOf(({ form }) => form),
        word: meanOf(({ word }) => word),
        computed: meanOf(({ computed }) => computed),
        milliseconds: meanOf(({ milliseconds }) => milliseconds),
        exact: answers.filter(({ fallback }) => fallback !== null).length,
      }
    })
  })
}

function tableOf(rows: readonly FidelityRow[]): Table {
  const columns = [
    ...[left('text'), left('folded')],
    ...['right', 'outdated', 'distance, nats (95 %)', 'worst', 'form', 'word', 'computed', 'of exact', 'exact at once', 'ms'].map(
      right,
    ),
  ]
  const exactOf = (kind: CaseKind) => rows.find((row) => row.kind === kind && row.way === 'exact again')
  const texts = rows.map((row) => {
    const { kind, way, questions, distance, form, word } = row
    const whole = exactOf(kind)
    return [
      ...[kind, way === 'exact' ? 'fresh prefill' : way, `${row.right} of ${questions}`, String(row.outdated)],
      `${distance.mean.toFixed(3)} (${distance.interval.map((end) => end.toFixed(3)).join(' to ')})`,
      ...[distance.worst, form, word].map((value) => value.toFixed(3)),
      row.computed.toFixed(0),
      whole === undefined ? '' : percent(row.computed / whole.computed, 0),
      ...[String(row.exact), row.milliseconds.toFixed(0)],
    ]
  })
  return table(columns, texts, { opens: (row, before) => row[0] !== before[0] })
}
