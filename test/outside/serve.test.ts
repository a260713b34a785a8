/**
 * Random histories over HTTP, judged from outside like those over the library; the server is killed and started again on the way. One that
 * fails prints its seed: `node --import tsx test/outside/main.ts <seed> 1 serve`.
 */
import { describe, expect, it } from 'vitest'
import type { Noise } from './judge.js'
import { reported, total } from './report.js'
import { serveHistoryOf } from './serve-history.js'
import { runServed } from './serve-run.js'
import { LONG } from '../support/long.js'

const HISTORIES = LONG ? 200 : 1
const FIRST = Number(process.env['KVFOLD_OUTSIDE_FROM'] ?? 1)

describe.skipIf(process.platform !== 'linux')('random histories over HTTP', () => {
  it(
    `are exact, show what they say, count what they do, and keep what was acknowledged (${HISTORIES})`,
    { timeout: HISTORIES * 90_000 },
    async (context) => {
      const sum = total()
      const noises = new Map<string, Noise>()
      for (let seed = FIRST; seed <= HISTORIES; seed++) {
        sum.add(seed, await runServed(serveHistoryOf(seed), noises))
        if (LONG && seed % 10 === 0) console.log(`history ${seed}: ${sum.told}`)
      }
      await context.annotate(sum.told)
      expect(sum.tally.exactSteps).toBeGreaterThan(HISTORIES)
      expect(reported(sum.violations)).toEqual([])
    },
  )
})
