/** Tests which host names a server without keys answers to. */
import { request } from 'node:http'
import { expect, it } from 'vitest'
import { ScriptedEngine } from '../../support/scripted.js'
import { serving } from './support/serving.js'

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
