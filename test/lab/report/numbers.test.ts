/**
 * The numbers of reports, compared with a naive computation from the lines of logs; and the tests of significance, compared with brute
 * force and known values.
 */
import fc from 'fast-check'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { estimate } from '../../../src/lab/accuracy.js'
import type { ErrorRecord, LogHeader, SampleRecord } from '../../../src/lab/log.js'
import {
  type Baseline,
  difference,
  entropy,
  holm,
  mcnemar,
  measure,
  pairedTest,
  toolUse,
} from '../../../src/lab/report/estimates.js'
import { claims, summaryOf } from '../../../src/lab/report/publish.js'
import type { Summary } from '../../../src/lab/report/summary.js'
import { openTask } from '../../../src/lab/tasks/open.js'
import { error, header, jsonl, madeRun, sample, writeLog, type Line } from '../support/report-logs.js'
import { temporaryFolder } from '../../support/temporary-folder.js'

const folder = temporaryFolder('report')

const MADE = { date: '2026-11-21T12:00:00.000Z', kvfold: '0.1.0', command: 'kvfold report' }
const PLAIN: Baseline = { agent: 'plain', contract: null }
let files = 0
const log = (lines: readonly Line[]): string => writeLog(join(folder, `${files++}.jsonl`), lines)
const summary = (logs: readonly (readonly Line[])[], baseline = PLAIN): Promise<Summary> =>
  summaryOf(logs.map(log), baseline, MADE)

describe('paired tests', () => {
  it("are McNemar's test where everything is right or wrong", () => {
    // 10 of 12 pairs that differ: 2 (C(12,0) + C(12,1) + C(12,2)) / 2^12.
    expect(mcnemar(10, 2)).toBeCloseTo((2 * (1 + 12 + 66)) / 4096, 12)
    expect(mcnemar(0, 0)).toBe(1)
    expect(mcnemar(0, 2000)).toBe(0)
    expect(mcnemar(1000, 1000)).toBe(1)
    const pairs = [...Array.from({ length: 10 }, () => [1, 0] as const), [0, 1] as const, [0, 1] as const, [1, 1] as const]
    expect(pairedTest(pairs)).toMatchObject({ test: 'mcnemar', pairs: 13, better: 10, worse: 2, exact: true })
  })

  it('agree with the binomial distribution in whole numbers', () => {
    const choose = (n: bigint, k: bigint): bigint => (k === 0n ? 1n : (choose(n, k - 1n) * (n - k + 1n)) / k)
    fc.assert(
      fc.property(fc.nat(60), fc.nat(60), (better, worse) => {
        const all = BigInt(better + worse)
        let tail = 0n
        for (let k = 0n; k <= BigInt(Math.min(better, worse)); k++) tail += choose(all, k)
        expect(mcnemar(better, worse)).toBeCloseTo(Math.min(1, (2 * Number(tail)) / 2 ** Number(all)), 9)
      }),
    )
  })

  it('try all signs of partial points, and agree with McNemar where points are not partial', () => {
    const values = [0.5, 0.25, 0.125, -0.0625]
    // Of 16 ways, those with a sum of at least 0.8125 either way: all plus, or only the smallest minus.
    expect(pairedTest(values.map((value) => [Math.max(0, value), Math.max(0, -value)] as const))).toMatchObject({
      test: 'sign-flip',
      p: 4 / 16,
      exact: true,
    })
    fc.assert(
      fc.property(fc.array(fc.constantFrom([1, 0] as const, [0, 1] as const), { minLength: 1, maxLength: 12 }), (pairs) => {
        const partial = pairedTest([...pairs, [0.5, 0.5]])!
        expect(partial.test).toBe('sign-flip')
        expect(partial.p).toBeCloseTo(pairedTest(pairs)!.p, 9)
      }),
    )
  })

  it('come close to all signs by drawing some', () => {
    const pairs = Array.from({ length: 40 }, (_, index) => [0.5 + (index % 3 === 0 ? -0.1 : 0.06) + index / 1000, 0.5] as const)
    const drawn = pairedTest(pairs)!
    expect(drawn.exact).toBe(false)
    const apart = pairs.map(([a, b]) => a - b)
    // The sum of random signs is nearly normal: its deviation is the root of the sum of squares.
    const z = apart.reduce((sum, one) => sum + one, 0) / Math.sqrt(apart.reduce((sum, one) => sum + one * one, 0))
    const normal = 2 * (1 - 0.5 * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (z + 0.044715 * z ** 3))))
    expect(Math.abs(drawn.p - normal)).toBeLessThan(0.02)
    expect(pairedTest(pairs)).toEqual(drawn)
  })

  it("are corrected by Holm's rule, in any order, leaving out conditions that could not be compared", () => {
    expect(holm([0.01, null, 0.04, 0.03, 0.005])).toEqual([0.03, null, 0.06, 0.06, 0.02])
    expect(holm([0.9, 0.8])).toEqual([1, 1])
    fc.assert(
      fc.property(fc.array(fc.double({ min: 0, max: 1, noNaN: true }), { maxLength: 12 }), (values) => {
        const corrected = holm(values)
        values.forEach((p, index) => {
          // Naively: the largest value that the step-down rule asks of this p and of the smaller ones.
          const below = values.map((q, other) => ({ q, other })).filter(({ q, other }) => q < p || (q === p && other <= index))
          const naive = Math.max(
            ...below.map(({ q, other }) => {
              const rank = values.filter((r, at) => r < q || (r === q && at < other)).length
              return Math.min(1, q * (values.length - rank))
            }),
          )
          expect(corrected[index]).toBeCloseTo(naive, 12)
        })
      }),
    )
  })
})

