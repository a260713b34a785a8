/** `kvfold report` as a person runs it. */
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { episodeLog } from '../../../src/lab/log.js'
import { kvfoldHere } from '../../runtime/cli/support/process.js'
import { header, madeRun, sample, writeLog } from '../support/report-logs.js'

let folder: string
let log: string
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-report-command-'))
  log = writeLog(join(folder, 'run.jsonl'), madeRun())
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

it('writes the folder and ends with one line of JSON', async () => {
  const out = join(folder, 'new/folder')
  const { code, stdout, stderr } = await kvfoldHere(['report', log, '--out', out, '--json'])
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' })
  const said = JSON.parse(stdout.trim()) as { report: string; conditions: Record<string, unknown>[] }
  expect(said.report).toBe(join(out, 'report.html'))
  const [plain, sculptor] = said.conditions
  expect(plain).toMatchObject({ task: 'pi-llm', agent: 'plain', planned: 15, difference: null })
  expect(sculptor).toMatchObject({ task: 'pi-llm', agent: 'sculptor', trained: true })
  expect(sculptor!['pHolm']).toBeLessThan(0.05)
  for (const name of [
    'report.html',
    'summary.json',
    'accuracy.csv',
    'accuracy.md',
    'accuracy.svg',
    'tools.csv',
    'paper-table-2.md',
  ])
    expect(existsSync(join(out, name)), name).toBe(true)
  expect(readFileSync(join(out, 'report.html'), 'utf8')).toContain('kvfold report')
})

it('shows a table to people, and says where the page is', async () => {
  const { code, stdout } = await kvfoldHere(['report', log, '--out', join(folder, 'shown')])
  expect(code).toBe(0)
  expect(stdout).toMatch(/PI-LLM +Sculptor +\d/u)
  expect(stdout).toContain(`Report: ${join(folder, 'shown', 'report.html')}`)
})

it('refuses what it cannot report before it writes a file', async () => {
  const out = join(folder, 'never')
  const refused = async (words: readonly string[]) => {
    const { code, stderr } = await kvfoldHere(['report', ...words, '--out', out])
    return `${code} ${stderr}`
  }
  expect(await refused([log, '--baseline', 'nobody'])).toMatch(/^2 .*It must be one of plain, sculptor/su)
  expect(await refused([log, '--baseline', 'sculptor:blend'])).toMatch(
    /^2 .*sculptor:blend; they have plain:exact, sculptor:exact, memagent:exact/su,
  )
  expect(await refused([log, log])).toMatch(/^2 .*You named the log .* twice/su)
  expect(await refused([join(folder, 'nowhere.jsonl')])).toMatch(/^1 .*nowhere\.jsonl.*eval\/bad-log/su)
  expect(await refused([writeLog(join(folder, 'empty.jsonl'), [header()])])).toMatch(/^1 .*no sample yet/su)
  expect(existsSync(out)).toBe(false)
})

it('leaves out logs of sessions, which lie in the same folder, and refuses them alone', async () => {
  const session = join(folder, 'memtool-hybrid-exact-0a1b2c3d.jsonl')
  writeFileSync(session, `${JSON.stringify({ kind: episodeLog.header, version: episodeLog.version })}\n{"kind":"turn"}\n`)
  const out = join(folder, 'beside')
  const { code, stdout, stderr } = await kvfoldHere(['report', session, log, '--out', out, '--json'])
  expect([code, stderr]).toEqual([0, expect.stringContaining(`leaves out ${session}`)])
  expect((JSON.parse(stdout.trim()) as { conditions: unknown[] }).conditions).toHaveLength(6)
  const alone = await kvfoldHere(['report', session, '--out', join(folder, 'never')])
  expect([alone.code, alone.stderr.replaceAll(/\s+/gu, ' ')]).toEqual([
    1,
    expect.stringMatching(/These are logs of sessions.*--report.*\[eval\/bad-log\]/u),
  ])
  expect(existsSync(join(folder, 'never'))).toBe(false)
})

it('takes an existing baseline', async () => {
  const lines = [header(), sample({ agent: 'sculptor' }), sample({ agent: 'memagent' })]
  const { code, stdout } = await kvfoldHere([
    'report',
    writeLog(join(folder, 'two.jsonl'), lines),
    '--out',
    join(folder, 'two'),
    '--baseline',
    'sculptor',
    '--json',
  ])
  expect(code).toBe(0)
  const { conditions } = JSON.parse(stdout.trim()) as { conditions: Record<string, unknown>[] }
  expect(conditions.map(({ agent, pairs }) => [agent, pairs])).toEqual([
    ['sculptor', null],
    ['memagent', 1],
  ])
})
