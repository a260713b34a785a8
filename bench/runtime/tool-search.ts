/**
 * The search in a large catalogue: an MCP server lists 10,000 tools page by page, and the benchmark measures how long the host takes to
 * find one of them.
 */
import { McpHost } from '../../src/runtime/mcp/host.js'
import { parseMcpConfig } from '../../src/runtime/mcp/config.js'
import { oddServer } from '../../test/runtime/mcp/support/odd-server.js'

const TOOLS = 10_000
const SEARCHES = 1000

export async function toolSearch(json: boolean): Promise<void> {
  const servers = parseMcpConfig(JSON.stringify({ mcpServers: { many: oddServer(TOOLS) } }), {
    file: 'bench',
    folder: process.cwd(),
    environment: {},
  })
  const begun = performance.now()
  const host = await McpHost.open({ servers, version: 'bench' })
  try {
    const listed = performance.now()
    await host.catalogue.search('the first one builds the index', 5)
    const indexed = performance.now()
    const times: number[] = []
    const spent = process.cpuUsage()
    for (let at = 0; at < SEARCHES; at++) {
      // Search by two words that every tool has, and one that only this tool has.
      const { name } = host.tools[(at * 7919) % host.tools.length]!
      const from = performance.now()
      const found = await host.catalogue.search(`the figure of a company: ${name}`, 5)
      times.push(performance.now() - from)
      if (found.length !== 5) throw new Error(`${name}: ${found.length} tools found`)
    }
    const { user, system } = process.cpuUsage(spent)
    times.sort((one, other) => one - other)
    const result = {
      tools: host.tools.length,
      startAndList: Math.round(listed - begun),
      index: Math.round(indexed - listed),
      searches: times.length,
      processor: (user + system) / 1000 / times.length,
      median: times[times.length >> 1]!,
      p99: times[Math.floor(times.length * 0.99)]!,
      longest: times.at(-1)!,
    }
    if (json) console.log(JSON.stringify(result))
    else {
      console.log(
        `${result.tools} tools of one server: ${result.startAndList} ms to start it and list them, ${result.index} ms for the index`,
      )
      console.log(
        `${result.searches} searches: ${ms(result.processor)} of a processor each; by the clock median ${ms(result.median)}, 99 of 100 within ${ms(result.p99)}, longest ${ms(result.longest)}`,
      )
    }
  } finally {
    await host.close()
  }
}

const ms = (value: number): string => `${value.toFixed(1)} ms`
