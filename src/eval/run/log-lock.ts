/** Owns that one process at a time writes to a log: a file beside it with the number of that process. */
import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { KvfoldError } from '../../core/errors.js'
import { bad, codeOf } from './log-file.js'

export const lockOf = (path: string): string => `${path}.lock`

/** Takes the log for this process; one that a dead process left behind is taken over. Returns what gives it back. @throws KvfoldError eval/log-busy, eval/bad-log */
export function takeLog(path: string): () => void {
  const lock = lockOf(path)
  for (let attempt = 0; ; attempt++) {
    try {
      writeFileSync(lock, `${process.pid}\n`, { flag: 'wx' })
      break
    } catch (cause) {
      if (codeOf(cause) !== 'EEXIST') throw bad(path, `cannot be written (${codeOf(cause)})`, cause)
      const owner = ownerOf(lock)
      if (owner !== null || attempt > 2)
        throw new KvfoldError(
          'eval/log-busy',
          `Another process${owner === null ? '' : ` (${owner})`} writes to ${path}; wait for it, or name another --log.`,
          { cause },
        )
      rmSync(lock, { force: true })
    }
  }
  return () => {
    rmSync(lock, { force: true })
  }
}

/** Whether another living process writes to it. */
export const isTaken = (path: string): boolean => ownerOf(lockOf(path)) !== null

/** The living process that holds the lock; null when there is none. */
function ownerOf(lock: string): number | null {
  let pid: number
  try {
    pid = Number(readFileSync(lock, 'utf8').trim())
  } catch {
    return null
  }
  if (!Number.isSafeInteger(pid) || pid <= 0) return null
  try {
    process.kill(pid, 0)
    return pid
  } catch (error) {
    return codeOf(error) === 'EPERM' ? pid : null
  }
}
