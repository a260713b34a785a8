/** Drives a cache over a bare context, without scheduler and sampling, for benchmarks that measure one step and read its logits. */
import { conversationId, seqId } from '../src/runtime/core/ids.js'
import { OffloadTiers } from '../src/runtime/kv/offload.js'
import { KvCache } from '../src/runtime/kv/cache.js'
import type { StepContract } from '../src/runtime/kv/plan/parts.js'
import type { LedgerEntry } from '../src/runtime/kv/ledger.js'
import type { ReplacedSpan, Prompt } from '../src/runtime/kv/prompt.js'
import type { NativeContext } from '../src/runtime/native/types.js'
import { median } from './random-tokens.js'

export interface Driven {
  readonly entry: LedgerEntry
  /** Milliseconds from the plan to the last commit. */
  readonly milliseconds: number
  /** The logits behind the last shown token. */
  readonly logits: Float32Array
}

/** Returns a prompt of one message in which these token spans are replaced by markers. */
export function edited(
  base: Int32Array,
  holes: readonly { readonly start: number; readonly end: number; readonly marker: Int32Array }[],
): Prompt {
  const parts: Int32Array[] = []
  let at = 0
  for (const { start, end, marker } of holes) {
    parts.push(base.subarray(at, start), marker)
    at = end
  }
  parts.push(base.subarray(at))
  const tokens = Int32Array.from(parts.flatMap((part) => [...part]))
  return {
    tokens,
    messages: [{ index: 0, role: 'text', span: { start: 0, end: tokens.length } }],
    origin: {
      base,
      holes: holes.map(({ start, end, marker }): ReplacedSpan => ({ span: { start, end }, marker: marker.length })),
    },
  }
}

export class Driver {
  readonly cache: KvCache
  readonly #conversation = conversationId('bench')

  constructor(readonly context: NativeContext) {
    this.cache = new KvCache(context, { offload: new OffloadTiers({ hostBytes: 2 ** 31 }) })
  }

  /** Runs one step that shows this prompt and generates no token. */
  async show(shown: Prompt, terms: StepContract): Promise<Driven> {
    const { cache, context } = this
    const begun = performance.now()
    const opened = cache.open(this.#conversation)
    if (opened.kind === 'full') throw new Error(opened.reason)
    const step = cache.begin(opened.sequence, await cache.prepare(opened.sequence, shown, terms), 'answer')
    let last = 0
    for (;;) {
      const chunk = cache.next(step, context.batch)
      if (chunk === null) break
      if (cache.reserve(chunk.tokens.length).kind === 'full') throw new Error('the context is full')
      last = chunk.tokens.length - 1
      await decode(context, chunk.seq, chunk.position, chunk.tokens)
      cache.commit(step, chunk.tokens, 'prompt', 0)
    }
    const milliseconds = performance.now() - begun
    return { entry: cache.finish(step, 'done', 0), milliseconds, logits: context.logits(last) }
  }

  /** Returns the median milliseconds per generated token behind the prompt, on a separate sequence that sees the same cells. */
  async generate(count: number): Promise<number> {
    const { cache, context } = this
    const live = cache.live(this.#conversation)
    if (live === null) throw new Error('nothing is shown')
    const scratch = seqId(context.sequences - 1)
    context.tag(live.seq, scratch, { start: 0, end: live.next })
    const times: number[] = []
    for (let at = 0; at < count; at++) {
      const begun = performance.now()
      await decode(context, scratch, live.next + at, live.tokens.slice(at, at + 1))
      times.push(performance.now() - begun)
    }
    context.untag(scratch, { start: 0, end: live.next + count })
    return median(times)
  }

  /** Moves all parked sequences off the device, and makes the remaining cells contiguous. */
  async gather(): Promise<number> {
    while (await this.cache.tidy(0));
    return this.cache.compact(this.#conversation)
  }

  forget(): void {
    this.cache.forget(this.#conversation)
  }
}

/** Decodes tokens into a sequence, and computes the logits of the last one. */
export async function decode(context: NativeContext, seq: number, position: number, tokens: Int32Array): Promise<void> {
  const outputs = new Uint8Array(tokens.length)
  outputs[tokens.length - 1] = 1
  const status = await context.decode({
    tokens,
    positions: Int32Array.from(tokens, (_, offset) => position + offset),
    sequences: new Int32Array(tokens.length).fill(seqId(seq)),
    outputs,
  })
  if (status !== 'done') throw new Error(`a decode ended ${status}`)
}

/**
 * Returns the Kullback-Leibler divergence of the two next-token distributions, in nats: the loss of using `approximate` in place of
 * `exact`.
 */
export function divergence(exact: Float32Array, approximate: Float32Array): number {
  const p = logSoftmax(exact)
  const q = logSoftmax(approximate)
  return p.reduce((sum, log, index) => sum + Math.exp(log) * (log - q[index]!), 0)
}

/** Returns the log-probabilities of the next token after a fresh prefill, in batches as large as the context allows. */
export async function freshLogprobs(context: NativeContext, tokens: Int32Array): Promise<Float64Array> {
  context.clear()
  let part = tokens
  for (let start = 0; start < tokens.length; start += context.batch) {
    part = tokens.slice(start, start + context.batch)
    await decode(context, 0, start, part)
  }
  return logSoftmax(context.logits(part.length - 1))
}

function logSoftmax(logits: Float32Array): Float64Array {
  const max = logits.reduce((a, b) => Math.max(a, b))
  const total = logits.reduce((sum, logit) => sum + Math.exp(logit - max), 0)
  return Float64Array.from(logits, (logit) => logit - max - Math.log(total))
}
