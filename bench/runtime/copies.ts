/**
 * Measures how fast cells leave a device and come back, and how long that blocks the event loop. `npm run bench -- gpu` prints it as a row.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { seqId } from '../../src/runtime/core/ids.js'
import { span } from '../../src/runtime/core/span.js'
import { synthesizeModel } from '../../src/runtime/native/synthetic.js'
import type { Native, NativeContext } from '../../src/runtime/native/types.js'
import { decode } from '../driver.js'
import { median, randomTokens } from '../random-tokens.js'

/** A shape with many bytes per cell and few weights: a cell takes 64 KiB, so 1 GiB holds 16,384 cells. */
const SHAPE = {
  architecture: 'llama',
  layers: 32,
  embedding: 512,
  heads: 4,
  kvHeads: 4,
  feedForward: 64,
  vocabulary: 512,
} as const
const BYTES_PER_CELL = 2 * 2 * SHAPE.layers * SHAPE.embedding
const CHUNK = 64
const ROUNDS = 5
const SOURCE = seqId(0)
const TARGET = seqId(1)
setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void

/** Frees the memory of dropped states, so that the next ones can use it. */
async function reuse(): Promise<void> {
  collect()
  for (let turn = 0; turn < 3; turn++) await nextTurn()
}

/**
 * Rates in GB/s, and the longest time in milliseconds for which the event loop was blocked in a round of copies off it. All are medians
 * over the rounds after the first.
 */
export interface Copies {
  readonly bytes: number
  /** Rate of copies of the same bytes in ordinary memory, by one thread. */
  readonly memcpy: number
  /** Rates of copies on the event loop, which are blocking. */
  readonly save: number
  readonly load: number
  /** Rates of copies off the event loop. */
  readonly copyOut: number
  readonly copyIn: number
  readonly longestPause: number
}

/** @param bytes approximate bytes of the copied sequence */
export async function measureCopies(native: Native, bytes: number): Promise<Copies> {
  const folder = mkdtempSync(join(tmpdir(), 'kvfold-copies-'))
  const path = join(folder, 'model.gguf')
  const cells = CHUNK * Math.ceil(bytes / BYTES_PER_CELL / CHUNK)
  await synthesizeModel(path, { ...SHAPE, context: 2 * cells + CHUNK, type: 'f16', seed: 1 })
  const model = await native.loadModel(path)
  try {
    const settings = { threads: 1, batchThreads: 1, flashAttention: 'on', batch: CHUNK, ubatch: CHUNK } as const
    const context = await model.createContext({ ...settings, cells: 2 * cells + CHUNK, sequences: 2 })
    await fill(context, cells)
    return await measure(context)
  } finally {
    await model.dispose()
    rmSync(folder, { recursive: true })
  }
}

/** Makes a sequence with this many cells. One chunk is computed; the rest are copies of it at later positions. */
async function fill(context: NativeContext, cells: number): Promise<void> {
  await decode(context, SOURCE, 0, randomTokens(CHUNK, 1, SHAPE.vocabulary))
  const state = context.saveSequence(SOURCE)
  for (let at = CHUNK; at < cells; at += CHUNK) {
    if (!context.loadSequence(TARGET, state)) throw new Error('there is no room for the sequence')
    context.shift(TARGET, span(0, CHUNK), at)
    context.tag(TARGET, SOURCE, span(at, at + CHUNK))
    context.untag(TARGET, span(at, at + CHUNK))
  }
}

async function measure(context: NativeContext): Promise<Copies> {
  const rates = {
    memcpy: [] as number[],
    save: [] as number[],
    load: [] as number[],
    copyOut: [] as number[],
    copyIn: [] as number[],
  }
  const everything = span(0, context.cells)
  const pauses: number[] = []
  let bytes = 0
  /** Records the rate of a copy. The first round touches fresh memory, so it does not count. */
  const note = (what: keyof typeof rates, round: number, begun: number) => {
    if (round > 0) rates[what].push(bytes / (performance.now() - begun) / 1e6)
  }
  /** Copies on the event loop. */
  const waiting = (round: number) => {
    let begun = performance.now()
    const saved = context.saveSequence(SOURCE)
    bytes = saved.byteLength
    note('save', round, begun)
    begun = performance.now()
    if (!context.loadSequence(TARGET, saved)) throw new Error('a context refused what it saved itself')
    note('load', round, begun)
    context.untag(TARGET, everything)
  }
  let [plain, other] = [new Uint8Array(), new Uint8Array()]
  for (let round = 0; round <= ROUNDS; round++) {
    waiting(round)
    await reuse()
    let [last, longest] = [performance.now(), 0]
    const watch = setInterval(() => {
      longest = Math.max(longest, performance.now() - last)
      last = performance.now()
    }, 1)
    let begun = performance.now()
    const copied = await context.copyOut(SOURCE)
    note('copyOut', round, begun)
    begun = performance.now()
    if (!(await context.copyIn(TARGET, copied))) throw new Error('a context refused what it saved itself')
    note('copyIn', round, begun)
    clearInterval(watch)
    if (round > 0) pauses.push(longest)
    context.untag(TARGET, everything)

    if (plain.length === 0) [plain, other] = [new Uint8Array(bytes).fill(1), new Uint8Array(bytes).fill(2)]
    begun = performance.now()
    other.set(plain)
    note('memcpy', round, begun)
  }
  const rate = (what: keyof typeof rates) => Number(median(rates[what]).toFixed(2))
  return {
    bytes,
    memcpy: rate('memcpy'),
    save: rate('save'),
    load: rate('load'),
    copyOut: rate('copyOut'),
    copyIn: rate('copyIn'),
    longestPause: Number(median(pauses).toFixed(1)),
  }
}
