import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Stage } from '../../bench/lab/contracts/stage.js'
import { Watch } from '../../bench/lab/contracts/watch.js'
import { twinsOf, type Setting } from '../../bench/runtime/leak/material.js'
import { type LeakRow, measureLeaks, rowsOf } from '../../bench/runtime/leak/measure.js'
import { builtinModel } from '../../src/runtime/cli/builtin.js'
import { ownWords } from '../../src/lab/pi-llm.js'
import { openNative } from '../../src/runtime/native/binding.js'

const setting: Setting = { name: 'overwritten', kept: 8, later: 0, asked: 'after', again: 'kept' }
let stage: Stage

beforeAll(async () => {
  stage = await Stage.open(await openNative({ gpu: 'cpu' }), builtinModel(), 4096)
})
afterAll(() => stage.engine.dispose())

describe('twins', () => {
  it('differ only in the secret, and not in any text shown once it is folded', () => {
    const { prompts, secrets, shown, current } = twinsOf(stage.engine.format, ownWords(), setting, 1)
    const [one, other] = prompts
    expect(one.folded.tokens).toEqual(other.folded.tokens)
    expect(one.whole.tokens).toHaveLength(other.whole.tokens.length)
    expect(one.whole.tokens.filter((token, at) => token !== other.whole.tokens[at]).length).toBeLessThanOrEqual(
      Math.max(...secrets.map(({ value }) => value.length)) + 1,
    )
    expect(secrets[0].opening).toEqual(secrets[1].opening)
    expect(secrets[0].value[0]).not.toBe(secrets[1].value[0])
    expect([shown, current]).not.toContain(null)
    expect(one.behind).toBeGreaterThan(0)
  })
})

describe('leaks', () => {
  it('are zero under exact, and complete without a fold', async () => {
    const watch = new Watch()
    const options = { settings: [{ ...setting, again: 'never' as const }], streams: 1, seed: 1 }
    const rows = rowsOf(await measureLeaks(stage, ownWords(), options, watch))
    watch.end()
    const of = (way: string): LeakRow => rows.find((row) => row.way === way)!
    expect(of('open')).toMatchObject({ told: 1, picked: 1, current: null })
    expect(of('open').excess.value).toBeGreaterThan(10)
    expect(of('exact')).toMatchObject({ told: 0, same: 1 })
    expect(of('exact').excess.value).toBeCloseTo(0, 5)
    expect(of('splice').computed).toBeLessThan(of('exact').computed)
  }, 60_000)
})
