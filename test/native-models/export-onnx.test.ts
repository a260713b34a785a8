/**
 * Tests the recipe's ONNX export: it reproduces the shipped folder, and its graphs of other shapes compute the same as llama.cpp. Needs
 * python3 with NumPy.
 */
import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { openNative } from '../../src/runtime/native/binding.js'
import type { SyntheticShape } from '../../src/runtime/native/synthetic.js'
import { largest, llamaLogits } from '../lab/attention/support/engines.js'
import { OnnxModel } from '../lab/attention/support/onnx-model.js'
import { someTokens } from '../runtime/native/support/fixture.js'
import { slidingModel, tinyModel } from '../support/models.js'

const recipe = fileURLToPath(new URL('../../native-models/', import.meta.url))
/** Debian's NumPy needs Debian's Python, which may not be the first in the path. */
const pythons = [process.env['PYTHON'] ?? 'python3', '/usr/bin/python3']
const found = pythons.find((each) => spawnSync(each, ['-c', 'import numpy']).status === 0)
const missing = found === undefined
const python = found ?? 'python3'
let folder: string

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-onnx-'))
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

const run = (...args: string[]) => {
  const { status, stderr } = spawnSync(python, ['-m', 'train.export_onnx', ...args], { cwd: recipe, encoding: 'utf8' })
  return { status, stderr }
}

const FILES = ['config.json', 'generation_config.json', 'tokenizer.json', 'tokenizer_config.json', 'onnx/model.onnx']

describe.skipIf(missing)('the ONNX export', () => {
  it("makes the built-in model's folder, byte for byte", () => {
    const out = join(folder, 'builtin')
    expect(run('--out', out)).toEqual({ status: 0, stderr: '' })
    const differing = FILES.filter((file) => !readFileSync(join(out, file)).equals(readFileSync(join(recipe, 'builtin/onnx', file))))
    expect(differing).toEqual([])
  })

  const shapes: readonly (readonly [string, Partial<SyntheticShape>])[] = [
    ['grouped queries, an output of its own, no biases', { layers: 3, embedding: 128, heads: 4, kvHeads: 2, feedForward: 96 }],
    ['one head for keys and values', { layers: 1, embedding: 96, heads: 6, kvHeads: 1, ropeBase: 500 }],
    ['Qwen2: biases and the other rotary order', { architecture: 'qwen2', heads: 4, kvHeads: 2 }],
  ]
  it.each(shapes)('computes the same as llama.cpp: %s', async (name, shape) => {
    const path = await tinyModel(shape)
    const out = join(folder, name.replaceAll(/\W+/gu, '-'))
    expect(run('--gguf', path, '--out', out, '--no-tokenizer')).toEqual({ status: 0, stderr: '' })
    const onnx = await OnnxModel.load(out)
    const llama = await (await openNative({ gpu: 'cpu' })).loadModel(path)
    const tokens = someTokens(300)
    const { logits, patterns } = await onnx.run(tokens)
    const worst = largest(await llamaLogits(llama, tokens), logits)
    expect(worst).toBeLessThan(1e-3)
    expect(patterns.map(({ length }) => length)).toEqual(patterns.map(() => (shape.heads ?? 4) * 300 * 300))
    await llama.dispose()
    await onnx.dispose()
  })

  it('reads Q8_0: a scale and 32 bytes for each block', () => {
    const path = join(folder, 'q8.gguf')
    const u32 = (...values: number[]) => Buffer.from(Uint32Array.from(values).buffer)
    const u64 = (...values: number[]) => Buffer.from(BigUint64Array.from(values.map(BigInt)).buffer)
    const table = [Buffer.from('GGUF'), u32(3), u64(1, 0), u64(1), Buffer.from('w'), u32(2), u64(32, 2), u32(8), u64(0)]
    const block = (scale: number, value: (at: number) => number) => [
      Buffer.from(Uint16Array.of(scale).buffer),
      Buffer.from(Int8Array.from({ length: 32 }, (_, at) => value(at)).buffer),
    ]
    const header = Buffer.concat(table)
    const blocks = [...block(0x3800, (at) => at - 16), ...block(0xc000, () => 127)]
    writeFileSync(path, Buffer.concat([header, Buffer.alloc(-header.length & 31), ...blocks]))
    const print = `from train.gguf_read import read; import sys; print(read(sys.argv[1])[1]['w'].tolist())`
    const { stdout } = spawnSync(python, ['-c', print, path], { cwd: recipe, encoding: 'utf8' })
    // As a half, 0x3800 is 0.5 and 0xc000 is -2.
    expect(JSON.parse(stdout)).toEqual([Array.from({ length: 32 }, (_, at) => (at - 16) / 2), new Array<number>(32).fill(-254)])
  })

  it('refuses models that it would export wrongly', async () => {
    const foreign = run('--gguf', await tinyModel(), '--out', join(folder, 'foreign'))
    expect(foreign).toMatchObject({ status: 1, stderr: expect.stringContaining('SentencePiece') as string })
    const sliding = run('--gguf', await slidingModel(), '--out', join(folder, 'sliding'), '--no-tokenizer')
    expect(sliding).toMatchObject({ status: 1, stderr: expect.stringContaining('the architecture is cohere2') as string })
  })
})
