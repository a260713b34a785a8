/** Tests pulling models from a hub: names, resumed and broken downloads, hashes, refusals, and the folder that they come into. */
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, join, relative } from 'node:path'
import { randomBytes } from 'node:crypto'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import { digestOf, factsOf } from '../../../src/runtime/models/facts.js'
import { modelCalled, modelsIn, pull, type PullProgress, removeModel, resolveModel } from '../../../src/runtime/models/folder.js'
import { quantOf } from '../../../src/runtime/models/hub.js'
import { hubNameOf, pathOfUrl } from '../../../src/runtime/models/names.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { type FakeHub, fakeHub } from './support/hub.js'

const big = randomBytes(3 * 2 ** 20)
const small = randomBytes(4000)
const parts = [randomBytes(900), randomBytes(800)]
const SPLIT = ['big-Q8_0-00001-of-00002.gguf', 'big-Q8_0-00002-of-00002.gguf'] as const

let hub: FakeHub
let folder: string
const FAST = { tries: 3, pause: 1 } as const

const failure = async (work: Promise<unknown>): Promise<KvfoldError> => {
  const error = await work.then(
    () => null,
    (thrown: unknown) => thrown,
  )
  expect(error).toBeInstanceOf(KvfoldError)
  return error as KvfoldError
}

beforeAll(async () => {
  hub = await fakeHub({
    'acme/One-GGUF': {
      'one-Q4_K_M.gguf': { bytes: big },
      'one-q8_0.gguf': { bytes: small },
      'mmproj-one-F16.gguf': { bytes: small },
    },
    'acme/One-GGUF#v1': { 'one-q8_0.gguf': { bytes: big } },
    'acme/Split-GGUF': { [`Q8_0/${SPLIT[0]}`]: { bytes: parts[0]! }, [`Q8_0/${SPLIT[1]}`]: { bytes: parts[1]! } },
    'acme/Wrong-GGUF': { 'wrong.gguf': { bytes: small, announced: 'f'.repeat(64) } },
    'acme/None': {},
    'private/Two-GGUF': { 'two-Q4_0.gguf': { bytes: small } },
    'gated/Two-GGUF': { 'two-Q4_0.gguf': { bytes: small } },
  })
})
afterAll(() => hub.close())
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-pull-'))
})
afterEach(() => {
  hub.breaks = []
  hub.statuses = []
  hub.ranges = true
  rmSync(folder, { recursive: true })
})

const pulled = (name: string, more: Parameters<typeof pull>[1] = {}) =>
  pull(name, { folder, endpoint: hub.url, token: '', ...FAST, ...more })
const leftovers = () => readdirSync(folder, { recursive: true }).filter((name) => /\.(?:part|lock)$/.test(String(name)))