describe('estimates', () => {
  it('are in [0, 1] around their value for any points, one sample included', () => {
    const points = fc.array(fc.constantFrom(0, 1, 0.5, 1 / 46, 45 / 46), { minLength: 1, maxLength: 30 })
    fc.assert(
      fc.property(points, (some) => {
        const { value, interval, method } = estimate(some.map((one) => ({ points: one, details: {} })))!
        expect(value).toBeCloseTo(some.reduce((sum, one) => sum + one, 0) / some.length, 12)
        expect(interval[0]).toBeGreaterThanOrEqual(0)
        expect(interval[1]).toBeLessThanOrEqual(1)
        expect(interval[0]).toBeLessThanOrEqual(value + 1e-12)
        expect(interval[1]).toBeGreaterThanOrEqual(value - 1e-12)
        expect(interval[1] - interval[0]).toBeGreaterThan(0)
        expect(method).toBe(some.every((one) => one === 0 || one === 1) || new Set(some).size === 1 ? 'wilson' : 'bootstrap')
      }),
      { numRuns: 40 },
    )
    expect(estimate([])).toBeNull()
    expect(difference([[1, 1]])).toEqual({ value: 0, interval: null })
  })
})

describe('tool use', () => {
  it('has the entropy of the shares, whatever tools are called', () => {
    expect(entropy([5])).toBe(0)
    expect(entropy([1, 1, 1, 1, 1, 1])).toBeCloseTo(Math.log2(6), 12)
    expect(entropy([])).toBeNull()
    const call = (name: string, failed = false) => ({ step: 0, name, failed, modifies: false })
    const use = toolUse([
      sample({ calls: [call('constructor'), call('fold_fragment'), call('restore_fragment')] }),
      sample({ calls: [call('fold_fragment'), call('fold_fragment', true), call('restore_fragment', true)] }),
      sample(),
    ])
    expect(use).toMatchObject({ samples: 3, calls: 6, failed: 2, without: 1, restoreRate: 0.5 })
    expect(use.counts).toEqual({ constructor: 1, fold_fragment: 3, restore_fragment: 2 })
    const order: Record<string, number>[] = [{ constructor: 1, fold_fragment: 1 }, { fold_fragment: 2 }, { restore_fragment: 2 }]
    expect(use.order).toEqual(order)
  })
})

