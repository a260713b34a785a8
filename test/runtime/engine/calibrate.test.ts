/** Tests calibration on a real context, and when a saved calibration is used. The tests expect no times, because machines differ. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { calibrate, SEQUENCES } from '../../../src/runtime/engine/calibrate.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { measureTierRates } from '../../../src/runtime/engine/tier-rates.js'
import {
  calibrationFolder,
  keptTierRates,
  loadCalibration,
  measuredOn,
  saveCalibration,
  type CalibrationSubject,
} from '../../../src/runtime/engine/calibration.js'
import { decodeTime, prefillTime, type CostModel, type TierRates, tierRatesOf } from '../../../src/runtime/kv/cost-model.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { NativeContext, NativeModel } from '../../../src/runtime/native/types.js'
import { tinyModel } from '../../support/models.js'

const SETTINGS = { threads: 1, batchThreads: 1, ubatch: 64 } as const

let model: NativeModel
let context: NativeContext
let subject: CalibrationSubject
let folder: string
let cost: CostModel
const shares: number[] = []

beforeAll(async () => {
  const native = await openNative({ gpu: 'cpu' })
  model = await native.loadModel(await tinyModel())
  context = await model.createContext({ ...SETTINGS, cells: 1024, sequences: SEQUENCES })
  subject = { info: model.info, settings: SETTINGS, backend: native.backend }
  folder = mkdtempSync(join(tmpdir(), 'kvfold-calibration-'))
  cost = await calibrate(context, model.info.vocabulary, measuredOn(subject, context), {
    quick: true,
    onProgress: (share) => shares.push(share),
  })
})

afterAll(async () => {
  await model.dispose()
  rmSync(folder, { recursive: true })
})

describe('a calibration', () => {
  it('says what it was measured on, how deep and how well', () => {
    expect(cost.on).toMatchObject({ architecture: 'llama', ubatch: 64, threads: 1, gpu: 'cpu', keyType: 'f16' })
    expect(cost.on.flashAttention).toBe(context.flashAttention)
    expect(cost.deepest).toBeGreaterThanOrEqual(256)
    expect(cost.deepest).toBeLessThan(1024)
    for (const { rates, residual, samples } of [cost.prefill, cost.decode, cost.books]) {
      for (const rate of Object.values(rates)) expect(rate).toBeGreaterThanOrEqual(0)
      expect(residual.worst).toBeGreaterThanOrEqual(residual.median)
      expect(samples).toBeGreaterThan(2)
    }
    // The product: 2 layers, 2 heads of 16 for keys and values, in 16 bits. llama.cpp writes more for each cell.
    expect(cost.host.bytesPerCell).toBeGreaterThanOrEqual(256)
    expect(cost.host.bytesPerCell).toBeLessThan(300)
    expect(cost.host.saveBytesPerSecond).toBeGreaterThan(0)
    expect(cost.host.loadBytesPerSecond).toBeGreaterThan(0)
  })

  it('predicts a cost for everything', () => {
    const at = { attended: 200, cells: 300 }
    expect(decodeTime(cost, at)).toBeGreaterThan(0)
    expect(prefillTime(cost, { tokens: 256, ...at })).toBeGreaterThan(prefillTime(cost, { tokens: 16, ...at }))
  })

  it('leaves the context empty, and reports its progress', () => {
    expect(context.readback()).toEqual([])
    expect(shares.length).toBeGreaterThan(10)
    expect([...shares].sort((a, b) => a - b)).toEqual(shares)
    expect(shares.at(-1)).toBeLessThanOrEqual(1)
  })

  it('keeps to its budget, and measures at least the necessary figures', async () => {
    const asked: string[] = []
    const short = await calibrate(context, model.info.vocabulary, cost.on, {
      budget: 1,
      onProgress: (_, what) => asked.push(what),
    })
    expect(short.deepest).toBe(256)
    // Two folds and two restores, each once to warm up and once measured.
    expect(short.books.samples).toBe(4)
    expect(asked.filter((what) => what.startsWith('folds')).length).toBe(4)
    expect(short.books.samples).toBeLessThan(cost.books.samples)
    expect(context.readback()).toEqual([])
  })

  it('can be stopped', async () => {
    const controller = new AbortController()
    let told = 0
    const stopped = calibrate(context, model.info.vocabulary, cost.on, {
      signal: controller.signal,
      onProgress: () => {
        if (++told === 8) controller.abort()
      },
    })
    await expect(stopped).rejects.toMatchObject({ code: 'engine/cancelled' })
    expect(context.readback()).toEqual([])
  })

  it('refuses a context that is too small to measure anything', async () => {
    const small = await model.createContext({ ...SETTINGS, cells: 512, sequences: SEQUENCES })
    await expect(calibrate(small, model.info.vocabulary, cost.on)).rejects.toMatchObject({ code: 'engine/bad-request' })
    await small.dispose()
  })
})

describe('a saved calibration', () => {
  it('is found again, by the same model and settings only', async () => {
    expect(await loadCalibration(subject, folder)).toEqual({ kind: 'none' })
    const path = await saveCalibration(subject, cost, folder)
    expect(await loadCalibration(subject, folder)).toEqual({ kind: 'found', model: cost, path })
    expect(await loadCalibration({ ...subject, settings: { ...SETTINGS, threads: 2 } }, folder)).toEqual({ kind: 'none' })
    expect(await loadCalibration({ ...subject, info: { ...subject.info, layers: 3 } }, folder)).toEqual({ kind: 'none' })
    // The same model under another path is as fast.
    expect(await loadCalibration({ ...subject, info: { ...subject.info, path: '/elsewhere.gguf' } }, folder)).toMatchObject({
      kind: 'found',
    })
  })

  it('is refused with a sentence when it is foreign, stale or damaged', async () => {
    const path = await saveCalibration(subject, cost, folder)
    const original = readFileSync(path, 'utf8')
    const whole = JSON.parse(original) as { subject: string; cost: CostModel }
    const on = (change: Partial<CostModel['on']>) =>
      JSON.stringify({ ...whole, cost: { ...cost, on: { ...cost.on, ...change } } })
    const rates = { ...cost.decode.rates, attended: -1 }
    for (const [text, why] of [
      [original.slice(0, 200), /damaged/],
      ['', /damaged/],
      [JSON.stringify({ ...whole, cost: { ...cost, version: 0 } }), /another version/],
      [JSON.stringify({ ...whole, cost: { ...cost, decode: { ...cost.decode, rates } } }), /damaged/],
      [JSON.stringify({ ...whole, subject: 'f00' }), /another model or other settings/],
      [on({ release: 'v0.1.0' }), /llama\.cpp v0\.1\.0, and this is/],
      [on({ cpu: 'an abacus' }), /another processor \(an abacus, here /],
      [on({ devices: ['a card'] }), /another set of devices/],
    ] as const) {
      writeFileSync(path, text)
      const loaded = await loadCalibration(subject, folder)
      expect(loaded.kind).toBe('refused')
      if (loaded.kind === 'refused') expect(loaded.reason).toMatch(why)
      if (loaded.kind === 'refused') expect(loaded.reason).toMatch(/run `kvfold calibrate` again\.$/)
    }
    await saveCalibration(subject, cost, folder)
    expect(readFileSync(path, 'utf8')).toBe(original)
  })

  it('is in the cache folder of the user', () => {
    expect(calibrationFolder({ XDG_CACHE_HOME: '/some/cache' })).toBe('/some/cache/kvfold/calibration')
    for (const given of [undefined, '', 'relative'])
      expect(calibrationFolder({ XDG_CACHE_HOME: given })).toMatch(/\/\.cache\/kvfold\/calibration$/)
  })
})

describe('the rates that decide what leaves the device', () => {
  it('are measured with masked cells that were not computed, and leave the context empty', async () => {
    const wide = await model.createContext({ ...SETTINGS, cells: 4096, sequences: 64 })
    const rates = (await measureTierRates(wide, model.info)) ?? expect.fail('nothing was measured')
    // Two decodes to warm up, the text that is saved, and five rounds with few cells and five with many.
    expect(wide.submitted).toBeLessThanOrEqual(2 * 16 + 64 + 10 * (1 + 64))
    expect(rates.host.bytesPerCell).toBeGreaterThanOrEqual(256)
    expect(rates.host.bytesPerCell).toBeLessThan(300)
    expect(Math.min(rates.host.saveBytesPerSecond, rates.host.loadBytesPerSecond)).toBeGreaterThan(0)
    expect(Math.min(rates.scanned.prefill, rates.scanned.decode)).toBeGreaterThanOrEqual(0)
    expect(wide.readback()).toEqual([])
    await wide.dispose()
  })

  it('are unknown where too few cells can be filled to see a difference', async () => {
    const small = await model.createContext({ ...SETTINGS, cells: 512, sequences: SEQUENCES })
    expect(await measureTierRates(small, model.info)).toBeNull()
    await small.dispose()
    const few = await model.createContext({ ...SETTINGS, cells: 4096, sequences: 3 })
    expect(await measureTierRates(few, model.info)).toBeNull()
    await few.dispose()
  })

  const RATES: TierRates = {
    host: { saveBytesPerSecond: 1e9, loadBytesPerSecond: 2e9, bytesPerCell: 256 },
    scanned: { prefill: 1e-6, decode: 1e-5 },
  }
  const never = () => Promise.reject(new Error('measured again'))

  it('are measured once for a model on this machine, and those of a calibration come first', async () => {
    const own = mkdtempSync(join(tmpdir(), 'kvfold-rates-'))
    expect(await keptTierRates(subject, () => Promise.resolve(null), own)).toBeNull()
    expect(await keptTierRates(subject, () => Promise.resolve(RATES), own)).toEqual(RATES)
    expect(await keptTierRates(subject, never, own)).toEqual(RATES)
    await expect(keptTierRates({ ...subject, settings: { threads: 2 } }, never, own)).rejects.toThrow('measured again')
    const elsewhere = { ...subject.backend, devices: ['a card'] }
    await expect(keptTierRates({ ...subject, backend: elsewhere }, never, own)).rejects.toThrow('measured again')
    await saveCalibration(subject, cost, own)
    expect(await keptTierRates(subject, never, own)).toEqual(tierRatesOf(cost))
    rmSync(own, { recursive: true })
  })

  it('are measured when an engine is loaded with a folder for them, and count for no step', async () => {
    const own = mkdtempSync(join(tmpdir(), 'kvfold-rates-'))
    const native = await openNative({ gpu: 'cpu' })
    const settings = { ...SETTINGS, cells: 4096 }
    const engine = await LlamaEngine.load(native, model.info.path, { ...settings, calibrations: own })
    expect(engine.submitted).toBe(0)
    expect(engine.cacheTotals.used).toBe(0)
    const kept = await keptTierRates({ info: engine.modelInfo, settings, backend: native.backend }, never, own)
    expect(kept?.host.bytesPerCell).toBeGreaterThan(0)
    await engine.dispose()
    rmSync(own, { recursive: true })
  })
})
