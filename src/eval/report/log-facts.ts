/** Owns what a report says of each log: where it comes from, by what it was made, and how complete it is. */
import type { LogHeader } from '../log.js'
import type { ReadLog } from './read.js'

export interface LogFacts extends Pick<LogHeader, 'kvfold' | 'commit' | 'date' | 'command' | 'machine' | 'model' | 'engine'> {
  readonly name: string
  /** Index of its variant. */
  readonly variant: number
  readonly embedder: string | null
  readonly judge: string | null
  readonly seed: number
  readonly sampling: Readonly<Record<string, unknown>>
  readonly contracts: readonly string[]
  /** Where the run went on after a stop: when, and by what, where that is not the same as before. */
  readonly resumed: readonly { readonly date: string; readonly other: readonly string[] }[]
  readonly answers: number
  readonly errors: number
  /** The last line was cut off, and is left out. */
  readonly torn: boolean
}

export function logFacts({ name, header, resumed, records, torn }: ReadLog, variant: number): LogFacts {
  const { kvfold, commit, date, command, machine, model, engine, embedder, judge, seed, sampling, contracts } = header
  const answers = records.filter(({ kind }) => kind === 'sample').length
  return {
    ...{ name, variant, kvfold, commit, date, command, machine, model, engine, embedder, judge, seed, sampling, contracts },
    resumed: resumed.map((again) => ({
      date: again.date,
      other: [
        ...(again.kvfold === kvfold ? [] : [`kvfold ${again.kvfold}`]),
        ...(again.commit === commit ? [] : [`commit ${again.commit ?? 'unknown'}`]),
        ...(machineName(again.machine) === machineName(machine) ? [] : [machineName(again.machine)]),
      ],
    })),
    ...{ answers, errors: records.length - answers, torn },
  }
}

/** In one line. */
export const machineName = ({ cpu, cores, memory, os, node }: LogHeader['machine']): string =>
  `${cpu}, ${cores} ${cores === 1 ? 'core' : 'cores'}, ${(memory / 2 ** 30).toFixed(1)} GiB, ${os}, Node ${node}`
