/** `--engine` and what belongs to it: options become an engine, under the name that the model has where it runs. */
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Command } from 'commander'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { addEngineOptions, type EngineFlags, engineSource } from '../../src/cli/runtime.js'
import { openShell } from '../../src/cli/shell.js'

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
  it('is null without --engine, and refuses what belongs to it', async () => {
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
