/** Other processes and threads: whether a process still runs, and the options with which Node runs our TypeScript sources. */
import { createRequire } from 'node:module'
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

/**
 * Returns the options with which Node runs TypeScript. They name tsx by its URL, because Node would look for a bare name from the working
 * directory.
 */
export const forSources = (): string[] => ['--import', pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href]
