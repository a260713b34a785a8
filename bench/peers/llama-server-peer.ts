/** Owns the peer llama-server: one process on localhost with one slot, asked for completions of plain token lists. */
import { spawn, type ChildProcess } from 'node:child_process'
import { createServer, type AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { UBATCH, type Peer, type PeerOptions } from './peer.js'

/** Shortest stretch, in tokens, that the server may shift to another place. */
const CACHE_REUSE = 256
const START_LIMIT = 60_000
const POLL = 50
/** Milliseconds from the polite end to the other one. */
const STOP_LIMIT = 5000

/** What we read of the server's answer (tools/server/README.md, "timings"). */
interface Completion {
  readonly timings: { readonly prompt_n: number; readonly cache_n: number }
}

/**
 * Starts `binary` (see buildLlamaServer) and resolves when the model is loaded. Its RAM cache of prompts stays as it is by default, on.
 * @throws Error with the server's last lines when it ends or is not ready within a minute.
 */
export async function llamaServerPeer(binary: string, { model, contextSize, threads }: PeerOptions): Promise<Peer> {
  const port = await freePort()
  const settings = {
    model,
    host: '127.0.0.1',
    port,
    parallel: 1,
    threads,
    'ctx-size': contextSize,
    'threads-batch': threads,
    'ubatch-size': UBATCH,
    'flash-attn': 'on',
    'cache-reuse': CACHE_REUSE,
  }
  const flags = Object.entries(settings).flatMap(([name, value]) => [`--${name}`, String(value)])
  // A user's own settings for the server must not change what is measured.
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('LLAMA_ARG_')))
  const server = spawn(binary, [...flags, '--offline', '--no-ui'], { env, stdio: ['ignore', 'pipe', 'pipe'] })
  let last: string[] = []
  for (const stream of [server.stdout, server.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      last = [...last, ...text.split('\n').filter((line) => line.trim() !== '')].slice(-8)
    })
  server.on('error', (error) => last.push(error.message))
  const orphan = () => server.kill('SIGKILL')
  process.once('exit', orphan)
  const close = async () => {
    process.off('exit', orphan)
    await stop(server)
  }

  const url = `http://${settings.host}:${port}`
  const limit = performance.now() + START_LIMIT
  while (!(await isReady(url))) {
    const ended = server.pid === undefined || server.exitCode !== null || server.signalCode !== null
    if (!ended && performance.now() < limit) {
      await sleep(POLL)
      continue
    }
    await close()
    throw new Error(`llama-server did not start (${server.exitCode ?? server.signalCode ?? 'no exit code'}): ${last.join('\n')}`)
  }
  return {
    name: 'llama-server',
    async show(tokens) {
      const request = JSON.stringify({ prompt: [...tokens], n_predict: 1, cache_prompt: true, temperature: 0 })
      const begun = performance.now()
      const response = await fetch(`${url}/completion`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
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
    close,
  }
}

async function isReady(url: string): Promise<boolean> {
  try {
    return (await fetch(`${url}/health`)).ok
  } catch {
    // Nobody listens yet.
    return false
  }
}

async function stop(server: ChildProcess): Promise<void> {
  if (server.pid === undefined || server.exitCode !== null || server.signalCode !== null) return
  const ended = new Promise((resolve) => server.once('exit', resolve))
  server.kill('SIGTERM')
  const timer = setTimeout(() => server.kill('SIGKILL'), STOP_LIMIT)
  await ended
  clearTimeout(timer)
}

/** A port that nobody listened on a moment ago. */
async function freePort(): Promise<number> {
  const probe = createServer()
  await new Promise<void>((resolve, reject) => probe.once('error', reject).listen(0, '127.0.0.1', resolve))
  const { port } = probe.address() as AddressInfo
  await new Promise((resolve) => probe.close(resolve))
  return port
}
