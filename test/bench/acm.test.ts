/** Tests `bench acm` on the built-in model, in so small a size that its times mean nothing. */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { acm, type AcmRecord } from '../../bench/runtime/acm.js'
import { Interrupt } from '../../src/runtime/cli/shell.js'
import { Terminal, type Output } from '../../src/runtime/cli/terminal.js'
import { LONG } from '../support/long.js'

const SMALL = ['--quick', '--before', '600', '--after', '150', '--generate', '4', '--clock', 'cpu', '--gpu', 'cpu']
let folder: string

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-acm-'))
})

afterAll(() => {
  rmSync(folder, { recursive: true })
})

/** Returns the bench's output. `watch` gets every frame of its progress. */
async function run(words: readonly string[], watch?: (frame: string, interrupt: Interrupt) => void): Promise<string> {
  let said = ''
  const interrupt = new Interrupt()
  const notes: Output = { isTTY: watch !== undefined, columns: 200, write: (text) => watch?.(text, interrupt) }
  try {
    await acm(words, {
      out: new Terminal({ write: (text) => (said += text) }, {}),
      notes: new Terminal(notes, {}),
      interrupt,
      input: Readable.from([]),
      words: [],
    })
    return said
  } finally {
    interrupt.release()
  }
}

describe('bench acm', () => {
  it.runIf(LONG)('measures, predicts, judges the claim and keeps everything', async () => {
    const out = join(folder, 'acm')
    const words = [...SMALL, '--shares', '0,0.5', '--points', '400:100', '--json', '--out', out]
    const report = JSON.parse(await run(words)) as AcmRecord
    expect(report).toMatchObject({ interrupted: false, model: { model: 'kvfold-tiny', name: 'kvfold-tiny', threads: 1 } })
    expect(report.command).toBe(`npm run --silent bench -- acm ${words.join(' ')}`)
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
    // A fold pays exactly from the token on where its line is below the other.
    for (const { line, pays } of ways) {
      if (pays?.from == null) continue
      const at = (tokens: number) => (of: typeof line) =>
        of.first + (tokens - 1) * of.perToken + (of.growth * (tokens - 1) * (tokens - 2)) / 2
      // The report's numbers are rounded.
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

  it('calibrates within the given time', async () => {
    const said = await run([...SMALL, '--shares', '0', '--rounds', '1', '--calibration', '0.001', '--json'])
    const { calibration } = JSON.parse(said) as AcmRecord
    // The budget is 60 ms; the 8 s of --quick are enough for 18 folds and restores.
    expect(calibration.books.samples).toBeLessThan(18)
  })

  it('can be stopped, and says so', async () => {
    const said = await run([...SMALL, '--rounds', '500', '--calibration', '0.001'], (frame, interrupt) => {
      if (frame.includes('round 2:') && !interrupt.interrupted) interrupt.trigger()
    })
    expect(said).toContain('500 rounds of 4 tokens, INTERRUPTED')
  })

  it.each([
    [['--before', '600', '--after', '590'], /hides less than its marker/],
    [['--before', '30k', '--after', '8k', '--quick'], /more than the 16384 that the model was trained on/],
    [['--after', '100', '--quick'], /--after needs --before/],
    [['--points', '4k'], /pairs before:after/],
    [['--shares', '0,2'], /number from 0 to 1/],
    [['--calibration', '0'], /number from 0.001 to 10000/],
    [['--calibration', 'long'], /number from 0.001 to 10000/],
    [['--clock', 'cpu', '--threads', '2'], /needs --threads 1/],
    [['--contract', 'splice'], /unknown option/],
  ] as const)('refuses %j', async (words, why) => {
    await expect(run(words)).rejects.toThrow(why)
  })
})
