/** Owns the choice of how many layers go to the GPU when nobody says: as many as its free memory holds beside a cache. */
import type { Device } from './devices.js'
import type { GgufFile } from './gguf-file.js'

/** Left free for the driver and compute buffers: bytes, and a share of what is free for the KV cache. */
const RESERVED = 512 * 2 ** 20
const CACHE_SHARE = 0.2

/**
 * llama.cpp's n_gpu_layers: the output layer first, then layers from the last to the first, until the GPUs' free memory is spent. A model
 * that fits whole gets every layer. Several devices count as one, since llama.cpp divides layers by free memory.
 */
export function layersThatFit({ layerBytes, outerBytes }: GgufFile, devices: readonly Device[]): number {
  const free = devices.filter(({ gpu }) => gpu).reduce((sum, device) => sum + device.free, 0)
  let left = (free - RESERVED) * (1 - CACHE_SHARE)
  let layers = 0
  for (const bytes of [outerBytes, ...layerBytes.toReversed()]) {
    left -= bytes
    if (left < 0) break
    layers++
  }
  return layers
}
