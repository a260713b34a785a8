/** Tests a server of a folder of models over HTTP: `kvfold serve --models`, with models loaded, unloaded and pulled by clients. */
import { createHash } from 'node:crypto'
import { copyFileSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { tinyModel } from '../../support/models.js'
import { kvfold, kvfoldHere } from '../cli/support/process.js'
import { type FakeHub, fakeHub } from '../models/support/hub.js'
import { type ServerProcess, serverProcess } from './support/process.js'

let folder: string
let cache: string
let hub: FakeHub
let server: ServerProcess
let bytes: Buffer

const sha256 = (file: string): string => createHash('sha256').update(readFileSync(file)).digest('hex')

async function send(path: string, body?: object): Promise<{ status: number; body: any; text: string }> {
  const answer = await fetch(
    server.url + path,
    body === undefined ? {} : { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) },
  )
  const text = await answer.text()
  const isJson = answer.headers.get('content-type')?.startsWith('application/json') === true
  return { status: answer.status, body: isJson ? JSON.parse(text) : null, text }
}

const states = async (): Promise<Record<string, string>> => {
  const { data } = (await send('/models')).body as { data: { id: string; status: { value: string } }[] }
  return Object.fromEntries(data.map(({ id, status }) => [id, status.value]))
}
const until = async (name: string, value: string) => {
  for (let tries = 0; tries < 200 && (await states())[name] !== value; tries++)
    await new Promise((resolve) => setTimeout(resolve, 50))
  expect((await states())[name]).toBe(value)
}
const chat = (model: string, content: string, more: object = {}) =>
  send('/v1/chat/completions', {
    ...{ model, messages: [{ role: 'user', content }], max_tokens: 2, temperature: 0, kvfold: { ledger: true } },
    ...more,
  })

beforeAll(async () => {
  const model = await tinyModel()
  folder = mkdtempSync(join(tmpdir(), 'kvfold-router-'))
  cache = mkdtempSync(join(tmpdir(), 'kvfold-cache-'))
  copyFileSync(model, join(folder, 'small.gguf'))
  copyFileSync(await tinyModel({ seed: 2 }), join(folder, 'other.gguf'))
  bytes = readFileSync(await tinyModel({ seed: 3 }))
  hub = await fakeHub({ 'acme/Third-GGUF': { 'third-F32.gguf': { bytes } } })
  process.env['HF_ENDPOINT'] = hub.url
  process.env['XDG_CACHE_HOME'] = cache
  const words = [
    '--models',
    folder,
    '--models-max',
    '1',
    '--alias',
    'gpt=small',
    '--attention',
    'off',
    '--context',
    '1024',
    '--store',
    join(cache, 'store'),
  ]
  server = await serverProcess(words)
}, 180_000)
afterAll(async () => {
  await server.kill()
  await hub.close()
  delete process.env['HF_ENDPOINT']
  delete process.env['XDG_CACHE_HOME']
  for (const each of [folder, cache]) rmSync(each, { recursive: true })
})

