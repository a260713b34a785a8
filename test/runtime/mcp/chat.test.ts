/** Tests what `kvfold chat` shows of MCP servers. */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { kvfoldHere } from '../cli/support/process.js'
import { realServers, someFolder } from './support/hosting.js'

test('/tools shows servers, their tools and the loaded ones, and finds tools', async () => {
  const folder = await someFolder()
  const file = join(folder, 'mcp.json')
  const { memory } = realServers(folder)
  await writeFile(file, JSON.stringify({ mcpServers: { memory, nowhere: { command: join(folder, 'none') } } }))
  const input = ['/tools', '/tools read the graph', '/tools nonsense'].join('\n')
  const { code, stdout, stderr } = await kvfoldHere(['chat', '--mcp-config', file, '--tool-memory', 'autonomous'], { input })
  expect(stderr).toContain('9 tools of 1 MCP server; the model searches them (autonomous).')
  expect(stdout).toMatch(/^· The MCP server nowhere cannot be started: spawn .* ENOENT\.$/m)
  expect(stdout).toMatch(/^memory {2}9 tools\nnowhere {2}down: spawn .* ENOENT\nLoaded: 0 tools, 0 tokens$/m)
  expect(stdout).toMatch(/^memory_read_graph {2}Read the entire knowledge graph$/m)
  expect(stdout).toContain('No tool matches these words.')
  expect(code).toBe(0)
})

test('a first step that must call a tool is bad usage where the model searches the tools', async () => {
  const folder = await someFolder()
  const file = join(folder, 'mcp.json')
  await writeFile(file, JSON.stringify({ mcpServers: { memory: realServers(folder).memory } }))
  const words = (way: string) => ['--mcp-config', file, '--tool-memory', way, '--first-step', 'required']
  for (const command of [['chat'], ['run', '--tools', '--prompt', 'x']]) {
    const { code, stderr } = await kvfoldHere([...command, ...words('hybrid')])
    expect(stderr).toMatch(/--first-step required needs --tool-memory off.*\[cli\/bad-usage\]$/m)
    expect(code).toBe(2)
  }
  const { code } = await kvfoldHere(['chat', ...words('off')])
  expect(code).toBe(0)
})

test('an invalid file is bad usage, before any server is started', async () => {
  const file = join(await someFolder(), 'mcp.json')
  await writeFile(file, '{"mcpServers": {"a": {"command": "${NO_SUCH_VARIABLE_HERE}"}}}')
  const { code, stderr } = await kvfoldHere(['run', '--mcp-config', file, '--prompt', 'x'])
  expect(stderr).toContain('mcpServers.a.command: the environment variable NO_SUCH_VARIABLE_HERE is not set; set it')
  expect(code).toBe(2)
})
