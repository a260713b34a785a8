import { describe, expect, it } from 'vitest'
import { parseMcpConfig } from '../../../src/runtime/mcp/config.js'

const parse = (value: unknown, environment: Record<string, string> = {}) =>
  parseMcpConfig(typeof value === 'string' ? value : JSON.stringify(value), { file: 'm.json', folder: '/home/me', environment })
const one = (server: object, environment?: Record<string, string>) => parse({ mcpServers: { s: server } }, environment)[0]!

describe('the file of MCP servers', () => {
  it('has the form that other hosts use; variables and paths are filled in', () => {
    const environment = { TOKEN: 'hush', WORK: '/srv' }
    expect(
      one({ command: 'npx', args: ['-y', '${WORK}/x', '${NOT:-other}'], env: { KEY: '${TOKEN}' }, alwaysAllow: [] }, environment),
    ).toEqual({
      name: 's',
      place: { kind: 'process', command: 'npx', args: ['-y', '/srv/x', 'other'], env: { KEY: 'hush' }, cwd: null },
      roots: [],
      timeout: 60_000,
      outputLimit: 20_000,
    })
    expect(
      one({ type: 'http', url: 'https://a.example/mcp', headers: { Authorization: 'Bearer ${TOKEN}' } }, environment).place,
    ).toEqual({
      kind: 'http',
      url: new URL('https://a.example/mcp'),
      headers: { Authorization: 'Bearer hush' },
      credentials: null,
    })
    const { roots, timeout, place } = one({ command: 'x', cwd: 'sub', roots: ['.', '/data'], timeout: 5 })
    expect({ roots, timeout, place }).toMatchObject({ roots: ['/home/me', '/data'], timeout: 5, place: { cwd: '/home/me/sub' } })
    expect(
      one({ url: 'http://a/', oauth: { clientId: 'i', clientSecret: '${TOKEN}', issuer: 'https://b' } }, environment).place,
    ).toMatchObject({
      credentials: { clientId: 'i', clientSecret: 'hush', scope: null, issuer: 'https://b' },
    })
    expect(parse({ mcpServers: { off: { command: 'x', disabled: true } } })).toEqual([])
  })

  it.each([
    ['{', 'm.json given to --mcp-config: it is not JSON'],
    [{ servers: {} }, 'mcpServers: is missing. It should look like'],
    [{ mcpServers: { s: {} } }, 'mcpServers.s: it needs either "command" (a process) or "url"'],
    [{ mcpServers: { s: { command: 'x', url: 'http://a' } } }, 'mcpServers.s: it needs either'],
    [{ mcpServers: { s: { command: 'x', type: 'http' } } }, 'it has a "command", so its type must be stdio, not http'],
    [{ mcpServers: { s: { url: 'http://a', type: 'sse' } } }, 'mcpServers.s.type: must be one of "stdio"'],
    [{ mcpServers: { s: { url: 'file:///a' } } }, 'mcpServers.s.url: it must begin with http:// or https://.'],
    [
      { mcpServers: { s: { command: 'x', env: { K: '${SECRET}' } } } },
      'mcpServers.s.env.K: the environment variable SECRET is not set; set it',
    ],
    [{ mcpServers: { s: { command: 'x', timeout: 'long' } } }, 'mcpServers.s.timeout: must be a number, not "long"'],
    [{ mcpServers: { s: { command: 'x', timeout: 2 ** 31 } } }, 'mcpServers.s.timeout: must be at most 2147483647'],
  ])('is refused with the place: %j', (value, reason) => {
    expect(() => parse(value)).toThrow(reason)
  })

  it.each(['hush', 'hush:x'])('is refused without the value of a variable: %s', (PLACE) => {
    expect(() => one({ url: '${PLACE}' }, { PLACE })).toThrow(/^m\.json given to --mcp-config: mcpServers\.s\.url: (?!.*hush)/)
  })
})
