/** Locks between processes. A lock is a file that names the holding process and the machine or container in which its id is valid. */
import { readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'
import { isRunning, processSpace } from './processes.js'

/** The process that holds a lock, in words for an error. */
export interface LockHolder {
  /** For example `Process 12`. */
  readonly name: string
  /** Advice for a holder on another machine or container, whose end cannot be seen from here: a sentence after a space. Else empty. */
  readonly advice: string
}

/** Paths of the locks that this process holds. A lock with our process id that is missing here was left by a dead process of that id. */
const held = new Set<string>()

/** An empty lock is read again after this many milliseconds, because its process may still be writing it. */
const PAUSE = 50
/**
 * A holder writes its lock again every BEAT milliseconds. A lock from another machine or container that was not written for SILENT
 * milliseconds was left by a dead process. Its age is measured with a probe file in the same folder, because clocks of machines differ.
 */
const BEAT = 20_000
const SILENT = 120_000

/**
 * Takes a lock, and replaces that of a dead process. Returns the function that releases it, or the living process that holds it.
 * @throws Error with a `code` when the file cannot be written
 */
export async function takeLock(lock: string): Promise<(() => void) | LockHolder> {
  const own = `${process.pid} ${processSpace()}`
  for (let attempt = 0; ; attempt++) {
    try {
      writeFileSync(lock, `${own}\n`, { flag: 'wx' })
      break
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
      if (textOf(lock) === '') await wait(PAUSE)
      const holder = lockHolder(lock)
      if (holder !== null) return holder
      if (attempt > 2) return { name: 'Another process', advice: '' }
      rmSync(lock, { force: true })
    }
  }
  const name = resolve(lock)
  held.add(name)
  const beat = setInterval(() => {
    if (textOf(name) === own) rewrite(name, own)
  }, BEAT).unref()
  return () => {
    clearInterval(beat)
    held.delete(name)
    if (textOf(name) === own) rmSync(name, { force: true })
  }
}

/**
 * Returns the living process that holds a lock; null if there is none. A process of another machine or container counts as living while it
 * keeps writing its lock.
 */
export function lockHolder(lock: string): LockHolder | null {
  const [id = '', space] = textOf(lock).split(' ')
  if (id === '') return null
  if (space !== undefined && space !== processSpace())
    return isSilent(lock)
      ? null
      : {
          name: `Process ${id} of another machine or container`,
          advice: ` If that process has ended, wait two minutes, or delete ${lock}.`,
        }
  const pid = Number(id)
  const isOwn = space !== undefined && pid === process.pid
  return (isOwn ? held.has(resolve(lock)) : isRunning(pid)) ? { name: `Process ${id}`, advice: '' } : null
}

function textOf(lock: string): string {
  try {
    return readFileSync(lock, 'utf8').trim()
  } catch {
    return ''
  }
}

function rewrite(lock: string, text: string): void {
  try {
    writeFileSync(lock, `${text}\n`, { flag: 'r+' })
  } catch {
    // The folder was deleted, or the lock was deleted by hand.
  }
}

function isSilent(lock: string): boolean {
  const probe = `${lock}.${process.pid}`
  try {
    writeFileSync(probe, '')
    return statSync(probe).mtimeMs - statSync(lock).mtimeMs > SILENT
  } catch {
    return false
  } finally {
    rmSync(probe, { force: true })
  }
}
