/** Runs every framework on the same dialogues, with one file for each episode, and computes the table of results. */
import { createHash } from 'node:crypto'
import { join } from 'node:path'
import type { ContractChoice } from '../../runtime/core/contract.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import type { Engine } from '../../runtime/engine/engine.js'
import { SpokenEngine } from '../taught-engine.js'
import { count, percent } from '../../runtime/figures/numbers.js'
import { number, table, type Table } from '../../runtime/figures/table.js'
import type { LedgerEntry } from '../../runtime/kv/ledger.js'
import { SampleEngine } from '../agents/define.js'
import { type Checkpoint, EpisodeFile, type EpisodeOptions, runEpisode, type TurnRecord } from '../episode/episode.js'
import { Recorder } from '../recorder.js'
import { IsolatedEngine } from '../run/trial.js'
import { type FrameworkName, type FrameworkSetting, openFramework } from './frameworks.js'
import type { Scenario } from './dialogue.js'

/** A cell of the table: framework, number of turns, distractor fields. */
export interface ServiceCell {
  readonly framework: FrameworkName
  readonly turns: number
  readonly fields: number
}

export interface ServiceRunOptions {
  readonly engine: Engine
  /** Fingerprints of the weights of the engine and the folder. An episode that began with other weights is not resumed. */
  readonly weights: readonly (string | null)[]
  readonly frameworks: readonly FrameworkName[]
  readonly scenarios: readonly Scenario[]
  readonly window: number
  readonly contract: ContractChoice
  readonly temperature: number
  readonly maxTokens: number
  readonly fold: FrameworkSetting['fold']
  readonly folder?: Engine
  /** The folder of the episodes' files. An unfinished episode there is resumed. */
  readonly log: string
  /** The command that the files name as their origin. */
  readonly command: string
  readonly signal: AbortSignal
  readonly onTurn?: (cell: ServiceCell, sample: number, turn: number) => void
}

/** One dialogue under one framework. */
export interface Dialogue {
  readonly cell: ServiceCell
  readonly seed: number
  readonly turns: readonly TurnRecord[]
  readonly path: string
}

/** Plays all scenarios with all frameworks. @throws KvfoldError any error of the engine; engine/cancelled (finished turns are kept) */
export async function runService(options: ServiceRunOptions): Promise<readonly Dialogue[]> {
  const done: Dialogue[] = []
  for (const scenario of options.scenarios)
    for (const framework of options.frameworks) done.push(await dialogue(framework, scenario, options))
  return done
}

async function dialogue(framework: FrameworkName, scenario: Scenario, options: ServiceRunOptions): Promise<Dialogue> {
  const { engine: whole, weights, window, contract, temperature, maxTokens, fold, folder, signal } = options
  const { turns: length, fields, seed } = scenario
  const cell = { framework, turns: length, fields }
  const about = {
    ...{
      task: 'service',
      ...cell,
      seed,
      ...scenario.about,
      window,
      contract,
      temperature,
      maxTokens,
      fold,
      model: whole.info.model,
      weights,
    },
    folder: folder?.info.model ?? null,
  }
  const print = createHash('sha256').update(JSON.stringify(about)).digest('hex').slice(0, 12)
  const path = join(options.log, `service-${cell.framework}-${cell.turns}-${cell.fields}-${seed}-${print}.jsonl`)
  const file = await EpisodeFile.open(path, about, options.command)
  try {
    const turns = await playScenario(framework, scenario, {
      ...options,
      name: `service-${print}`,
      before: file.before,
      state: file.checkpoint,
      onTurn: async (turn, point) => {
        options.onTurn?.(cell, seed, turn.turn + 1)
        await file.add(turn, point)
      },
    })
    return { cell, seed, turns, path }
  } catch (error) {
    if (signal.aborted) throw new KvfoldError('engine/cancelled', `Stopped; what is finished is kept in ${options.log}.`)
    throw error
  } finally {
    await file.close()
  }
}