/** Counts naively in the lines themselves. */
function naive(lines: readonly Line[], task: number, agent: string, contract: string, cell: object | null) {
  const own = lines
    .filter((line): line is SampleRecord | ErrorRecord => line.kind === 'sample' || line.kind === 'error')
    .filter((line) => line.task === task && line.agent === agent && line.contract === contract)
    .filter((line) => cell === null || JSON.stringify(line.cell) === JSON.stringify(cell))
  const answers = own.filter((line): line is SampleRecord => line.kind === 'sample')
  const plain = lines.filter(
    (line): line is SampleRecord => line.kind === 'sample' && line.task === task && line.agent === 'plain',
  )
  const pairs = answers.flatMap((answer) =>
    plain.filter(({ index }) => index === answer.index).map((other) => answer.score.points - other.score.points),
  )
  const mean = (of: (answer: SampleRecord) => number) => answers.reduce((sum, answer) => sum + of(answer), 0) / answers.length
  return {
    answered: answers.length,
    errors: own.length - answers.length,
    accuracy: mean(({ score }) => score.points),
    before: mean(({ tokens }) => tokens.before),
    after: mean(({ tokens }) => tokens.after),
    submitted: mean(({ work }) => work.submitted),
    reused: mean(({ work }) => work.reused) / mean(({ work }) => work.shown),
    total: mean(({ milliseconds }) => milliseconds.total),
    perRight:
      (mean(({ milliseconds }) => milliseconds.total) * answers.length) /
      answers.reduce((sum, { score }) => sum + score.points, 0),
    wrong: answers.filter(({ score }) => score.outcome === 'wrong').length,
    cutOff: answers.filter(({ end }) => end === 'length').length,
    calls: answers.reduce((sum, { calls }) => sum + calls.length, 0),
    pairs: pairs.length,
    difference: pairs.reduce((sum, one) => sum + one, 0) / pairs.length,
  }
}

