/** An MCP server that misbehaves: it hangs, dies, answers megabytes, changes its tools. Run as a program, it uses stdio. */
import { McpServer } from '@modelcontextprotocol/server'
import { StdioServerTransport } from '@modelcontextprotocol/server/stdio'
import { fileURLToPath } from 'node:url'

const ODD = fileURLToPath(import.meta.url)

/** Returns the command that starts it as a process, with `many` more tools beside its own. */
export const oddServer = (many = 0) => ({ command: process.execPath, args: ['--import', 'tsx', ODD, String(many)] })

const TOOLS = ['hang', 'huge', 'die', 'change', 'count', 'say']
const PAGE = 1000

const tool = (name: string, description: string) => ({
  name,
  description,
  inputSchema: { type: 'object' as const, properties: { text: { type: 'string' } } },
})

export function oddMcpServer(many = 0): McpServer {
  const odd = new McpServer({ name: 'odd', version: '1' }, { capabilities: { tools: { listChanged: true } } })
  const { server } = odd
  let tools = [
    ...TOOLS.map((name) => tool(name, `What ${name} does`)),
    ...Array.from({ length: many }, (_, at) => tool(`figure_${at}`, `Figure ${at} of company ${SYLLABLES(at)}`)),
  ]
  let stopped = 0
  const text = (said: string, isError = false) => ({ content: [{ type: 'text' as const, text: said }], isError })
  server.setRequestHandler('tools/list', ({ params }) => {
    const from = Number(params?.cursor ?? 0)
    const to = from + PAGE
    return { tools: tools.slice(from, to), ...(to < tools.length ? { nextCursor: String(to) } : {}) }
  })
  server.setRequestHandler('tools/call', async ({ params }, { mcpReq: { signal } }) => {
    switch (params.name) {
      case 'hang':
        return new Promise((resolve) => {
          signal.addEventListener('abort', () => {
            stopped++
            resolve(text('stopped'))
          })
        })
      case 'huge':
        return text('0123456789'.repeat(2 ** 19))
      case 'die':
        console.error('out of memory, they say')
        process.exit(3)
      // eslint-disable-next-line no-fallthrough -- the process has ended
      case 'change':
        tools = [...tools.filter(({ name }) => name !== 'say'), tool('sing', 'Sings a song')]
        await server.sendToolListChanged()
        return text('changed')
      case 'count':
        return text(String(stopped))
      case 'say':
        return text(String(params.arguments?.['text']))
      default:
        return text(`there is no ${params.name}`, true)
    }
  })
  return odd
}

/** Returns a made-up name for every number. */
const SYLLABLES = (number: number): string =>
  Array.from(String(number), (digit) => 'ba do ki lu me na po ri su te'.split(' ')[Number(digit)]!).join('')

if (process.argv[1] === ODD) await oddMcpServer(Number(process.argv[2] ?? 0)).connect(new StdioServerTransport())
