/** Tells whether another process runs, and how Node runs our TypeScript sources in a new process or thread. */
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

/** Returns eight hexadecimal digits that name where process ids are valid: the machine and, on Linux, the container's PID namespace. */
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

/** Returns Node's options for running TypeScript. They name tsx by URL, because Node resolves a bare name from the working directory. */
export const forSources = (): string[] => ['--import', pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href]
