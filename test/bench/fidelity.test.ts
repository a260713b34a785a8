/** The bench of fidelity goes on from kept answers. Its record names who computed them. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, it, vi } from 'vitest'
import { fidelity } from '../../bench/runtime/fidelity.js'

const folder = mkdtempSync(join(tmpdir(), 'kvfold-fidelity-'))
afterAll(() => {
  rmSync(folder, { recursive: true })
})

const out = join(folder, 'answers.jsonl')

async function recordOf(): Promise<Record<string, unknown>> {
  const say = vi.spyOn(console, 'log').mockImplementation(() => undefined)
  try {
    await fidelity(['--kinds', 'agent', '--questions', '1', '--ways', 'splice', '--out', out, '--json'])
    return JSON.parse(String(say.mock.calls.at(-1)![0])) as Record<string, unknown>
  } finally {
    say.mockRestore()
  }
}

it('names the commit of a kept answer, and takes none of other threads', async () => {
  const first = await recordOf()
  expect(first['computed']).toMatchObject([{ commit: first['commit'], samples: 1, dates: [first['date'], first['date']] }])

  const other = { commit: 'a'.repeat(40), cpu: 'Made-up CPU', date: '2026-11-01T00:00:00.000Z' }
  const kept = JSON.parse(readFileSync(out, 'utf8')) as object
  writeFileSync(out, `${JSON.stringify({ ...kept, ...other })}\n`)
  const { commit, cpu, date } = other
  expect((await recordOf())['computed']).toEqual([{ commit, cpu, samples: 1, dates: [date, date] }])

  writeFileSync(out, `${JSON.stringify({ ...kept, ...other, threads: 2 })}\n`)
  const { computed, commit: now } = await recordOf()
  expect(computed).toMatchObject([{ commit: now, samples: 1 }])
}, 60_000)
