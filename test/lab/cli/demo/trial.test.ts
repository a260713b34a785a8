/** Rows, intervals and sentences of the demo, from trials made up to cover each verdict. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { type AgentName, type DemoRow, rows, rowTable, sentences, type DemoTrial } from '../../../../src/lab/cli/demo/trial.js'
import { differ, wilson } from '../../../../src/lab/accuracy.js'

const trial = (n: number, agent: AgentName, right: number, more: Partial<DemoTrial> = {}): DemoTrial => ({
  n,
  sample: 0,
  agent,
  asked: 46,
  right,
  older: 46 - right,
  tokensBefore: 1000,
  tokensAfter: agent === 'plain' ? 1000 : 200,
  reused: agent === 'plain' ? 0 : 1100,
  recomputed: agent === 'plain' ? 0 : 60,
  fresh: 1000,
  submitted: 1060,
  steps: agent === 'plain' ? 1 : 3,
  calls: agent === 'plain' ? 0 : 5,
  refused: 0,
  cutOff: 0,
  seconds: 1.5,
  ...more,
})

/** Streams of one n and agent, which differ by one key. */
const streams = (n: number, agent: AgentName, right: number) =>
  [0, 1, -1, 0].map((more, sample) => trial(n, agent, Math.min(46, right + more), { sample }))

describe('rows', () => {
  it('are means per stream, one for each n and agent, ordered by n, plain first', () => {
    const result = rows([
      trial(8, 'sculptor', 46, { seconds: 1, sample: 1 }),
      trial(4, 'plain', 46),
      trial(8, 'plain', 23),
      trial(8, 'sculptor', 40, { seconds: 2, tokensAfter: 300 }),
    ])
    expect(result.map(({ n, agent }) => [n, agent])).toEqual([
      [4, 'plain'],
      [8, 'plain'],
      [8, 'sculptor'],
    ])
    expect(result[2]).toMatchObject({
      accuracy: 86 / 92,
      tokensAfter: 250,
      seconds: 1.5,
      samples: 2,
      questions: 92,
      interference: 1,
    })
    expect(result[0]).toMatchObject({ accuracy: 1, interference: null })
  })

  it('have intervals that contain the accuracy and get narrower with more questions', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 500 }), fc.double({ min: 0, max: 1, noNaN: true }), (asked, share) => {
        const right = Math.round(asked * share)
        const [low, high] = wilson(right, asked)
        expect(low).toBeGreaterThanOrEqual(0)
        expect(high).toBeLessThanOrEqual(1)
        expect(right / asked).toBeGreaterThanOrEqual(low - 1e-9)
        expect(right / asked).toBeLessThanOrEqual(high + 1e-9)
        const [lowMore, highMore] = wilson(right * 4, asked * 4)
        expect(highMore - lowMore).toBeLessThan(high - low)
      }),
    )
    // Agresti and Coull 1998: 0 of 10 gives 0 to 0.278.
    expect(wilson(0, 10)[1]).toBeCloseTo(0.2775, 3)
    expect(wilson(0, 0)).toEqual([0, 1])
  })

  it('differ when chance alone would rarely separate them so far', () => {
    const pair = (plain: number, sculptor: number) =>
      rows([...streams(8, 'plain', plain), ...streams(8, 'sculptor', sculptor)]) as [DemoRow, DemoRow]
    expect(differ(...pair(40, 41))).toBe(false)
    // One stream of each is too little evidence.
    expect(differ(...(rows([trial(8, 'plain', 20), trial(8, 'sculptor', 46)]) as [DemoRow, DemoRow]))).toBe(false)
    expect(differ(...pair(20, 31))).toBe(true)
    expect(differ(...pair(31, 20))).toBe(true)
    expect(differ(...pair(46, 46))).toBe(false)
  })

  it('can be shown as a table', () => {
    const lines = rowTable(rows([trial(4, 'plain', 46), trial(4, 'sculptor', 46), trial(8, 'plain', 23)]), {
      width: 100,
      rule: '-',
      plusMinus: '+-',
    })
    expect(lines).toEqual([
      'n  agent           accuracy  before  after  reused  recomputed   time   asked',
      '-----------------------------------------------------------------------------',
      '4  plain     100.0 % +-39.7   1,000  1,000       0           0  1.5 s  1 x 46',
      '4  sculptor  100.0 % +-39.7   1,000    200   1,100          60  1.5 s  1 x 46',
      '',
      '8  plain      50.0 % +-44.5   1,000  1,000       0           0  1.5 s  1 x 46',
    ])
  })
})

describe('sentences', () => {
  it('say that the tools helped, with the trend and the kind of errors', () => {
    const [accuracy, cost] = sentences(
      rows([
        ...streams(4, 'plain', 45),
        ...streams(4, 'sculptor', 45),
        ...streams(16, 'plain', 23),
        ...streams(16, 'sculptor', 45),
      ]),
    )
    expect(accuracy).toBe(
      'From 4 to 16 updates per key the model alone went from 97.8 % to 50.0 % of last values right (100 % of its errors there were older ' +
        'values of the same key), and with its context tools it got 97.8 %: the tools helped by 48 points.',
    )
    expect(cost).toBe(
      'It answered from 200 tokens instead of 1,000 (80 % fewer); over the 3.0 steps of a turn 51 % of the tokens shown came from the cache, ' +
        'and its 5 calls made it compute 60 tokens a second time.',
    )
  })

  it('say that the tools did not help, or that the difference may be chance', () => {
    expect(sentences(rows([...streams(8, 'plain', 45), ...streams(8, 'sculptor', 10)]))[0]).toContain(
      'the tools did not help but cost 76 points',
    )
    expect(sentences(rows([trial(8, 'plain', 40), trial(8, 'sculptor', 41)]))[0]).toContain('which may be chance')
    expect(sentences(rows([trial(8, 'plain', 46), trial(8, 'sculptor', 46, { tokensAfter: 1100 })]))[1]).toContain(
      'did not shrink (1,000 tokens before, 1,100 after)',
    )
  })

  it('compare only where both agents answered', () => {
    expect(sentences(rows([trial(8, 'plain', 46)]))).toEqual([])
    expect(sentences(rows([trial(4, 'plain', 46), trial(4, 'sculptor', 46), trial(8, 'plain', 10)]))[0]).toMatch(
      /^With 4 updates/,
    )
    expect(sentences([])).toEqual([])
  })
})
