import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { openNative } from '../../../src/runtime/native/binding.js'
import { planContext } from '../../../src/runtime/native/context-options.js'
import { writeGguf, type GgufValue } from '../../../src/runtime/native/gguf-writer.js'
import type { ContextOptions, Native, Pooling } from '../../../src/runtime/native/types.js'
import { mambaModel, tinyModel } from '../../support/models.js'
import { feed, refused, someTokens } from './support/fixture.js'

let native: Native
let folder: string
let whole: Buffer

beforeAll(async () => {
  native = await openNative({ gpu: 'cpu' })
  folder = mkdtempSync(join(tmpdir(), 'kvfold-files-'))
  whole = readFileSync(await tinyModel())
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

function file(name: string, content: Uint8Array | string): string {
  const path = join(folder, name)
  writeFileSync(path, content)
  return path
}

describe('files that are not a model', () => {
  test('a missing file', async () => {
    const { message } = await refused('model/not-found', () => native.loadModel(join(folder, 'missing.gguf')))
    expect(message).toContain('missing.gguf')
  })

  test('a folder', async () => {
    expect((await refused('model/bad-file', () => native.loadModel(folder))).message).toContain('not a regular file')
  })

  test('a named pipe, without waiting for it', async () => {
    const path = join(folder, 'pipe.gguf')
    execFileSync('/bin/sh', ['-c', 'mkfifo "$0"', path])
    expect((await refused('model/bad-file', () => native.loadModel(path))).message).toContain('not a regular file')
  })

  test.each<[string, string]>([
    ['an empty file', ''],
    ['four letters', 'GGUF'],
    ['a text', 'This is a letter to a friend, not a model at all.'],
  ])('%s', async (_, text) => {
    expect((await refused('model/bad-file', () => native.loadModel(file('text.gguf', text)))).message).toContain('not a GGUF')
  })

  test('another version', async () => {
    const other = Buffer.from(whole)
    other.writeUInt32LE(1, 4)
    expect((await refused('model/bad-file', () => native.loadModel(file('v1.gguf', other)))).message).toContain('version 1')
  })

  test('a model cut anywhere', async () => {
    const path = file('cut.gguf', whole)
    const places = [whole.length - 1, whole.length - 40, Math.floor(whole.length / 2), 9000, 5000, 1000, 100, 30, 24]
    for (const place of places) {
      truncateSync(path, place)
      expect((await refused('model/bad-file', () => native.loadModel(path))).message).toMatch(/truncated|ends within/)
    }
  })

  test('any damaged byte of the header is refused without a crash', { timeout: 120_000 }, async () => {
    let loaded = 0
    for (let round = 0; round < 60; round++) {
      const damaged = Buffer.from(whole)
      const at = 8 + ((round * 7919) % 12_000)
      damaged[at] = (damaged[at] ?? 0) ^ (1 << (round % 8))
      try {
        const model = await native.loadModel(file('damaged.gguf', damaged))
        loaded++
        await model.dispose()
      } catch (error) {
        expect(error).toMatchObject({ name: 'KvfoldError', code: 'model/bad-file' })
      }
    }
    expect(loaded).toBeLessThan(60)
  })

  test.each<[string, Record<string, GgufValue>]>([
    ['no layers', { 'llama.block_count': { u32: 0 } }],
    ['a negative epsilon', { 'llama.attention.layer_norm_rms_epsilon': { f32: -1 } }],
    ['a token named twice', { 'tokenizer.ggml.tokens': { strings: ['a', 'b', 'a'] } }],
    ['an unknown architecture', { 'general.architecture': { string: 'nonsense' } }],
    ['an alignment of 12', { 'general.alignment': { u32: 12 } }],
  ])('%s', async (_, entries) => {
    const path = join(folder, 'odd.gguf')
    await writeGguf(
      path,
      new Map<string, GgufValue>([['general.architecture', { string: 'llama' }], ...Object.entries(entries)]),
      [],
    )
    await refused('model/bad-file', () => native.loadModel(path))
  })

  test.each([
    ['adapter', 'model/bad-file'],
    ['mmproj', 'native/unsupported'],
  ] as const)('a file of the kind %s', async (kind, code) => {
    const path = join(folder, 'kind.gguf')
    await writeGguf(path, new Map<string, GgufValue>([['general.type', { string: kind }]]), [])
    await refused(code, () => native.loadModel(path))
  })

  test('a part of a split model', async () => {
    const split = new Map<string, GgufValue>([
      ['general.architecture', { string: 'llama' }],
      ['split.count', { u16: 2 }],
    ])
    const first = join(folder, 'part-00001-of-00002.gguf')
    await writeGguf(first, split, [])
    expect((await refused('model/not-found', () => native.loadModel(first))).message).toContain('part-00002-of-00002.gguf')
    const second = join(folder, 'part-00002-of-00002.gguf')
    await writeGguf(second, split, [])
    expect((await refused('model/bad-file', () => native.loadModel(second))).message).toContain('give the first')
  })
})

describe('loading', () => {
  test('progress rises to 1', async () => {
    const seen: number[] = []
    const model = await native.loadModel(await tinyModel(), { onProgress: (progress) => seen.push(progress) })
    await model.dispose()
    expect(seen.length).toBeGreaterThan(0)
    expect(seen.at(-1)).toBe(1)
    expect(seen).toEqual(seen.toSorted((a, b) => a - b))
  })

  test('an error in the progress callback rejects the load', async () => {
    const load = native.loadModel(await tinyModel(), {
      onProgress: () => {
        throw new Error('mine')
      },
    })
    await expect(load).rejects.toThrow('mine')
  })

  test('a model loaded for its vocabulary alone makes no context', async () => {
    const model = await native.loadModel(await tinyModel(), { vocabOnly: true })
    expect(model.detokenize(model.tokenize('text'))).toBe('text')
    await refused('model/unsupported', () => model.createContext())
    await model.dispose()
  })

  test('a model without a chat template reports none', async () => {
    const model = await native.loadModel(await tinyModel({ chatTemplate: null }))
    expect(model.info.chatTemplate).toBeNull()
    await model.dispose()
  })

  test.each([-1, 0.5, NaN])('%s layers on the GPU are refused', async (gpuLayers) => {
    await refused('native/bad-argument', async () => native.loadModel(await tinyModel(), { gpuLayers }))
  })
})

describe('contexts', () => {
  test('a context larger than memory is refused before it is allocated', async () => {
    const model = await native.loadModel(await tinyModel())
    const before = process.memoryUsage().rss
    const { message } = await refused('memory/insufficient', () => model.createContext({ cells: 2 ** 30 }))
    expect(message).toMatch(/A context of 1073741824 cells would take [\d.]+ GiB of memory, but only [\d.]+ [GM]iB are free/)
    expect(process.memoryUsage().rss - before).toBeLessThan(2 ** 28)
    await model.dispose()
  })

  test.each<[string, ContextOptions]>([
    ['no cells', { cells: 0 }],
    ['half a cell', { cells: 1.5 }],
    ['cells beyond all positions', { cells: 2 ** 31 }],
    ['no sequences', { sequences: 0 }],
    ['257 sequences', { sequences: 257 }],
    ['a ubatch larger than the batch', { batch: 64, ubatch: 128 }],
    ['no batch', { batch: 0 }],
    ['no threads', { threads: 0 }],
    ['a thousand threads', { batchThreads: 1000 }],
    ['an unknown cache type', { keyType: 'q3' as never }],
    ['a block that does not divide the head', { keyType: 'q8_0' }],
    ['a quantised V without flash attention', { valueType: 'q8_0', flashAttention: 'off' }],
  ])('%s', async (_, options) => {
    const model = await native.loadModel(await tinyModel())
    await refused('native/bad-argument', () => model.createContext(options))
    await model.dispose()
  })

  test('256 sequences and every cache type work', async () => {
    const model = await native.loadModel(await tinyModel({ embedding: 128 }))
    for (const type of ['f32', 'f16', 'bf16', 'q8_0', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'iq4_nl'] as const) {
      const context = await model.createContext({ cells: 512, sequences: 256, keyType: type, valueType: type, threads: 1 })
      await feed(context, someTokens(20), 0, 255)
      expect(context.logits(19).every(Number.isFinite)).toBe(true)
      await context.dispose()
    }
    await model.dispose()
  })

  test('the recurrent states of many sequences count for the memory that a context needs', async () => {
    const model = await native.loadModel(await mambaModel())
    const options = { cells: 256, sequences: 64, threads: 1 }
    const { cache } = planContext(options, { info: model.info, gpuLayers: 0 }, [])
    const context = await model.createContext(options)
    expect(context.memory.cache).toBeGreaterThan(0)
    // llama.cpp logs two decimals of a MiB.
    expect(Math.abs(cache - context.memory.cache)).toBeLessThan(2 ** 20 / 100)
    await model.dispose()
  })

  test('a context reports the settings in force', async () => {
    const model = await native.loadModel(await tinyModel())
    const context = await model.createContext({ cells: 300, sequences: 3, batch: 100, ubatch: 20, threads: 1 })
    expect(context).toMatchObject({
      cells: 512,
      sequences: 3,
      batch: 100,
      ubatch: 20,
      canShift: true,
      flashAttention: true,
      submitted: 0,
    })
    // The product: 2 layers, 2 heads of 16, keys and values of 2 bytes.
    expect(context.memory.cache).toBe(512 * 2 * 2 * 16 * 2 * 2)
    expect(context.memory.compute).toBeGreaterThan(0)
    expect(context.memory.model).toBe(model.info.size)
    expect((await model.createContext({ cells: 256, flashAttention: 'off' })).flashAttention).toBe(false)
    expect((await model.createContext({ cells: 256, flashAttention: 'on' })).flashAttention).toBe(true)
    expect(await model.createContext({ cells: 4096, sequences: 1, ubatch: 3000, threads: 1 })).toMatchObject({
      ...{ batch: 3000, ubatch: 3000 },
    })
    await refused('native/bad-argument', () => model.createContext({ embeddings: 'sum' as Pooling }))
    await refused('native/bad-argument', () => model.createContext({ embeddings: 'mean', attention: true }))
    await refused('model/unsupported', () => model.createContext({ embeddings: 'rank' }))
    await model.dispose()
  })
})
