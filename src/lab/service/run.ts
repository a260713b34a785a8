/** Runs every agent framework on the same dialogues. Keeps one file per dialogue, and computes the table of results. */
import { createHash } from 'node:crypto'
import { join } from 'node:path'
import type { ContractChoice } from '../../runtime/core/contract.js'
import { mean as meanOf } from '../../runtime/core/mean.js'
import type { Engine } from '../../runtime/engine/engine.js'
import { SpokenEngine } from '../taught-engine.js'
import { count, percent } from '../../runtime/figures/numbers.js'
import { number, table, type Table } from '../../runtime/figures/table.js'
import { grouped } from '../accuracy.js'
import { fitted } from '../agent.js'
import { SampleEngine } from '../agents/define.js'
import { type Actor, type KeptEpisode, playEpisode, playKept, type PlayOptions } from '../episode/episode.js'
import { type HeldPrompt, HoldingEngine } from '../episode/held-prompts.js'
import type { TurnRecord } from '../log.js'
import { costOf, type DoneStep, Recorder } from '../recorder.js'
import { type FrameworkName, type FrameworkSetting, openFramework } from './frameworks.js'
import type { Scenario } from './dialogue.js'

/** A cell of the table: a framework, a number of turns, and a number of useless fields in each record of a tool result. */
export interface ServiceCell {
  readonly framework: FrameworkName
  readonly turns: number
  readonly fields: number
}

export interface ServiceRunOptions {
  readonly engine: Engine
  /** Fingerprints of the weights of `engine` and `folder`. An episode that began with different weights is not resumed. */
  readonly weights: readonly (string | null)[]
  /**
   * The engine's options that change answers and differ from the defaults. An episode with different options is not resumed. Default: none.
   */
  readonly settings?: Readonly<Record<string, unknown>>
  readonly frameworks: readonly FrameworkName[]
  readonly scenarios: readonly Scenario[]
  readonly window: number
  readonly contract: ContractChoice
  readonly temperature: number
  readonly maxTokens: number
  readonly fold: FrameworkSetting['fold']
  readonly folder?: Engine
  /** The folder for the episodes' files. An unfinished episode in it is resumed. */
  readonly log: string
  /** The command line that the files record as their origin. */
  readonly command: string
  readonly signal: AbortSignal
  /** Called if a dialogue has turns in its file already. `turns`: how many; they are not run again. */
  readonly onResumed?: (path: string, turns: number) => void
  readonly onTurn?: (cell: ServiceCell, sample: number, turn: number) => void
  readonly onStep?: (cell: ServiceCell, sample: number, step: DoneStep) => void
}

/** One dialogue, as one framework ran it. */
export interface Dialogue {
  readonly cell: ServiceCell
  readonly seed: number
  readonly turns: readonly TurnRecord[]
  readonly path: string
}

/** Runs all scenarios with all frameworks. @throws KvfoldError any error of the engine; engine/cancelled (finished turns are kept) */
export function runService({ onTurn, onResumed, ...options }: ServiceRunOptions): Promise<readonly Dialogue[]> {
  const dialogues = options.scenarios.flatMap((scenario) =>
    options.frameworks.map((framework) => dialogue(framework, scenario, options)),
  )
  return playKept(dialogues, {
    ...options,
    onResumed: ({ path }, turns) => onResumed?.(path, turns),
    onTurn: ({ cell, seed }, { turn }) => onTurn?.(cell, seed, turn + 1),
  })
}

function dialogue(
  framework: FrameworkName,
  scenario: Scenario,
  { onStep, ...options }: Omit<ServiceRunOptions, 'onTurn' | 'onResumed'>,
) {
  const { engine, weights, window, contract, temperature, maxTokens, fold, folder, settings } = options
  const { turns: length, fields, seed } = scenario
  const cell: ServiceCell = { framework, turns: length, fields }
  const about = {
    ...{ task: 'service', ...cell, seed, ...scenario.about },
    ...{ window, contract, temperature, maxTokens, fold, model: engine.info.model, weights, folder: folder?.info.model ?? null },
    ...settings,
  }
  const print = createHash('sha256').update(JSON.stringify(about)).digest('hex').slice(0, 12)
  const path = join(options.log, `service-${framework}-${length}-${fields}-${seed}-${print}.jsonl`)
  const play: KeptEpisode<Dialogue>['play'] = async (setting) => {
    const { turns } = await playScenario(framework, scenario, {
      ...{ ...options, ...setting, name: `service-${print}` },
      ...(onStep === undefined ? {} : { onStep: onStep.bind(null, cell, seed) }),
    })
    return { cell, seed, turns, path }
  }
  return { about, path, play, cell, seed }
}

/** The settings of one dialogue; `start` is where it resumes. */
export interface ScenarioSetting
  extends
    Pick<ServiceRunOptions, 'window' | 'contract' | 'temperature' | 'maxTokens' | 'fold' | 'folder' | 'signal'>,
    Pick<PlayOptions, 'engine' | 'name' | 'start' | 'asks' | 'onStep' | 'onTurn'> {}

interface DialogueState {
  readonly framework: unknown
  /** The prompts whose cells the cache of the separate folder model holds. */
  readonly folder: readonly HeldPrompt[]
}

