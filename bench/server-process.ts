/** Runs a server's process: starts it on a free port, waits until it is ready, and ends it with this process. */
import { spawn, type ChildProcess } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { createServer, type AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'

const START_LIMIT = 60_000
const POLL = 50
/** Milliseconds between SIGTERM and SIGKILL. */
const STOP_LIMIT = 10_000

export interface ServerProcess {
  readonly url: string
  /** Resident memory in bytes; null except on Linux. */
  memory(): number | null
  /** CPU milliseconds of the process so far; null except on Linux. */
  cpu(): number | null
  close(): Promise<void>
}

export interface Starting {
  readonly env?: NodeJS.ProcessEnv
  /** A path that answers 200 once the server is ready. Default: `/health`. */
  readonly path?: string
  /** Milliseconds in which the server must become ready. Default: a minute. */
  readonly limit?: number
}

/**
 * Starts a program that serves HTTP on 127.0.0.1 at the given port. Resolves when it is ready.
 * @throws Error with the program's last lines if it ends, or is not ready in time
 */
export async function startServer(
  name: string,
  program: string,
  args: (port: number) => readonly string[],
  { env = process.env, path = '/health', limit: patience = START_LIMIT }: Starting = {},
): Promise<ServerProcess> {
  const port = await freePort()
  const server = spawn(program, args(port), { env, stdio: ['ignore', 'pipe', 'pipe'] })
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
  const url = `http://127.0.0.1:${port}`
  const limit = performance.now() + patience
  while (!(await isReady(url + path))) {
    const ended = server.pid === undefined || server.exitCode !== null || server.signalCode !== null
    if (!ended && performance.now() < limit) {
      await sleep(POLL)
      continue
    }
    await close()
    throw new Error(`${name} did not start (${server.exitCode ?? server.signalCode ?? 'no exit code'}): ${last.join('\n')}`)
  }
  return { url, memory: () => residentMemory(server.pid), cpu: () => cpuTime(server.pid), close }
}

async function isReady(url: string): Promise<boolean> {
  try {
    return (await fetch(url)).ok
  } catch {
    // The server is not listening yet.
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

function residentMemory(pid: number | undefined): number | null {
  try {
    const [, kib = ''] = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8')) ?? []
    return kib === '' ? null : Number(kib) * 1024
  } catch {
    return null
  }
}

/** Returns the process's user and system time in milliseconds, assuming Linux's ticks of 10 ms; null if it cannot be read. */
function cpuTime(pid: number | undefined): number | null {
  try {
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8')
      .replace(/^.*\) /s, '')
      .split(' ')
    return 10 * (Number(fields[11]) + Number(fields[12]))
  } catch {
    return null
  }
}

/** Returns a port on which nothing was listening a moment ago. */
async function freePort(): Promise<number> {
  const probe = createServer()
  await new Promise<void>((resolve, reject) => probe.once('error', reject).listen(0, '127.0.0.1', resolve))
  const { port } = probe.address() as AddressInfo
  await new Promise((resolve) => probe.close(resolve))
  return port
}
