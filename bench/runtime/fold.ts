/**
 * What a fold of the middle half of a 16K context costs under `splice`, compared with decoding only its marker and with `exact`; and what
 * its restore costs.
 * `npm run --silent bench -- fold [--json] [--write name]`
 */
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { seqId } from '../../src/runtime/core/ids.js'
import { span } from '../../src/runtime/core/span.js'
import type { StepContract } from '../../src/runtime/kv/plan/parts.js'
import type { Prompt } from '../../src/runtime/kv/prompt.js'
import { openNative } from '../../src/runtime/native/binding.js'
import type { Native } from '../../src/runtime/native/types.js'
import { synthesizeModel } from '../../src/runtime/native/synthetic.js'
import { decode, divergence, Driver, edited } from '../driver.js'
import { median, randomTokens } from '../random-tokens.js'
import { beginRecord, keep } from '../record.js'
import { SHAPE as NARROW } from '../shape.js'

const SHAPE = { ...NARROW, context: 32_768 } as const
/**
 * For the host tier: 16 KiB per cell. Real models have more; with few bytes per cell, llama.cpp's own bookkeeping outweighs the copying.
 */
const HOST_SHAPE = { ...SHAPE, layers: 8, embedding: 512, heads: 8, kvHeads: 8, feedForward: 1408 } as const
const HOST_LENGTH = 8192
const LENGTH = 16_384
const HOLE = { start: LENGTH / 4, end: (3 * LENGTH) / 4 }
const MARKER = 20
const ROUNDS = 20
/** Fewer rounds, because each exact fold computes 4K tokens again. */
const EXACT_ROUNDS = 3
const SPLICE: StepContract = { contract: 'splice' }
const EXACT: StepContract = { contract: 'exact' }

export async function fold(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: { json: { type: 'boolean', default: false }, write: { type: 'string' } },
  })
  const path = join(tmpdir(), 'kvfold-bench-fold.gguf')
  await synthesizeModel(path, { ...SHAPE, type: 'f16', seed: 1 })
  const native = await openNative({ gpu: 'cpu' })
  const origin = beginRecord(['fold', ...args], path, native.backend.release, 1)
  const model = await native.loadModel(path)
  const context = await model.createContext({
    cells: LENGTH + 8192,
    sequences: 64,
    threads: 1,
    batchThreads: 1,
    flashAttention: 'on',
  })
  const driver = new Driver(context)
  const base = randomTokens(LENGTH, 1, SHAPE.vocabulary)
  const marker = randomTokens(MARKER, 2, SHAPE.vocabulary)
  const open = edited(base, [])
  const folded = edited(base, [{ ...HOLE, marker }])

  await driver.show(open, EXACT)
  // Show it again, so that only the last token is decoded, as after a restore.
  const never = await driver.show(open, EXACT)
  const folds: number[] = []
  const restores: number[] = []
  const alone: number[] = []
  const divergences: number[] = []
  for (let round = 0; round < ROUNDS; round++) {
    const other = randomTokens(MARKER, 100 + round, SHAPE.vocabulary)
    const there = await driver.show(edited(base, [{ ...HOLE, marker: other }]), SPLICE)
    const back = await driver.show(open, SPLICE)
    if (there.entry.fallback !== null || back.entry.approximate !== 0) throw new Error('a fold and its restore were not a splice')
    folds.push(there.milliseconds)
    restores.push((1000 * back.entry.milliseconds.cache) / (HOLE.end - HOLE.start))
    divergences.push(divergence(never.logits, back.logits))
    alone.push(await markerAlone(driver, other))
  }
  const perToken = await generating(driver, open, folded)
  const exacts: number[] = []
  for (let round = 0; round < EXACT_ROUNDS; round++) {
    driver.forget()
    await driver.show(open, EXACT)
    exacts.push((await driver.show(folded, EXACT)).milliseconds)
  }
  await model.dispose()
  const host = await fromHost(native)
  const result = {
    ...origin(),
    foldOverMarker: median(folds) / median(alone),
    exactOverFold: median(exacts) / median(folds),
    restoreMicrosPerCell: median(restores),
    restoreKl: Math.max(...divergences),
    hostOverCopy: host.ratio,
    hostRestoreKl: host.divergence,
    hostGigabytesPerSecond: host.rate,
    copyGigabytesPerSecond: host.copyRate,
    milliseconds: { fold: median(folds), marker: median(alone), exact: median(exacts) },
    perToken,
    rounds: { fold: ROUNDS, exact: EXACT_ROUNDS },
    shape: SHAPE,
    hostShape: HOST_SHAPE,
  }
  await keep(values.write, result)
  if (!values.json) {
    const { fold: spliced, marker: bare, exact } = result.milliseconds
    console.log(
      `fold of [${HOLE.start}, ${HOLE.end}) of ${LENGTH} tokens behind a marker of ${MARKER}, one thread, ${ROUNDS} rounds`,
    )
    console.log(
      `  splice   ${spliced.toFixed(1)} ms: ${result.foldOverMarker.toFixed(2)} times the marker alone (${bare.toFixed(1)} ms)`,
    )
    console.log(`  exact    ${exact.toFixed(1)} ms: ${result.exactOverFold.toFixed(1)} times the splice`)
    console.log(
      `  restore  ${result.restoreMicrosPerCell.toFixed(3)} us a cell; next-token KL to never folded at most ${result.restoreKl.toExponential(1)}`,
    )
    console.log(
      `  host     the hole's cells come back at ${result.hostGigabytesPerSecond.toFixed(2)} GB/s, ${result.hostOverCopy.toFixed(2)} of what memory copies; KL at most ${result.hostRestoreKl.toExponential(1)}`,
    )
    console.log(
      `  a token  ${perToken.open.toFixed(2)} ms unfolded, ${perToken.spliced.toFixed(2)} spliced, ${perToken.gathered.toFixed(2)} with the hole's cells moved off and the rest gathered`,
    )
  } else console.log(JSON.stringify(result))
}