/** The settings of one dialogue, and the point from which it resumes. */
export interface ScenarioSetting extends Pick<
  ServiceRunOptions,
  'engine' | 'window' | 'contract' | 'temperature' | 'maxTokens' | 'fold' | 'folder' | 'signal'
> {
  /** Unique among the engine's conversations. */
  readonly name: string
  readonly before?: readonly TurnRecord[]
  readonly state?: Checkpoint | null
  /** Wraps the engine (or the script's engine) before the framework uses it. Default: no wrapper. */
  readonly around?: (engine: Engine) => Engine
  readonly onTurn?: EpisodeOptions['onTurn']
}

/** Plays one dialogue to its end. @returns all turns, including `before` @throws KvfoldError any error of the engine; engine/cancelled */
export async function playScenario(
  framework: FrameworkName,
  scenario: Scenario,
  setting: ScenarioSetting,
): Promise<readonly TurnRecord[]> {
  const { engine: whole, name, window, contract, temperature, maxTokens, fold, folder, signal } = setting
  const { before = [], state = null, around = (inner: Engine) => inner, onTurn } = setting
  const { environment, system, tools, teacher } = scenario.open(state?.environment)
  const alone = new IsolatedEngine(whole, name)
  const recorder = new Recorder(around(teacher === null ? alone : new SpokenEngine(alone, teacher)))
  const engine = new SampleEngine({
    engine: recorder,
    task: { temperature },
    name,
    contract,
    seed: scenario.seed,
    window,
    signal,
  })
  const spoken = folder === undefined || teacher === null ? folder : new SpokenEngine(folder, teacher)
  const given = { engine, system, tools, maxTokens, fold, state: state?.actor ?? null }
  try {
    const kept = await openFramework(framework, { ...given, ...(spoken === undefined ? {} : { folder: spoken }) })
    const actor = {
      get state() {
        return kept.state
      },
      act: async (...asked: Parameters<typeof kept.act>) => {
        const from = [recorder.ledger.length, kept.folderCosts.length] as const
        const acted = await kept.act(...asked)
        const own = recorder.ledger.slice(from[0]).filter(({ kind }) => kind === 'summary')
        const costs = { ...costOf('helper', own), ...costOf('folder', kept.folderCosts.slice(from[1])) }
        return { ...acted, details: { ...acted.details, ...costs } }
      },
    }
    return await runEpisode({ environment, actor, recorder, before, signal, ...(onTurn === undefined ? {} : { onTurn }) })
  } finally {
    engine.forgetAll()
  }
}

const costOf = (of: string, entries: readonly LedgerEntry[]): Readonly<Record<string, number>> => ({
  [`${of}Shown`]: entries.reduce((sum, { shown }) => sum + shown, 0),
  [`${of}Computed`]: entries.reduce((sum, { submitted }) => sum + submitted, 0),
})

// The results of dialogues.

/** Means over the dialogues of a cell; tokens are sums over a dialogue, its helpers included. */
export interface ServiceRow extends ServiceCell {
  readonly name: FrameworkName
  readonly samples: number
  /** `reward`: the share of dialogues in which every turn was right. `turnsRight`: the mean share of right turns. */
  readonly reward: number
  readonly turnsRight: number
  readonly tokensShown: number
  readonly tokensComputed: number
  /**
   * `tokensHelpers`: the part of `tokensComputed` by helpers on the same
   * engine. `tokensFolder`: tokens of a separate folder model, not included.
   */
  readonly tokensHelpers: number
  readonly tokensFolder: number
  /** Tokens of the context at the last answer, and of the largest prompt. */
  readonly contextLast: number
  readonly contextMost: number
  readonly toolCalls: number
  readonly steps: number
  /** Wall-clock time of all turns, helpers included. Other load on the machine adds to it. */
  readonly seconds: number
  readonly folds: number
  /** Turns that did not fit into the window. */
  readonly overflowed: number
  /** Tokens computed plus a tenth of the tokens reused: the price on a server that sells cached tokens at a tenth. */
  readonly priced: number
}

