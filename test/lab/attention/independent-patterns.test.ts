/**
 * Whole attention patterns of the built-in model from llama.cpp, compared with those that ONNX Runtime (Transformers.js) computes from the
 * same weights.
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { ChatMessage, Edit } from '../../../src/runtime/chat/message.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { span } from '../../../src/runtime/core/span.js'
import type { AttentionPattern, AttentionRequest } from '../../../src/runtime/engine/attention.js'
import type { EngineRequest } from '../../../src/runtime/engine/engine.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { ownWords, piSample } from '../../../src/lab/pi-llm.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { largest, PRECISE } from './support/engines.js'
import { joined, OnnxModel, without, type OnnxPass } from './support/onnx-model.js'
import { widened } from './support/widened.js'

const builtin = fileURLToPath(new URL('../../../native-models/builtin/', import.meta.url))
const shipped = `${builtin}kvfold-tiny.gguf`
const { prompt } = piSample({ words: ownWords(), updates: 4, seed: 11 })
const messages: readonly ChatMessage[] = [{ role: 'user', content: prompt }]
const ID = conversationId('patterns')
let folder: string
let onnx: OnnxModel

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-patterns-'))
  writeFileSync(join(folder, 'f32.gguf'), widened(readFileSync(shipped)))
  onnx = await OnnxModel.load(`${builtin}onnx`)
})
afterAll(async () => {
  await onnx.dispose()
  rmSync(folder, { recursive: true })
})

describe.each([
  // The weights are equal. Only the order of sums differs, and llama.cpp's float32 angles, which matter at later positions.
  { weights: 'as F32', path: () => join(folder, 'f32.gguf'), tolerance: 1e-3 },
  // llama.cpp rounds the activations that F16 weights are multiplied with to F16, and the softmax of later layers magnifies that.
  { weights: 'as shipped, in F16', path: () => shipped, tolerance: 2e-2 },
])('patterns, weights $weights', ({ path, tolerance }) => {
  let engine: LlamaEngine

  beforeAll(async () => {
    engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), path(), { cells: 2048, attention: true, ...PRECISE })
  })
  afterAll(() => engine.dispose())

  const rendered = (edits: readonly Edit[] = []) => engine.format.render({ messages, edits }).tokens

  async function capture(request: Partial<EngineRequest>, queries: AttentionRequest['queries']) {
    const attention = { queries, keys: [], rows: true }
    const { message, attention: pattern } = await engine.respond({
      conversation: ID,
      messages,
      maxTokens: 1,
      ...request,
      attention,
    }).reply
    return { captured: pattern!, sampled: message.sampled! }
  }

  /** Compares every captured row with the row of the other engine's pass, whose first query stands at `first`. */
  function expectEqual(
    what: string,
    { layers, heads, queries, rows, skipped }: AttentionPattern,
    pass: OnnxPass,
    first = 0,
  ): void {
    const places = rows!.shape[3]!
    const asked = pass.logits.length / engine.modelInfo.vocabulary
    expect({ layers, heads, skipped }).toEqual({
      layers: pass.patterns.map((_, layer) => layer),
      heads: Array.from({ length: engine.modelInfo.heads }, (_, head) => head),
      skipped: [],
    })
    expect(rows!.axes).toEqual(['layer', 'head', 'query', 'place'])
    expect(rows!.shape).toEqual([layers.length, heads.length, queries.length, places])
    const worst = pass.patterns.map((pattern, layer) => {
      const keys = pattern.length / heads.length / asked
      const differences = heads.flatMap((head) =>
        Array.from(queries, (query, index) => {
          const ours = ((layer * heads.length + head) * queries.length + index) * places
          const theirs = (head * asked + query - first) * keys
          const seen = Math.min(keys, places)
          return largest(rows!.data.subarray(ours, ours + seen), pattern.subarray(theirs, theirs + seen))
        }),
      )
      return Math.max(...differences)
    })
    console.log(
      `${what}: ${queries.length} queries, ${places} places, largest difference by layer ${worst.map((one) => one.toExponential(1)).join(', ')}`,
    )
    expect(Math.max(...worst)).toBeLessThan(tolerance)
    // The patterns are not trivial: in some layer, some tokens look mainly at another token.
    const sharp = pass.patterns.map((pattern) => pattern.filter((weight) => weight > 0.5).length)
    expect(Math.max(...sharp)).toBeGreaterThan(queries.length / 2)
  }

  it('are equal on a whole PI-LLM prompt', async () => {
    const tokens = rendered()
    expect(tokens.length).toBeGreaterThan(550)
    const { captured } = await capture({}, { prompt: [span(0, tokens.length)] })
    expect(captured.queries.length).toBe(tokens.length)
    expectEqual('whole', captured, await onnx.run(tokens))
  })

  it('are equal with a marker in place of the older stream', async () => {
    const [edits, tokens] = [[fold()], rendered([fold()])]
    expect(tokens.length).toBeLessThan(0.7 * rendered().length)
    const { captured } = await capture({ edits, contract: 'exact' }, { prompt: [span(0, tokens.length)] })
    expect(captured.queries.length).toBe(tokens.length)
    expectEqual('folded', captured, await onnx.run(tokens))
    await engine.check('full')
  })

  it('are equal for generated tokens', async () => {
    const tokens = rendered()
    const { captured, sampled } = await capture({ maxTokens: 24 }, { generated: true })
    const all = Int32Array.from([...tokens, ...sampled.tokens])
    expect(captured.queries[0]).toBe(tokens.length)
    expect(captured.queries.length).toBeGreaterThan(20)
    expectEqual('generated', captured, await onnx.run(all))
  })

  it('are equal after a splice: hidden text keeps its positions, and the text after it has seen it', async () => {
    const [whole, edits] = [rendered(), [fold()]]
    const { holes } = engine.format.render({ messages, edits }).origin
    const { span: hole, marker } = holes[0]!
    const tokens = rendered(edits)
    const shift = whole.length - tokens.length
    const from = tokens.length - 40

    // Uses only its own cells, since another conversation's could come from a prefill of the spliced text.
    const mine = { conversation: conversationId('spliced'), tenant: 'splices' }
    await engine.respond({ ...mine, messages, maxTokens: 1 }).reply
    const { captured } = await capture({ ...mine, edits, contract: 'splice' }, { prompt: [span(from, tokens.length)] })

    const before = await onnx.run(whole.subarray(0, hole.start))
    const inPlace = await onnx.run(tokens.subarray(hole.start, hole.start + marker), { past: before.past, start: hole.start })
    const { past } = await onnx.run(whole.subarray(0, from + shift))
    const spliced = joined(inPlace.past, without(past, span(0, hole.end)))
    const pass = await onnx.run(tokens.subarray(from), { past: spliced, start: from + shift })
    expectEqual('spliced', captured, pass, from)
    await engine.check('full')
  })

  function fold(): Edit {
    const [start, end] = [prompt.indexOf('\n', prompt.indexOf('starts here')) + 1, Math.floor(prompt.length * 0.6)]
    const hidden = engine.snap(messages, [], 0, span(start, end))
    const replacement = `[folded f1a2b3: ${hidden.end - hidden.start} characters, restore_fragment shows them]`
    return { message: 0, span: hidden, replacement }
  }
})
