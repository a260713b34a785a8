/**
 * What learning by reward did to the built-in model: the curves of runs of `python3 -m train.gspo`, and the weights before and after on
 * prompts that no run has seen, each cell by its own `kvfold eval`.
 * `npm run --silent bench -- gspo --runs <folder>,<folder> [--samples 40] [--seed 7] [--write] [--add]`. A stopped measurement resumes.
 * With `--write` all figures go to results/gspo.json and into a drawing (docs/gspo.svg); `--draw` draws the existing record. With `--add`,
 * the record's runs and rows stay, except those with the same names, and the weights before are not measured again. `--cells` names some of
 * CELLS, separated by commas.
 */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { parseArgs } from 'node:util'
import { builtinModel } from '../../src/runtime/cli/builtin.js'
import { estimate } from '../../src/lab/accuracy.js'
import { pairedTest, difference } from '../../src/lab/report/estimates.js'
import { fitted } from '../../src/lab/agent.js'
import { mean as meanOf } from '../../src/runtime/core/mean.js'
import { definedFields } from '../../src/runtime/core/json.js'
import { percent } from '../../src/runtime/figures/numbers.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { evaluated } from './builtin.js'
import { drawn, type GspoRecord, type Means, type Point, type Row } from './gspo/drawing.js'
import { beginRecord, modelNow, type Origin, RESULTS, written } from '../record.js'
import { computedBy } from './logs.js'

/** The first five cells ask as in training, with other prompts. The rest tests abilities that the model had before. */
const CELLS = [
  { name: 'start', words: 'pi-llm --keys 6 --n 12 --order start-last' },
  { name: 'middle', words: 'pi-llm --keys 9 --n 12 --order middle-last' },
  { name: 'restore', words: 'pi-llm --keys 18 --n 28 --order start-last' },
  { name: 'reading', words: 'pi-llm --keys 12 --n 8' },
  { name: 'stumble', words: 'pi-llm --keys 8 --n 8' },
  { name: 'start, 24 keys', words: 'pi-llm --keys 24 --n 22 --order start-last' },
  { name: 'unseen words', words: 'pi-llm --keys 12 --n 8 --words native-models/unseen-words.json' },
  { name: 'needles', words: 'needles --needles 3 --length 1k' },
  { name: 'start, 46 keys', words: 'pi-llm --n 16 --order start-last' },
  { name: '46 keys', words: 'pi-llm --n 16' },
] as const

const RECORD = new URL('gspo.json', RESULTS)
const FIGURE = new URL('../../docs/gspo.svg', import.meta.url)
const BEFORE = 'before'

/** What is read of a log's record, or of a trajectory. */
interface Played {
  readonly id: string
  readonly points: number
  readonly asked: number
  readonly cutOff: boolean
  readonly calls: Readonly<Record<string, number>>
  readonly failed: number
  /** Tokens in the context at the answer; null if the sample overflowed the context before. */
  readonly context: number | null
}

export async function gspo(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      runs: { type: 'string', default: '' },
      samples: { type: 'string', default: '40' },
      seed: { type: 'string', default: '7' },
      write: { type: 'boolean', default: false },
      add: { type: 'boolean', default: false },
      cells: { type: 'string', default: CELLS.map(({ name }) => name.replaceAll(',', '')).join(',') },
      draw: { type: 'boolean', default: false },
    },
  })
  if (values.draw) {
    writeFileSync(FIGURE, drawn(JSON.parse(readFileSync(RECORD, 'utf8')) as GspoRecord))
    return
  }
  const folders = values.runs.split(',').filter((folder) => folder !== '')
  const names = folders.map((folder) => basename(folder))
  const origin = beginRecord(
    [
      'gspo',
      '--runs',
      names.join(','),
      '--samples',
      values.samples,
      '--seed',
      values.seed,
      '--write',
      ...(values.add ? ['--add'] : []),
    ],
    builtinModel(),
    (await openNative({ gpu: 'cpu' })).backend.release,
  )
  const runs = folders.map(runOf)
  const asked = values.cells.split(',')
  const learned = folders.map((folder) => [basename(folder), join(folder, 'learned.gguf')] as const)
  const models = values.add ? learned : [[BEFORE, builtinModel()] as const, ...learned]
  const rows: Row[] = []
  const logs: string[] = []
  for (const { name: cell, words } of CELLS) {
    if (!asked.includes(cell.replaceAll(',', ''))) continue
    const before = new Map<string, number>()
    for (const [run = '', model = ''] of models) {
      const command = commandOf(cell, `${words} --samples ${values.samples} --seed ${values.seed}`)
      const { played, file } = await playedBy(model, command)
      // A file of trajectories does not record the commit and machine that computed it.
      if (command.startsWith('eval ')) logs.push(file)
      if (run === BEFORE) for (const { id, points } of played) before.set(id, points)
      const row = rowOf(cell, run, command, played, before)
      rows.push(row)
      const [low, high] = row.interval
      console.log(
        `| ${cell} | ${run} | ${percent(row.accuracy)} (${percent(low)} to ${percent(high)}) | ${JSON.stringify(row.calls)} | failed ${row.failed} | cut off ${row.cutOff} |`,
      )
    }
  }
  if (!values.write) return
  const made = { ...origin(), computed: computedBy(logs) }
  const record = values.add
    ? joined(JSON.parse(readFileSync(RECORD, 'utf8')) as GspoRecord, made, runs, rows)
    : { ...made, runs, rows }
  writeFileSync(RECORD, await written(record))
  writeFileSync(FIGURE, drawn(record))
}

