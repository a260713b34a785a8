/** The folder of a run continues where it was cut off and refuses records of another run. Tables are read back as they were written. */
import { appendFileSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parquetReadObjects } from 'hyparquet'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { pairTable, parquet } from '../../../src/lab/attention/tables.js'
import { headMaps, scatter } from '../../../src/lab/attention/figures.js'
import type { Contract } from '../../../src/runtime/core/contract.js'
import { findingOf, interferenceOf } from '../../../src/lab/attention/findings.js'
import type { ValueAttention, Pair } from '../../../src/lab/attention/pairs.js'
import { publish } from '../../../src/lab/attention/report.js'
import type { EpisodeRecord, HeatMapRecord, PromptRecord, StudyRecord } from '../../../src/lab/attention/records.js'
import { RunFolder } from '../../../src/lab/run-folder.js'

let folder: string
beforeEach(() => {
  folder = join(mkdtempSync(join(tmpdir(), 'kvfold-run-')), 'run')
})
afterEach(() => {
  rmSync(join(folder, '..'), { recursive: true })
})

const OPTIONS = { n: 4, mode: 'given' }

const glance = (weight: number, older = weight / 2): ValueAttention => ({
  weight,
  current: weight,
  older,
  others: 3 * weight,
  reading: { weight: weight * 10, current: weight * 10, older, others: 2 * weight },
})
const pair = (key: string, complete: number, folded: number | null): Pair => ({
  key,
  value: `value of ${key} <&>`,
  status: folded === null ? 'folded-away' : 'measured',
  tokens: 1,
  distance: key === 'a' ? 2 : 70,
  olderShown: 2,
  complete: glance(complete),
  folded: folded === null ? null : glance(folded),
  baseline: { value: 1.1 * complete, reading: 11 * complete },
})
const prompt = (seed: number, pairs: readonly Pair[], n = 4): PromptRecord => ({
  part: 'prompt',
  n,
  seed,
  shown: 50,
  seconds: 1,
  comparisons: [
    {
      contract: 'splice',
      fallback: null,
      shown: 20,
      pairs,
      heads: [0, 1].map((head) => ({ layer: 0, head, complete: glance(0.01 * (head + 1)), folded: glance(0.02) })),
    },
  ],
  placebo: [{ contract: 'splice', fallback: null, shown: 20, pairs: [pair('a', 0.01, 0.012)], heads: [] }],
  unasked: [{ contract: 'splice', fallback: null, shown: 20, pairs: [pair('a', 0.01, 0.013)], heads: [] }],
})
const RECORDS = [
  prompt(1, [pair('a', 0.01, 0.02), pair('b', 0.04, 0.05), pair('c', 0.01, null)]),
  prompt(2, [pair('a', 0.02, 0.01), pair('b', 0.08, 0.1), pair('c', 0.02, 0.03)]),
]

/** What a run leaves that wrote these records. */
async function written(...records: readonly StudyRecord[]): Promise<void> {
  const run = await RunFolder.open(folder, OPTIONS)
  for (const record of records) await run.add(record)
  await run.close()
}

