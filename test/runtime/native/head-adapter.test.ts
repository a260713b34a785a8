/** Tests reading tensors as floats, and adapters that take attention heads away: the merged model has zeros in the heads' columns, and no other change. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { freshConversation } from '../../../src/runtime/core/ids.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { loadAddon } from '../../../src/runtime/native/addon.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { writeHeadAdapter } from '../../../src/runtime/native/head-adapter.js'
import type { Native } from '../../../src/runtime/native/types.js'
import { merged } from '../../support/adapters.js'
import { TEST_GPU } from '../../support/device.js'
import { mambaModel, TINY, tinyModel } from '../../support/models.js'

const [LAYER, HEAD] = [1, 2]
const WIDTH = TINY.embedding / TINY.heads
const OUTPUT = `blk.${LAYER}.attn_output.weight`

let native: Native
let folder: string
beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
  folder = mkdtempSync(join(tmpdir(), 'kvfold-heads-'))
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

describe('a tensor as floats', () => {
  it('is the same in f32 and, up to its rounding, in f16', async () => {
    const whole = native.readTensor(await tinyModel(), OUTPUT)
    const half = native.readTensor(await tinyModel({ type: 'f16' }), OUTPUT)
    expect(whole.shape).toEqual([TINY.embedding, TINY.embedding])
    expect(half.shape).toEqual(whole.shape)
    for (const [at, value] of whole.values.entries())
      expect(Math.abs(value - half.values[at]!)).toBeLessThanOrEqual(2 ** -11 * Math.abs(value) + 2 ** -24)
  })

  it('is the scale times the numbers of a q8_0 block', async () => {
    const { addon } = await loadAddon(TEST_GPU)
    const numbers = Int8Array.from({ length: 32 }, (_, at) => 5 * at - 80)
    // 0x3800 is 0.5 in half precision.
    const block = new Uint8Array([0x00, 0x38, ...new Uint8Array(numbers.buffer)])
    expect([...addon.dequantise(8, block, 32)]).toEqual(Array.from(numbers, (value) => value / 2))
  })

  it('is refused by name where there is none', async () => {
    const model = await tinyModel()
    expect(() => native.readTensor(model, 'blk.9.attn_output.weight')).toThrow(`${model} has no tensor blk.9.attn_output.weight.`)
  })
})

describe('an adapter without heads', () => {
  it.each([0, 0.25])('leaves the share %d of what a head adds, and changes no other weight', async (left) => {
    const model = await tinyModel()
    const path = join(folder, `left-${left}.gguf`)
    await writeHeadAdapter(native, path, model, [{ layer: LAYER, head: HEAD }], left)
    const { values: before } = native.readTensor(model, OUTPUT)
    const { values: after } = native.readTensor(merged(model, [{ path, scale: 1 }]), OUTPUT)
    const isOfHead = (at: number) => Math.floor((at % TINY.embedding) / WIDTH) === HEAD
    for (const [at, value] of after.entries()) {
      const wanted = isOfHead(at) ? left * before[at]! : before[at]!
      expect(Math.abs(value - wanted)).toBeLessThanOrEqual(1e-7 * Math.abs(before[at]!))
    }
  })

  it('takes the whole attention away with all heads of all layers: then no token looks back', async () => {
    const model = await tinyModel()
    const path = join(folder, 'all.gguf')
    const heads = Array.from({ length: TINY.layers * TINY.heads }, (_, at) => ({
      layer: Math.floor(at / TINY.heads),
      head: at % TINY.heads,
    }))
    await writeHeadAdapter(native, path, model, heads)
    const engine = await LlamaEngine.load(native, model, { cells: 512, flashAttention: 'off', lora: [{ path }] })
    try {
      const logprobOf = async (content: string, scale: number) => {
        const { promptLogprobs } = await engine.respond({
          ...{ conversation: freshConversation(), messages: [{ role: 'user', content }], lora: [{ id: 0, scale }] },
          ...{ maxTokens: 0, promptLogprobs: 0, last: true },
        }).reply
        return promptLogprobs!.at(-1)!.logprob
      }
      const apart = async (scale: number) => Math.abs((await logprobOf('abcdefgh', scale)) - (await logprobOf('zyxwvugh', scale)))
      // The last tokens are the template's in both. The first words differ.
      expect(await apart(0)).toBeGreaterThan(1e-3)
      expect(await apart(1)).toBeLessThan(1e-4)
    } finally {
      await engine.dispose()
    }
  })

  it('is refused in a sentence for heads that are not there', async () => {
    const model = await tinyModel()
    const write = (heads: readonly { readonly layer: number; readonly head: number }[], of = model) =>
      writeHeadAdapter(native, join(folder, 'bad.gguf'), of, heads)
    await expect(write([])).rejects.toThrow('An adapter needs at least one attention head.')
    await expect(write([{ layer: 2, head: 0 }])).rejects.toThrow(`${model} has no layer 2; it has 2, from 0.`)
    await expect(write([{ layer: 0, head: 4 }])).rejects.toThrow(`Layer 0 of ${model} has no attention head 4; it has 4.`)
    await expect(
      write([
        { layer: 0, head: 1 },
        { layer: 0, head: 1 },
      ]),
    ).rejects.toThrow('Head 1 of layer 0 is named twice.')
    const recurrent = await mambaModel()
    await expect(write([{ layer: 0, head: 0 }], recurrent)).rejects.toThrow(/has no attention head 0; it has 0\.$|has no tensor/)
  })
})
