/** Tests learning by reward: the equations, common beginnings of texts, and that trainer and runtime agree. Needs python3 with PyTorch. */
import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, describe, expect, it } from 'vitest'

const checks = fileURLToPath(new URL('gspo_checks.py', import.meta.url))
/** Debian's PyTorch needs Debian's Python, which may not be the first in the path. */
const pythons = [process.env['PYTHON'] ?? 'python3', '/usr/bin/python3']
const python = pythons.find((each) => spawnSync(each, ['-c', 'import torch, numpy']).status === 0)
const folder = mkdtempSync(join(tmpdir(), 'kvfold-gspo-'))

afterAll(() => {
  rmSync(folder, { recursive: true })
})

function check(name: string): string {
  const { status, stdout, stderr } = spawnSync(python ?? 'python3', [checks, name, folder], { encoding: 'utf8' })
  expect({ status, stderr: status === 0 ? '' : stderr }).toEqual({ status: 0, stderr: '' })
  return stdout
}

if (python === undefined) console.log('GSPO is not tested: there is no python3 with PyTorch (Debian: apt install python3-torch).')

describe.skipIf(python === undefined)('GSPO', () => {
  it.each([
    ['equations', 'computes equations 1 to 3'],
    ['clips', 'clips on the side where a step has gone, and counts it'],
    ['shared', 'computes once what texts share'],
    ['again', 'computes again what memory is too small for'],
    ['learning', 'makes the better tries of a group likelier, and the others less'],
    ['likely', 'adds the loss on right tries'],
    ['snapshots', 'spans the snapshots of a trajectory'],
  ])('%s: %s', (name) => {
    check(name)
  })

  it('agrees with the runtime: log-probabilities differ by 1e-4 on average, ratios by a tenth of the lower clip', () => {
    const { tokens, mean, most, ratio } = JSON.parse(check('agreement')) as Record<string, number>
    expect(tokens).toBeGreaterThan(200)
    expect(mean).toBeLessThan(1e-4)
    expect(most).toBeLessThan(2e-2)
    expect(ratio).toBeLessThan(3e-5)
  }, 120_000)

  it('continues from where it was stopped', () => {
    check('resumes')
  }, 120_000)
})
