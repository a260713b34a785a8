/** Trials of models in a process of their own: what ends that process is refused, what stood its trial is not tried again. */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import type { Trial } from '../../../src/runtime/engine/tried-models.js'
import { kvfold, KVFOLD } from '../cli/support/process.js'
import { refused } from '../native/support/fixture.js'
import {
  ARRAY,
  F32,
  f32,
  I32,
  list,
  parseGguf,
  serializeGguf,
  STRING,
  text,
  U32,
  u32,
  type Gguf,
} from '../../outside/gguf-edit.js'
import { seedModels } from '../../outside/gguf-seeds.js'
import { tinyModel } from '../../support/models.js'
import { moduleOf } from '../../support/program.js'
import { synthesizeOther } from '../../support/synthetic-others.js'
import { LONG } from '../../support/long.js'

/** What is compiled starts processes that are compiled, too. */
const { proveModel } = (await import(
  `../../../${moduleOf('runtime/engine/tried-models')}`
)) as typeof import('../../../src/runtime/engine/tried-models.js')

const BOOL = 7
let folder: string
let file: string
/** A Gemma 3 whose layers all have a window: it loads, and ends the process at its first shift. */
let deadly: string
let seeds: ReadonlyMap<string, Gguf>

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-trial-'))
  file = join(folder, 'cache', 'tried-models.json')
  seeds = new Map((await seedModels(join(folder, 'seeds'))).map(({ name, gguf }) => [name, gguf]))
  const windowed = join(folder, 'windowed.gguf')
  await synthesizeOther(windowed, 'gemma3')
  const { entries, tensors } = parseGguf(readFileSync(windowed))
  const all = list(BOOL, Buffer.from([1, 1]))
  const changed = entries.map((entry) =>
    entry.key.endsWith('sliding_window_pattern') ? { ...entry, type: ARRAY, value: all } : entry,
  )
  deadly = join(folder, 'deadly.gguf')
  writeFileSync(deadly, serializeGguf({ entries: changed, tensors }).bytes)
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

const trial = (path: string, change: Partial<Trial> = {}): Trial => ({
  path,
  backend: { gpu: 'cpu', release: 'v0.5.0' },
  version: '1',
  options: { threads: 1 },
  ...change,
})
const tried = (): string[] => Object.keys((JSON.parse(readFileSync(file, 'utf8')) as { tried: object }).tried)

describe('proving a model', () => {
  test('a sound one is remembered, by its file, its options and the versions', { timeout: 120_000 }, async () => {
    const path = join(folder, 'sound.gguf')
    writeFileSync(path, readFileSync(await tinyModel()))
    await proveModel(trial(path), file)
    expect(tried()).toHaveLength(1)
    const [first] = tried()
    const remembered = readFileSync(file, 'utf8')
    await proveModel(trial(path), file)
    // Nothing was tried anew, or the file would have another time.
    expect(readFileSync(file, 'utf8')).toBe(remembered)
    expect(tried()).toEqual([first])
    await proveModel(trial(path, { version: '2' }), file)
    await proveModel(trial(path, { options: { threads: 1, flashAttention: 'off' } }), file)
    expect(tried()).toHaveLength(3)
    utimesSync(path, 1, 1)
    await proveModel(trial(path), file)
    expect(tried()).toHaveLength(4)
  })

  test('one that ends the process is refused with llama.cpp’s last words, each time', async () => {
    for (let time = 0; time < 2; time++) {
      const { message } = await refused('model/bad-file', () => proveModel(trial(deadly), file))
      expect(message).toContain(deadly)
      expect(message).toContain('SIGABRT')
      expect(message).toMatch(/ggml-backend\.cpp:\d+: GGML_ASSERT\(buffer\) failed/)
    }
  })

  const number = (value: number) => [U32, u32(value)] as const
  const numbers = (...values: readonly number[]) => [ARRAY, list(I32, Buffer.concat(values.map(u32)))] as const
  /** Values that cannot be. The first ones are tried in every run. */
  const VALUES: readonly [model: string, key: string, type: number, value: Buffer][] = [
    ['qwen2', 'rope.dimension_count', ...number(8)],
    ['llama', 'expert_used_count', ...number(2)],
    ['jamba', 'attention.head_count_kv', ...numbers(0, 0)],
    ['bert', 'attention.layer_norm_epsilon', F32, f32(-1)],
    ['qwen2', 'attention.head_count', ...number(6)],
    ['llama', 'attention.head_count_kv', ...number(3)],
    ['llama', 'expert_count', ...number(2048)],
    ['llama', 'block_count', ...number(513)],
    ['llama', 'rope.scaling.type', STRING, text('nonsense')],
    ['llama', 'attention.layer_norm_rms_epsilon', F32, f32(NaN)],
    ['lfm2', 'shortconv.l_cache', ...number(1)],
    ['qwen2vl', 'rope.dimension_sections', ...numbers(5, 5, 5, 5)],
  ]
  test.each(LONG ? VALUES : VALUES.slice(0, 4))(
    '%s whose %s cannot be is refused',
    { timeout: 60_000 },
    async (name, key, type, value) => {
      const { entries, tensors } = seeds.get(name)!
      const said = `${name}.${key}`
      const changed = [...entries.filter((entry) => entry.key !== said), { key: said, type, value }]
      const path = join(folder, 'changed.gguf')
      writeFileSync(path, serializeGguf({ entries: changed, tensors }).bytes)
      const options = { threads: 1, embeddings: name === 'bert' ? 'alone' : 'beside' } as const
      await refused('model/bad-file', () => proveModel(trial(path, { options }), file))
    },
  )

  test('errors arrive as they are', async () => {
    const { message } = await refused('model/not-found', () => proveModel(trial(join(folder, 'none.gguf')), file))
    expect(message).toContain('none.gguf')
  })

  test('a memory that cannot be read or written costs time only', async () => {
    const path = await tinyModel()
    const broken = join(folder, 'broken.json')
    writeFileSync(broken, '{"tried": [')
    await proveModel(trial(path), broken)
    expect(readFileSync(broken, 'utf8')).toContain('"tried": {')
    const blocked = join(folder, 'blocked')
    mkdirSync(blocked)
    await proveModel(trial(path), blocked)
  })

  test('cancelling ends the process', async () => {
    const signal = AbortSignal.timeout(150)
    await refused('engine/cancelled', () => proveModel(trial(builtinModel(), { version: 'other', signal }), file))
  })
})

