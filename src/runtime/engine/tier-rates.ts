/**
 * Measures, in about a second, the costs that decide whether cells leave the device: copies out and in, and attention over masked cells.
 */
import { invariant } from '../core/errors.js'
import { seqId, type SeqId } from '../core/ids.js'
import { Random } from '../core/random.js'
import { span } from '../core/span.js'
import type { TierRates } from '../kv/cost-model.js'
import type { ModelInfo, Native, NativeContext } from '../native/types.js'
import { keptTierRates } from './calibration.js'
import type { LlamaEngineOptions } from './llama-options.js'

/** The fewest cells in use for a measurement. With fewer, no difference in time can be seen. */
const FEWEST = 512
/** The most cells that are filled for a measurement. More make the difference no clearer. */
const MOST = 16_384
/** The default budget of a measurement, in milliseconds. */
const BUDGET = 1000
/** After this many times the budget, the machine is too slow or too busy, and the measurement stops without a result. */
const PATIENCE = 2
/** The share of the budget that one decode of a chunk may take. */
const LONGEST = 1 / 10
const ROUNDS = 5
const SMALL = 16
/** Timed tokens are decoded in `PROBE`. `FILLED` has the cells to save; the sequences after it receive the loaded copies. */
const PROBE = seqId(0)
const FILLED = seqId(1)

/**
 * Measures the rates on an empty context, and leaves it empty. It needs many cells that no timed token sees. To save their computation, a
 * short text is saved once and loaded into one sequence after another. The shortest time of several rounds counts, because noise only adds
 * time. So on a busy machine too few cells may leave the device, but never too many.
 * @param budget the milliseconds after which no further round begins
 * @returns null if too few cells could be filled to see a difference, or if the measurement took longer than twice the budget
 * @throws KvfoldError what the context throws
 */
export async function measureTierRates(
  context: NativeContext,
  { vocabulary, slidingWindow }: Pick<ModelInfo, 'vocabulary' | 'slidingWindow'>,
  budget = BUDGET,
): Promise<TierRates | null> {
  const begun = performance.now()
  const isLate = (budgets = 1) => performance.now() - begun > budgets * budget
  const random = new Random(1)
  const timed = async (seq: SeqId, count: number): Promise<number> => {
    const tokens = Int32Array.from({ length: count }, () => random.below(vocabulary))
    const outputs = new Uint8Array(count)
    outputs[count - 1] = 1
    const started = performance.now()
    const batch = {
      tokens,
      positions: Int32Array.from(tokens, (_, at) => at),
      sequences: new Int32Array(count).fill(seq),
      outputs,
    }
    const status = await context.decode(batch)
    invariant(status === 'done', `a decode of a measurement ended ${status}`)
    context.logits(count - 1)
    return performance.now() - started
  }
  /** Returns the shortest times of one token alone and of `chunk` tokens, which see no cells but their own. */
  const shortest = async (chunk: number) => {
    const best = { alone: Infinity, chunk: Infinity }
    for (let round = 0; round < ROUNDS && (round === 0 || !isLate()); round++) {
      for (const [what, count] of [
        ['alone', 1],
        ['chunk', chunk],
      ] as const) {
        if (isLate(PATIENCE)) return null
        best[what] = Math.min(best[what], await timed(PROBE, count))
        context.untag(PROBE, span(0, count))
      }
    }
    return best
  }
  try {
    if (context.cells < FEWEST) return null
    // A saved state leaves out cells that a sliding window has passed. So the chunk must not exceed the window.
    let chunk = Math.min(
      context.batch,
      context.ubatch,
      Math.floor(context.cells / 4),
      slidingWindow > 0 ? slidingWindow : Infinity,
    )
    // The first decode is slow, because the device prepares for it.
    await timed(PROBE, SMALL)
    context.untag(PROBE, span(0, SMALL))
    if (isLate(PATIENCE)) return null
    const each = (await timed(PROBE, SMALL)) / SMALL
    context.untag(PROBE, span(0, SMALL))
    while (chunk > SMALL && each * chunk > budget * LONGEST) chunk = Math.floor(chunk / 2)
    const empty = await shortest(chunk)
    if (empty === null) return null
    await timed(FILLED, chunk)
    const [save, load] = [{ best: Infinity }, { best: Infinity }]
    const bestOf = <T>(of: { best: number }, call: () => T): T => {
      const started = performance.now()
      const result = call()
      of.best = Math.min(of.best, performance.now() - started)
      return result
    }
    let state: Uint8Array = new Uint8Array()
    for (let round = 0; round < ROUNDS; round++) state = bestOf(save, () => context.saveSequence(FILLED))
    let filled = chunk
    const most = Math.min(MOST, context.cells - chunk)
    for (let seq = FILLED + 1; seq < context.sequences && filled + chunk <= most; seq++, filled += chunk)
      if (!bestOf(load, () => context.loadSequence(seqId(seq), state))) break
    if (filled < FEWEST || load.best === Infinity) return null
    const full = await shortest(chunk)
    if (full === null) return null
    const perSecond = (milliseconds: number) => (1000 * state.byteLength) / Math.max(milliseconds, 1e-3)
    return {
      host: {
        saveBytesPerSecond: perSecond(save.best),
        loadBytesPerSecond: perSecond(load.best),
        bytesPerCell: state.byteLength / chunk,
      },
      scanned: {
        prefill: Math.max(0, full.chunk - empty.chunk) / (chunk * filled),
        decode: Math.max(0, full.alone - empty.alone) / filled,
      },
    }
  } finally {
    context.clear()
  }
}

/**
 * Returns the tier rates for an engine: those saved in the options' folder of calibrations, else new measurements, which it saves there.
 * Null without a folder, and for recurrent and hybrid models, whose cells leave the device only for lack of room.
 * @param context an empty context; it is empty again afterwards
 */
export async function deviceRates(
  { backend }: Native,
  info: ModelInfo,
  context: NativeContext,
  settings: LlamaEngineOptions,
): Promise<TierRates | null> {
  const { calibrations, attention } = settings
  if (calibrations === undefined || info.recurrent || info.hybrid) return null
  // A context that can capture attention computes without flash attention.
  const measured = attention === true ? { ...settings, flashAttention: 'off' as const } : settings
  return keptTierRates({ info, settings: measured, backend }, () => measureTierRates(context, info), calibrations)
}
