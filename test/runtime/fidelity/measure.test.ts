import fc from 'fast-check'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { fidelityCases } from '../../../src/runtime/fidelity/cases.js'
import { distanceOf, measureCase } from '../../../src/runtime/fidelity/measure.js'
import { fidelityNotice, loadFidelity, measureFidelity, saveFidelity } from '../../../src/runtime/fidelity/model-fidelity.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { mambaModel, tinyModel } from '../../support/models.js'

describe('the distance of two answers', () => {
  const form = (token: number) => (['bare', 'quoted', 'other'] as const)[token % 3]!
  const weights = fc.array(fc.double({ min: 0.01, max: 1, noNaN: true }), { minLength: 6, maxLength: 6 })
  const likelihoods = (of: readonly number[]) => {
    const sum = of.reduce((total, weight) => total + weight, 0)
    return new Map(of.map((weight, token) => [token, Math.log(weight / sum)]))
  }

  it('is that of the forms and of the words within each form, and 0 for equal answers', () => {
    fc.assert(
      fc.property(weights, weights, (a, b) => {
        const [p, q] = [likelihoods(a), likelihoods(b)]
        const found = distanceOf(p, q, form)
        expect(found.form + found.word).toBeCloseTo(found.distance, 6)
        let within = 0
        for (const one of [0, 1, 2]) {
          const mass = (of: ReadonlyMap<number, number>) => Math.exp(of.get(one)!) + Math.exp(of.get(one + 3)!)
          for (const token of [one, one + 3])
            within += Math.exp(p.get(token)!) * (p.get(token)! - Math.log(mass(p)) - q.get(token)! + Math.log(mass(q)))
        }
        expect(found.word).toBeCloseTo(within, 6)
        expect(distanceOf(p, p, form).distance).toBeCloseTo(0, 12)
      }),
    )
  })
})

describe('a model', () => {
  const subject = { weights: 'ab12', settings: { blend: 0.01 } }
  let engine: LlamaEngine
  const folder = mkdtempSync(join(tmpdir(), 'kvfold-fidelity-'))

  beforeAll(async () => {
    const native = await openNative({ gpu: 'cpu' })
    engine = await LlamaEngine.load(native, await tinyModel(), {
      cells: 16_384,
      threads: 1,
      batchThreads: 1,
      slots: 1,
      hostBytes: 0,
    })
  })
  afterAll(async () => {
    await engine.dispose()
    rmSync(folder, { recursive: true })
  })

  it('answers a case in every way; an exact fold is a fresh prefill, and a splice computes less', async () => {
    const [one] = fidelityCases('agent', 1, 3)
    const answers = await measureCase(engine, one!, [
      { name: 'unfolded', contract: 'whole' },
      { name: 'exact again', contract: 'exact' },
      { name: 'splice', contract: 'splice' },
      { name: 'all again', contract: 'blend', blend: { spread: 1 } },
    ])
    expect([...answers.keys()]).toEqual(['exact', 'unfolded', 'exact again', 'splice', 'all again'])
    const { distance, fallback } = answers.get('exact again')!
    // Two prefills in other batches differ by rounding.
    expect(distance).toBeLessThan(1e-3)
    expect(fallback).toBeNull()
    const [exact, splice] = [answers.get('exact again')!, answers.get('splice')!]
    expect(splice.computed).toBeLessThan(exact.computed)
    expect(splice.distance).toBeGreaterThan(distance)
    expect(engine.cacheTotals.used).toBeLessThan(16_384)
  })

  it('is measured, kept and found again by its weights and settings', async () => {
    const seen: number[] = []
    const fidelity = await measureFidelity(engine, { ...subject, questions: 1, onProgress: (share) => seen.push(share) })
    expect(seen).toEqual([0, 1 / 3, 2 / 3])
    expect(fidelity).toMatchObject({ questions: 3 })
    expect(fidelity.rows.map(({ way }) => way)).toEqual(['unfolded', 'exact', 'splice', 'blend'])
    expect(await loadFidelity(subject, folder)).toBeNull()
    const file = await saveFidelity(fidelity, folder)
    expect(await loadFidelity(subject, folder)).toEqual(fidelity)
    for (const settings of [{}, { blend: 0.4 }, { ...subject.settings, cacheTypeK: 'q8_0' }])
      expect(await loadFidelity({ ...subject, settings }, folder)).toBeNull()
    expect(await loadFidelity({ ...subject, weights: 'ab13' }, folder)).toBeNull()
    writeFileSync(file, '{')
    expect(await loadFidelity(subject, folder)).toBeNull()
  })

  it('can be interrupted', async () => {
    await expect(measureFidelity(engine, { ...subject, questions: 1, signal: AbortSignal.abort() })).rejects.toMatchObject({
      code: 'engine/cancelled',
    })
  })

  it('whose folds are always exact is not measured', async () => {
    const options = { cells: 1024, threads: 1, batchThreads: 1, slots: 1, hostBytes: 0 }
    const recurrent = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), await mambaModel(), options)
    const measured = measureFidelity(recurrent, { ...subject, questions: 1 })
    await expect(measured).rejects.toMatchObject({
      code: 'model/unsupported',
      message: expect.stringContaining('state') as string,
    })
    await recurrent.dispose()
  })
})

describe('the notice of a server', () => {
  const row = (way: 'exact' | 'splice' | 'blend', lost: number, mean: number) =>
    ({ way, right: 10 - lost, outdated: lost, lost, distance: { mean, worst: 2 * mean }, computed: 50 }) as const
  const fidelity = {
    ...{ version: 1 as const, weights: '', settings: {}, model: 'm', date: '', questions: 10 },
    rows: [row('exact', 0, 0), row('splice', 3, 0.5), row('blend', 0, 0.05)],
  }

  it('says which contract the model bears', () => {
    expect(fidelityNotice('exact', fidelity)).toBeNull()
    expect(fidelityNotice('splice', null)).toMatch(/was not measured; `kvfold calibrate --fidelity` with the same options/)
    expect(fidelityNotice('splice', fidelity)).toMatch(
      /does not bear splice \(right answers: 7 of 10, under exact 10; .* 0\.50 nats\)/,
    )
    expect(fidelityNotice('auto', fidelity)).toMatch(/does not bear splice until the engine was idle/)
    const weak = { ...fidelity, rows: [row('exact', 6, 0), row('splice', 0, 0)] }
    expect(fidelityNotice('splice', weak)).toMatch(/is not known: it answers only 4 of 10/)
    expect(fidelityNotice('blend', fidelity)).toMatch(/^This model bears blend/)
  })
})