/** Returns the old record with the new runs and rows added. */
function joined(
  old: GspoRecord,
  origin: Origin & Pick<GspoRecord, 'computed'>,
  runs: GspoRecord['runs'],
  rows: readonly Row[],
): GspoRecord {
  const names = runs.map(({ name }) => name)
  const kept = old.rows.filter(({ run, cell }) => !rows.some((row) => row.run === run && row.cell === cell))
  const all = [...kept, ...rows]
  return {
    ...old,
    added: [...(old.added ?? []), { ...origin, runs: names }],
    runs: [...old.runs.filter(({ name }) => !names.includes(name)), ...runs],
    rows: CELLS.flatMap(({ name }) => all.filter(({ cell }) => cell === name)),
  }
}

function runOf(folder: string): GspoRecord['runs'][number] {
  const { settings, curve } = JSON.parse(readFileSync(join(folder, 'curve.json'), 'utf8')) as {
    readonly settings: Readonly<Record<'seed' | 'lm' | 'rate' | 'minibatches', number>> & {
      readonly mix?: string
      readonly reward?: string
    }
    readonly curve: readonly Point[]
  }
  const { seed, lm, rate, minibatches, mix = 'short', reward = 'appendix-f' } = settings
  return { name: basename(folder), seed, lm, rate, minibatches, mix, reward, curve: curve.map(slim) }
}

/** Keeps only what `drawn` reads of a point, so that the record stays small. */
function slim({ iteration, reward, right, points, calls, entropy, context, failed, clipped, cells }: Point): Point {
  const { start, middle, reading, restore } = cells
  const rightOf = (of: Pick<Means, 'right'> | undefined) => (of === undefined ? undefined : { right: of.right })
  return {
    ...{ iteration, reward, right, points, calls, entropy, context, failed, clipped },
    cells: definedFields({
      ...{ start: rightOf(start), middle: rightOf(middle), reading: rightOf(reading) },
      restore: restore === undefined ? undefined : { points: restore.points, tools: restore.tools, failed: restore.failed },
    }),
  }
}

/** Only a trajectory (`collect`) can begin with a failed call. */
const commandOf = (cell: string, words: string): string =>
  cell === 'stumble' ? `collect ${words} --stumble --teacher model --temperature 0` : `eval ${words} --agent sculptor`

async function playedBy(model: string, command: string): Promise<{ readonly played: readonly Played[]; readonly file: string }> {
  const folder = `build/gspo/${modelNow(model).sha256.slice(0, 12)}`
  mkdirSync(folder, { recursive: true })
  const file = `${folder}/${command.replaceAll(/[^a-z0-9]+/gu, '-')}.jsonl`
  const [kind = '', ...words] = command.split(' ')
  await evaluated([kind, ...words, '--model', model, '--threads', '1', kind === 'eval' ? '--log' : '--out', file, '--json'])
  const lines = readFileSync(file, 'utf8').trim().split('\n')
  return { played: lines.flatMap((line) => (kind === 'eval' ? logged : collected)(JSON.parse(line) as never)), file }
}

interface LoggedSample {
  readonly kind: string
  readonly id: string
  readonly end: string
  readonly score: { readonly points: number; readonly details: { readonly asked?: number } }
  readonly calls: readonly { readonly name: string; readonly failed: boolean }[]
  readonly details: Readonly<Record<string, number>>
  readonly talks: readonly {
    readonly steps: readonly {
      readonly ledger?: { readonly shown: number }
    }[]
  }[]
}

function logged(sample: LoggedSample): Played[] {
  const { kind, id, end, score, calls: made, talks } = sample
  if (kind !== 'sample') return []
  const calls: Record<string, number> = {}
  for (const { name } of made) calls[name] = (calls[name] ?? 0) + 1
  const { points, details } = score
  return [
    {
      id,
      points,
      asked: details.asked ?? 1,
      cutOff: end === 'length',
      calls,
      failed: made.filter(({ failed }) => failed).length,
      context: fitted(sample) ? (talks.at(-1)?.steps.at(-1)?.ledger?.shown ?? 0) : null,
    },
  ]
}

interface CollectedSnapshot {
  readonly id: string
  readonly snapshot: number
  readonly points: number
  readonly parts: { readonly failed: number; readonly cutOff: boolean }
  readonly calls: Played['calls']
  readonly context: number
}

const collected = ({ id, snapshot, points, parts, calls, context }: CollectedSnapshot): Played[] =>
  snapshot > 0 ? [] : [{ id, points, asked: 8, cutOff: parts.cutOff, calls, failed: parts.failed, context }]

function rowOf(cell: string, run: string, command: string, played: readonly Played[], before: ReadonlyMap<string, number>): Row {
  const found = estimate(played.map(({ points, asked }) => ({ points, details: { asked } })))!
  const pairs = played.map(({ id, points }) => [points, before.get(id) ?? 0] as const)
  const apart = before.size === 0 || run === BEFORE ? null : difference(pairs)
  const tools = [...new Set(played.flatMap(({ calls }) => Object.keys(calls)))].sort()
  const mean = (of: (one: Played) => number) => meanOf(played.map(of))
  const contexts = played.flatMap(({ context }) => context ?? [])
  return {
    cell,
    run,
    command: `kvfold ${command}`,
    samples: played.length,
    accuracy: found.value,
    interval: found.interval,
    allRight: played.filter(({ points }) => points === 1).length,
    ...(apart === null ? {} : { more: apart.value, moreInterval: apart.interval, p: pairedTest(pairs)?.p ?? 1 }),
    calls: Object.fromEntries(tools.map((tool) => [tool, mean(({ calls }) => calls[tool] ?? 0)])),
    failed: played.filter(({ failed }) => failed > 0).length,
    cutOff: played.filter(({ cutOff }) => cutOff).length,
    context: contexts.length === 0 ? null : Math.round(meanOf(contexts)),
  }
}