describe('a server of a folder', { timeout: 120_000 }, () => {
  it('loads a model when it is asked, one at a time, and its threads outlive that', async () => {
    expect(await states()).toEqual({ other: 'unloaded', small: 'unloaded' })
    const first = await chat('small', 'The first words of this conversation.')
    expect(first.status).toBe(200)
    expect(await states()).toEqual({ other: 'unloaded', small: 'loaded' })
    const second = await chat('other', 'The first words of this conversation.')
    expect(second.status).toBe(200)
    expect(await states()).toEqual({ other: 'loaded', small: 'unloaded' })
    const messages = [
      { role: 'user', content: 'The first words of this conversation.' },
      first.body.choices[0].message,
      { role: 'user', content: 'And more.' },
    ]
    const goneOn = await chat('gpt', '', { messages })
    expect(goneOn.body).toMatchObject({ model: 'small', kvfold: { thread: first.body.kvfold.thread } })
    expect(second.body.kvfold.thread).not.toBe(first.body.kvfold.thread)
    // The thread of the one model is none of the other: nothing of its cells is used.
    const elsewhere = await chat('other', '', { messages })
    expect(elsewhere.body.kvfold.thread).not.toBe(first.body.kvfold.thread)
    expect(elsewhere.body.usage.prompt_tokens_details.cached_tokens).toBe(0)
  })

  it('answers requests for both at once, one model after the other', async () => {
    const answers = await Promise.all(['small', 'other', 'small', 'other'].map((name) => chat(name, `Hello ${name}.`)))
    expect(answers.map(({ status, body }) => [status, body.model])).toEqual(
      ['small', 'other', 'small', 'other'].map((name) => [200, name]),
    )
  })

  it('loads and unloads models by the router’s routes', async () => {
    await chat('other', 'Hi')
    const unloaded = { error: { message: expect.stringContaining('small is not loaded') as string } }
    expect(await send('/props?model=small&autoload=false')).toMatchObject({ status: 400, body: unloaded })
    expect(await send('/props?model=other&autoload=false')).toMatchObject({ status: 200, body: { model_alias: 'other' } })
    expect(await send('/props?autoload=0')).toMatchObject({ status: 200, body: { build_info: expect.any(String) as string } })
    expect(await states()).toMatchObject({ small: 'unloaded' })
    expect(await send('/models/load', { model: 'small' })).toMatchObject({ status: 200, body: { success: true } })
    await until('small', 'loaded')
    expect(await send('/models/load', { model: 'small' })).toMatchObject({ status: 400 })
    expect(await send('/models/unload', { model: 'other' })).toMatchObject({ status: 400 })
    expect(await send('/models/unload', { model: 'nobody' })).toMatchObject({ status: 404 })
    const long = chat('small', 'Go on.', { max_tokens: 1000, kvfold: { grammar: 'root ::= [a-z ] root' } })
    const slots = async () => (await send('/slots?model=small')).body as { is_processing: boolean }[]
    while (!(await slots()).some(({ is_processing: isBusy }) => isBusy)) await new Promise((resolve) => setTimeout(resolve, 5))
    expect(await send('/models/unload', { model: 'small' })).toMatchObject({
      status: 409,
      body: { error: { code: 'model/busy', message: expect.stringContaining('small answers 1') as string } },
    })
    expect((await long).body.usage.completion_tokens).toBe(1000)
    expect(await send('/models/unload', { model: 'gpt' })).toMatchObject({ status: 200, body: { success: true } })
    expect(await states()).toEqual({ other: 'unloaded', small: 'unloaded' })
  })

  it('is a router for llama-server’s page: it says what it is, and tells each change of a model', async () => {
    for (const model of ['other', 'small']) await send('/models/unload', { model })
    expect((await send('/props')).body).toMatchObject({ role: 'router' })
    const leaving = new AbortController()
    const events: { model: string; event: string; data: object }[] = []
    const feed = await fetch(`${server.url}/models/sse`, { signal: leaving.signal })
    expect([feed.status, feed.headers.get('content-type')]).toEqual([200, 'text/event-stream; charset=utf-8'])
    const reading = (async () => {
      const decoder = new TextDecoder()
      let rest = ''
      for await (const chunk of feed.body!) {
        const lines = (rest + decoder.decode(chunk as Uint8Array, { stream: true })).split('\n\n')
        rest = lines.pop()!
        for (const line of lines) if (line.startsWith('data: ')) events.push(JSON.parse(line.slice(6)) as (typeof events)[number])
      }
    })().catch(() => undefined)
    const told = () => events.map(({ model, event, data }) => [model, event, data] as const)
    const change = (model: string, status: string, more: object = {}) => [model, 'status_change', { status, ...more }] as const
    await send('/models/load', { model: 'small' })
    await expect.poll(told, { timeout: 30_000 }).toEqual([change('small', 'loading'), change('small', 'loaded')])
    expect((await send('/props?model=small&autoload=false')).body).not.toHaveProperty('role')
    expect((await send('/models')).body.data).toMatchObject([
      { id: 'other', status: { value: 'unloaded' }, architecture: { input_modalities: ['text'] } },
      { id: 'small', status: { value: 'loaded' }, architecture: { input_modalities: ['text'] } },
    ])
    await send('/models/unload', { model: 'small' })
    copyFileSync(join(import.meta.dirname, 'router.test.ts'), join(folder, 'odd.gguf'))
    events.length = 0
    // The server looks into its folder for a name that it does not know.
    expect((await send('/models/load', { model: 'odd' })).status).toBe(200)
    await expect.poll(told, { timeout: 30_000 }).toEqual([change('odd', 'loading'), change('odd', 'unloaded', { exit_code: 1 })])
    leaving.abort()
    await reading
    rmSync(join(folder, 'odd.gguf'))
    await expect.poll(states, { timeout: 5000, interval: 200 }).toEqual({ other: 'unloaded', small: 'unloaded' })
  })

  it('describes itself without a change of what is loaded', async () => {
    await chat('small', 'Hi')
    await chat('other', 'Hi')
    const before = await states()
    const { status, body } = await send('/props')
    expect([status, body.model_alias, body.is_sleeping, await states()]).toEqual([200, 'other', false, before])
    expect(body).toMatchObject({ default_generation_settings: { n_ctx: 1024 }, model_ftype: 'F32', total_slots: 4 })
    const { data } = (await send('/models')).body as { data: { id: string; meta?: Record<string, unknown> }[] }
    const [other, small] = ['other', 'small'].map((name) => data.find(({ id }) => id === name)!.meta)
    expect(small).toBeUndefined()
    expect(other).toMatchObject({ n_ctx: 1024, n_ctx_train: 4096, vocab_type: 2, ftype: 'F32' })
    const weights = readFileSync(join(folder, 'other.gguf')).length
    for (const name of ['n_vocab', 'n_embd', 'n_params', 'size']) expect([name, other![name]]).toEqual([name, expect.any(Number)])
    const sizes = [other!['size'] as number, 4 * (other!['n_params'] as number)]
    expect(sizes.every((bytes) => bytes > weights / 2 && bytes <= weights)).toBe(true)
    await chat('small', 'Hi')
    await send('/models/unload', { model: 'small' })
    // What was known of a model is told when it has left, and it stays away.
    const [asleep, named] = [(await send('/props')).body, (await send('/props?model=other')).body]
    expect([asleep, { ...body, ...named }]).toEqual([{ ...body, is_sleeping: true }, body])
    await send('/models/unload', { model: 'other' })
    expect([(await send('/props')).status, await states()]).toEqual([200, { other: 'unloaded', small: 'unloaded' }])
  })

  it('answers llama-server’s web page so that it asks once', async () => {
    expect(await send('/tools')).toMatchObject({ status: 403, body: { error: { code: 'server/forbidden' } } })
    expect(await send('/cors-proxy', {})).toMatchObject({ status: 403 })
    const control = { id: 'chatcmpl-1', action: 'reasoning_end' }
    expect(await send('/v1/chat/completions/control', control)).toMatchObject({ status: 200, body: { success: false } })
    expect(await send('/v1/streams/lookup', { conversation_ids: ['a'] })).toMatchObject({ status: 200, body: [] })
  })

  it('tells Ollama’s clients sizes, hashes and facts, and keeps a model as long as they say', async () => {
    const { models } = (await send('/api/tags')).body
    expect(models).toMatchObject([
      { name: 'other', size: readFileSync(join(folder, 'other.gguf')).length, digest: sha256(join(folder, 'other.gguf')) },
      { name: 'small', details: { format: 'gguf', family: 'llama', quantization_level: 'F32' } },
    ])
    expect(models[1].details.parameter_size).toMatch(/^\d+(\.\d+)? ?K$/)
    const shown = (await send('/api/show', { model: 'small:latest' })).body
    expect(shown).toMatchObject({ model_info: { 'llama.context_length': 4096, 'llama.block_count': 2 } })
    expect(shown).toMatchObject({ template: expect.stringContaining('tools') as string, capabilities: ['completion', 'tools'] })
    expect((await send('/api/ps')).body).toEqual({ models: [] })
    const asked = { model: 'small', messages: [{ role: 'user', content: 'Hi' }], stream: false, options: { num_predict: 2 } }
    await send('/api/chat', { ...asked, keep_alive: '5m' })
    const [held] = (await send('/api/ps')).body.models
    expect(held).toMatchObject({ name: 'small', context_length: 1024 })
    expect((await send('/api/show', { model: 'small' })).body.model_info['llama.context_length']).toBe(1024)
    expect(Date.parse(held.expires_at) - Date.now()).toBeGreaterThan(250_000)
    await send('/api/chat', { ...asked, keep_alive: -1 })
    // Ollama's client shows a date in the past or none as `Stopping...`, and a far one as `Forever`.
    expect(Date.parse((await send('/api/ps')).body.models[0].expires_at)).toBeGreaterThan(Date.UTC(2200, 0))
    await send('/api/chat', { ...asked, keep_alive: 0 })
    await until('small', 'unloaded')
    await send('/api/generate', { model: 'small' })
    await until('small', 'loaded')
    expect((await send('/api/generate', { model: 'small', keep_alive: '0s' })).body).toMatchObject({
      done: true,
      done_reason: 'unload',
    })
    expect(await states()).toMatchObject({ small: 'unloaded' })
    expect(await send('/api/chat', { ...asked, keep_alive: 'soon' })).toMatchObject({ status: 400 })
  })

  it('pulls a model of the hub in Ollama’s lines and serves it; other addresses it does not fetch', async () => {
    hub.breaks = [100_000]
    const { text } = await send('/api/pull', { model: 'hf.co/acme/Third-GGUF' })
    const lines = text
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as Record<string, unknown>)
    expect(lines[0]).toEqual({ status: 'pulling manifest' })
    const digest = createHash('sha256').update(bytes).digest('hex')
    const downloads = lines.filter(({ digest: told }) => told === `sha256:${digest}`)
    expect(downloads.at(-1)).toMatchObject({ total: bytes.length, completed: bytes.length })
    expect(lines.slice(-3).map(({ status }) => status)).toEqual(['verifying sha256 digest', 'writing manifest', 'success'])
    expect((await chat('acme/Third-GGUF:F32', 'Hi')).body.model).toBe('third-F32')
    expect((await chat('third-F32', 'Hi')).status).toBe(200)
    expect((await send('/api/pull', { model: 'acme/none', stream: true })).text).toContain(
      '"error":"The hub shows no repository acme/none',
    )
    for (const model of ['llama3.2', 'https://evil.example/x.gguf', 'hf.co/../x', 'http://127.0.0.1/a/b'])
      expect((await send('/api/pull', { model })).status, model).toBe(400)
  })

  it('is listed by kvfold ps', async () => {
    await chat('small', 'Hi')
    const { stdout, code } = await kvfoldHere(['ps', '--url', server.url])
    expect([code, stdout]).toEqual([0, expect.stringMatching(/small .*1,024 tokens +stays/) as string])
    expect((await kvfoldHere(['ps', '--url', 'http://127.0.0.1:9'])).stderr).toContain('--url')
  })

  it('says that a file is none that it can load, and serves the others', async () => {
    copyFileSync(join(import.meta.dirname, 'router.test.ts'), join(folder, 'broken.gguf'))
    expect(await chat('broken', 'Hi')).toMatchObject({ status: 422 })
    const { data } = (await send('/models')).body as { data: { id: string; status: object }[] }
    expect(data.find(({ id }) => id === 'broken')!.status).toEqual({ value: 'unloaded', failed: true })
    expect((await send('/api/tags')).body.models.map(({ name }: { name: string }) => name)).toContain('broken')
    expect((await chat('small', 'Hi')).status).toBe(200)
  })
})