/** Runs one dialogue to its end. @returns its turns and its recorder @throws KvfoldError any error of the engine; engine/cancelled */
export async function playScenario(
  framework: FrameworkName,
  scenario: Scenario,
  setting: ScenarioSetting,
): ReturnType<typeof playEpisode> {
  const { name, start, window, contract, temperature, maxTokens, fold, folder, signal } = setting
  const { environment, system, tools, teacher } = scenario.open(start?.checkpoint?.environment)
  const state = start?.checkpoint?.actor as DialogueState | undefined
  // A separate folder model has its own recorder, so its costs are not in those of the episode.
  const holding = folder === undefined ? null : new HoldingEngine(folder, state?.folder)
  const helper = holding === null ? null : new Recorder(teacher === null ? holding : new SpokenEngine(holding, teacher))
  let own: SampleEngine | null = null
  const cast = async (recorder: Recorder): Promise<Actor> => {
    own = new SampleEngine({ engine: recorder, task: { temperature }, name, contract, seed: scenario.seed, window, signal })
    const given = { engine: own, system, tools, maxTokens, fold, state: state?.framework ?? null }
    const kept = await openFramework(framework, { ...given, ...(helper === null ? {} : { folder: helper }) })
    return {
      get state(): DialogueState {
        return { framework: kept.state, folder: holding?.held ?? [] }
      },
      act: async (...asked) => {
        const from = [recorder.done.length, helper?.done.length] as const
        const acted = await kept.act(...asked)
        const helpers = recorder.done.slice(from[0]).filter(({ reply }) => reply.ledger.kind === 'summary')
        const costs = { ...sumsOf('helper', helpers), ...sumsOf('folder', helper?.done.slice(from[1]) ?? []) }
        return { ...acted, details: { ...acted.details, ...costs } }
      },
    }
  }
  try {
    return await playEpisode({ ...setting, environment, teacher, cast })
  } finally {
    ;(own as SampleEngine | null)?.forgetAll()
  }
}

function sumsOf(of: string, steps: readonly DoneStep[]): Readonly<Record<string, number>> {
  const { shown, submitted } = costOf(steps.map(({ reply }) => reply.ledger)).work
  return { [`${of}Shown`]: shown, [`${of}Computed`]: submitted }
}

// Below: makes table rows from the records of dialogues.

/**
 * One row of the table. Its numbers are means over a cell's dialogues. Tokens are summed over a dialogue, including helpers on the same
 * engine.
 */
export interface ServiceRow extends ServiceCell {
  readonly name: FrameworkName
  readonly samples: number
  /** `reward`: share of the dialogues in which every turn was right. `turnsRight`: mean share of right turns. */
  readonly reward: number
  readonly turnsRight: number
  readonly tokensShown: number
  readonly tokensComputed: number
  /**
   * `tokensHelpers`: the portion of `tokensComputed` that helpers on the same engine computed. `tokensFolder`: tokens that a separate
   * folder model computed, which `tokensComputed` leaves out.
   */
  readonly tokensHelpers: number
  readonly tokensFolder: number
  /**
   * `contextLast`: tokens in the context at the answer of the last turn that fitted into the window; null if none did. `contextMost`: the
   * most tokens in the context at the end of any step.
   */
  readonly contextLast: number | null
  readonly contextMost: number
  readonly toolCalls: number
  readonly steps: number
  /** Wall time of all turns, including helpers. Other programs on the machine lengthen it. */
  readonly seconds: number
  readonly folds: number
  /** Number of turns that did not fit into the window. */
  readonly overflowed: number
  /** Computed tokens plus a tenth of the reused ones: the price if a cached token costs a tenth of a computed one. */
  readonly priced: number
}

export function rowsOf(dialogues: readonly Dialogue[]): readonly ServiceRow[] {
  return grouped(dialogues, ({ cell }) => JSON.stringify(cell)).map((all) => {
    const { cell } = all[0]!
    const mean = (of: (turns: readonly TurnRecord[]) => number) => all.reduce((sum, { turns }) => sum + of(turns), 0) / all.length
    const total = (of: (turn: TurnRecord) => number) => mean((turns) => turns.reduce((sum, turn) => sum + of(turn), 0))
    const detail = (key: string) => total(({ details }) => details[key] ?? 0)
    const round = (value: number) => Math.round(10 * value) / 10
    const last = all.flatMap(({ turns }) => turns.findLast(fitted)?.tokens.after ?? [])
    return {
      ...{ name: cell.framework, ...cell, samples: all.length },
      reward: mean((turns) => Number(turns.every(({ score }) => score.points === 1))),
      turnsRight: mean((turns) => turns.reduce((sum, { score }) => sum + score.points, 0) / turns.length),
      tokensShown: round(total(({ work }) => work.shown)),
      tokensComputed: round(total(({ work }) => work.submitted)),
      tokensHelpers: round(detail('helperComputed')),
      tokensFolder: round(detail('folderComputed')),
      contextLast: last.length === 0 ? null : round(meanOf(last)),
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

// Below: the table of a run at the order desk, with a row for each framework, number of turns and number of useless fields.

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
    number('last', ({ contextLast }: ServiceRow) => (contextLast === null ? '-' : count(contextLast))),
    number('most', ({ contextMost }: ServiceRow) => count(contextMost)),
    number('overflowed', ({ overflowed }: ServiceRow) => overflowed.toFixed(1)),
  ]
  return table(columns, rows, { opens: (row, before) => row.turns !== before.turns || row.fields !== before.fields })
}

export const SERVICE_NOTES = [
  'The table has means per dialogue, by the ledger. reward: 1 when every turn is right, by the state of the desk and by the required words. shown, computed: tokens of all steps, helpers included. folder: tokens of a separate model for the helpers, which the others leave out. priced: computed tokens and a tenth of reused ones. last, most: tokens of the context at the last answer that fitted, and at most. overflowed: turns that did not fit into the window.',
] as const
