/** Tests `--engine`, `--engines` and related options: they become an engine under the model's remote name. */
import { rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { Command } from 'commander'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { addEngineOptions, type EngineFlags, EnginesFile, engineSource } from '../../../src/runtime/cli/remote-engines.js'
import { RemoteEngine } from '../../../src/fleet/engines/remote.js'
import { openShell } from '../../../src/runtime/cli/shell.js'
import { temporaryFolder } from '../../support/temporary-folder.js'

let server: Server
let url: string

beforeAll(async () => {
  server = createServer((request, response) => {
    if (request.headers.authorization !== 'Bearer theirs') response.writeHead(401).end('{}')
    else if (request.url === '/v1/models')
      response.end('{"data":[{"id":"one","owned_by":"vllm","max_model_len":500},{"id":"two"}]}')
    else response.writeHead(404).end()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`
})

afterAll(() => server.close())

const { notes } = openShell()
const flags = (...words: string[]): EngineFlags =>
  addEngineOptions(
    new Command('serve')
      .option('--model <file>')
      .exitOverride()
      .configureOutput({ writeErr: () => undefined }),
  )
    .parse(words, { from: 'user' })
    .opts<EngineFlags>()
const source = (...words: string[]) => engineSource(flags(...words), 3, notes, new AbortController().signal)

describe('engineSource', () => {
  it('is null without --engine, and refuses options that need it', async () => {
    expect(await source()).toBeNull()
    for (const words of [['--engine-model', 'x'], ['--engine-key-file', 'x'], ['--engine-context', '5'], ['--defer-edits']])
      await expect(source(...words)).rejects.toMatchObject({
        code: 'cli/bad-usage',
        message: expect.stringContaining(words[0]!) as string,
      })
    expect(() => flags('--engine', url, '--model', 'x')).toThrow(/cannot be used/)
  })

  it('connects at once, and again when the model is loaded again', async () => {
    process.env['KVFOLD_TEST_ENGINE_KEY'] = 'theirs'
    const keyed = ['--engine', url, '--engine-key-env', 'KVFOLD_TEST_ENGINE_KEY']
    const made = (await source(...keyed))!
    expect(made).toMatchObject({ name: 'one', slots: 3 })
    const first = await made.load()
    expect(first.info).toMatchObject({ model: 'one', context: 500 })
    await first.dispose()
    const second = await made.load()
    expect(second).not.toBe(first)
    await second.dispose()
    const other = (await source(...keyed, '--engine-model', 'two', '--engine-context', '70'))!
    const engine = await other.load()
    expect(engine.info).toMatchObject({ model: 'two', context: 70 })
    await engine.dispose()
    await expect(source(...keyed, '--engine-model', 'three')).rejects.toMatchObject({ code: 'model/not-found' })
    await expect(source('--engine', url)).rejects.toMatchObject({ code: 'remote/unauthorized' })
    await expect(source('--engine', url, '--engine-key-env', 'KVFOLD_TEST_NOT_SET')).rejects.toMatchObject({
      code: 'remote/bad-endpoint',
    })
  })
})

describe('several engines', () => {
  const folder = temporaryFolder('engines')
  const file = join(folder, 'engines.json')
  const write = (content: unknown) => {
    writeFileSync(file, typeof content === 'string' ? content : JSON.stringify(content))
  }
  /** An address where nothing listens. */
  const gone = 'http://127.0.0.1:9'

  beforeAll(() => {
    process.env['KVFOLD_TEST_ENGINE_KEY'] = 'theirs'
  })

  it('can be given by repeated options, and one of them may be unavailable', async () => {
    const words = ['--engine', url, '--engine', gone, '--engine-key-env', 'KVFOLD_TEST_ENGINE_KEY', '--engine-model', 'one']
    const engine = await (await source(...words))!.load()
    expect(engine.engines).toMatchObject([
      { state: 'up' },
      { state: 'down', problem: expect.stringContaining('nothing listens') as string },
    ])
    await engine.dispose()
    expect(() => flags('--engine', url, '--engines', file)).toThrow(/cannot be used/)
  })

  it('can be given by a file, each with its own settings', async () => {
    write({ engines: [{ url, weight: 2, keyEnv: 'KVFOLD_TEST_ENGINE_KEY', model: 'two', flavour: 'vllm' }] })
    const made = (await source('--engines', file))!
    expect(made.name).toBe('two')
    const engine = await made.load()
    expect(engine.engines).toMatchObject([{ weight: 2, model: 'two', flavour: 'vllm', state: 'up' }])
    await engine.dispose()
  })

  it('have the kind of --engine-flavour, unless their entry in the file has its own', async () => {
    const entry = { url, keyEnv: 'KVFOLD_TEST_ENGINE_KEY' }
    for (const [own, flavour] of [
      [{}, 'akv'],
      [{ flavour: 'sglang' }, 'sglang'],
    ] as const) {
      write({ engines: [{ ...entry, ...own }] })
      const engine = await (await source('--engines', file, '--engine-flavour', 'akv'))!.load()
      expect(engine.engines).toMatchObject([{ flavour }])
      await engine.dispose()
    }
  })

  it.each([
    ['{', /it is not JSON/],
    [{ engines: [] }, /engines: /],
    [{ engines: [{ url: 'x', wieght: 2 }] }, /wieght/],
    [{ engines: [{ url: 'x', weight: 0 }] }, /weight: must be/],
    [{ engines: [{ url: 'x', keyEnv: 'KVFOLD_TEST_NOT_SET' }] }, /KVFOLD_TEST_NOT_SET is not set/],
    [{ engines: [{ url: 'nonsense' }] }, /this is not a URL/],
  ])('are refused where the file says %j', async (content, words) => {
    write(content)
    await expect(source('--engines', file)).rejects.toMatchObject({ message: expect.stringMatching(words) as string })
  })

  it('change with the file; an invalid one keeps the last valid list, and is reported', async () => {
    const entry = { url, keyEnv: 'KVFOLD_TEST_ENGINE_KEY' }
    write({ engines: [entry] })
    const list = new EnginesFile(file, null)
    const engine = await RemoteEngine.connect({ url, engines: list.entries, healthEvery: 1e9 })
    list.tell(engine)
    expect(await list.reread()).toBeNull()
    write('{')
    expect(await list.reread()).toMatch(/it is not JSON.*kvfold keeps the last valid engines/)
    expect(engine.enginesProblem).toMatch(/it is not JSON/)
    expect(engine.engines).toMatchObject([{ state: 'up' }])
    write({ engines: [{ ...entry, drain: true }, { url: gone }] })
    expect(await list.reread()).toMatch(/draining, http:\/\/127.0.0.1:9 down/)
    expect(engine.enginesProblem).toBeNull()
    expect(engine.engines).toMatchObject([{ state: 'draining' }, { state: 'down' }])
    write({ engines: [entry, entry] })
    expect(await list.reread()).toMatch(/is named twice/)
    expect(engine.engines).toHaveLength(2)
    rmSync(file)
    expect(await list.reread()).toMatch(/cannot be read \(ENOENT\)/)
    await engine.dispose()
  })

  it('read again twice at once keeps the later content', async () => {
    const entry = { url, keyEnv: 'KVFOLD_TEST_ENGINE_KEY' }
    write({ engines: [entry] })
    const list = new EnginesFile(file, null)
    const engine = await RemoteEngine.connect({ url, engines: list.entries, healthEvery: 1e9 })
    list.tell(engine)
    const set = engine.setEngines.bind(engine)
    // The first list takes longer to reach the engine.
    engine.setEngines = async (entries) => {
      await new Promise((resolve) => setTimeout(resolve, entries.length === 2 ? 100 : 0))
      await set(entries)
    }
    write({ engines: [entry, { url: gone }] })
    const first = list.reread()
    await new Promise((resolve) => setTimeout(resolve, 10))
    write({ engines: [{ ...entry, drain: true }] })
    await Promise.all([first, list.reread()])
    expect(list.entries).toMatchObject([{ drain: true }])
    expect(engine.engines).toMatchObject([{ state: 'draining' }])
    await engine.dispose()
  })
})