describe('a run folder', () => {
  it('keeps records, and has them again when it is opened again', async () => {
    await written(...RECORDS)
    const again = await RunFolder.open(folder, { mode: 'given', n: 4 })
    expect(again.records).toEqual(RECORDS)
    expect(again.has({ part: 'prompt', n: 4, seed: 2 })).toBe(true)
    expect(again.has({ part: 'prompt', n: 8, seed: 2 })).toBe(false)
    expect(again.has({ part: 'heat-map', n: 4, seed: 2 })).toBe(false)
    await again.close()
  })

  it('is not there before the first record', async () => {
    await RunFolder.open(folder, OPTIONS)
    expect(existsSync(folder)).toBe(false)
  })

  it('takes off a line that was cut off, and writes over it', async () => {
    await written(RECORDS[0]!)
    appendFileSync(join(folder, 'records.jsonl'), '{"part":"prompt","n":4,"se')
    const run = await RunFolder.open(folder, OPTIONS)
    expect(run.records).toEqual([RECORDS[0]])
    await run.add(RECORDS[1]!)
    await run.close()
    const again = await RunFolder.open(folder, OPTIONS)
    expect(again.records).toEqual(RECORDS)
    await again.close()
  })

  it('is for one process at a time', async () => {
    const run = await RunFolder.open(folder, OPTIONS)
    await run.add(RECORDS[0]!)
    await expect(RunFolder.open(folder, OPTIONS)).rejects.toMatchObject({ code: 'eval/log-busy' })
    await run.close()
  })

  it('refuses other options, and says which', async () => {
    await written(RECORDS[0]!)
    await expect(RunFolder.open(folder, { ...OPTIONS, n: 5 })).rejects.toThrow(/n: 4 there, 5 now/)
    await expect(RunFolder.open(folder, { ...OPTIONS, layers: [1] })).rejects.toThrow(/layers: nothing there, \[1\] now/)
  })

  it('refuses what is no run', async () => {
    await written(RECORDS[0]!)
    writeFileSync(join(folder, 'records.jsonl'), 'hello\n')
    await expect(RunFolder.open(folder, OPTIONS)).rejects.toThrow(/records\.jsonl is damaged: line 1 is not JSON/)
    rmSync(join(folder, 'options.json'))
    await expect(RunFolder.open(folder, OPTIONS)).rejects.toThrow(/no options\.json/)
  })
})

