/**
 * Tests two fronts, a database and several engines that die while clients talk. Acknowledged answers are there, nothing is there twice, and
 * clients know what to do. The long run cuts networks, too.
 */
import { execFile } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { describe, expect, it } from 'vitest'
import { noPostgres } from '../../support/postgres.js'
import { noNamespaces } from './network.js'
import { type Report, run } from './run.js'
import { temporaryFolder } from '../../support/temporary-folder.js'
import { LONG } from '../../support/long.js'

const noNetworks = LONG ? noNamespaces() : null

if (noPostgres !== null) console.warn(`skipped: ${noPostgres}`)

describe.skipIf(!LONG || noPostgres !== null)('a fleet', () => {
  const folder = temporaryFolder('fleet-report')

  const expectWhole = (report: Report) => {
    expect(report.wrong).toEqual([])
    const { answer = 0, response = 0 } = report.acknowledged
    expect(answer).toBeGreaterThan(0)
    expect(response).toBeGreaterThan(0)
  }

  it('whose processes die or freeze loses nothing', { timeout: 180_000 }, async () => {
    const [seed, seconds] = [Number(process.env['KVFOLD_SEED'] ?? 5), LONG ? 60 : 6]
    const size = { clients: 4, engines: 2, faults: LONG ? 15 : 3 }
    expectWhole(await run({ ...size, seed, seconds, network: 'loopback', say: () => undefined }))
  })

  it.skipIf(noNetworks !== null)('whose machines are cut off or lost loses nothing', { timeout: 600_000 }, async () => {
    const file = join(folder, 'report.json')
    const words = ['--import', 'tsx', join(import.meta.dirname, 'main.ts'), '--write', file]
    const seed = ['--seed', process.env['KVFOLD_SEED'] ?? String(Date.now() % 100_000)]
    const { stderr } = await promisify(execFile)(process.execPath, [...words, ...seed]).catch(
      (error: unknown) => error as { stderr: string },
    )
    expect(existsSync(file), stderr).toBe(true)
    expectWhole(JSON.parse(readFileSync(file, 'utf8')) as Report)
  })
})
