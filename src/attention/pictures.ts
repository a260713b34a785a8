/** Owns which figures a study gets, and the names of their files. */
import { changes } from './figures/changes.js'
import { interferenceCurve } from './figures/curve.js'
import { episode } from './figures/episode.js'
import { headMaps } from './figures/head-maps.js'
import { scatter } from './figures/scatter.js'
import type { EpisodeRecord, PromptRecord, StudyRecord } from './records.js'
import type { Summary } from './summary.js'

export interface Picture {
  /** File name without its ending. */
  readonly name: string
  readonly title: string
  readonly svg: string
}

/** In the order of the report; none for what has no data. */
export function picturesOf({ contracts, findings, interference, n }: Summary, records: readonly StudyRecord[]): Picture[] {
  const prompts = records.filter((record): record is PromptRecord => record.part === 'prompt' && record.n === n)
  const episodes = records.filter((record): record is EpisodeRecord => record.part === 'episode')
  const all = [
    ...contracts.flatMap((contract): Picture[] => {
      const own = findings.filter((finding) => finding.contract === contract)
      return [
        { name: `scatter-${contract}`, title: `Folded against complete: ${contract}`, svg: scatter(prompts, contract, own) },
        { name: `changes-${contract}`, title: `Changes: ${contract}`, svg: changes(prompts, contract, own) },
        { name: `heads-${contract}`, title: `Layers and heads: ${contract}`, svg: headMaps(prompts, contract) },
      ]
    }),
    { name: 'interference', title: 'Interference against updates', svg: interferenceCurve(interference) },
    ...episodes.map((record) => ({
      name: `episode-${record.seed}`,
      title: "An agent's turn, step by step",
      svg: episode(record),
    })),
  ]
  return all.filter(({ svg }) => svg !== '')
}
