/** Other processes and threads: whether one still runs, and what Node needs to run our sources in one. */
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

/** Whether a process of this id runs, be it another user's. */
export function isRunning(pid: number): boolean {
  if (!Number.isSafeInteger(pid) || pid < 1) return false
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

/** Returns the options by which Node runs TypeScript. They have tsx as a URL: Node would resolve a bare name from the working directory. */
export const forSources = (): string[] => ['--import', pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href]
