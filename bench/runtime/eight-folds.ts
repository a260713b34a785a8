/**
 * The eight-folds episode (from the issue on contracts): a text of 8,192 tokens has ten fragments, of which the first eight are folded.
 * Each fold leaves a marker of 20 tokens and is followed by a tool result of 60 tokens. The addon counts the computed tokens, without the
 * first prefill.
 * `npm run --silent bench -- eight-folds [--model path] [--length tokens] [--json] [--write name]`; without a model, one with random
 * weights.
 */
import { parseArgs } from 'node:util'
import type { Contract } from '../../src/runtime/core/contract.js'
import { conversationId } from '../../src/runtime/core/ids.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { eightFolds, PREFILL, type Order } from './peers/episode.js'
import { beginRecord, keep } from '../record.js'
import { benchModel, SHAPE } from '../shape.js'

/** Under `splice`, one fold at a time from first to last, as shown to llama-server; under `exact`, every order. */
const RUNS = {
  splice: { order: 'first-to-last', contract: 'splice' },
  exactLastToFirst: { order: 'last-to-first', contract: 'exact' },
  exactFirstToLast: { order: 'first-to-last', contract: 'exact' },
  exactTogether: { order: 'together', contract: 'exact' },
} as const satisfies Record<string, { order: Order; contract: Contract }>
type Run = keyof typeof RUNS

export async function eightFoldsBench(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      model: { type: 'string' },
      length: { type: 'string', default: String(PREFILL) },
      json: { type: 'boolean', default: false },
      write: { type: 'string' },
    },
  })
  const { json } = values
  const length = Number(values.length)
  const native = await openNative({ gpu: 'cpu' })
  const { path, vocabulary } = await benchModel(values.model, 'eight-folds')
  const origin = beginRecord(['eight-folds', ...args], path, native.backend.release, 1)
  const tokensComputed: Record<string, number> = {}
  const seconds: Record<string, number> = {}
  for (const [name, { order, contract }] of Object.entries(RUNS) as [Run, (typeof RUNS)[Run]][]) {
    const engine = await LlamaEngine.load(native, path, {
      cells: SHAPE.context,
      threads: 1,
      batchThreads: 1,
      flashAttention: 'on',
    })
    const conversation = conversationId(name)
    const { prefill, steps } = eightFolds(order, vocabulary, 1, length)
    const terms = { contract }
    await engine.complete({ conversation, tokens: prefill, maxTokens: 1, terms })
    const before = engine.submitted
    const begun = performance.now()
    for (const { tokens, base, holes } of steps) {
      const shown = holes.map(({ start, end, marker }) => ({ span: { start, end }, marker: marker.length }))
      const { ledger } = await engine.complete({ conversation, tokens, origin: { base, holes: shown }, maxTokens: 1, terms })
      if (ledger.fallback !== null) throw new Error(`a fold fell back: ${ledger.fallback}`)
    }
    seconds[name] = (performance.now() - begun) / 1000
    tokensComputed[name] = engine.submitted - before
    await engine.check('full')
    await engine.dispose()
    if (!json)
      console.log(
        `${name.padEnd(18)} ${String(tokensComputed[name]).padStart(6)} tokens computed   ${seconds[name].toFixed(2)} s`,
      )
  }
  const result = { ...origin(), contextTokens: length, tokensComputed, seconds }
  await keep(values.write, result)
  if (json) console.log(JSON.stringify(result))
}
