/**
 * Tests files that would make llama.cpp end the process. Each is refused before it is loaded; the error names the place, the value and the
 * valid ones.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { openNative } from '../../../src/runtime/native/binding.js'
import type { Native } from '../../../src/runtime/native/types.js'
import { readStrings, serializeGguf, STRING, strings, text, type Gguf } from '../../outside/gguf-edit.js'
import { seedModels } from '../../outside/gguf-seeds.js'
import { refused } from './support/fixture.js'

let native: Native
let folder: string
let models: ReadonlyMap<string, Gguf>

beforeAll(async () => {
  native = await openNative({ gpu: 'cpu' })
  folder = mkdtempSync(join(tmpdir(), 'kvfold-gguf-'))
  models = new Map((await seedModels(folder)).map(({ name, gguf }) => [name, gguf]))
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

/** Writes a changed copy of a sound model, and returns its path. */
function changed(name: string, change: (gguf: Gguf) => void): string {
  const { entries, tensors } = models.get(name)!
  const copy: Gguf = {
    entries: entries.map((entry) => ({ ...entry })),
    tensors: tensors.map((tensor) => ({ ...tensor, dims: [...tensor.dims] })),
  }
  change(copy)
  const path = join(folder, 'changed.gguf')
  writeFileSync(path, serializeGguf(copy).bytes)
  return path
}

function set({ entries }: Gguf, key: string, type: number, value: Buffer): void {
  const at = entries.findIndex((entry) => entry.key === key)
  if (at === -1) entries.push({ key, type, value })
  else entries[at] = { key, type, value }
}

/** Gives a tensor another type, with as many bytes as that type needs. */
function retype({ tensors }: Gguf, name: string, type: number, bytes: number, elements: number): void {
  const tensor = tensors.find((one) => one.name === name)!
  tensor.type = type
  tensor.data = Buffer.alloc(Math.ceil(Number(tensor.dims.reduce((all, one) => all * one, 1n)) / elements) * bytes)
}

test('every seed model is sound', async () => {
  for (const name of models.keys()) {
    const model = await native.loadModel(changed(name, () => undefined))
    expect(model.info.layers).toBeGreaterThan(0)
    await model.dispose()
  }
})

describe('tensors', () => {
  const integers = [
    ['i8', 24, 1],
    ['i16', 25, 2],
    ['i32', 26, 4],
    ['i64', 27, 8],
    ['f64', 28, 8],
  ] as const
  const weights = ['token_embd.weight', 'output_norm.weight', 'output.weight', 'blk.0.attn_q.weight', 'blk.1.ffn_down.weight']
  test.each(weights.flatMap((tensor) => integers.map(([name, type, bytes]) => [tensor, name, type, bytes] as const)))(
    '%s of %s',
    async (tensor, name, type, bytes) => {
      const path = changed('llama', (gguf) => {
        retype(gguf, tensor, type, bytes, 1)
      })
      const { message } = await refused('model/bad-file', () => native.loadModel(path))
      expect(message).toContain(`the tensor ${tensor} has type ${name}`)
      expect(message).toContain(path)
    },
  )

  test.each([
    ['llama', 'blk.0.attn_norm.weight'],
    ['qwen2', 'blk.0.attn_q.bias'],
    ['gemma3', 'blk.1.post_ffw_norm.weight'],
    ['mamba', 'blk.0.ssm_conv1d.weight'],
    ['mamba', 'blk.0.ssm_a'],
    ['lfm2', 'blk.0.shortconv.conv.weight'],
    ['bert', 'token_types.weight'],
  ])('%s: %s of f16 is refused where llama.cpp needs f32', async (name, tensor) => {
    const path = changed(name, (gguf) => {
      retype(gguf, tensor, 1, 2, 1)
    })
    expect((await refused('model/bad-file', () => native.loadModel(path))).message).toContain(
      `${tensor} has type f16, but llama.cpp needs f32 there`,
    )
  })

  test.each([
    ['f16', 1, 2, 1],
    ['bf16', 30, 2, 1],
    ['q8_0', 8, 34, 32],
    ['q4_0', 2, 18, 32],
  ] as const)('a matrix of %s is accepted', async (_, type, bytes, elements) => {
    const path = changed('llama', (gguf) => {
      retype(gguf, 'blk.0.attn_q.weight', type, bytes, elements)
    })
    await (await native.loadModel(path)).dispose()
  })

  test('an empty tensor and a repeated one are refused', async () => {
    const empty = changed('llama', ({ tensors }) => {
      tensors[3]!.dims[1] = 0n
    })
    expect((await refused('model/bad-file', () => native.loadModel(empty))).message).toContain('is empty')
    const twice = changed('llama', ({ tensors }) => {
      tensors.push({ ...tensors[3]! })
    })
    expect((await refused('model/bad-file', () => native.loadModel(twice))).message).toContain('twice')
  })
})

describe('vocabularies', () => {
  const tokens = (gguf: Gguf, change: (texts: string[]) => void) => {
    const entry = gguf.entries.find(({ key }) => key === 'tokenizer.ggml.tokens')!
    const texts = readStrings(entry.value)
    change(texts)
    entry.value = strings(texts)
  }
  test.each<[string, string, (texts: string[]) => void]>([
    ['the same text twice', 'llama', (texts) => (texts[7] = texts[9]!)],
    ['the same text up to a NUL', 'llama', (texts) => (texts[7] = `${texts[9]!}\0x`)],
    ['an empty one and its stand-in', 'llama', (texts) => ([texts[7], texts[9]] = ['', '[EMPTY_7]'])],
  ])('%s', async (_, name, change) => {
    const path = changed(name, (gguf) => {
      tokens(gguf, change)
    })
    expect((await refused('model/bad-file', () => native.loadModel(path))).message).toMatch(
      /damaged vocabulary: it names token \d+ .* twice/,
    )
  })

  test('WordPiece with byte tokens is refused', async () => {
    const path = changed('llama-spm', (gguf) => {
      set(gguf, 'tokenizer.ggml.model', STRING, text('bert'))
    })
    expect((await refused('model/bad-file', () => native.loadModel(path))).message).toContain('of type 6 (byte)')
  })

  test('RWKV without byte tokens is refused', async () => {
    const path = changed('llama-spm', (gguf) => {
      set(gguf, 'tokenizer.ggml.model', STRING, text('rwkv'))
    })
    expect((await refused('model/bad-file', () => native.loadModel(path))).message).toContain('of the 256 bytes')
  })
})

test('an error quotes a long text in few words', async () => {
  const path = changed('llama', (gguf) => {
    set(gguf, 'tokenizer.ggml.model', STRING, text('a'.repeat(70_000)))
  })
  const { message } = await refused('model/bad-file', () => native.loadModel(path))
  expect(message.length).toBeLessThan(3000)
  expect(message).toContain('aaaa')
})
