/** Arguments of calls reach MCP servers with their digits and in their order, over each transport. */
import { expect, onTestFinished, test } from 'vitest'
import { readJson } from '../../../src/runtime/core/written-json.js'
import { hosting } from './support/hosting.js'
import { rawHttpServer, rawServer } from './support/raw-server.js'

const GIVEN = '{"zeta":[9007199254740993,1e400,1.50],"id":12345678901234567890,"7":{"b":1.0,"3":"x"}}'

test.each(['a process', 'HTTP'])('to %s', async (kind) => {
  const http = kind === 'HTTP' ? await rawHttpServer() : null
  onTestFinished(() => http?.close())
  const { host } = await hosting({ raw: http === null ? rawServer() : { url: http.url } })
  expect(host.servers).toMatchObject([{ name: 'raw', problem: null, tools: ['raw_raw'] }])
  const call = (args: string) => host.execute({ name: 'raw_raw', arguments: readJson(args) as Record<string, unknown> })
  expect(await call(GIVEN)).toContain(`"arguments":${GIVEN}`)
  expect(await call('{"a":1}')).toContain('"arguments":{"a":1}')
})
