import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { fileOf, openRows } from '../../../src/lab/data/rows.js'

/** A server that answers like the hub: whole files and ranges of them, and 404 with the hub's header for missing files. */
const files = new Map([
  ['/datasets/owner/name/resolve/main/data/rows.jsonl', Buffer.from('{"a":1}\n{"a":2}\n')],
  ['/datasets/owner/name/resolve/v2/data/rows.jsonl', Buffer.from('{"a":3}\n')],
  ['/datasets/owner/large/resolve/main/large.jsonl', Buffer.from('{"text":"0123456789"}\n'.repeat(200_000))],
])
const asked: { url: string; range: string | undefined; key: string | undefined }[] = []
let slow = false
let server: Server
let endpoint = ''
let folder = ''

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-hub-'))
  server = createServer((request, response) => {
    const { range, authorization } = request.headers
    asked.push({ url: request.url ?? '', range, key: authorization })
    const file = files.get(request.url ?? '')
    if (file === undefined) {
      response.writeHead(404, { 'X-Error-Code': 'EntryNotFound' }).end('Entry not found')
      return
    }
    const [, from = '0', to = ''] = /^bytes=(\d+)-(\d*)$/u.exec(range ?? '') ?? []
    const part = file.subarray(Number(from), to === '' ? file.length : Number(to) + 1)
    response.writeHead(range === undefined ? 200 : 206, {
      ETag: '"1"',
      'Content-Length': part.length,
      'Content-Range': `bytes ${from}-${Number(from) + part.length - 1}/${file.length}`,
    })
    if (slow && part.length > 1) response.write(part.subarray(0, 10))
    else response.end(part)
  })
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done))
  endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
})
afterAll(() => {
  server.closeAllConnections()
  server.close()
  rmSync(folder, { recursive: true })
})

describe('fileOf', () => {
  it('downloads a file of the hub once, and keeps revisions apart', async () => {
    const name = 'hf:datasets/owner/name/data/rows.jsonl'
    const path = await fileOf(name, { folder, endpoint })
    expect(path).toBe(join(folder, 'datasets--owner--name', 'main', 'data', 'rows.jsonl'))
    expect(readFileSync(path, 'utf8')).toBe('{"a":1}\n{"a":2}\n')
    const before = asked.length
    expect(await fileOf(name, { folder, endpoint: 'http://127.0.0.1:1' })).toBe(path)
    expect(asked).toHaveLength(before)
    const second = await openRows(`${name}#v2`, { folder, endpoint: `${endpoint}/` })
    expect(await second.row(0)).toEqual({ a: 3 })
    expect(second.where(0)).toBe(`${name}#v2, line 1`)
    expect((await openRows(name, { folder })).size).toBe(2)
  })

  it('streams large files to the disk', async () => {
    const rows = await openRows('hf:datasets/owner/large/large.jsonl', { folder, endpoint })
    expect(rows.size).toBe(200_000)
    expect(await rows.row(199_999)).toEqual({ text: '0123456789' })
  })

  it('sends the key from the environment', async () => {
    const before = process.env['HF_TOKEN']
    process.env['HF_TOKEN'] = 'hf_test'
    try {
      await fileOf('hf:datasets/owner/name/data/rows.jsonl', { folder: join(folder, 'other'), endpoint })
      expect(asked.at(-1)?.key).toBe('Bearer hf_test')
    } finally {
      if (before === undefined) delete process.env['HF_TOKEN']
      else process.env['HF_TOKEN'] = before
    }
  })

  it('names a file that it cannot get, and leaves no files', async () => {
    const fresh = join(folder, 'fresh')
    await expect(fileOf('hf:datasets/owner/name/none.jsonl', { folder: fresh, endpoint })).rejects.toThrow(
      'hf:datasets/owner/name/none.jsonl could not be downloaded (owner/name on the hub has no file none.jsonl). Check the name and the network',
    )
    const unreachable = fileOf('hf:datasets/owner/name/data/rows.jsonl', { folder: fresh, endpoint: 'http://127.0.0.1:1' })
    await expect(unreachable).rejects.toMatchObject({ code: 'eval/bad-data' })
    expect(existsSync(fresh)).toBe(false)
  })

  it('stops when the caller stops it, and leaves no incomplete file', async () => {
    const stop = new AbortController()
    const fresh = join(folder, 'stopped')
    slow = true
    try {
      const download = fileOf('hf:datasets/owner/large/large.jsonl', { folder: fresh, endpoint, signal: stop.signal })
      const refused = expect(download).rejects.toMatchObject({ code: 'engine/cancelled' })
      setTimeout(() => {
        stop.abort()
      }, 200)
      await refused
    } finally {
      slow = false
    }
    const left = existsSync(fresh)
      ? readdirSync(fresh, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile())
      : []
    expect(left).toEqual([])
  })

  it.each([
    'hf:owner/name/file.jsonl',
    'hf:datasets/owner/name',
    'hf:datasets/owner/name/../../x.jsonl',
    'hf:datasets//name/x.jsonl',
    'hf:datasets/owner/name/x.jsonl#..',
  ])('refuses %s', async (name) => {
    await expect(fileOf(name, { folder, endpoint })).rejects.toThrow(
      /does not name a file of a data set; the form is hf:datasets\/owner\/name/u,
    )
  })
})
