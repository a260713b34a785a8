/** `kvfold bench acm` on the built-in model: small, so its times say nothing. */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { CostReport } from '../../../src/lab/cost/report.js'
import { type Given, kvfold, kvfoldHere } from '../../runtime/cli/support/process.js'

const SMALL = [
  'bench',
  'acm',
  '--quick',
  '--before',
  '600',
  '--after',
  '150',
  '--generate',
  '4',
  '--clock',
  'cpu',
  '--gpu',
  'cpu',
]
let folder: string
let environment: Record<string, string>
const bench = (words: readonly string[], options: Given = {}) => kvfoldHere(words, { environment, ...options })

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-acm-'))
  environment = { XDG_CACHE_HOME: folder }
})

afterAll(() => {
  rmSync(folder, { recursive: true })
})

describe('bench acm', () => {
  it('measures, predicts, judges the claim and keeps everything', async () => {
    const out = join(folder, 'acm')
    const { code, stdout, stderr } = await bench([...SMALL, '--shares', '0,0.5', '--points', '400:100', '--json', '--out', out])
    expect(stderr).toBe('')
    expect(code).toBe(0)
    const report = JSON.parse(stdout) as CostReport
    expect(report).toMatchObject({ interrupted: false, model: { model: 'kvfold-tiny', threads: 1 } })
    expect(report.command).toBe(
      `kvfold ${[...SMALL, '--shares', '0,0.5', '--points', '400:100', '--json', '--out', out].join(' ')}`,
    )
    expect(report.measured.map(({ point }) => point)).toEqual([
      { before: 600, after: 150, share: 0 },
      { before: 600, after: 150, share: 0.5 },
      { before: 400, after: 100, share: 0 },
      { before: 400, after: 100, share: 0.5 },
    ])
    const [{ ways } = { ways: [] }] = report.measured
    expect(ways.map(({ way, computed, rounds }) => [way, computed, rounds])).toEqual([
      ['keep', 1, 2],
      ['exact', 150, 2],
      ['splice', 21, 2],
      ['blend', expect.any(Number), 2],
    ])
    // Whatever was measured, a fold pays from where its line is below the other.
    for (const { line, pays } of ways) {
      if (pays?.from == null) continue
      const at = (tokens: number) => (of: typeof line) =>
        of.first + (tokens - 1) * of.perToken + (of.growth * (tokens - 1) * (tokens - 2)) / 2
      // Numbers are rounded on their way here.
      expect(at(pays.from + 1)(line)).toBeLessThan(at(pays.from + 1)(ways[0]!.line) + 0.01 * pays.from)
    }
    expect(report.claim.measured?.point).toEqual({ before: 600, after: 150, share: 0 })
    expect(report.claim.predicted?.point).toEqual({ before: 85_200, after: 20_300, share: 0 })
    expect(report.extrapolated.at(-1)!.point.before).toBe(85_200)

    expect(readdirSync(out).sort()).toEqual(['result.json', 'tables.md', 'turns.svg'])
    expect(JSON.parse(readFileSync(join(out, 'result.json'), 'utf8'))).toEqual(report)
    const markdown = readFileSync(join(out, 'tables.md'), 'utf8')
    for (const line of markdown.split('\n').filter((line) => line.startsWith('|')))
      expect(line.split('|').length).toBeGreaterThan(9)
    expect(markdown).toMatch(/Measured, 600 tokens folded to 150, all of them computed: true (for|only for) .*answer/)
    const svg = readFileSync(join(out, 'turns.svg'), 'utf8')
    expect(svg.match(/aria-label="line"/g)!.length).toBe(4 * 8 + 2 * 4)
    expect(svg).not.toMatch(/NaN|Infinity|undefined/)
  })

  it('calibrates as long as it is told to', async () => {
    const { code, stdout } = await bench([...SMALL, '--shares', '0', '--rounds', '1', '--calibration', '0.001', '--json'])
    expect(code).toBe(0)
    const { calibration } = JSON.parse(stdout) as CostReport
    // 60 ms; the 8 s of --quick suffice for 18 folds and restores.
    expect(calibration.books.samples).toBeLessThan(18)
  })

  it('can be stopped, and says so', async () => {
    // Long enough to be in the study on any machine that is not busy.
    const { code, stderr, stdout } = await kvfold([...SMALL, '--rounds', '500', '--calibration', '0.001'], {
      environment,
      interruptAfter: 4_000,
    })
    expect(code).toBe(130)
    expect(stderr).toMatch(/interrupted \[engine\/cancelled\]/)
    if (stdout !== '') expect(stdout).toMatch(/INTERRUPTED/)
  })

  it.each([
    [['--before', '600', '--after', '590'], /hides less than its marker/],
    [['--before', '30k', '--after', '8k', '--quick'], /more than the 16384 that the model was trained on/],
    [['--after', '100', '--quick'], /--after needs --before/],
    [['--points', '4k'], /pairs before:after/],
    [['--shares', '0,2'], /number from 0 to 1/],
    [['--calibration', '0'], /number from 0.001 to 10000/],
    [['--calibration', 'long'], /number from 0.001 to 10000/],
    [['--calibration', '1', '--saved'], /'--calibration <minutes>' cannot be used with option '--saved'/],
    [['--saved'], /run `kvfold calibrate`/],
    [['--clock', 'cpu', '--threads', '2'], /needs --threads 1/],
    [['--contract', 'splice'], /unknown option/],
  ] as const)('refuses %j', async (words, why) => {
    const { code, stdout, stderr } = await bench(['bench', 'acm', ...words])
    expect(stderr).toMatch(why)
    expect(stdout).toBe('')
    expect(code).toBe(2)
  })
})