describe('a summary', () => {
  it('agrees with naive counting, over all cells and in each', async () => {
    await fc.assert(
      fc.asyncProperty(fc.nat(1_000_000), async (seed) => {
        const lines = madeRun(header({ contracts: ['exact', 'splice'] }), seed)
        const { conditions, agents } = await summary([lines])
        expect(conditions.length).toBe(8)
        for (const condition of conditions) {
          const agent = agents[condition.agent]!.agent
          for (const { result, cell } of [
            { result: condition, cell: null },
            ...condition.cells.map((own) => ({ result: own, cell: own.cell })),
          ]) {
            const counted = naive(lines, condition.task, agent, condition.contract, cell)
            expect(result.errors).toBe(counted.errors)
            expect(result.measures?.answered ?? 0).toBe(counted.answered)
            if (result.measures === null) continue
            const { accuracy, context, work, reused, milliseconds, perRight, outcomes, troubles } = result.measures
            expect(accuracy.value).toBeCloseTo(counted.accuracy, 10)
            expect(context.before).toBeCloseTo(counted.before, 6)
            expect(context.after).toBeCloseTo(counted.after, 6)
            expect(work.submitted).toBeCloseTo(counted.submitted, 6)
            expect(reused).toBeCloseTo(counted.reused, 10)
            expect(milliseconds.total).toBeCloseTo(counted.total, 6)
            expect(milliseconds.prefill + milliseconds.decode + milliseconds.cache + milliseconds.other).toBeGreaterThanOrEqual(
              milliseconds.total - 1e-6,
            )
            if (counted.accuracy > 0) expect(perRight!.milliseconds).toBeCloseTo(counted.perRight, 4)
            else expect(perRight).toBeNull()
            expect(outcomes.wrong).toBe(counted.wrong)
            expect(outcomes.right + outcomes.partial + outcomes.wrong + outcomes.unparsed).toBe(counted.answered)
            expect(troubles.cutOff).toBe(counted.cutOff)
            expect(result.tools.calls).toBe(counted.calls)
            if (agent === 'plain' || counted.pairs === 0) expect(result.against).toBeNull()
            else {
              expect(result.against!.test.pairs).toBe(counted.pairs)
              expect(result.against!.difference.value).toBeCloseTo(counted.difference, 10)
              expect(result.against!.holm).toBeGreaterThanOrEqual(result.against!.test.p)
            }
          }
        }
      }),
      { numRuns: 5 },
    )
  })

  it('leaves samples that filled the context out of the context at the answer', () => {
    const whole = sample({ tokens: { before: 2000, most: 2000, after: 1000 } })
    const full = sample({ tokens: { before: 4000, most: 16_000, after: 16_000 }, details: { overflowed: 1 } })
    expect(measure([whole, full])).toMatchObject({ context: { before: 3000, most: 9000, after: 1000 }, kept: 0.5 })
    expect(measure([full])).toMatchObject({ context: { after: null }, kept: null })
  })

  it('says of two conditions what the samples show that both answered', async () => {
    const large = sample({
      ...{ agent: 'sculptor', index: 1, id: 'pi-llm-4-1', score: { points: 0, outcome: 'wrong', details: {} } },
      tokens: { before: 10_000, most: 10_000, after: 10_000 },
      work: { steps: 1, shown: 10_000, reused: 0, submitted: 10_000, generated: 100 },
      milliseconds: { cache: 0, prefill: 6000, decode: 3000, total: 10_000 },
    })
    const { conditions, ...rest } = await summary([[header(), sample(), sample({ agent: 'sculptor' }), large]])
    expect(conditions.map(({ measures }) => measures!.context.after)).toEqual([1000, 5500])
    const [said] = claims({ ...rest, conditions })
    expect(said).toMatch(/on the 1 sample that both answered: Sculptor reaches 100\.0 %, Plain 100\.0 %;/u)
    expect(said).toContain('Context at the answer: 1,000 tokens against 1,000.')
    expect(said).toContain('A sample: 1,000 tokens computed against 1,000, 1.00 s against 1.00 s.')
  })

  it('takes the later answer of a sample, and an answer over an error that was tried again', async () => {
    const [older, newer] = [header(), header({ date: '2026-11-22T10:00:00.000Z' })]
    const wrong = sample({ score: { points: 0, outcome: 'wrong', details: {} } })
    const second = { index: 1, id: 'pi-llm-4-1' }
    // The logs are named in the other order, so that their dates decide.
    const merged = await summary([
      [newer, sample()],
      [older, wrong, error(second), sample(second)],
    ])
    expect(merged.variants.length).toBe(1)
    expect(merged).toMatchObject({ repeated: 1, retried: 1 })
    expect(merged.conditions).toHaveLength(1)
    expect(merged.conditions[0]).toMatchObject({ errors: 0, measures: { answered: 2, accuracy: { value: 1 } } })
  })

  it('takes the answer of a sample that could not be made at first', async () => {
    const unmade = error({ index: 1, id: '1', cell: {}, code: 'eval/bad-data' })
    const answer = sample({ index: 1, id: 'pi-llm-16-0', cell: { updates: 16 } })
    const { conditions, retried } = await summary([[header(), sample(), unmade, answer]])
    expect(conditions[0]).toMatchObject({ errors: 0, measures: { answered: 2 } })
    expect(retried).toBe(1)
  })

  it('keeps samples apart that have one id but different truths', async () => {
    const { conditions, repeated } = await summary([[header(), sample(), sample({ truth: { last: { fruit: 'pear' } } })]])
    expect(conditions[0]!.measures!.answered).toBe(2)
    expect(repeated).toBe(0)
    const paired = await summary([[header(), sample(), sample({ agent: 'sculptor', truth: { last: { fruit: 'pear' } } })]])
    expect(paired.conditions.map(({ against }) => against)).toEqual([null, null])
  })

  it('joins logs with the same facts, and puts other logs side by side', async () => {
    const machine = { ...header().machine, cpu: 'Another CPU' }
    const together = await summary([
      [header(), sample()],
      [header({ machine, command: 'again' }), sample({ agent: 'sculptor' })],
    ])
    expect(together.variants.map(({ name }) => name)).toEqual(['A'])
    expect(together.conditions[1]!.against).toMatchObject({ with: 0, test: { pairs: 1 } })
    const apart = await summary([
      [header(), sample()],
      [header({ seed: 8 }), sample({ agent: 'sculptor' })],
    ])
    expect(apart.variants.map(({ name, facts }) => [name, facts['seed']])).toEqual([
      ['A', '7'],
      ['B', '8'],
    ])
    expect(apart.conditions.map(({ against }) => against)).toEqual([null, null])
    const cached = await summary([
      [header(), sample()],
      [header({ engine: { ...header().engine, settings: { cacheTypeK: 'q4_0' } } }), sample()],
    ])
    expect(cached.variants.map(({ facts }) => facts['settings'])).toEqual(['{}', '{"cacheTypeK":"q4_0"}'])
    expect(cached.repeated).toBe(0)
  })

  it('treats different cells as one task, and different options as another task', async () => {
    const asked = (options: Readonly<Record<string, unknown>>): LogHeader =>
      header({ tasks: [{ ...header().tasks[0]!, options, size: 5 }] })
    const { tasks, conditions } = await summary([
      [asked({ updates: [4], samples: 5, tail: 1 }), sample()],
      [asked({ updates: [64], samples: 5, tail: 1 }), sample({ id: 'pi-llm-64-0', cell: { updates: 64 } })],
      [asked({ updates: [64], samples: 5, tail: 0.1 }), sample({ id: 'pi-llm-64-0', cell: { updates: 64, tail: 0.1 } })],
    ])
    expect(tasks.map(({ slug, axes }) => [slug, axes])).toEqual([
      ['pi-llm', ['updates']],
      ['pi-llm-2', ['updates', 'tail']],
    ])
    expect(conditions.map(({ planned, cells }) => [planned, cells.length])).toEqual([
      [10, 2],
      [5, 1],
    ])
  })

  it('counts the samples of a cell once that several logs planned', async () => {
    const asked = (options: Readonly<Record<string, unknown>>, size: number): LogHeader =>
      header({ tasks: [{ ...header().tasks[0]!, options, size }] })
    const { conditions } = await summary([
      [asked({ updates: [4, 16], keys: [2, 4], samples: 5 }, 20), sample()],
      [asked({ updates: [4, 64], keys: [2, 4], samples: 7 }, 28), sample()],
    ])
    // Cells with 4 updates have 7 samples, as those with 64; cells with 16 have 5.
    expect(conditions.map(({ planned }) => planned)).toEqual([38])
  })

  it('counts only the cells of a logbook that exist', async () => {
    const asked = async (options: object): Promise<LogHeader> => {
      const { spec, size } = await openTask({ task: 'logbook', options: { samples: 5, ...options } })
      return header({ tasks: [{ task: 'logbook', options: { ...spec.options }, title: 'Logbook', differs: [], size }] })
    }
    const { conditions } = await summary([
      [await asked({}), sample()],
      [await asked({ kinds: ['stale'] }), sample()],
    ])
    // Two kinds with three places, and one kind with one place.
    expect(conditions.map(({ planned }) => planned)).toEqual([7 * 5])
  })

  it('compares contracts with each other where a contract is the baseline', async () => {
    const lines = [
      header({ contracts: ['exact', 'splice'] }),
      sample(),
      ...['exact', 'splice'].map((contract) => sample({ agent: 'sculptor', contract })),
    ]
    const against = async (baseline: Baseline) =>
      (await summary([lines], baseline)).conditions.map((one) => one.against?.with ?? null)
    // In order: plain, sculptor exact, sculptor splice.
    expect(await against(PLAIN)).toEqual([null, 0, 0])
    expect(await against({ agent: 'sculptor', contract: 'exact' })).toEqual([1, null, 1])
    expect(await against({ agent: 'sculptor', contract: null })).toEqual([1, null, null])
    expect(await against({ agent: 'mem0', contract: null })).toEqual([null, null, null])
  })

  it('reports for which tasks a model was trained', async () => {
    const { conditions } = await summary([
      [header(), sample(), sample({ task: 1, id: 'needles-2-1000-0', cell: { needles: 2, length: 1000 } })],
    ])
    expect(conditions.map(({ trained }) => trained)).toEqual([true, false])
  })

  it('has no accuracy where there are only errors', async () => {
    const { conditions } = await summary([[header(), error(), error({ index: 1, id: 'other', code: 'engine/failed' })]])
    expect(conditions).toHaveLength(1)
    expect(conditions[0]).toMatchObject({ measures: null, errors: 2, planned: 15 })
    expect(conditions[0]!.errorCodes.map(({ code, count }) => [code, count])).toEqual([
      ['context/full', 1],
      ['engine/failed', 1],
    ])
  })
})