describe('findings', () => {
  it('give Wilson’s interval where every pair gains, with each prompt as one question', () => {
    const [first, second] = RECORDS
    const gains = (record: PromptRecord): PromptRecord => ({
      ...record,
      comparisons: record.comparisons.map((one) => ({
        ...one,
        pairs: one.pairs.map((pair) => ({ ...pair, folded: pair.complete })),
      })),
    })
    const { improved, improvedShare } = findingOf([gains(first!), gains(second!)], 'splice', 'value')
    expect(improved).toBe(0)
    expect(improvedShare!.value).toBe(0)
    expect(improvedShare!.interval![0]).toBe(0)
    // 0 of 2: up to 66 %.
    expect(improvedShare!.interval![1]).toBeCloseTo(0.658, 3)
  })

  it('are the statistics of measured pairs, and count the other pairs', () => {
    const finding = findingOf(RECORDS, 'splice', 'value')
    expect(finding.counts).toEqual({ measured: 5, 'folded-away': 1, unanswered: 0 })
    // Changes: 100, 25, -50, 25, 50.
    expect(finding).toMatchObject({ pairs: 5, improved: 4, seeds: 2 })
    expect(finding.meanChange!.value).toBeCloseTo(30, 9)
    // The records say that arithmetic alone makes 10 % of every pair, and that the placebo gains 20 %.
    expect(finding.baselineMeanChange!.value).toBeCloseTo(10, 9)
    expect(finding.excessMeanChange!.value).toBeCloseTo(20, 9)
    expect(finding.placeboMeanChange!.value).toBeCloseTo(20, 9)
    expect(finding.placeboBaselineMeanChange!.value).toBeCloseTo(10, 9)
    expect(finding.unaskedMeanChange!.value).toBeCloseTo(30, 9)
    // Only the pair `a` has controls. Its excesses are 90 and -60, those of the controls 10 and 20.
    expect(finding.beyondPlacebo!.value).toBeCloseTo(5, 9)
    expect(finding.beyondUnasked!.value).toBeCloseTo(-5, 9)
    expect(finding.beyondUnaskedOverSeeds.t!.df).toBe(1)
    // The weights of all pairs are 0.17 and 0.21 together.
    expect(finding.changeOfMean!.value).toBeCloseTo(100 * (21 / 17 - 1), 9)
    expect(finding.othersMeanChange!.value).toBeCloseTo(30, 9)
    // Mean excess of the two prompts: 52.5 and -1.67.
    expect(finding.excessOverSeeds.t!.df).toBe(1)
    expect(finding.byDistance.map(({ from, to, pairs }) => [from, to, pairs])).toEqual([
      [0, 14, 2],
      [15, 29, 0],
      [30, 59, 0],
      [60, null, 3],
    ])
    expect(finding.byDistance[0]!.meanChange!.value).toBeCloseTo(25, 9)
    expect(finding.byDistance[0]!.excessMeanChange!.value).toBeCloseTo(15, 9)
    expect(finding.medianChange!.value).toBeCloseTo(25, 9)
    expect(finding.range!.map(Math.round)).toEqual([-50, 100])
    expect(finding.r2!.value).toBeGreaterThan(0.9)
    expect(finding.overPairs.t!.df).toBe(4)
    expect(finding.overSeeds.t!.df).toBe(1)
    // 1 of 50 tokens: an even share is 0.02.
    expect(finding.belowEven).toBe(1)
    expect(findingOf(RECORDS, 'splice', 'reading').belowEven).toBe(0)
    expect(findingOf(RECORDS, 'splice', 'reading').meanChange!.value).toBeCloseTo(30, 9)
    expect(findingOf(RECORDS, 'exact', 'value')).toMatchObject({ pairs: 0, meanChange: null, r2: null, complete: null })
  })

  it('leave out prompts whose step did not keep the contract, and count them', () => {
    const fallback = 'too much would be computed again'
    const exact = { ...RECORDS[0]!, comparisons: RECORDS[0]!.comparisons.map((one) => ({ ...one, fallback })) }
    const control = { ...RECORDS[0]!, unasked: RECORDS[0]!.unasked!.map((one) => ({ ...one, fallback })) }
    for (const record of [exact, control])
      expect(findingOf([record, RECORDS[1]!], 'splice', 'value')).toMatchObject({ pairs: 3, seeds: 1, fellBack: 1 })
    expect(findingOf(RECORDS, 'splice', 'value')).toMatchObject({ fellBack: 0 })
  })

  it('include the points of a curve', () => {
    // The complete prompt's point is of the same five pairs as that of the contract.
    expect(interferenceOf(4, RECORDS, null, 'value')).toMatchObject({ pairs: 5, contract: null })
    expect(interferenceOf(4, RECORDS, null, 'value')!.older.value).toBeCloseTo(0.017, 9)
    expect(interferenceOf(4, RECORDS, 'splice', 'reading')).toMatchObject({ pairs: 5 })
    expect(interferenceOf(4, RECORDS, 'exact', 'value')).toBeNull()
  })

  it('draw no step that did not keep its contract, and lose no curve by it', () => {
    const records = RECORDS.map((record): PromptRecord => {
      const [splice] = record.comparisons
      const pairs = splice!.pairs.map((one) => ({ ...one, folded: null, status: 'folded-away' as const }))
      return { ...record, comparisons: [splice!, { ...splice!, contract: 'blend', fallback: 'too much to compute', pairs }] }
    })
    const fellBack = RECORDS.map((record): PromptRecord => {
      const [splice] = record.comparisons
      return { ...record, comparisons: [{ ...splice!, contract: 'blend', fallback: 'too much to compute' }] }
    })
    for (const contract of [null, 'splice'] as const)
      expect(interferenceOf(4, records, contract, 'value')).toEqual(interferenceOf(4, RECORDS, contract, 'value'))
    expect(interferenceOf(4, fellBack, 'blend', 'value')).toBeNull()
    expect(interferenceOf(4, fellBack, null, 'value')).toMatchObject({ seeds: 2, pairs: 6 })
    const dots = (of: readonly PromptRecord[], contract: Contract) =>
      scatter(of, contract, [findingOf(of, contract, 'value')]).match(/<circle/g)?.length ?? 0
    expect([dots(RECORDS, 'splice'), dots(fellBack, 'blend')]).toEqual([5, 0])
    expect(headMaps(RECORDS, 'splice')).toContain('means of 2 prompts')
    expect(headMaps(fellBack, 'blend')).toBe('')
  })
})