describe('a pull', () => {
  it('takes the usual quantisation, tells how far it is, and asks for no byte a second time', async () => {
    const told: PullProgress[] = []
    const path = await pulled('hf:acme/One-GGUF', { onProgress: (progress) => told.push(progress) })
    expect(path).toBe(join(folder, 'acme', 'One-GGUF', 'one-Q4_K_M.gguf'))
    expect(readFileSync(path).equals(big)).toBe(true)
    expect(leftovers()).toEqual([])
    expect(told[0]).toEqual({ kind: 'looking' })
    const bytes = told.flatMap((each) => (each.kind === 'downloading' ? [each] : []))
    expect(bytes.at(-1)).toMatchObject({ file: 'one-Q4_K_M.gguf', done: big.length, total: big.length })
    expect(bytes.length).toBeGreaterThan(3)
    expect(told.at(-1)).toEqual({ kind: 'checking', file: 'one-Q4_K_M.gguf' })
    const before = hub.fetched.length
    expect(await pulled('acme/One-GGUF')).toBe(path)
    expect(hub.fetched.length).toBe(before)
  })

  it('takes a quantisation, a file, a page of the hub, and all parts of a split model', async () => {
    expect(await pulled('hf:acme/One-GGUF:Q8_0')).toMatch(/one-q8_0\.gguf$/)
    expect(await pulled('hf:acme/One-GGUF/one-q8_0.gguf')).toMatch(/one-q8_0\.gguf$/)
    expect(await pulled('hf:acme/Split-GGUF:Q8_0')).toBe(join(folder, 'acme', 'Split-GGUF', 'Q8_0', SPLIT[0]))
    expect(readFileSync(join(folder, 'acme', 'Split-GGUF', 'Q8_0', SPLIT[1])).equals(parts[1]!)).toBe(true)
    expect(hubNameOf('https://huggingface.co/acme/One-GGUF/resolve/main/one-q8_0.gguf')).toEqual({
      ...{ repository: 'acme/One-GGUF', file: 'one-q8_0.gguf', quant: null, revision: 'main' },
    })
    expect(hubNameOf('hf.co/acme/One-GGUF:Q8_0')).toMatchObject({ repository: 'acme/One-GGUF', quant: 'Q8_0' })
  })

  it('asks the hub nothing about a file that is here, and about a split model only while a part is missing', async () => {
    const away = { endpoint: 'http://127.0.0.1:9' }
    const first = join(folder, 'acme', 'Split-GGUF', 'Q8_0', SPLIT[0])
    const other = join(folder, 'acme', 'Split-GGUF', 'Q8_0', SPLIT[1])
    for (const part of SPLIT) expect(await pulled(`hf:acme/Split-GGUF/Q8_0/${part}`)).toBe(first)
    for (const part of SPLIT) expect(await pulled(`hf:acme/Split-GGUF/Q8_0/${part}`, away)).toBe(first)
    rmSync(other)
    expect((await failure(pulled(`hf:acme/Split-GGUF/Q8_0/${SPLIT[0]}`, away))).code).toBe('model/download-failed')
    expect(await pulled(`hf:acme/Split-GGUF/Q8_0/${SPLIT[0]}`)).toBe(first)
    expect(existsSync(other)).toBe(true)
    const single = await pulled('hf:acme/One-GGUF/one-q8_0.gguf')
    expect(await pulled('hf:acme/One-GGUF/one-q8_0.gguf', away)).toBe(single)
  })

  it.each([
    ['the link of the download button', 'resolve/main/one.gguf?download=true', 'one.gguf', 'main'],
    ['a place in a page', 'blob/main/one.gguf#:~:text=size', 'one.gguf', 'main'],
    ['a percent-encoded path', 'resolve/refs%2Fpr%2F1/my%20models/one%2B.gguf', 'my models/one+.gguf', 'refs/pr/1'],
    ['a sign that is no percent-encoding', 'resolve/main/100%.gguf', '100%.gguf', 'main'],
  ])('reads addresses of the hub as browsers show them: %s', (_, page, file, revision) => {
    for (const site of ['https://huggingface.co', 'hf.co'])
      expect(hubNameOf(`${site}/acme/One-GGUF/${page}`)).toEqual({ repository: 'acme/One-GGUF', file, quant: null, revision })
  })

  it('keeps names that are no addresses as they are, and leaves no repository', () => {
    expect(hubNameOf('hf:acme/One-GGUF/one%20.gguf')?.file).toBe('one%20.gguf')
    expect(hubNameOf('https://hf.co/acme/One-GGUF#v1')).toMatchObject({ file: null, revision: 'v1' })
    for (const name of ['hf.co/acme/One-GGUF/%2e%2e/x.gguf', 'hf.co/a/b/resolve/main/..%2F..%2Fx.gguf', 'hf.co/a/b?show=c.gguf'])
      expect(() => hubNameOf(name), name).toThrow(/names no model of the hub/)
    expect(() => pathOfUrl('https://example.com/%zz.gguf')).toThrow(/does not end in the name of a .gguf file/)
  })

  it('goes on where the connection broke, also in a later process', async () => {
    hub.breaks = [1_000_000, 500_000, 0]
    const from = hub.fetched.length
    const path = await pulled('hf:acme/One-GGUF')
    expect(readFileSync(path).equals(big)).toBe(true)
    const ranges = hub.fetched.slice(from).map(({ range }) => range)
    expect(ranges[0]).toBeUndefined()
    expect(ranges.slice(1).every((range) => /^bytes=\d+-$/.test(range ?? ''))).toBe(true)
    expect(ranges.length).toBe(4)
    rmSync(path)
    // An earlier process ended in the middle.
    writeFileSync(`${path}.part`, big.subarray(0, 2_000_000))
    await pulled('hf:acme/One-GGUF')
    expect(hub.fetched.at(-1)!.range).toBe('bytes=2000000-')
    expect(readFileSync(path).equals(big)).toBe(true)
  })

  it('begins again where the server knows no ranges, and waits out servers that fail', async () => {
    hub.ranges = false
    hub.breaks = [1_000_000]
    hub.statuses = [503, 429]
    expect(readFileSync(await pulled('hf:acme/One-GGUF')).equals(big)).toBe(true)
  })

  it('gives up after failures without a byte, and keeps what it has', async () => {
    hub.breaks = [1_000_000]
    hub.statuses = [0, 500, 500, 500]
    const error = await failure(pulled('hf:acme/One-GGUF'))
    expect([error.code, error.message]).toEqual(['model/download-failed', expect.stringContaining('500')])
    expect(leftovers()).toEqual([join('acme', 'One-GGUF', 'one-Q4_K_M.gguf.part')])
    hub.statuses = []
    await pulled('hf:acme/One-GGUF')
    expect(hub.fetched.at(-1)!.range).toMatch(/^bytes=\d{6,}-$/)
  })

  it('stops on a signal, and the next one goes on', async () => {
    const controller = new AbortController()
    hub.breaks = [1_000_000, 0, 0, 0, 0, 0]
    const error = await failure(
      pulled('hf:acme/One-GGUF', {
        signal: controller.signal,
        onProgress: (progress) => {
          if (progress.kind === 'downloading' && progress.done > 500_000) controller.abort()
        },
      }),
    )
    expect(error.code).toBe('engine/cancelled')
    hub.breaks = []
    expect(readFileSync(await pulled('hf:acme/One-GGUF')).equals(big)).toBe(true)
  })

  it('deletes bytes with another hash than announced', async () => {
    const error = await failure(pulled('hf:acme/Wrong-GGUF'))
    expect([error.code, error.message]).toEqual(['model/download-failed', expect.stringContaining('ffff')])
    expect(readdirSync(join(folder, 'acme', 'Wrong-GGUF'))).toEqual([])
  })

  it('says what there is, and what is missing', async () => {
    expect((await failure(pulled('hf:acme/One-GGUF:Q2_K'))).message).toContain('it has Q4_K_M, q8_0')
    expect((await failure(pulled('hf:acme/One-GGUF/two.gguf'))).message).toContain('one-Q4_K_M.gguf')
    expect((await failure(pulled('hf:acme/None'))).message).toContain('no GGUF')
    expect(await failure(pulled('hf:nobody/Nothing'))).toMatchObject({ code: 'model/not-found' })
    for (const owner of ['private', 'gated'])
      expect((await failure(pulled(`hf:${owner}/Two-GGUF`))).message).toMatch(/40[13].*HF_TOKEN/)
    expect((await failure(pulled('hf:acme/One-GGUF', { endpoint: 'http://127.0.0.1:9' }))).code).toBe('model/download-failed')
    for (const name of ['hf:acme', 'hf:acme/../x', 'hf:a/b/c.txt', 'qwen2.5', 'hf:a/b:', 'hf:a/b#../x', 'hf:/etc/passwd'])
      expect((await failure(pulled(name))).code, name).toBe('cli/bad-usage')
  })

  it('shows a token to the hub and to no other server', async () => {
    expect(readFileSync(await pulled('hf:private/Two-GGUF', { token: 'hf_secret' })).equals(small)).toBe(true)
    expect(hub.fetched.at(-1)!.authorization).toBeUndefined()
  })

  it('takes the address of a file, with the hash that its server tells', async () => {
    const path = await pulled(`${hub.url}/acme/One-GGUF/resolve/main/one-q8_0.gguf`)
    expect(relative(folder, path)).toMatch(/^127\.0\.0\.1:\d+-[0-9a-f]{8}\/one-q8_0\.gguf$/)
    expect(readFileSync(path).equals(small)).toBe(true)
    expect((await failure(pulled(`${hub.url}/acme/Wrong-GGUF/resolve/main/wrong.gguf`))).message).toContain('SHA-256')
    expect((await failure(pulled(`${hub.url}/acme/One-GGUF/resolve/main/none.gguf`))).code).toBe('model/not-found')
    expect((await failure(pulled(`${hub.url}/acme/readme.html`))).code).toBe('cli/bad-usage')
  })

  it('keeps files of the same name and size from different addresses apart, and leaves other files alone', async () => {
    const same = ['first', 'other'].map((text) => Buffer.from(text))
    const sizes = [...same, Buffer.from('longer')]
    let answered = 0
    const server = createServer((request, answer) => {
      answered++
      answer.end(sizes[Number(request.url!.split('/')[1])])
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    const own = join(folder, 'model.gguf')
    writeFileSync(own, 'mine')
    const paths: string[] = []
    for (const at of sizes.keys()) paths.push(await pulled(`${base}/${at}/model.gguf`))
    expect([own, ...paths].map((path) => readFileSync(path, 'utf8'))).toEqual(['mine', 'first', 'other', 'longer'])
    // Parts of a split model lie together.
    const parts = await Promise.all(SPLIT.map((name) => pulled(`${base}/0/${name}`)))
    expect(new Set(parts.map((path) => dirname(path))).size).toBe(1)
    const before = answered
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
    expect(await pulled(`${base}/1/model.gguf`)).toBe(paths[1])
    expect(answered).toBe(before)
  })

  it('takes a signed address that only GET may read, and gives no advice about the hub', async () => {
    const server = createServer(({ method, url }, answer) => {
      if (method === 'GET' && url!.startsWith('/shown/')) answer.end(small)
      else answer.writeHead(403, { 'content-length': 9 }).end('forbidden')
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    const path = await pulled(`${base}/shown/model.gguf?X-Amz-Signature=ab`)
    expect(readFileSync(path).equals(small)).toBe(true)
    const error = await failure(pulled(`${base}/hidden/model.gguf?X-Amz-Signature=ab`))
    expect([error.code, error.message]).toEqual(['model/not-found', expect.stringMatching(/403.*expired/)])
    server.close()
  })

  it('never joins the parts of two versions of a file', async () => {
    const versions = ['first version', 'other version'].map((text) => Buffer.from(text))
    let [at, isNamed, breaks] = [0, true, 0]
    const ranges: (string | undefined)[] = []
    const server = createServer(({ method, headers }, answer) => {
      const etag = `"${at}"`
      const bytes = versions[at]!
      const known = headers['if-range'] === undefined || headers['if-range'] === etag
      const from = known ? Number(/^bytes=(\d+)-/.exec(headers.range ?? '')?.[1] ?? 0) : 0
      if (method !== 'HEAD') ranges.push(headers.range)
      answer.writeHead(from > 0 ? 206 : 200, {
        'content-length': bytes.length - from,
        ...(isNamed ? { etag } : {}),
        ...(from > 0 ? { 'content-range': `bytes ${from}-${bytes.length - 1}/${bytes.length}` } : {}),
      })
      if (method === 'HEAD' || breaks-- <= 0) answer.end(bytes.subarray(from))
      else answer.write(bytes.subarray(0, 5), () => setTimeout(() => answer.destroy(), 20))
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/model.gguf`
    const broken = async () => {
      breaks = 1
      await failure(pulled(url, { tries: 1 }))
    }
    await broken()
    const path = await pulled(url)
    expect(readFileSync(path)).toEqual(versions[0])
    expect(ranges).toEqual([undefined, 'bytes=5-'])
    expect(readdirSync(dirname(path))).toEqual(['model.gguf'])
    for (const named of [true, false]) {
      rmSync(path)
      ;[at, isNamed] = [0, named]
      await broken()
      at = 1
      expect(readFileSync(await pulled(url))).toEqual(versions[1])
    }
    server.close()
  })

  it('gets a file again whose bytes changed on the hub, but not its size', async () => {
    const path = await pulled('hf:acme/One-GGUF:Q8_0')
    writeFileSync(path, randomBytes(small.length))
    expect(await pulled('hf:acme/One-GGUF:Q8_0')).toBe(path)
    expect(readFileSync(path).equals(small)).toBe(true)
  })

  it('is not made twice at once, and a lock of a dead process does not count', async () => {
    const to = join(folder, 'acme', 'One-GGUF', 'one-q8_0.gguf')
    mkdirSync(join(folder, 'acme', 'One-GGUF'), { recursive: true })
    writeFileSync(`${to}.part.lock`, String(process.pid))
    expect((await failure(pulled('hf:acme/One-GGUF:Q8_0'))).message).toContain(String(process.pid))
    writeFileSync(`${to}.part.lock`, '999999999 0000aaaa')
    expect((await failure(pulled('hf:acme/One-GGUF:Q8_0'))).message).toContain(`delete ${to}.part.lock`)
    writeFileSync(`${to}.part.lock`, '999999999')
    expect(await pulled('hf:acme/One-GGUF:Q8_0')).toBe(to)
  })
})

it('a program gets the path of a file that is here, or downloads into the same folder', async () => {
  const told: unknown[] = []
  const url = `${hub.url}/acme/One-GGUF/resolve/main/one-q8_0.gguf`
  const path = await resolveModel(url, { folder, onProgress: (...progress) => told.push(progress) })
  expect(path).toBe(await pulled(url))
  expect(told.at(-1)).toEqual([small.length, small.length])
  expect(await resolveModel(relative(process.cwd(), path))).toBe(path)
  expect(await failure(resolveModel(join(folder, 'none.gguf')))).toMatchObject({ code: 'model/not-found' })
})

describe('the folder', () => {
  it('names its models, knows them by their names of the hub, and lets them go', async () => {
    await pulled('hf:acme/One-GGUF')
    await pulled('hf:acme/One-GGUF:Q8_0')
    await pulled('hf:acme/Split-GGUF')
    writeFileSync(join(folder, 'plain.gguf'), 'x')
    writeFileSync(join(folder, 'mmproj-plain.gguf'), 'x')
    mkdirSync(join(folder, 'other'))
    writeFileSync(join(folder, 'other', 'plain.gguf'), 'y')
    writeFileSync(join(folder, 'half-00001-of-00002.gguf'), 'x')
    const models = modelsIn(folder)
    expect(models.map(({ name, aliases, size }) => [name, aliases, size])).toEqual([
      ['big-Q8_0', ['acme/Split-GGUF:Q8_0', 'acme/Split-GGUF'], 1700],
      ['one-Q4_K_M', ['acme/One-GGUF:Q4_K_M'], big.length],
      ['one-q8_0', ['acme/One-GGUF:q8_0'], small.length],
      ['other/plain', [], 1],
      ['plain', [], 1],
    ])
    expect(modelCalled('hf:acme/split-gguf', models)?.name).toBe('big-Q8_0')
    expect(modelCalled('ONE-Q8_0', models)?.name).toBe('one-q8_0')
    expect(modelCalled('acme/One-GGUF', models)).toBeNull()
    await removeModel('big-Q8_0', folder)
    expect(existsSync(join(folder, 'acme', 'Split-GGUF'))).toBe(false)
    expect(existsSync(join(folder, 'acme', 'One-GGUF'))).toBe(true)
    expect((await failure(removeModel('big-Q8_0', folder))).message).toContain('one-Q4_K_M')
  })

  it('takes a name as it is written before others, and refuses one that several models have', async () => {
    for (const place of ['a/Tiny.gguf', 'tiny.gguf', 'acme/Two/first-Q4_K_M.gguf', 'acme/Two/other-Q4_K_M.gguf']) {
      mkdirSync(join(folder, dirname(place)), { recursive: true })
      writeFileSync(join(folder, place), 'x')
    }
    const found = (name: string) => modelCalled(name, modelsIn(folder))?.name
    expect([found('tiny'), found('Tiny')]).toEqual(['tiny', 'Tiny'])
    for (const [name, names] of [
      ['TINY', 'Tiny, tiny'],
      ['hf:acme/Two:Q4_K_M', 'first-Q4_K_M, other-Q4_K_M'],
    ] as const) {
      expect(() => found(name)).toThrow(names)
      const error = await failure(removeModel(name, folder))
      expect([error.code, error.message]).toEqual(['cli/bad-usage', expect.stringContaining(names)])
    }
    expect(modelsIn(folder).length).toBe(4)
    await removeModel('tiny', folder)
    expect([found('tiny'), found('TINY')]).toEqual(['Tiny', 'Tiny'])
  })

  it('leaves the oldest of several files with the same name its name', () => {
    const add = (place: string, time: number) => {
      const path = join(folder, ...place.split('/'))
      mkdirSync(dirname(path), { recursive: true })
      writeFileSync(path, 'x')
      utimesSync(path, time, time)
    }
    const names = () => modelsIn(folder).map(({ name, path }) => [name, relative(folder, path)])
    add('b/one/model.gguf', 100)
    expect(names()).toEqual([['model', 'b/one/model.gguf']])
    add('a/one/model.gguf', 200)
    add('c/one/model.gguf', 100)
    expect(names()).toEqual([
      ['a/one/model', 'a/one/model.gguf'],
      ['c/one/model', 'c/one/model.gguf'],
      ['model', 'b/one/model.gguf'],
    ])
    // New bytes of the same model keep its name.
    add('b/one/model.gguf', 400)
    expect(names().at(-1)).toEqual(['model', 'b/one/model.gguf'])
    // A file directly in the folder has no other name.
    add('model.gguf', 300)
    expect(names()).toEqual([
      ['a/one/model', 'a/one/model.gguf'],
      ['b/one/model', 'b/one/model.gguf'],
      ['c/one/model', 'c/one/model.gguf'],
      ['model', 'model.gguf'],
    ])
  })

  it('knows an address again that is signed anew', () => {
    const signed = (more: string) => pathOfUrl(`https://example.org/run1/model.gguf?${more}`)
    expect(signed('X-Amz-Date=1&X-Amz-Signature=ab')).toBe(signed('X-Amz-Date=2&X-Amz-Signature=cd'))
    expect(signed('rev=1&token=a')).toBe(signed('rev=1&token=b'))
    expect(signed('rev=1')).not.toBe(signed('rev=2'))
  })

  it('keeps the revisions of a repository apart', async () => {
    const main = await pulled('hf:acme/One-GGUF:Q8_0')
    const old = await pulled('hf:acme/One-GGUF:Q8_0#v1')
    expect(old).toBe(join(folder, 'acme', 'One-GGUF#v1', 'one-q8_0.gguf'))
    expect(await pulled('hf:acme/One-GGUF/one-q8_0.gguf#v1')).toBe(old)
    // `toEqual` takes seconds for buffers of megabytes.
    expect([readFileSync(main).equals(small), readFileSync(old).equals(big)]).toEqual([true, true])
    const models = modelsIn(folder)
    expect(modelCalled('hf:acme/One-GGUF:Q8_0', models)?.path).toBe(main)
    expect(modelCalled('hf:acme/One-GGUF', models)?.path).toBe(main)
    expect(modelCalled('hf:acme/One-GGUF:Q8_0#v1', models)?.path).toBe(old)
    expect(modelCalled('acme/One-GGUF#v1', models)?.path).toBe(old)
  })

  it('knows quantisations by the names of files', () => {
    expect(
      [
        'a-Q4_K_M.gguf',
        'a.q8_0.gguf',
        'b/IQ2_XXS.gguf',
        'a-UD-Q4_K_XL-00001-of-00002.gguf',
        'a-bf16.gguf',
        'a.gguf',
        'qwen.gguf',
      ].map(quantOf),
    ).toEqual(['Q4_K_M', 'q8_0', 'IQ2_XXS', 'UD-Q4_K_XL', 'bf16', null, null])
  })

  it('finds the hash and the facts of a file on another thread', async () => {
    const path = builtinModel()
    expect(await digestOf([path])).toMatch(/^[0-9a-f]{64}$/)
    expect(await factsOf([path])).toMatchObject({
      template: expect.stringContaining('{%') as string,
      parameters: expect.any(Number) as number,
    })
    writeFileSync(join(folder, 'bad.gguf'), 'no model')
    await expect(factsOf([join(folder, 'bad.gguf')])).rejects.toThrow('GGUF')
  })
})
