/** Tests that numbers and the order of keys stay as written on the way to MCP servers and back, over each transport. */
import { expect, onTestFinished, test } from 'vitest'
import { readJson, writeJson } from '../../../src/runtime/core/written-json.js'
import { hosting } from './support/hosting.js'
import { RAW_DATA, RAW_SCHEMA, rawHttpServer, rawServer } from './support/raw-server.js'

test.each(['a process', 'HTTP', 'HTTP with events'])('%s', async (kind) => {
  const http = kind === 'a process' ? null : await rawHttpServer(kind !== 'HTTP')
  onTestFinished(() => http?.close())
  const { host } = await hosting({ raw: http === null ? rawServer() : { url: http.url } })
  expect(host.servers).toMatchObject([{ name: 'raw', problem: null, tools: ['raw_data', 'raw_raw'] }])
  expect(host.tools.map(({ parameters }) => writeJson(parameters))).toEqual([RAW_SCHEMA, RAW_SCHEMA])
  const call = (name: string, args: string) => host.execute({ name, arguments: readJson(args) as Record<string, unknown> })
  expect(await call('raw_raw', RAW_DATA)).toContain(`"arguments":${RAW_DATA}`)
  expect(await call('raw_raw', '{"a":1}')).toContain('"arguments":{"a":1}')
  expect(await call('raw_data', '{}')).toBe(RAW_DATA)
})