export function rowsOf(dialogues: readonly Dialogue[]): readonly ServiceRow[] {
  const cells = new Map<string, Dialogue[]>()
  for (const one of dialogues) {
    const key = JSON.stringify(one.cell)
    cells.set(key, [...(cells.get(key) ?? []), one])
  }
  return [...cells.values()].map((all) => {
    const { cell } = all[0]!
    const mean = (of: (turns: readonly TurnRecord[]) => number) => all.reduce((sum, { turns }) => sum + of(turns), 0) / all.length
    const total = (of: (turn: TurnRecord) => number) => mean((turns) => turns.reduce((sum, turn) => sum + of(turn), 0))
    const detail = (key: string) => total(({ details }) => details[key] ?? 0)
    const round = (value: number) => Math.round(10 * value) / 10
    return {
      ...{ name: cell.framework, ...cell, samples: all.length },
      reward: mean((turns) => Number(turns.every(({ score }) => score.points === 1))),
      turnsRight: mean((turns) => turns.reduce((sum, { score }) => sum + score.points, 0) / turns.length),
      tokensShown: round(total(({ work }) => work.shown)),
      tokensComputed: round(total(({ work }) => work.submitted)),
      tokensHelpers: round(detail('helperComputed')),
      tokensFolder: round(detail('folderComputed')),
      contextLast: round(mean((turns) => turns.at(-1)?.tokens.after ?? 0)),
      contextMost: round(mean((turns) => Math.max(...turns.map(({ tokens }) => tokens.most)))),
      toolCalls: round(total(({ calls }) => calls.length)),
      steps: round(total(({ work }) => work.steps)),
      seconds: round(total(({ milliseconds }) => milliseconds.total / 1000)),
      folds: round(detail('folded')),
      overflowed: round(detail('overflowed')),
      priced: round(total(({ work }) => work.submitted + 0.1 * work.reused)),
    }
  })
}

// The table of a run at the order desk: one row for each framework, number of turns and number of distractor fields.

export function serviceTable(rows: readonly ServiceRow[]): Table {
  const react = (row: ServiceRow) =>
    rows.find((one) => one.name === 'react' && one.turns === row.turns && one.fields === row.fields)
  const columns = [
    { title: 'framework', text: ({ name }: ServiceRow) => name },
    number('turns', ({ turns }: ServiceRow) => String(turns)),
    number('fields', ({ fields }: ServiceRow) => String(fields)),
    number('reward', ({ reward }: ServiceRow) => percent(reward, 0)),
    number('turns right', ({ turnsRight }: ServiceRow) => percent(turnsRight, 0)),
    number('calls', ({ toolCalls }: ServiceRow) => toolCalls.toFixed(1)),
    number('shown', ({ tokensShown }: ServiceRow) => count(tokensShown)),
    number('computed', ({ tokensComputed }: ServiceRow) => count(tokensComputed)),
    number('of react', (row: ServiceRow) => {
      const other = react(row)
      return other === undefined ? '-' : `${(row.tokensComputed / other.tokensComputed).toFixed(2)} x`
    }),
    number('helpers', ({ tokensHelpers }: ServiceRow) => count(tokensHelpers)),
    number('folder', ({ tokensFolder }: ServiceRow) => count(tokensFolder)),
    number('priced', ({ priced }: ServiceRow) => count(priced)),
    number('last', ({ contextLast }: ServiceRow) => count(contextLast)),
    number('most', ({ contextMost }: ServiceRow) => count(contextMost)),
    number('overflowed', ({ overflowed }: ServiceRow) => overflowed.toFixed(1)),
  ]
  return table(columns, rows, { opens: (row, before) => row.turns !== before.turns || row.fields !== before.fields })
}

export const SERVICE_NOTES = [
  'Means per dialogue, by the ledger. reward: every turn right, by the state of the desk and by what had to be said. shown, computed: tokens of all steps, helpers included; folder: of another model that was named for helpers, not among them. priced: computed, and a tenth of what was reused. last, most: tokens of the context at the last answer and at most. overflowed: turns that did not fit into the window.',
] as const
