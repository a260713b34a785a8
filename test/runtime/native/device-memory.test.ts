/**
 * Tests memory on a device for cells and weights. Too large a request is refused before anything is allocated, and a refusal leaves the
 * rest unchanged.
 */
import { afterEach, beforeAll, expect, test } from 'vitest'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Native, NativeModel } from '../../../src/runtime/native/types.js'
import { ON_GPU, TEST_GPU } from '../../support/device.js'
import { tinyModel } from '../../support/models.js'
import { batchOf, feed, refused, seq, someTokens } from './support/fixture.js'

let native: Native
const models: NativeModel[] = []

beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
})
afterEach(async () => {
  for (const model of models.splice(0)) await model.dispose()
})

async function load(gpuLayers?: number): Promise<NativeModel> {
  const model = await native.loadModel(await tinyModel(), gpuLayers === undefined ? {} : { gpuLayers })
  models.push(model)
  return model
}

test('the backend is the one that was named', () => {
  expect(native.backend.gpu).toBe(TEST_GPU)
  expect(native.backend.devices.length).toBeGreaterThan(ON_GPU ? 1 : 0)
})

test('cells without memory for them are refused with the amounts, and the model still works', async () => {
  const model = await load()
  const { message } = await refused('memory/insufficient', () => model.createContext({ cells: 2 ** 30, ubatch: 32, batch: 32 }))
  expect(message).toMatch(ON_GPU ? /of GPU memory, but only .* are free/ : /of memory, but only .* are free/)
  const context = await model.createContext({ cells: 256, sequences: 2, batch: 32, ubatch: 32, threads: 1 })
  await feed(context, someTokens(8))
  expect(context.logits(7)).toHaveLength(model.info.vocabulary)
})

test('cells leave the device and come back bit for bit', async () => {
  const model = await load()
  const options = { cells: 512, sequences: 2, batch: 64, ubatch: 64, threads: 1 }
  const [from, to] = [await model.createContext(options), await model.createContext(options)]
  await feed(from, someTokens(64))
  const state = from.saveSequence(seq(0))
  expect(to.loadSequence(seq(0), state)).toBe(true)
  expect(Buffer.compare(to.saveSequence(seq(0)), state)).toBe(0)
})

test.skipIf(!ON_GPU)('layers may be divided between the device and the CPU, with the same logits', async () => {
  const predictions: Float32Array[] = []
  for (const layers of [0, 1, undefined]) {
    const model = await load(layers)
    const context = await model.createContext({ cells: 512, batch: 64, ubatch: 64, threads: 1 })
    expect(await context.decode(batchOf(someTokens(48)))).toBe('done')
    predictions.push(context.logits(47))
    await context.dispose()
  }
  const [host, ...others] = predictions as [Float32Array, ...Float32Array[]]
  for (const other of others) expect(Math.max(...other.map((value, at) => Math.abs(value - host[at]!)))).toBeLessThan(0.05)
})
