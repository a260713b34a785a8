/** A record names the commits that computed its samples, also when the bench only read finished logs. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, it } from 'vitest'
import { computedBy } from '../../bench/lab/logs.js'
import { EpisodeFile } from '../../src/lab/episode/episode.js'
import type { LogHeader, TurnRecord } from '../../src/lab/log.js'
import { openRunLog } from '../../src/lab/run/log-file.js'
import { occasion } from '../../src/lab/run/plan.js'
import { header, sample } from '../lab/support/report-logs.js'

const folder = mkdtempSync(join(tmpdir(), 'kvfold-logs-'))
afterAll(() => {
  rmSync(folder, { recursive: true })
})

const [BEFORE, NOW] = ['a'.repeat(40), 'b'.repeat(40)]
const DATES = { [BEFORE]: '2026-11-01T00:00:00.000Z', [NOW]: '2026-11-20T10:00:00.000Z' }

async function written(path: string, about: Partial<LogHeader>, ...indices: readonly number[]): Promise<void> {
  const log = await openRunLog(path, header(about))
  for (const index of indices) await log.add(sample({ index }))
  await log.close()
}
const at = (commit: string) => ({ commit, date: DATES[commit]! })

it('a finished log of another commit names that commit', async () => {
  const path = join(folder, 'finished.jsonl')
  await written(path, at(BEFORE), 0, 1)
  await written(path, at(NOW))
  expect(computedBy([path])).toEqual([{ commit: BEFORE, cpu: 'Made-up CPU', samples: 2, dates: [DATES[BEFORE], DATES[BEFORE]] }])
})

it('a log that was continued names all its commits, each with its samples', async () => {
  const paths = ['one.jsonl', 'two.jsonl'].map((name) => join(folder, name))
  await written(paths[0]!, at(BEFORE), 0)
  await written(paths[0]!, at(NOW), 1, 2)
  await written(paths[0]!, { ...at(NOW), date: '2026-11-21T00:00:00.000Z' }, 3)
  await written(paths[1]!, at(NOW), 0)
  expect(computedBy(paths)).toMatchObject([
    { commit: BEFORE, samples: 1 },
    { commit: NOW, samples: 4, dates: [DATES[NOW], '2026-11-21T00:00:00.000Z'] },
  ])
})

it('the turns of an episode count as its samples', async () => {
  const path = join(folder, 'episode.jsonl')
  const file = await EpisodeFile.open(path, {}, 'test')
  const { answer, end, score, calls, refusedCalls, details, tokens, milliseconds, work } = sample()
  const turn: TurnRecord = {
    ...{ kind: 'turn', turn: 0, asked: 'What?', answer, end, score, calls, refusedCalls, details, tokens, milliseconds },
    work: { ...work, recomputed: 0, fresh: 0, approximate: 0 },
  }
  await file.add(turn, { turns: 1, environment: null, actor: null })
  await file.close()
  expect(computedBy([path])).toMatchObject([{ commit: occasion('test').commit, samples: 1 }])
})