describe('published files', () => {
  const heatMap: HeatMapRecord = {
    part: 'heat-map',
    n: 4,
    seed: 1,
    key: 'a',
    value: 'v',
    layers: [0],
    sides: [
      {
        name: 'complete',
        tokens: (['other', 'current', 'older', 'marker', 'answer'] as const).map((kind, index) => ({
          text: `<${kind}>`,
          weight: index / 10,
          kind,
        })),
      },
    ],
  }
  const episode: EpisodeRecord = {
    part: 'episode',
    n: 4,
    seed: 1,
    right: 1,
    asked: 3,
    steps: [
      {
        step: 0,
        calls: ['fold_fragment', 'fold_fragment'],
        text: '',
        queries: 3,
        shown: 20,
        own: 0.3,
        sink: 0.1,
        shares: [{ message: 0, role: 'user', tokens: 20, mass: 0.7, markers: 0.1 }],
      },
    ],
  }
  const input = {
    model: { name: 'tiny </script>', fingerprint: 'ab', layers: 1, heads: 2 },
    versions: { kvfold: '0' },
    date: '2026-01-01',
    command: 'kvfold attention pi-llm',
    options: OPTIONS,
    n: 4,
    contracts: ['splice'] as const,
  }

  it('come back from Parquet as they were written', async () => {
    const { columns, rows } = pairTable(RECORDS)
    const file = parquet(columns, rows, 'test')
    const buffer = file.buffer.slice(file.byteOffset, file.byteOffset + file.byteLength) as ArrayBuffer
    expect(await parquetReadObjects({ file: buffer })).toEqual(rows)
    expect(rows).toHaveLength(6)
    expect(rows[0]).toMatchObject({
      n: 4,
      seed: 1,
      contract: 'splice',
      key: 'a',
      status: 'measured',
      complete: 0.01,
      folded: 0.02,
    })
    expect(rows[2]).toMatchObject({ status: 'folded-away', folded: null, change: null })
  })

  it('are a summary, tables, figures and a page that asks nobody for anything', async () => {
    const records = [...RECORDS, prompt(1, [pair('a', 0.1, 0.2)], 8), heatMap, episode]
    await written(...records)
    const { report, summary } = publish(folder, { ...input, records })
    expect(readdirSync(folder).sort()).toEqual(
      [
        ...[
          'changes-splice.svg',
          'controls.svg',
          'episode-1.svg',
          'episode.parquet',
          'heads-splice.svg',
          'heads.parquet',
          'interference.parquet',
        ],
        ...[
          'interference.svg',
          'options.json',
          'pairs.parquet',
          'records.jsonl',
          'report.html',
          'scatter-splice.svg',
          'summary.json',
        ],
      ].sort(),
    )
    expect(JSON.parse(readFileSync(join(folder, 'summary.json'), 'utf8'))).toEqual(JSON.parse(JSON.stringify(summary)))
    const html = readFileSync(report, 'utf8')
    // The icon is empty, so that no browser requests one.
    expect(html.replace('<link rel="icon" href="data:,">', '')).not.toMatch(/<link|<img|src=|@import|url\(/u)
    expect(
      [...html.matchAll(/https?:\/\/[^"' <)]+/gu)]
        .map(([address]) => address)
        .filter((address) => !address.startsWith('http://www.w3.org/')),
    ).toEqual([])
    expect(html.match(/<script>/gu)).toHaveLength(1)
    expect(html).toContain('tiny &#60;/script&#62;')
    expect(html).toContain('&#60;current&#62;')
    expect(html).not.toMatch(/NaN|Infinity|undefined|null</u)
    for (const name of readdirSync(folder).filter((file) => file.endsWith('.svg')))
      expect(readFileSync(join(folder, name), 'utf8'), name).not.toMatch(/NaN|Infinity|undefined/u)
  })
})
