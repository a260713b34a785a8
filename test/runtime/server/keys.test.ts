/** Tests which host names and which web pages a server without keys answers to. */
import { request } from 'node:http'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { ScriptedEngine } from '../../support/scripted.js'
import { type Serving, serving } from './support/serving.js'

const statusFor = (url: string, host: string): Promise<number | undefined> =>
  new Promise((resolve, reject) => {
    request(`${url}/v1/models`, { headers: { host } }, (answer) => {
      answer.resume()
      resolve(answer.statusCode)
    })
      .on('error', reject)
      .end()
  })

it.each<[readonly string[], string, number]>([
  [[], 'localhost', 200],
  [[], 'host.docker.internal', 403],
  [['Host.Docker.Internal', 'box.lan'], 'host.docker.internal:8080', 200],
  [['box.lan'], 'not.box.lan', 403],
  [['*'], 'anything.example', 200],
])('--allowed-hosts %j: %s is answered %i', async (allowedHosts, host, status) => {
  const served = await serving({ engine: () => new ScriptedEngine([]), allowedHosts })
  try {
    expect(await statusFor(served.url, host)).toBe(status)
  } finally {
    await served.close()
  }
})

const BODY = JSON.stringify({ content: 'Hi' })

/** Sends a request as a browser or a program would, with exactly these headers. */
const sent = (url: string, headers: Record<string, string>, { method = 'POST', path = '/tokenize', body = BODY } = {}) =>
  new Promise<number | undefined>((resolve, reject) => {
    const asked = request(url + path, { method, headers }, (answer) => {
      answer.resume()
      resolve(answer.statusCode)
    }).on('error', reject)
    asked.end(method === 'GET' ? undefined : body)
  })

describe('bodies and pages, without keys', () => {
  let served: Serving
  let at: string
  beforeAll(async () => {
    served = await serving({ corsOrigins: ['https://ours.example'] })
    at = new URL(served.url).host
  })
  afterAll(() => served.close())

  it.each<[string, Record<string, string>]>([
    ['no content type, as LiteLLM', {}],
    ['text/plain', { 'content-type': 'text/plain;charset=UTF-8' }],
    ['the type that curl -d sends', { 'content-type': 'application/x-www-form-urlencoded' }],
    ['JSON with a parameter', { 'content-type': 'Application/JSON; charset=utf-8' }],
  ])('reads %s as JSON', async (_, headers) => {
    expect(await sent(served.url, headers)).toBe(200)
  })

  const types = [undefined, 'text/plain', 'application/x-www-form-urlencoded', 'application/json']
  const hostile: readonly (readonly [string, Record<string, string>])[] = [
    ['another site', { origin: 'https://evil.example', 'sec-fetch-site': 'cross-site' }],
    ['another site, by an old browser', { origin: 'https://evil.example' }],
    ['a sandboxed frame or a file', { origin: 'null' }],
    ['a sandboxed frame that says where it is', { origin: 'null', 'sec-fetch-site': 'cross-site' }],
    ['another port of this machine', { origin: 'http://localhost:1', 'sec-fetch-site': 'same-site' }],
    ['another port of this machine, by an old browser', { origin: 'http://127.0.0.1:1' }],
    ['a page that hides its origin', { 'sec-fetch-site': 'cross-site' }],
    ['a page that looks like ours', { origin: 'https://ours.example.evil.example' }],
    ['an origin that is no URL', { origin: 'http://' }],
    ['an origin of another scheme', { origin: 'chrome-extension://abcdef' }],
  ]
  it.each(hostile)('refuses %s, whatever the content type', async (_, headers) => {
    for (const type of types)
      expect(await sent(served.url, { ...headers, ...(type === undefined ? {} : { 'content-type': type }) })).toBe(403)
    // Without a body, a route that needs none would act.
    expect(await sent(served.url, headers, { path: '/kvfold/threads/t/refresh', body: '' })).toBe(403)
    expect(await sent(served.url, headers, { method: 'DELETE', path: '/kvfold/threads/t' })).toBe(403)
    expect(await sent(served.url, headers, { method: 'GET', path: '/props' })).toBe(403)
    expect(await sent(served.url, headers, { method: 'GET', path: '/v1/models' })).toBe(200)
  })

  it('answers its own page, allowed pages, and a page behind a proxy that renames the host', async () => {
    expect(await sent(served.url, { origin: `http://${at}`, 'sec-fetch-site': 'same-origin' })).toBe(200)
    expect(await sent(served.url, { origin: `http://${at}` })).toBe(200)
    expect(await sent(served.url, { origin: 'https://ours.example', 'sec-fetch-site': 'cross-site' })).toBe(200)
    expect(await sent(served.url, { origin: 'https://behind.example', 'sec-fetch-site': 'same-origin' })).toBe(200)
    // The page's name was rebound to this machine: for the browser it is the same origin.
    expect(await sent(served.url, { host: 'evil.example', origin: 'http://evil.example', 'sec-fetch-site': 'same-origin' })).toBe(
      403,
    )
  })
})

it('lets pages with a key ask from anywhere, as no page has a key that it was not given', async () => {
  const served = await serving({ keys: [{ name: 'anna', key: 'sk-anna' }] })
  try {
    const headers = { origin: 'https://evil.example', 'sec-fetch-site': 'cross-site' }
    expect(await sent(served.url, headers)).toBe(401)
    expect(await sent(served.url, { ...headers, authorization: 'Bearer sk-anna' })).toBe(200)
  } finally {
    await served.close()
  }
})