describe('logs that cannot be reported', () => {
  const refused = (text: string) => {
    const path = join(folder, `${files++}.jsonl`)
    writeFileSync(path, text)
    return summaryOf([path], PLAIN, MADE)
  }
  it('are refused, and the wrong line is named', async () => {
    await expect(refused('')).rejects.toMatchObject({ code: 'eval/bad-log' })
    await expect(refused('{"a":1}\n')).rejects.toMatchObject({ code: 'eval/bad-log' })
    await expect(refused(jsonl([header()]))).rejects.toThrow('no sample yet')
    await expect(refused(`${jsonl([header(), sample()])}{"kind":\n`)).rejects.toThrow('line 3')
    await expect(refused(jsonl([header(), sample({ task: 5 })]))).rejects.toThrow('line 2 of task 5')
    await expect(refused(jsonl([header(), sample({ agent: 'mem0' })]))).rejects.toThrow('mem0')
    await expect(summaryOf([join(folder, 'nowhere.jsonl')], PLAIN, MADE)).rejects.toMatchObject({ code: 'eval/bad-log' })
  })

  it('are read up to a last line that was cut off', async () => {
    const { logs, conditions } = await refused(`${jsonl([header(), sample()])}{"kind":"sam`)
    expect(logs[0]).toMatchObject({ answers: 1, torn: true })
    expect(conditions[0]!.measures!.answered).toBe(1)
  })
})
