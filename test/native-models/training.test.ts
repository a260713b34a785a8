/** Tests the training step of the built-in model and its data against direct computations. Needs python3 with PyTorch 2. */
import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'

const checks = fileURLToPath(new URL('training_checks.py', import.meta.url))
/** Debian's PyTorch needs Debian's Python, which may not be the first in the path. */
const pythons = [process.env['PYTHON'] ?? 'python3', '/usr/bin/python3']
const python = pythons.find((each) => spawnSync(each, ['-c', 'import torch, numpy']).status === 0)

function check(name: string): readonly Record<string, unknown>[] {
  const { status, stdout, stderr } = spawnSync(python ?? 'python3', [checks, name], { encoding: 'utf8' })
  expect({ status, stderr: status === 0 ? '' : stderr }).toEqual({ status: 0, stderr: '' })
  return stdout
    .trim()
    .split('\n')
    .flatMap((line) => (line === '' ? [] : [JSON.parse(line) as Record<string, unknown>]))
}

if (python === undefined) console.log('Training is not tested: there is no python3 with PyTorch (Debian: apt install python3-torch).')

describe.skipIf(python === undefined)('training', () => {
  it('has the loss and gradients of a float64 computation: packed, fused, in float32 and bfloat16, sampled, by two processes', () => {
    const [single, half, sampled, beside] = check('step')
    expect(single?.['loss']).toBeLessThan(1e-5)
    expect(single?.['gradient']).toBeLessThan(1e-3)
    expect(half?.['loss']).toBeLessThan(2e-2)
    expect(half?.['gradient']).toBeLessThan(0.2)
    expect(sampled?.['loss']).toBeLessThan(1e-5)
    expect(sampled?.['gradient']).toBeLessThan(0.5)
    expect(sampled?.['size']).toBeCloseTo(1, 1)
    expect({ ...beside, products: 'sampled' }).toEqual(sampled)
  }, 120_000)

  it('samples tokens so that on average each counts once', () => {
    const [sample] = check('sample')
    expect(sample?.['taken']).toBeLessThan(0.15)
    for (const largest of sample?.['large'] as readonly number[]) expect(largest).toBeCloseTo(1, 1)
    expect(sample?.['rare']).toBeCloseTo(1, 1)
    expect(sample?.['whole']).toBeCloseTo(1, 1)
  }, 60_000)

  it('gives conversations of visitors their true positions', () => {
    const [told] = check('visits')
    expect(told?.['asked']).toBeGreaterThan(1000)
    expect(told).toMatchObject({ told: 1, newest: 1 })
  }, 60_000)

  it.each([
    ['marked', 'quotes markers from the prompt, and answers behind them'],
    ['managed', 'searches, calls and removes tools that were asked for and found'],
    ['often', 'learns the newest value of keys that are updated often'],
    ['back', 'goes back to what is folded while a key is missing, and answers else'],
    ['renamed', 'puts other names into a chain of relatives'],
  ])('%s: %s', (name) => {
    check(name)
  })
})
