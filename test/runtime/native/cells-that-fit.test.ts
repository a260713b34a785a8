/** Tests how many cells a context gets by default, for models and devices of several sizes. */
import { describe, expect, it } from 'vitest'
import { cellsThatFit as fitting, planContext } from '../../../src/runtime/native/context-options.js'
import type { Device } from '../../../src/runtime/native/devices.js'
import type { ContextOptions, FitOptions, ModelInfo } from '../../../src/runtime/native/types.js'

const GIB = 2 ** 30
const USUAL = 32_768

/** A model of Llama 3.1 8B's shape: 128 KiB of keys and values for each cell. */
const info = {
  architecture: 'llama',
  trainedContext: 131_072,
  layers: 32,
  heads: 32,
  kvHeads: 8,
  embedding: 4096,
  vocabulary: 128_256,
  rope: 'norm',
  slidingWindow: 0,
  size: 4.6 * GIB,
  metadata: { 'llama.feed_forward_length': '14336' },
} as unknown as ModelInfo

const cpu: Device = { name: 'CPU', description: 'CPU', gpu: false, free: 64 * GIB, total: 64 * GIB }
const card = (free: number): readonly Device[] => [
  { name: 'CUDA0', description: 'a card', gpu: true, free: free * GIB, total: 140 * GIB },
  cpu,
]
const whole = { info, gpuLayers: 33 }
type Planned = Parameters<typeof planContext>[1]
const fitted = (
  usual: number,
  options: Omit<ContextOptions, 'cells'>,
  model: Planned,
  devices: readonly Device[],
  available?: number,
  fit: Partial<FitOptions> = {},
) => fitting(usual, options, { grows: true, copies: false, ...fit }, model, devices, available)
const cellsThatFit = (...given: Parameters<typeof fitted>): number => fitted(...given).cells
/** The bytes of a context by the estimate. */
const bytesOf = (options: ContextOptions) => {
  const { cache, compute } = planContext(options, whole, card(1000))
  return cache + compute
}

describe('the cells of a context by default', () => {
  it('are the trained context where half of the free GPU memory holds it', () => {
    expect(cellsThatFit(USUAL, {}, whole, card(120))).toBe(131_072)
  })

  it('are as many as half of the free GPU memory holds, at least the usual ones where these fit', () => {
    const some = cellsThatFit(USUAL, {}, whole, card(18))
    expect(some).toBeGreaterThan(USUAL)
    expect(some).toBeLessThan(131_072)
    expect(some * 128 * 1024).toBeLessThan(9 * GIB)
    // 4 GiB of cells are more than half of 6 GiB.
    expect(cellsThatFit(USUAL, {}, whole, card(6))).toBe(USUAL)
  })

  it('leave room for a second copy of the model with as many cells, in which attention is captured', () => {
    const grown = []
    for (const free of [10, 14, 18.9, 24, 32, 40, 80]) {
      const cells = cellsThatFit(USUAL, {}, whole, card(free), undefined, { copies: true })
      if (cells <= USUAL) continue
      grown.push(free)
      expect(bytesOf({ cells }) + info.size + bytesOf({ cells, attention: true })).toBeLessThan(free * GIB)
    }
    expect(grown).toContain(24)
    expect(grown).not.toContain(14)
  })

  it('do not grow where that is not wanted', () => {
    expect(cellsThatFit(USUAL, {}, whole, card(120), undefined, { grows: false })).toBe(USUAL)
  })

  it('grow with a quantised cache', () => {
    const quantised = { keyType: 'q8_0', valueType: 'q8_0' } as const
    expect(cellsThatFit(USUAL, quantised, whole, card(18))).toBeGreaterThan(cellsThatFit(USUAL, {}, whole, card(18)))
  })

  it('are fewer where the usual ones do not fit, and a context of as many is not refused', () => {
    for (const free of [1.5, 2, 3, 4]) {
      const fewer = cellsThatFit(USUAL, {}, whole, card(free))
      expect(fewer).toBeGreaterThanOrEqual(4096)
      expect(fewer).toBeLessThan(USUAL)
      expect(() => planContext({ cells: fewer }, whole, card(free))).not.toThrow()
    }
    expect(cellsThatFit(USUAL, {}, whole, card(3))).toBeGreaterThan(cellsThatFit(USUAL, {}, whole, card(2)))
  })

  it('are 4,096 where fewer would be needed, so that the refusal names a small context', () => {
    expect(cellsThatFit(USUAL, {}, whole, card(0.2))).toBe(4096)
    expect(() => planContext({ cells: 4096 }, whole, card(0.2))).toThrow(/4096 cells would take .* of GPU memory/)
  })

  it('are the usual ones on the CPU, and with layers on both, however much is free', () => {
    expect(cellsThatFit(USUAL, {}, { info, gpuLayers: 0 }, [cpu], 60 * GIB)).toBe(USUAL)
    expect(cellsThatFit(USUAL, {}, { info, gpuLayers: 16 }, card(120), 60 * GIB)).toBe(USUAL)
  })

  it('are fewer on the CPU, too, where host memory is short', () => {
    const fewer = cellsThatFit(USUAL, {}, { info, gpuLayers: 0 }, [cpu], 3 * GIB)
    expect(fewer).toBeGreaterThan(4096)
    expect(fewer).toBeLessThan(USUAL)
    expect(bytesOf({ cells: fewer })).toBeLessThan(0.9 * 3 * GIB)
  })

  it('come with a reason, and are a multiple of 256', () => {
    const trained = (trainedContext: number) => ({ info: { ...info, trainedContext }, gpuLayers: 33 })
    expect(fitted(USUAL, {}, whole, card(120))).toEqual({ cells: 131_072, reason: 'trained' })
    expect(fitted(USUAL, {}, trained(40_000), card(120))).toEqual({ cells: 39_936, reason: 'trained' })
    expect(fitted(USUAL, {}, whole, card(18)).reason).toBe('grown')
    expect(fitted(USUAL, {}, whole, card(2)).reason).toBe('short')
    for (const free of [120, 0.2]) expect(fitted(2000, {}, trained(2000), card(free))).toEqual({ cells: 2048, reason: null })
    expect(fitted(USUAL, {}, trained(32_900), card(120))).toEqual({ cells: USUAL, reason: null })
  })

  it('are never more than the usual ones for a model with a short context', () => {
    const short = { info: { ...info, trainedContext: 2048 }, gpuLayers: 33 }
    expect(cellsThatFit(2048, {}, short, card(120))).toBe(2048)
    expect(cellsThatFit(2048, {}, short, card(0.2))).toBe(2048)
  })
})
