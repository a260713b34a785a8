/** Owns the estimate of what a model or context will take and the look at what is free, so that too much is refused before it is taken. */
import { existsSync, readFileSync } from 'node:fs'
import { freemem, totalmem } from 'node:os'
import { KvfoldError } from '../core/errors.js'
import type { CacheType } from './types.js'

/** Bytes and elements of one block of a cache type, and its ggml_type. */
export const cacheTypes: Readonly<Record<CacheType, { readonly ggml: number; readonly bytes: number; readonly elements: number }>> = {
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

export interface CacheShape {
  readonly layers: number
  readonly keyWidth: number
  readonly valueWidth: number
  readonly keyType: CacheType
  readonly valueType: CacheType
}

/** Bytes of KV cache per cell: what one token costs for as long as it is kept. */
export function bytesPerCell({ layers, keyWidth, valueWidth, keyType, valueType }: CacheShape): number {
  const row = (width: number, type: CacheType) => (width / cacheTypes[type].elements) * cacheTypes[type].bytes
  return layers * (row(keyWidth, keyType) + row(valueWidth, valueType))
}

/** Bytes this process may still take: what the kernel calls available, less where a control group says less. */
export function availableMemory(): number {
  const kernel = number('/proc/meminfo', /^MemAvailable:\s+(\d+) kB/m)
  const free = kernel === null ? (process.platform === 'darwin' ? totalmem() * 0.75 : freemem()) : kernel * 1024
  const limits = [
    ['/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory.current'],
    ['/sys/fs/cgroup/memory/memory.limit_in_bytes', '/sys/fs/cgroup/memory/memory.usage_in_bytes'],
  ] as const
  const group = limits.flatMap(([limit, usage]) => {
    const max = number(limit, /^(\d+)/)
    const used = number(usage, /^(\d+)/)
    return max === null || used === null ? [] : [max - used]
  })
  return Math.max(0, Math.min(free, ...group))
}

/** @throws KvfoldError memory/insufficient when `bytes` exceed what is free. */
export function refuseTooMuch(what: string, bytes: number, available: number, hint: string): void {
  if (bytes <= available) return
  throw new KvfoldError('memory/insufficient', `${what} would take ${gib(bytes)} and ${gib(available)} are free; ${hint}.`)
}

function gib(bytes: number): string {
  return bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(1)} GiB` : `${(bytes / 2 ** 20).toFixed(0)} MiB`
}

function number(file: string, pattern: RegExp): number | null {
  if (!existsSync(file)) return null
  const match = pattern.exec(readFileSync(file, 'utf8'))
  return match === null ? null : Number(match[1])
}