describe('kvfold', () => {
  test.each([
    ['run', '--prompt', 'Hello', '--gpu', 'cpu', '--model'],
    ['chat', '--gpu', 'cpu', '--model'],
    ['calibrate', '--quick', '--gpu', 'cpu', '--model'],
  ])('%s refuses a model that would end it', async (...words) => {
    const { code, stderr } = await kvfold([...words, deadly], { environment: { XDG_CACHE_HOME: join(folder, 'xdg') } })
    expect(stderr).toContain('ended the process that tried it (SIGABRT)')
    expect(code).toBe(1)
  })

  test('model info loads a model elsewhere first', async () => {
    const { entries, tensors } = seeds.get('llama')!
    const path = join(folder, 'unloadable.gguf')
    const experts = { key: 'llama.expert_used_count', type: U32, value: u32(2) }
    writeFileSync(path, serializeGguf({ entries: [...entries, experts], tensors }).bytes)
    const { code, stderr } = await kvfold(['model', 'info', path], { environment: { XDG_CACHE_HOME: join(folder, 'xdg') } })
    expect(stderr).toContain('ended the process that tried it (SIGABRT)')
    expect(code).toBe(1)
  })
})

describe('kvfold serve', () => {
  test('refuses the model, and does not end by a signal', async () => {
    const environment = { XDG_CACHE_HOME: join(folder, 'xdg') }
    const { code, stderr } = await kvfold(['serve', '--gpu', 'cpu', '--port', '0', '--store', folder, '--model', deadly], {
      environment,
    })
    expect(code).toBe(1)
    expect(stderr).toContain('ended the process that tried it (SIGABRT)')
  })

  test('goes on serving another one when a model it loads on demand is deadly', { timeout: 120_000 }, async () => {
    const words = ['serve', '--gpu', 'cpu', '--port', '0', '--store', folder, '--log-level', 'silent']
    const models = ['--model', `good=${await tinyModel()}`, '--model', `bad=${deadly}`]
    const child = spawn(process.execPath, [...KVFOLD, ...words, ...models], {
      env: { ...process.env, XDG_CACHE_HOME: join(folder, 'xdg') },
    })
    const [line] = (await once(child.stdout.setEncoding('utf8'), 'data')) as [string]
    const where = /at (\S+)/.exec(line)![1]!
    const ask = async (model: string) => {
      const body = JSON.stringify({ model, max_tokens: 4, messages: [{ role: 'user', content: 'Hello' }] })
      const headers = { 'content-type': 'application/json' }
      const answer = await fetch(`${where}/v1/chat/completions`, { method: 'POST', headers, body })
      return { status: answer.status, text: await answer.text() }
    }
    try {
      expect((await ask('good')).status).toBe(200)
      const bad = await ask('bad')
      expect(bad.status).toBe(422)
      expect(bad.text).toContain('GGML_ASSERT(buffer) failed')
      expect((await ask('good')).status).toBe(200)
    } finally {
      child.kill('SIGINT')
      await once(child, 'close')
    }
  })
})
