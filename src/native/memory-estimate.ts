/** Owns the look at what memory is free: the refusal of what would not fit, and how many layers go to a GPU when nobody says. */
import { readFileSync } from 'node:fs'
import { freemem, totalmem } from 'node:os'
import { dirname, join } from 'node:path'
import { KvfoldError } from '../core/errors.js'
import type { CacheType } from './types.js'
import type { Device } from './devices.js'
import type { GgufFile } from './gguf-file.js'

/** Bytes and elements of one block of a cache type, and its ggml_type. */
export const cacheTypes: Readonly<
  Record<CacheType, { readonly ggml: number; readonly bytes: number; readonly elements: number }>
> = {
  f32: { ggml: 0, bytes: 4, elements: 1 },
  f16: { ggml: 1, bytes: 2, elements: 1 },
  q4_0: { ggml: 2, bytes: 18, elements: 32 },
  q4_1: { ggml: 3, bytes: 20, elements: 32 },
  q5_0: { ggml: 6, bytes: 22, elements: 32 },
  q5_1: { ggml: 7, bytes: 24, elements: 32 },
  q8_0: { ggml: 8, bytes: 34, elements: 32 },
  iq4_nl: { ggml: 20, bytes: 18, elements: 32 },
  bf16: { ggml: 30, bytes: 2, elements: 1 },
}

/** Bytes of `elements` numbers of a cache type. */
export const cacheBytes = (type: CacheType, elements: number): number =>
  (elements / cacheTypes[type].elements) * cacheTypes[type].bytes

/** Host bytes this process may still take: what the kernel calls available, or less where a control group of ours leaves less. */
export function availableMemory(): number {
  const kernel = /^MemAvailable:\s+(\d+) kB/m.exec(contents('/proc/meminfo'))?.[1]
  // macOS counts little as free that it would give up at once.
  const system = kernel === undefined ? Math.max(freemem(), totalmem() / 2) : Number(kernel) * 1024
  return Math.max(0, Math.min(system, ...groupMemory()))
}

/** What each control group above this process leaves of its limit (v2 and v1); page cache does not count as used. */
function groupMemory(): number[] {
  const entries = contents('/proc/self/cgroup').split('\n')
  const group = (pattern: RegExp) => entries.map((entry) => pattern.exec(entry)?.[1]).find((path) => path !== undefined)
  const left: number[] = []
  const look = (root: string, path: string | undefined, limit: string, usage: string) => {
    for (let at = path ?? '/'; ; at = dirname(at)) {
      const folder = join(root, at)
      const [most, used] = [limit, usage].map((file) => Number(/^\d+/.exec(contents(join(folder, file)))?.[0]))
      const reclaimable = Number(/^(?:total_)?inactive_file (\d+)/m.exec(contents(join(folder, 'memory.stat')))?.[1] ?? 0)
      if (most !== undefined && used !== undefined && Number.isFinite(most) && Number.isFinite(used))
        left.push(most - Math.max(0, used - reclaimable))
      if (at === dirname(at)) return
    }
  }
  look('/sys/fs/cgroup', group(/^0::(\/.*)$/), 'memory.max', 'memory.current')
  look('/sys/fs/cgroup/memory', group(/^\d+:memory:(\/.*)$/), 'memory.limit_in_bytes', 'memory.usage_in_bytes')
  return left
}

/** @throws KvfoldError memory/insufficient, naming both figures, when `bytes` exceed what is free. */
export function refuseTooMuch(what: string, bytes: number, available: number, where: string, hint: string): void {
  if (bytes <= available) return
  throw new KvfoldError(
    'memory/insufficient',
    `${what} would take ${readable(bytes)} of ${where}, and ${readable(available)} are free; ${hint}.`,
  )
}

function readable(bytes: number): string {
  return bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(1)} GiB` : `${(bytes / 2 ** 20).toFixed(0)} MiB`
}

/** Empty when there is no such file. */
function contents(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return ''
  }
}

// The choice of how many layers go to the GPU when nobody says: as many as its free memory holds beside a cache.

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
