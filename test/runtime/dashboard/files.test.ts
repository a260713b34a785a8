/** Tests how the dashboard's files are served. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { addDashboard } from '../../../src/runtime/server/app.js'
import { newHttp } from '../../../src/runtime/server/http.js'
import { problemOf } from '../../../src/runtime/server/problem.js'

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-dashboard-'))
})
afterEach(() => {
  rmSync(folder, { recursive: true })
})

function app() {
  const http = newHttp({ logLevel: 'silent' })
  http.setErrorHandler((error, _request, reply) => reply.code(problemOf(error).status).send({}))
  addDashboard(http, pathToFileURL(`${folder}/built/`))
  return http
}

function built(): void {
  mkdirSync(join(folder, 'built/assets'), { recursive: true })
  writeFileSync(join(folder, 'secret.js'), 'secret')
  writeFileSync(join(folder, 'built/index.html'), '<!doctype html>')
  writeFileSync(join(folder, 'built/assets/index-A_b-1.js'), 'page()')
  writeFileSync(join(folder, 'built/assets/index-x.css'), 'p{}')
}

it('says how to build missing files', async () => {
  const { statusCode, headers, body } = await app().inject('/')
  expect(statusCode).toBe(404)
  expect(headers['content-type']).toBe('text/plain; charset=utf-8')
  expect(body).toContain('npm run build')
})

it('serves every file with its type, under one policy', async () => {
  built()
  const http = app()
  for (const [url, type, caching] of [
    ['/', 'text/html; charset=utf-8', 'no-cache'],
    ['/dashboard/assets/index-A_b-1.js', 'text/javascript; charset=utf-8', 'public, max-age=31536000, immutable'],
    ['/dashboard/assets/index-x.css', 'text/css; charset=utf-8', 'public, max-age=31536000, immutable'],
  ] as const) {
    const { statusCode, headers } = await http.inject(url)
    expect(statusCode, url).toBe(200)
    expect(headers['content-type']).toBe(type)
    expect(headers['cache-control']).toBe(caching)
    expect(headers['content-security-policy']).toContain("default-src 'self'")
    expect(headers['content-security-policy']).toContain("frame-ancestors 'none'")
    expect(headers['x-content-type-options']).toBe('nosniff')
  }
})

it('leads from its folder to the page', async () => {
  for (const url of ['/dashboard', '/dashboard/']) {
    const { statusCode, headers } = await app().inject(url)
    expect([statusCode, headers.location]).toEqual([302, '/'])
  }
})

it('serves only files that Vite made', async () => {
  built()
  const http = app()
  for (const name of ['..%2F..%2Fsecret.js', '%2e%2e%2fsecret.js', '..%5c..%5csecret.js', '.', 'none.js', 'index-x.css%00', ''])
    expect((await http.inject(`/dashboard/assets/${name}`)).statusCode, name).toBe(404)
})
