/** Runs a server in a separate process, which tests stop, kill and inspect. */
import { spawn, type ChildProcessByStdio } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import type { Readable } from 'node:stream'
import { KVFOLD } from '../../cli/support/process.js'

export interface ServerProcess {
  readonly child: ChildProcessByStdio<null, Readable, Readable>
  readonly url: string
  /** Kills the process. Resolves when it has ended. */
  kill(): Promise<void>
}

/**
 * Starts a server. Resolves when it accepts requests. It computes on one CPU thread, and listens on a free port.
 * @param more More arguments of `serve`.
 * @param node Arguments of node.
 */
export async function serverProcess(more: readonly string[], node: readonly string[] = []): Promise<ServerProcess> {
  const words = ['serve', '--gpu', 'cpu', '--threads', '1', '--port', '0', ...more]
  const child = spawn(process.execPath, [...node, ...KVFOLD, ...words], {
    cwd: join(import.meta.dirname, '../../../..'),
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let said = ''
  child.stderr.setEncoding('utf8').on('data', (text: string) => (said += text))
  const url = await new Promise<string>((resolve, reject) => {
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      const where = /serves \S+.* at (\S+)\n/.exec((said += text))?.[1]
      if (where !== undefined) resolve(where)
    })
    child.once('close', () => {
      reject(new Error(`ended: ${said}`))
    })
  })
  return {
    child,
    url,
    async kill() {
      child.kill('SIGKILL')
      if (child.exitCode === null && child.signalCode === null) await once(child, 'close')
    },
  }
}
