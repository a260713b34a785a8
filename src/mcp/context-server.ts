/** Owns the MCP server that offers the six context tools over the threads of a running `kvfold serve`. */
import { fromJsonSchema, McpServer } from '@modelcontextprotocol/server'
import { contextTools } from '../context/tools.js'
import { ServedThread, type ServedThreadOptions } from './served-thread.js'

export interface ContextServerOptions extends Omit<ServedThreadOptions, 'signal'> {
  /** Of kvfold, which clients are told. */
  readonly version: string
}

const ABOUT =
  'Tools for your own context: cut what was said into fragments, fold or summarize what you no longer need, and restore or search it. They work on ' +
  'the conversation that the kvfold server keeps of your requests; messages that you send again stay folded.'

/** One for every connection, or every request over HTTP. */
export function contextServer({ version, ...where }: ContextServerOptions): McpServer {
  const server = new McpServer({ name: 'kvfold', version }, { instructions: ABOUT })
  for (const tool of contextTools) {
    const { name, description, parameters } = tool.definition
    // The tools check their arguments themselves, and say in plain words what is wrong.
    const inputSchema = fromJsonSchema<Readonly<Record<string, unknown>>>(parameters, {
      getValidator: () => (given) => ({ valid: true, data: given as never, errorMessage: undefined }),
    })
    server.registerTool(name, { description, inputSchema }, async (args, { mcpReq: { signal } }) => {
      const { text, failed } = await tool.run(new ServedThread({ ...where, signal }), args, signal)
      return { content: [{ type: 'text', text }], isError: failed }
    })
  }
  return server
}
