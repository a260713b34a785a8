/**
 * Keys that llama.cpp turned to other positions. A text that was moved as a whole predicts what it predicted where it was, wherever kvfold turns keys;
 * where kvfold does not, llama.cpp would spoil them.
 */
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Addon, loadAddon } from '../../../src/runtime/native/addon.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { NativeContext } from '../../../src/runtime/native/context.js'
import type { Native } from '../../../src/runtime/native/types.js'
import { parseGguf, serializeGguf, STRING, text } from '../../outside/gguf-edit.js'
import { fromBundle } from '../../support/bundle.js'
import { TEST_GPU } from '../../support/device.js'
import { layerNormModel, slidingModel, tinyModel } from '../../support/models.js'
import { largestDifference } from '../../support/predictions.js'
import { type OtherArchitecture, synthesizeOther } from '../../support/synthetic-others.js'
import { feed, someTokens } from './support/fixture.js'

let native: Native
let addon: Addon
let folder: string
beforeAll(async () => {
  native = await openNative({ gpu: TEST_GPU })
  addon = (await loadAddon(TEST_GPU)).addon
  folder = mkdtempSync(join(tmpdir(), 'kvfold-turned-'))
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

async function other(architecture: OtherArchitecture): Promise<string> {
  const path = join(folder, `${architecture}.gguf`)
  await synthesizeOther(path, architecture)
  return path
}

/** The same tensors under the name of another architecture that has them. */
function renamed(path: string, from: string, to: string): string {
  const { entries, tensors } = parseGguf(readFileSync(path))
  const changed = entries
    .filter(({ key }) => !/pooling_type|classifier/.test(key))
    .map((entry) =>
      entry.key === 'general.architecture'
        ? { key: entry.key, type: STRING, value: text(to) }
        : { ...entry, key: entry.key.replace(`${from}.`, `${to}.`) },
    )
  const out = join(folder, `${to}.gguf`)
  writeFileSync(out, serializeGguf({ entries: changed, tensors: tensors.filter(({ name }) => !name.startsWith('cls')) }).bytes)
  return out
}

/** How far the logits behind a text that a shift moved are from those behind the same text where it was computed. */
async function turnedApart(path: string): Promise<{ readonly off: number; readonly canShift: boolean }> {
  const [count, by] = [20, 11]
  const model = await native.loadModel(path)
  const sliding = model.info.slidingWindow > 0
  const context = await model.createContext({
    ...{ cells: 256, sequences: 2, threads: 1, keyType: 'f32', valueType: 'f32', flashAttention: 'off' },
    ...(sliding ? { fullSlidingWindow: true } : {}),
  })
  try {
    await feed(context, someTokens(count), 0, 0)
    await feed(context, someTokens(count), 0, 1)
    addon.shift((context as unknown as Pick<NativeContext, 'idle'>).idle, 0, 0, count, by)
    const next: Float32Array[] = []
    for (const [sequence, moved] of [by, 0].entries()) {
      await feed(context, [3], moved + count, sequence)
      next.push(Float32Array.from(context.logits(0)))
    }
    return { off: largestDifference(next[0]!, next[1]!), canShift: context.canShift }
  } finally {
    await model.dispose()
  }
}

describe('keys that are turned', () => {
  test.each<[name: string, model: () => Promise<string>]>([
    ['llama', () => tinyModel()],
    ['qwen2', () => tinyModel({ architecture: 'qwen2' })],
    ['command-r', () => layerNormModel()],
    ['qwen3', async () => renamed(await other('qwen3'), 'qwen3', 'qwen3')],
    ['gemma3', () => other('gemma3')],
    ['baichuan of 32 layers', async () => renamed(await tinyModel({ layers: 32 }), 'llama', 'baichuan')],
  ])('of %s are those of their new positions', async (_, model) => {
    const { off, canShift } = await turnedApart(await model())
    expect(canShift).toBe(true)
    expect(off).toBeLessThan(1e-3)
  })

  test.each<[name: string, model: () => Promise<string>]>([
    ['cohere2', () => slidingModel()],
    ['smollm3', async () => renamed(await tinyModel({ layers: 4 }), 'llama', 'smollm3')],
    ['baichuan of 2 layers', async () => renamed(await tinyModel(), 'llama', 'baichuan')],
    ['maincoder', async () => renamed(await other('qwen3'), 'qwen3', 'maincoder')],
    ['hunyuan-dense', async () => renamed(await other('qwen3'), 'qwen3', 'hunyuan-dense')],
  ])('of %s would be others, and are not turned', async (_, model) => {
    const { off, canShift } = await turnedApart(await model())
    expect(off).toBeGreaterThan(0.02)
    expect(canShift).toBe(false)
  })
})

/** Sources of llama.cpp in which a key may be turned otherwise than by a shift, and why it is not, or what of `fixedKeys` says so. */
const JUDGED: Readonly<Record<string, string>> = {
  afmoe: 'fixed: layers without rotary positions',
  baichuan: 'fixed, but the 7B one',
  bailingmoe3: 'hybrid',
  cohere2: 'fixed: layers without rotary positions',
  cohere2moe: 'fixed: layers without rotary positions',
  deci: 'turned in every layer that has attention',
  deepseek2: 'turned in every layer, by other pairs if it is deepseek2-ocr, which is fixed',
  deepseek32: 'fixed: an index',
  deepseek4: 'cannot be cut at all',
  dflash: 'a draft for speculation, never loaded',
  dots3note: 'fixed: an index',
  'exaone-moe': 'fixed: layers without rotary positions',
  exaone4: 'fixed with a window: layers without rotary positions',
  gemma3n: 'turned in every layer that has keys',
  gemma4: 'turned in every layer that has keys',
  'glm-dsa': 'fixed: an index',
  'glm4-moe': 'turned in every layer, one way or the other',
  glm4: 'turned in every layer, one way or the other',
  'granite-hybrid': 'hybrid',
  'granite-swa': 'its file has a rope_pattern, which a shift obeys',
  'granite-switch': 'sets the rope_pattern, which a shift obeys',
  granite: 'sets the rope_pattern, which a shift obeys',
  'hunyuan-moe': 'fixed: a norm with weights behind the turn',
  'hunyuan-vl': 'fixed: a norm with weights behind the turn',
  'hy-v4': 'fixed: an index',
  llama: 'a norm without weights behind the turn, which turns with the key',
  llama4: 'fixed: layers without rotary positions',
  maincoder: 'fixed: a norm with weights behind the turn',
  maple: 'fixed: layers without rotary positions',
  mellum: 'turned in every layer, one way or the other',
  'minimax-01': 'hybrid',
  'minimax-m3': 'turned in every layer, and so is the index in every layer that has one',
  'muse-glimmer': 'fixed: layers without rotary positions',
  olmo2: 'turned in every layer, one way or the other',
  qwen4exp: 'fixed: positions of several dimensions',
  smallthinker: 'fixed with a window: layers without rotary positions',
  smollm3: 'fixed: layers without rotary positions',
  talkie: 'a norm without weights behind the turn, which turns with the key',
}

/** Whether a source turns something under a condition, norms a key that was turned, or keeps other keys for an index. */
function isToBeJudged(source: string): boolean {
  const open: boolean[] = []
  let turned = false
  for (const line of source.split('\n')) {
    if (/build_attn\w*\(/.test(line)) turned = false
    if (/^\s*Kcur = .*(?:build_norm|rms_norm)/.test(line) && turned) return true
    if (/=\s*(?:ggml|build)_rope\w*\(/.test(line)) {
      if (open.includes(true)) return true
      turned ||= /\b(?:Kcur|k)\b.*=/.test(line)
    }
    for (const brace of line.match(/[{}]/g) ?? [])
      if (brace === '{') open.push(/\b(?:if|else|switch)\b/.test(line))
      else open.pop()
  }
  return /indexer_k|inp_attn_dsa/.test(source)
}

test('every source of llama.cpp that may turn keys in a way of its own has been judged', () => {
  const folder = fromBundle('src/models')
  const found = readdirSync(folder).filter(
    (name) => name.endsWith('.cpp') && isToBeJudged(readFileSync(join(folder, name), 'utf8')),
  )
  expect(found.map((name) => name.slice(0, -4)).sort()).toEqual(Object.keys(JUDGED).sort())
})