describe('the folder of models on the command line', { timeout: 120_000 }, () => {
  it('pulls, lists, runs by name, and deletes', async () => {
    const models = join(cache, 'kvfold', 'models')
    const pulled = await kvfold(['pull', 'hf:acme/Third-GGUF:F32'])
    expect(pulled.stderr).toContain('Downloading third-F32.gguf: 100 %')
    expect(pulled.stdout).toContain(join(models, 'acme', 'Third-GGUF', 'third-F32.gguf'))
    const { stdout } = await kvfoldHere(['list'])
    expect(stdout).toMatch(/third-F32 .*acme\/Third-GGUF:F32/)
    expect(JSON.parse((await kvfoldHere(['list', '--json'])).stdout)).toMatchObject({
      name: 'third-F32',
      sha256: createHash('sha256').update(bytes).digest('hex'),
    })
    for (const name of ['third-F32', 'hf:acme/Third-GGUF:F32']) {
      const run = await kvfold([
        'run',
        '--model',
        name,
        '--prompt',
        'abc',
        '--raw',
        '--max-tokens',
        '1',
        '--threads',
        '1',
        '-c',
        '256',
      ])
      expect([run.code, run.stderr]).toEqual([0, expect.not.stringContaining('kvfold:')])
    }
    const asked = hub.asked.length
    const direct = await kvfold([
      'run',
      '-hf',
      'acme/Third-GGUF:F32',
      '-n',
      '1',
      '-ngl',
      '0',
      '--ctx-size',
      '256',
      '--raw',
      '--prompt',
      'abc',
      '--threads',
      '1',
    ])
    expect(direct.code).toBe(0)
    // What is here is not asked for again.
    expect(hub.asked.length).toBe(asked)
    expect((await kvfoldHere(['run', 'third-F32'])).stderr).toContain('kvfold run --model third-F32 --prompt "Hello"')
    expect((await kvfoldHere(['run', 'qwen2.5'])).stderr).toContain('kvfold pull hf:owner/repository:quant')
    expect((await kvfoldHere(['rm', 'third-F32'])).stdout).toContain('Deleted')
    expect((await kvfoldHere(['rm', 'third-F32'])).stderr).toMatch(/is empty.*model\/not-found/)
    expect((await kvfoldHere(['run', '--model', 'qwen2.5', '--prompt', 'x'])).stderr).toMatch(
      /neither a file nor a model.*kvfold pull/,
    )
    expect((await kvfoldHere(['pull', 'qwen2.5'])).stderr).toContain('hf:owner/repository:quant')
  })
})
