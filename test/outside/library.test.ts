/**
 * Random histories over the public interface, judged from outside: fresh prefills by llama.cpp's C API in another process, tokens and what
 * they can see from a shim under llama.cpp's calls. One that fails prints its seed: `node --import tsx test/outside/main.ts <seed>`.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { clientHistoryOf } from './client-history.js'
import { historyOf } from './history.js'
import { Runner } from './run.js'
import { reported, total } from './report.js'
import { LONG } from '../support/long.js'

/** The long run's are a hundred of each kind of model and more. */
const HISTORIES = LONG ? 800 : 1
/** The long run's edit messages 10,000 times. */
const CLIENT_HISTORIES = LONG ? 560 : 1
/** A long run that was cut off goes on from here. */
const FIRST = Number(process.env['KVFOLD_OUTSIDE_FROM'] ?? 1)

let runner: Runner
beforeAll(() => {
  runner = new Runner()
})
afterAll(() => runner.close())

describe.skipIf(process.platform !== 'linux')('random histories over the library', () => {
  it.each([
    ['a token that is decoded alone', 225, 6.9e-3],
    ['a token that sees cells in another order', 3009, 1.2e-4],
  ])(
    'are exact where q8_0 rounds %s to another number (history %i, log-probabilities off by %f)',
    async (_, seed) => {
      const sum = total()
      sum.add(seed, await runner.run(historyOf(seed)))
      expect(reported(sum.violations)).toEqual([])
    },
    120_000,
  )

  it(
    `are exact, show what they say, count what they do, and share nothing (${HISTORIES})`,
    { timeout: HISTORIES * 40_000 },
    async (context) => {
      const sum = total()
      for (let seed = FIRST; seed <= HISTORIES; seed++) {
        sum.add(seed, await runner.run(historyOf(seed)))
        if (LONG && seed % 25 === 0) console.log(`history ${seed}: ${sum.told}`)
      }
      await context.annotate(sum.told)
      if (LONG) for (const [setting, { floor, worst }] of runner.noises) console.log(`${setting}: floor ${floor}, worst ${worst}`)
      expect(sum.tally.exactSteps).toBeGreaterThan(HISTORIES)
      expect(reported(sum.violations)).toEqual([])
    },
  )

  it(
    `are so, too, where clients edit, drop, restore and fork what they sent (${CLIENT_HISTORIES})`,
    { timeout: CLIENT_HISTORIES * 40_000 },
    async (context) => {
      const sum = total()
      for (let seed = FIRST; seed <= CLIENT_HISTORIES; seed++) {
        sum.add(seed, await runner.run(clientHistoryOf(seed)))
        if (LONG && seed % 25 === 0) console.log(`client history ${seed}: ${sum.told}`)
      }
      await context.annotate(sum.told)
      expect(reported(sum.violations)).toEqual([])
    },
  )
})
