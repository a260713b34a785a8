/** Locks between processes: who holds one, and when a lock that was left behind is replaced. */
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it, onTestFinished, vi } from 'vitest'
import { lockHolder, takeLock } from '../../../src/runtime/core/lock-file.js'
import { processSpace } from '../../../src/runtime/core/processes.js'

let folder: string
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-lock-'))
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})
let count = 0
/** Returns the path of a lock with this text. */
const left = (text: string): string => {
  const lock = join(folder, `${count++}.lock`)
  writeFileSync(lock, text)
  return lock
}
const NO_PROCESS = 4_194_999

describe('a lock', () => {
  it('is held until it is released, also against the process that holds it', async () => {
    const lock = join(folder, 'a.lock')
    const release = await takeLock(lock)
    if (typeof release !== 'function') throw new Error('The lock is not free.')
    expect(await takeLock(lock)).toEqual({ name: `Process ${process.pid}`, advice: '' })
    release()
    expect([existsSync(lock), lockHolder(lock)]).toEqual([false, null])
  })

  it.each([
    ['a dead process', `${NO_PROCESS} ${processSpace()}\n`, null],
    ['a dead process that had the id of this one, as in a container', `${process.pid} ${processSpace()}\n`, null],
    ['another process', `${process.ppid} ${processSpace()}\n`, `Process ${process.ppid}`],
    ['another machine', `${NO_PROCESS} 0000aaaa\n`, `Process ${NO_PROCESS} of another machine or container`],
    ['an earlier version, dead', `${NO_PROCESS}\n`, null],
    ['an earlier version', `${process.pid}\n`, `Process ${process.pid}`],
    ['a process that died before it wrote its id', '', null],
  ])('of %s', async (_, text, holder) => {
    const lock = left(text)
    expect(lockHolder(lock)?.name ?? null).toBe(holder)
    const taken = await takeLock(lock)
    expect(typeof taken === 'function' ? null : taken.name).toBe(holder)
  })

  it('is not taken from a process that writes its id just now', async () => {
    const lock = left('')
    const taking = takeLock(lock)
    writeFileSync(lock, `${process.ppid} ${processSpace()}\n`)
    expect(await taking).toEqual({ name: `Process ${process.ppid}`, advice: '' })
  })

  it('of another machine is free once its holder has not written it for two minutes', async () => {
    const lock = left(`${NO_PROCESS} 0000aaaa\n`)
    const past = Date.now() / 1000 - 121
    utimesSync(lock, past, past)
    expect(lockHolder(lock)).toBeNull()
    expect(typeof (await takeLock(lock))).toBe('function')
  })

  it('is written again by its holder, who does not delete the lock of another one', async () => {
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] })
    onTestFinished(() => {
      vi.useRealTimers()
    })
    const lock = join(folder, 'b.lock')
    const release = await takeLock(lock)
    if (typeof release !== 'function') throw new Error('The lock is not free.')
    utimesSync(lock, 0, 0)
    vi.advanceTimersByTime(20_000)
    expect(Date.now() - statSync(lock).mtimeMs).toBeLessThan(60_000)
    writeFileSync(lock, `${process.ppid} 0000aaaa\n`)
    release()
    expect(readFileSync(lock, 'utf8')).toContain('0000aaaa')
  })
})