/** Returns milliseconds per generated token: nothing folded, folded, and folded with only the shown cells on the device. */
async function generating(driver: Driver, open: Prompt, folded: Prompt) {
  await driver.show(open, SPLICE)
  const unfolded = await driver.generate(ROUNDS)
  await driver.show(folded, SPLICE)
  const spliced = await driver.generate(ROUNDS)
  if ((await driver.gather()) === 0) throw new Error('the cells were not gathered')
  const gathered = await driver.generate(ROUNDS)
  await driver.show(open, SPLICE)
  return { open: unfolded, spliced, gathered }
}

/** Returns how fast folded cells come back from host memory (all work except decoding), and how fast this machine copies memory. */
async function fromHost(native: Native) {
  const path = join(tmpdir(), 'kvfold-bench-host.gguf')
  await synthesizeModel(path, { ...HOST_SHAPE, type: 'f16', seed: 1 })
  const model = await native.loadModel(path)
  const context = await model.createContext({ cells: HOST_LENGTH + 256, threads: 1, batchThreads: 1, flashAttention: 'on' })
  const driver = new Driver(context)
  const base = randomTokens(HOST_LENGTH, 3, SHAPE.vocabulary)
  const hole = { start: HOST_LENGTH / 4, end: (3 * HOST_LENGTH) / 4, marker: randomTokens(MARKER, 4, SHAPE.vocabulary) }
  const [open, folded] = [edited(base, []), edited(base, [hole])]
  await driver.show(open, EXACT)
  const never = await driver.show(open, EXACT)
  const rates: number[] = []
  const copies: number[] = []
  const divergences: number[] = []
  const [from, to] = [new Uint8Array(2 ** 27).fill(1), new Uint8Array(2 ** 27).fill(1)]
  for (let round = 0; round < ROUNDS; round++) {
    await driver.show(folded, SPLICE)
    while (await driver.cache.tidy(0));
    const { bytes } = driver.cache.totals.tiers.host
    const back = await driver.show(open, SPLICE)
    if (back.entry.tiers.host !== hole.end - hole.start) throw new Error('the hole did not come back from the host tier')
    rates.push(bytes / back.entry.milliseconds.cache / 1e6)
    divergences.push(divergence(never.logits, back.logits))
    from.fill(round)
    const begun = performance.now()
    to.set(from.subarray(0, bytes))
    copies.push(bytes / (performance.now() - begun) / 1e6)
  }
  await model.dispose()
  const ratio = median(rates.map((rate, round) => rate / copies[round]!))
  return { rate: median(rates), copyRate: median(copies), ratio, divergence: Math.max(...divergences) }
}

/** Returns milliseconds to decode the marker behind the same prefix, with the same cells in use. */
async function markerAlone({ context }: Driver, marker: Int32Array): Promise<number> {
  const scratch = seqId(context.sequences - 1)
  context.tag(seqId(0), scratch, span(0, HOLE.start))
  const begun = performance.now()
  await decode(context, scratch, HOLE.start, marker)
  const milliseconds = performance.now() - begun
  context.untag(scratch, span(0, LENGTH))
  return milliseconds
}
