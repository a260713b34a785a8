/** Owns a run of the order desk: every framework on the same dialogues, one file an episode, and what that comes to. */
import { createHash } from 'node:crypto'
import { join } from 'node:path'
import type { ContractChoice } from '../../core/contract.js'
import { KvfoldError } from '../../core/errors.js'
import type { Engine } from '../../engine/engine.js'
import { SpokenEngine } from '../../engine/taught.js'
import type { LedgerEntry } from '../../kv/ledger.js'
import { SampleEngine } from '../agents/sample-engine.js'
import { runEpisode, type TurnRecord } from '../episode/episode.js'
import { EpisodeFile } from '../episode/episode-file.js'
import { Recorder } from '../recorder.js'
import { Alone } from '../run/trial.js'
import { POLICY } from './desk.js'
import { ServiceEnvironment } from './environment.js'
import { type FrameworkName, type FrameworkSetting, openFramework } from './frameworks.js'
import { type Manner, serviceTeacher } from './teacher.js'

/** What a cell of the table is about. */
export interface ServiceCell {
  readonly framework: FrameworkName
  readonly turns: number
  readonly fields: number
}

export interface ServiceOptions {
  readonly engine: Engine
  /** `model`: the engine's own words; else a script decides, and the engine computes what it would for a model that had said the same. */
  readonly agent: Manner | 'model'
  readonly frameworks: readonly FrameworkName[]
  readonly turns: readonly number[]
  readonly fields: readonly number[]
  /** Dialogues of each cell; seeds from `seed` on. */
  readonly samples: number
  readonly seed: number
  readonly window: number
  readonly contract: ContractChoice
  readonly temperature: number
  readonly maxTokens: number
  readonly fold: FrameworkSetting['fold']
  readonly folder?: Engine
  /** Where the files of episodes go; one that is not finished goes on. */
  readonly log: string
  /** What the files say they were made by. */
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

/** @throws KvfoldError what the engine throws; engine/cancelled: what is finished is kept */
export async function runService(options: ServiceOptions): Promise<readonly Dialogue[]> {
  const { frameworks, turns, fields, samples, seed } = options
  const done: Dialogue[] = []
  for (const length of turns)
    for (const verbose of fields)
      for (let sample = 0; sample < samples; sample++)
        for (const framework of frameworks)
          done.push(await dialogue({ framework, turns: length, fields: verbose }, seed + sample, options))
  return done
}

async function dialogue(cell: ServiceCell, seed: number, options: ServiceOptions): Promise<Dialogue> {
  const { engine: whole, agent, window, contract, temperature, maxTokens, fold, folder, signal } = options
  const about = {
    ...{ task: 'service', ...cell, seed, agent, window, contract, temperature, maxTokens, fold, model: whole.info.model },
    folder: folder?.info.model ?? null,
  }
  const print = createHash('sha256').update(JSON.stringify(about)).digest('hex').slice(0, 12)
  const path = join(options.log, `service-${cell.framework}-${cell.turns}-${cell.fields}-${seed}-${print}.jsonl`)
  const file = await EpisodeFile.open(path, about, options.command)
  const name = `service-${print}`
  const [before, state] = [file.before, file.checkpoint]
  const environment = new ServiceEnvironment({ seed, turns: cell.turns, fields: cell.fields }, state?.environment)
  const alone = new Alone(whole, name)
  const recorder = new Recorder(agent === 'model' ? alone : new SpokenEngine(alone, serviceTeacher(environment, agent)))
  const engine = new SampleEngine({ engine: recorder, task: { temperature }, name, contract, seed, window, signal })
  const spoken = folder === undefined || agent === 'model' ? folder : new SpokenEngine(folder, serviceTeacher(environment, agent))
  const setting = { engine, system: POLICY, tools: environment.tools, maxTokens, fold, state: state?.actor ?? null }
  try {
    const framework = openFramework(cell.framework, { ...setting, ...(spoken === undefined ? {} : { folder: spoken }) })
    let told = 0
    const actor = {
      get state() {
        return framework.state
      },
      act: async (...asked: Parameters<typeof framework.act>) => {
        const from = [recorder.ledger.length, framework.folderCosts.length] as const
        const acted = await framework.act(...asked)
        const own = recorder.ledger.slice(from[0]).filter(({ kind }) => kind === 'summary')
        const costs = { ...costOf('helper', own), ...costOf('folder', framework.folderCosts.slice(from[1])) }
        options.onTurn?.(cell, seed, before.length + ++told)
        return { ...acted, details: { ...acted.details, ...costs } }
      },
    }
    const turns = await runEpisode({
      environment,
      actor,
      recorder,
      before,
      signal,
      onTurn: (turn, point) => file.add(turn, point),
    })
    return { cell, seed, turns, path }
  } catch (error) {
    if (signal.aborted) throw new KvfoldError('engine/cancelled', `Stopped; what is finished is kept in ${options.log}.`)
    throw error
  } finally {
    engine.forgetAll()
    await file.close()
  }
}

const costOf = (of: string, entries: readonly LedgerEntry[]): Readonly<Record<string, number>> => ({
  [`${of}Shown`]: entries.reduce((sum, { shown }) => sum + shown, 0),
  [`${of}Computed`]: entries.reduce((sum, { submitted }) => sum + submitted, 0),
})

// What dialogues come to.

/** Means over the dialogues of a cell; tokens are sums over a dialogue, its helpers included. */
export interface ServiceRow extends ServiceCell {
  readonly name: FrameworkName
  readonly samples: number
  /** Share of dialogues in which every turn was right, and of turns. */
  readonly reward: number
  readonly turnsRight: number
  readonly tokensShown: number
  readonly tokensComputed: number
  /** Of these, by helpers on the same engine; and by another model that was named for them, which is not among them. */
  readonly tokensHelpers: number
  readonly tokensFolder: number
  /** Tokens of the context at the last answer, and at most. */
  readonly contextLast: number
  readonly contextMost: number
  readonly toolCalls: number
  readonly steps: number
  readonly folds: number
  /** Turns that did not fit into the window. */
  readonly overflowed: number
  /** Tokens computed, and a tenth of those that were reused: what a server that sells cached tokens at a tenth takes. */
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
      folds: round(detail('folded')),
      overflowed: round(detail('overflowed')),
      priced: round(total(({ work }) => work.submitted + 0.1 * work.reused)),
    }
  })
}
