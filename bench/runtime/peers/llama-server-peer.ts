/** The peer llama-server: one process on localhost with one slot, which is asked for completions of plain token lists. */
import { startServer } from '../../server-process.js'
import { UBATCH, type Peer, type PeerOptions } from './peer.js'

/** The shortest run of tokens that the server may shift to another position. */
const CACHE_REUSE = 256

/** The fields that are read of the server's answer (tools/server/README.md, "timings"). */
interface Completion {
  readonly timings: { readonly prompt_n: number; readonly cache_n: number }
}

/**
 * Starts `binary` (see buildLlamaServer), and resolves when the model is loaded. The server's RAM prompt cache stays on, its default.
 * @throws Error with the server's last lines if it ends, or is not ready within a minute
 */
export async function llamaServerPeer(binary: string, { model, contextSize, threads }: PeerOptions): Promise<Peer> {
  const settings = {
    model,
    host: '127.0.0.1',
    parallel: 1,
    threads,
    'ctx-size': contextSize,
    'threads-batch': threads,
    'ubatch-size': UBATCH,
    'flash-attn': 'on',
    'cache-reuse': CACHE_REUSE,
  }
  const flags = Object.entries(settings).flatMap(([name, value]) => [`--${name}`, String(value)])
  const args = (port: number) => [...flags, '--port', String(port), '--offline', '--no-ui']
  const server = await startServer('llama-server', binary, args, { env: withoutSettings(process.env) })
  return {
    name: 'llama-server',
    async show(tokens) {
      const request = JSON.stringify({ prompt: [...tokens], n_predict: 1, cache_prompt: true, temperature: 0 })
      const begun = performance.now()
      const response = await fetch(`${server.url}/completion`, {
        method: 'POST',
        // The server closes an idle kept-alive connection after some seconds, maybe just as it is used again.
        headers: { 'content-type': 'application/json', connection: 'close' },
        body: request,
      })
      const text = await response.text()
      const milliseconds = performance.now() - begun
      if (!response.ok) throw new Error(`llama-server answered ${response.status}: ${text}`)
      const { timings } = JSON.parse(text) as Completion
      if (timings.prompt_n + timings.cache_n !== tokens.length)
        throw new Error(`llama-server counts ${timings.prompt_n} + ${timings.cache_n} tokens of a prompt of ${tokens.length}`)
      return { evaluated: timings.prompt_n, cached: timings.cache_n, milliseconds }
    },
    close: () => server.close(),
  }
}

/** Returns the environment without the user's own settings for the server, which must not change the measurement. */
export const withoutSettings = (env: NodeJS.ProcessEnv): NodeJS.ProcessEnv =>
  Object.fromEntries(Object.entries(env).filter(([name]) => !name.startsWith('LLAMA_ARG_')))
