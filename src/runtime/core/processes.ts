/** Other processes and threads: whether a process still runs, and the options with which Node runs our TypeScript sources. */
import { createHash } from 'node:crypto'
import { readlinkSync } from 'node:fs'
import { createRequire } from 'node:module'
import { hostname } from 'node:os'
import { pathToFileURL } from 'node:url'

/** Whether a process with this id runs, even one of another user. */
export function isRunning(pid: number): boolean {
  if (!Number.isSafeInteger(pid) || pid < 1) return false
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

let space: string | null = null

/** Returns eight hexadecimal digits that name the process ids' space: the machine and, on Linux, the container's namespace. */
export function processSpace(): string {
  return (space ??= createHash('sha256').update(`${hostname()} ${namespace()}`).digest('hex').slice(0, 8))
}

function namespace(): string {
  try {
    return readlinkSync('/proc/self/ns/pid')
  } catch {
    return ''
  }
}

/**
 * Returns the options with which Node runs TypeScript. They name tsx by its URL, because Node would look for a bare name from the working
 * directory.
 */
export const forSources = (): string[] => ['--import', pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href]
