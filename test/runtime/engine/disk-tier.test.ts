/**
 * Tests the disk tier in a real folder: it returns exactly the saved items, whatever damage, foreign files, full disks or killed processes
 * do.
 */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import fc from 'fast-check'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { processSpace } from '../../../src/runtime/core/processes.js'
import { Random } from '../../../src/runtime/core/random.js'
import { SECRET_FILE } from '../../../src/runtime/engine/cache-secret.js'
import { DiskTierFolder, type DiskShelfOptions } from '../../../src/runtime/engine/disk-tier.js'
import { surplus, type Kept } from '../../../src/runtime/kv/tier-policy.js'
import type { DiskItem } from '../../../src/runtime/kv/ports.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { feed, refused, seq, someTokens } from '../native/support/fixture.js'
import { tinyModel } from '../../support/models.js'
import { keepsDiskTierContract } from '../kv/disk-tier.contract.js'
import { IDENTITY, sampleOf } from './support/disk-tier-writer.js'
import { largestDifference } from '../../support/predictions.js'
import { LONG } from '../../support/long.js'

const OTHER = Buffer.alloc(32, 'another model')
const WRITER = ['--import', 'tsx', join(import.meta.dirname, 'support/disk-tier-writer.ts')]
/** How many times a process is killed; every other time with a budget that evicts. */
const ROUNDS = LONG ? 20 : 8
const ITEM = /^[0-9a-f]{32}\.kvshelf$/
const START = 1_700_000_000_000

let folder: string
let now = START
const opened: DiskTierFolder[] = []

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-shelf-'))
  now = START
})
afterEach(async () => {
  for (const disk of opened.splice(0)) await disk.close()
  rmSync(folder, { recursive: true })
})

async function openShelf(change: Partial<DiskShelfOptions> = {}): Promise<DiskTierFolder> {
  const disk = await DiskTierFolder.open({ folder, budget: Infinity, identity: IDENTITY, clock: () => now, ...change })
  opened.push(disk)
  return disk
}

async function put(disk: DiskTierFolder, seed: number, bytes?: number): Promise<DiskItem> {
  const { record, state } = sampleOf(seed, bytes)
  const item = await disk.put(record, state)
  if (item === null) throw new Error('The shelf did not keep the sample.')
  return item
}

const pathOf = ({ id }: { readonly id: string }) => join(folder, `${id}.kvshelf`)
/** Lists the folder without the secret, which is always there. */
const filesIn = (path: string) => readdirSync(path).filter((name) => name !== SECRET_FILE)
const idsOf = (items: readonly { readonly id: string }[]) => items.map(({ id }) => id).sort()
const same = (a: Uint8Array | null, b: Uint8Array) => a !== null && Buffer.compare(a, b) === 0

/** Whether the tier returns exactly the sample that the item's record names. */
async function isIntact(disk: DiskTierFolder, item: DiskItem, bytes?: number): Promise<boolean> {
  const { record, state } = sampleOf(item.record.tokens[0]!, bytes)
  expect(item.record).toEqual(record)
  return same(await disk.take(item.id), state)
}

describe('as a disk tier', () => {
  let made = 0
  keepsDiskTierContract(() => openShelf({ folder: join(folder, `${made++}`) }))
})

describe('an item', () => {
  it('for which memory is too short is lost to the caller, and its file stays', async () => {
    const disk = await openShelf()
    const item = await put(disk, 7, 5000)
    const allocate = vi.spyOn(Buffer, 'allocUnsafeSlow').mockImplementation(() => {
      throw new RangeError('Array buffer allocation failed')
    })
    expect(await disk.take(item.id)).toBeNull()
    expect(allocate).toHaveBeenCalled()
    allocate.mockRestore()
    expect(existsSync(pathOf(item))).toBe(true)
  })

  it.each([0, 1, 2 ** 20 - 1, 2 ** 20, 2 ** 20 + 1, 3_500_001])(
    'with a state of %i bytes comes back as it was put',
    async (bytes) => {
      const disk = await openShelf()
      const item = await put(disk, 7, bytes)
      expect(disk.items).toEqual([item])
      expect(await isIntact(disk, item, bytes)).toBe(true)
      expect(item.bytes).toBe(statSync(pathOf(item)).size)
      await disk.close()

      const later = await openShelf()
      expect(later.items).toEqual([item])
      expect(await isIntact(later, later.items[0]!, bytes)).toBe(true)
      expect(later.used).toBe(item.bytes)
      expect(later.counts).toEqual({ refused: 0, unreadable: 0, gone: 0, evicted: 0, failed: 0 })
    },
  )

  it('that was dropped is gone from the list at once and from the folder soon', async () => {
    const disk = await openShelf()
    const item = await put(disk, 1, 100)
    const other = await put(disk, 2, 100)
    // The put reads the folder before the drop's turn comes, and must not list the item again.
    const putting = put(disk, 3, 100)
    const dropping = disk.drop(item.id)
    expect(disk.items).toEqual([other])
    const third = await putting
    await dropping
    expect(existsSync(pathOf(item))).toBe(false)
    expect(disk.items[0]).toBe(other)
    expect(idsOf(disk.items)).toEqual(idsOf([other, third]))
    expect(await disk.take(item.id)).toBeNull()
    await disk.drop(item.id)
    expect(disk.counts).toEqual({ refused: 0, unreadable: 0, gone: 0, evicted: 0, failed: 0 })
  })

  it('passes its last use on to the next start', async () => {
    const disk = await openShelf()
    const [a, b, c] = [await put(disk, 1, 100), await put(disk, 2, 100), await put(disk, 3, 100)]
    now += 5_001
    disk.touch(a.id)
    now += 5_001
    await disk.take(b.id)
    await disk.close()
    now += 5_001
    const uses = new Map((await openShelf()).items.map(({ id, lastUse }) => [id, lastUse]))
    expect([a, b, c].map(({ id }) => uses.get(id))).toEqual([START + 5_001, START + 10_002, START])
    now = START + 1
    for (const { lastUse } of (await openShelf()).items) expect(lastUse).toBeLessThanOrEqual(now)
  })

  it('of a real sequence loads into a cache after a restart, and is not taken once it is damaged', async () => {
    const native = await openNative({ gpu: 'cpu' })
    const model = await native.loadModel(await tinyModel())
    const context = await model.createContext({ cells: 256, sequences: 4, threads: 1 })
    await feed(context, someTokens(60))
    const disk = await openShelf()
    const { id } = (await disk.put(sampleOf(1).record, context.saveSequence(seq(0))))!
    await feed(context, [7], 60)
    const expected = context.logits(0)
    context.clear()

    const state = (await (await openShelf()).take(id))!
    expect(context.loadSequence(seq(3), state)).toBe(true)
    await feed(context, [7], 60, 3)
    expect(largestDifference(context.logits(0), expected)).toBeLessThan(0.05)
    damage(pathOf({ id }), statSync(pathOf({ id })).size - 1, 1)
    expect(await disk.take(id)).toBeNull()
    await model.dispose()
  })
})

function damage(path: string, at: number, bits: number): void {
  const content = readFileSync(path)
  content[at]! ^= bits
  writeFileSync(path, content)
}

describe('damage', () => {
  /** Damages an item after the tier listed it, and again before another tier lists it. Both must refuse it, count it once and delete it. */
  async function expectRefused(bytes: number, spoil: (path: string, size: number) => void): Promise<void> {
    const before = await openShelf()
    const item = await put(before, 5, bytes)
    spoil(pathOf(item), item.bytes)
    const spoilt = readFileSync(pathOf(item))
    expect(await before.take(item.id)).toBeNull()
    expect(before.counts.refused).toBe(1)
    expect(before.items).toEqual([])
    expect(filesIn(folder)).toEqual([])

    writeFileSync(pathOf(item), spoilt)
    const after = await openShelf()
    for (const { id } of after.items) expect(await after.take(id)).toBeNull()
    expect(after.counts.refused).toBe(1)
    expect(after.items).toEqual([])
    expect(filesIn(folder)).toEqual([])
  }

  it('of any byte is found', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.nat(5000),
        fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
        fc.integer({ min: 1, max: 255 }),
        async (bytes, place, bits) => {
          await expectRefused(bytes, (path, size) => {
            damage(path, Math.floor(place * size), bits)
          })
        },
      ),
      { numRuns: 150 },
    )
  })

  it('of any byte of the fixed head is found', async () => {
    for (let at = 0; at < 132; at++)
      await expectRefused(10, (path) => {
        damage(path, at, 1 << (at % 8))
      })
  })

  it('of any section of a large state is found', async () => {
    for (const fromEnd of [1, 2 ** 20, 2 ** 20 + 100, 2.5 * 2 ** 20])
      await expectRefused(3 * 2 ** 20, (path, size) => {
        damage(path, size - fromEnd, 0x80)
      })
  })

  it('by sections in another order is found', async () => {
    await expectRefused(2 * 2 ** 20, (path, size) => {
      const content = readFileSync(path)
      const state = Buffer.from(content.subarray(size - 2 * 2 ** 20))
      content.set(state.subarray(2 ** 20), size - 2 * 2 ** 20)
      content.set(state.subarray(0, 2 ** 20), size - 2 ** 20)
      writeFileSync(path, content)
    })
  })

  it('by a cut, by extra bytes, or by a run of zeros, as a power cut leaves them, is found', async () => {
    const size = 4000
    for (const end of [0, 1, 63, 95, 96, 127, 128, 129, 500, size - 1])
      await expectRefused(size, (path) => {
        truncateSync(path, end)
      })
    await expectRefused(size, (path, all) => {
      truncateSync(path, all - 1)
    })
    await expectRefused(size, (path) => {
      writeFileSync(path, 'x', { flag: 'a' })
    })
    for (const from of [0, 100, 3000])
      await expectRefused(size, (path, all) => {
        truncateSync(path, from)
        truncateSync(path, all)
      })
  })

  it('includes another item under this name', async () => {
    const disk = await openShelf()
    const [one, two] = [await put(disk, 1, 100), await put(disk, 2, 100)]
    copyFileSync(pathOf(one), pathOf(two))
    expect(await disk.take(two.id)).toBeNull()
    expect(await isIntact(disk, one, 100)).toBe(true)
  })

  it('found by two readers at once counts once', async () => {
    const disk = await openShelf()
    const item = await put(disk, 1, 100)
    damage(pathOf(item), item.bytes - 1, 1)
    expect(await Promise.all([disk.take(item.id), disk.take(item.id)])).toEqual([null, null])
    expect(disk.counts.refused).toBe(1)
  })
})

describe('the folder', () => {
  it('is made for this user only, and so are the files', async () => {
    folder = join(folder, 'a', 'b')
    const disk = await openShelf()
    const item = await put(disk, 1, 100)
    expect(statSync(folder).mode & 0o777).toBe(0o700)
    expect(statSync(pathOf(item)).mode & 0o777).toBe(0o600)
    folder = join(folder, '..', '..')
  })

  it('is refused by name if the path is a file', async () => {
    const path = join(folder, 'letter.txt')
    writeFileSync(path, 'Dear reader')
    expect((await refused('engine/bad-request', () => openShelf({ folder: path }))).message).toContain('letter.txt')
  })

  it('keeps files of other programs', async () => {
    const name = `${'0'.repeat(32)}.kvshelf`
    writeFileSync(join(folder, 'notes.txt'), 'mine')
    writeFileSync(join(folder, 'x.kvshelf'), 'mine')
    writeFileSync(join(folder, 'kvshelf-12-notes.tmp'), 'mine')
    mkdirSync(join(folder, name))
    symlinkSync('notes.txt', join(folder, name.replaceAll('0', '1')))
    const disk = await openShelf({ budget: 5000 })
    for (let seed = 0; seed < 3; seed++) await disk.put(sampleOf(seed).record, new Uint8Array(10))
    expect(filesIn(folder).filter((file) => !idsOf(disk.items).includes(file.slice(0, 32)))).toHaveLength(5)
    expect(readFileSync(join(folder, 'notes.txt'), 'utf8')).toBe('mine')
  })

  it('may vanish: the tier keeps nothing, and nothing breaks', async () => {
    const disk = await openShelf()
    const item = await put(disk, 1, 100)
    rmSync(folder, { recursive: true })
    const { record, state } = sampleOf(2, 100)
    expect(await disk.put(record, state)).toBeNull()
    expect(await disk.take(item.id)).toBeNull()
    expect(disk.counts).toMatchObject({ gone: 1, failed: 1, refused: 0 })
    mkdirSync(folder)
    await put(disk, 2, 100)
  })

  it.skipIf(process.getuid?.() === 0)('without write permission still serves its items', async () => {
    const item = await put(await openShelf(), 1, 100)
    chmodSync(folder, 0o500)
    const disk = await openShelf()
    const { record, state } = sampleOf(2, 100)
    expect(await disk.put(record, state)).toBeNull()
    expect(await isIntact(disk, item, 100)).toBe(true)
    chmodSync(folder, 0o700)
  })
})

describe('items of another identity', () => {
  it('are neither listed nor deleted, and stay there for their own model', async () => {
    const item = await put(await openShelf({ identity: OTHER }), 1, 1000)
    const disk = await openShelf()
    expect(disk.items).toEqual([])
    expect(await disk.take(item.id)).toBeNull()
    expect(disk.used).toBe(item.bytes)
    expect(disk.counts.refused).toBe(0)
    await put(disk, 2, 1000)
    expect(await isIntact(await openShelf({ identity: OTHER }), item, 1000)).toBe(true)
  })

  it('share the budget and the order of eviction', async () => {
    const item = await put(await openShelf({ identity: OTHER }), 1, 50_000)
    now += 1000
    const disk = await openShelf({ budget: 80_000 })
    await put(disk, 2, 50_000)
    expect(existsSync(pathOf(item))).toBe(false)
    expect(disk.counts.evicted).toBe(1)
  })
})

describe('the budget', () => {
  it('is kept by evicting the items of least benefit, as in a naive tier', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.integer({ min: 4000, max: 30_000 }),
        fc.array(fc.tuple(fc.constantFrom('put', 'put', 'touch', 'take', 'drop', 'reopen'), fc.nat(6000), fc.nat(3000)), {
          maxLength: 14,
        }),
        async (budget, operations) => {
          const naive = new Map<string, Kept>()
          let disk = await openShelf({ budget })
          for (const [kind, number, pause] of operations) {
            now += pause
            const item = disk.items[number % Math.max(1, disk.items.length)]
            if (kind === 'put') {
              const { record, state } = sampleOf(number, number)
              const { length: tokens } = record.tokens
              const before = [...naive].map(([id, kept]) => ({ id, ...kept }))
              const made = await disk.put(record, state)
              if (made === null) continue
              expect(made.bytes).toBeLessThanOrEqual(budget)
              for (const { id } of surplus(before, budget - made.bytes, now)) naive.delete(id)
              naive.set(made.id, { tokens, bytes: made.bytes, lastUse: now })
            } else if (kind === 'reopen') {
              await disk.close()
              disk = await openShelf({ budget })
            } else if (item !== undefined) {
              if (kind === 'touch') disk.touch(item.id)
              if (kind === 'take') expect(await disk.take(item.id)).not.toBeNull()
              if (kind === 'drop') await disk.drop(item.id)
              if (kind === 'drop') naive.delete(item.id)
              else naive.set(item.id, { ...naive.get(item.id)!, lastUse: now })
            }
            expect(idsOf(disk.items)).toEqual([...naive.keys()].sort())
            expect(disk.used).toBeLessThanOrEqual(budget)
            for (const { id, lastUse } of disk.items) expect(lastUse).toBe(naive.get(id)!.lastUse)
          }
          expect(filesIn(folder).sort()).toEqual(idsOf(disk.items).map((id) => `${id}.kvshelf`))
          for (const { id } of disk.items) await disk.drop(id)
        },
      ),
      { numRuns: 60 },
    )
  })

  it('refuses an item larger than all of it, and evicts nothing for it', async () => {
    const disk = await openShelf({ budget: 20_000 })
    const item = await put(disk, 1, 1000)
    const { record, state } = sampleOf(2, 20_000)
    expect(await disk.put(record, state)).toBeNull()
    expect(disk.items).toEqual([item])
    expect(disk.counts).toMatchObject({ evicted: 0, failed: 0 })
    const none = await openShelf({ budget: 0 })
    expect(await none.put(record, state)).toBeNull()
  })

  it('that became smaller since the last start is kept from the beginning', async () => {
    const disk = await openShelf()
    for (let seed = 0; seed < 4; seed++) {
      now += 1000
      await put(disk, seed, 20_000)
    }
    const smaller = await openShelf({ budget: 60_000 })
    expect(smaller.counts.evicted).toBe(2)
    expect(smaller.items.map(({ record }) => record.tokens[0]).sort()).toEqual([2, 3])
  })
})

describe('two tiers in one folder', () => {
  it("see each other's items at their next put, and lose each other's dropped ones", async () => {
    const [one, two] = [await openShelf(), await openShelf()]
    const first = await put(one, 1, 100)
    const second = await put(two, 2, 100)
    expect(idsOf(two.items)).toEqual(idsOf([first, second]))
    expect(await isIntact(two, first, 100)).toBe(true)
    await two.drop(first.id)
    expect(await one.take(first.id)).toBeNull()
    expect(one.counts).toMatchObject({ gone: 1, refused: 0 })
    const third = await put(one, 3, 100)
    expect(idsOf(one.items)).toEqual(idsOf([second, third]))
    await two.drop(second.id)
    await put(one, 4, 100)
    expect(one.counts).toMatchObject({ gone: 2, refused: 0 })
  })

  it('that write and read at the same time do not disturb each other', async () => {
    const shelves = [await openShelf({ budget: 300_000 }), await openShelf({ budget: 300_000 })]
    const random = new Random(11)
    await Promise.all(
      Array.from({ length: 60 }, async (_, seed) => {
        const disk = shelves[seed % 2]!
        await sleep(random.below(40))
        await put(disk, seed, 20_000)
        const item = disk.items[random.below(disk.items.length)]
        if (item === undefined) return
        const state = await disk.take(item.id)
        if (state !== null) expect(same(state, sampleOf(item.record.tokens[0]!, 20_000).state)).toBe(true)
      }),
    )
    for (const { counts } of shelves) expect(counts).toMatchObject({ refused: 0, failed: 0 })
    expect(filesIn(folder).every((name) => ITEM.test(name))).toBe(true)
  })
})

describe('closing', () => {
  it('keeps items put before it, even if they are dropped after it', async () => {
    const disk = await openShelf()
    const putting = put(disk, 1, 2_000_000)
    await disk.close()
    expect(filesIn(folder)).toEqual([expect.stringMatching(ITEM)])
    const item = await putting
    await disk.drop(item.id)
    expect((await openShelf()).items).toEqual([item])
  })
})

describe('temporary files', () => {
  const leave = (pid: number, run: string, space = `${processSpace()}-`) => {
    const path = join(folder, `kvshelf-${space}${pid}-${run}-${'a'.repeat(32)}.tmp`)
    writeFileSync(path, 'half of a st')
    return path
  }
  const makeOld = (path: string) => {
    const hourAgo = Date.now() / 1000 - 3600
    utimesSync(path, hourAgo, hourAgo)
  }

  it('of ended processes are deleted, those of running processes only after an hour', async () => {
    const ended = leave(spawnSync(process.execPath, ['--version']).pid, '00000001')
    const predecessor = leave(process.pid, '00000002')
    const running = leave(process.ppid, '00000003')
    const forgotten = leave(process.ppid, '00000004')
    makeOld(forgotten)
    await openShelf()
    expect([ended, predecessor, running, forgotten].map((path) => existsSync(path))).toEqual([false, false, true, false])
  })

  it('of other containers are deleted only after an hour, whatever process has their id here', async () => {
    const { pid } = spawnSync(process.execPath, ['--version'])
    const [writing, same, forgotten, earlier] = [
      leave(pid, '00000005', '0123abcd-'),
      leave(process.pid, '00000006', '0123abcd-'),
      leave(pid, '00000007', '0123abcd-'),
      leave(pid, '00000008', ''),
    ]
    makeOld(forgotten)
    makeOld(earlier)
    await openShelf()
    expect([writing, same, forgotten, earlier].map((path) => existsSync(path))).toEqual([true, true, false, false])
  })
})

describe('a process', () => {
  it('that can write no more keeps nothing of the item, and continues', async () => {
    // A limit on file sizes acts as a full disk and needs no rights; it is 1 MiB or 2, depending on the shell.
    const child = spawn('/bin/sh', ['-c', 'ulimit -f 2048; exec "$0" "$@"', process.execPath, ...WRITER, folder, 'Infinity', '1'])
    const lines: string[] = []
    for await (const data of child.stdout.setEncoding('utf8')) {
      lines.push(...(data as string).trim().split('\n'))
      if (lines.some((line) => line.startsWith('none')) && lines.some((line) => line.startsWith('put'))) break
    }
    child.kill('SIGKILL')
    if (child.exitCode === null && child.signalCode === null) await once(child, 'close')
    expect(lines.find((line) => line.startsWith('none'))).toMatch(/^none \[.*\] .*"failed":1/)
    expect(lines.filter((line) => line.includes('.tmp'))).toEqual([])
    const disk = await openShelf()
    for (const item of disk.items) expect(await isIntact(disk, item)).toBe(true)
    expect(disk.counts.refused).toBe(0)
    expect(filesIn(folder).every((name) => ITEM.test(name))).toBe(true)
  })

  it('killed at any point leaves a usable folder, with every item that it reported as kept', { timeout: 300_000 }, async () => {
    const random = new Random(20)
    let keptInAll = 0
    for (let round = 0; round < ROUNDS; round++) {
      // Every other round evicts all the time, from the opening on.
      const budget = round % 2 === 0 ? Infinity : 6_000_000
      const before = idsOf((await openShelf()).items)
      const child = spawn(process.execPath, [...WRITER, folder, String(budget), String(1000 * round)])
      let said = ''
      let errors = ''
      child.stdout.setEncoding('utf8').on('data', (text: string) => (said += text))
      child.stderr.setEncoding('utf8').on('data', (text: string) => (errors += text))
      const closed = once(child, 'close')
      await Promise.race([once(child.stdout, 'data'), closed])
      await sleep(random.below(150))
      child.kill('SIGKILL')
      await closed
      expect(said, errors).toMatch(/^begin/)
      expect(child.signalCode, errors).toBe('SIGKILL')

      const told = (word: string) => [...said.matchAll(new RegExp(`^${word} ([0-9a-f]{32})$`, 'gm'))].map(([, id]) => id!)
      const disk = await openShelf()
      expect(filesIn(folder).sort()).toEqual(idsOf(disk.items).map((id) => `${id}.kvshelf`))
      const dropped = told('drop')
      const kept = [...before, ...told('put')].filter((id) => !dropped.includes(id))
      if (budget === Infinity) expect(idsOf(disk.items)).toEqual(expect.arrayContaining(kept))
      for (const item of disk.items) expect(await isIntact(disk, item)).toBe(true)
      expect(disk.counts).toEqual({ refused: 0, unreadable: 0, gone: 0, evicted: 0, failed: 0 })
      keptInAll += told('put').length
      for (const { id } of disk.items.slice(4)) await disk.drop(id)
    }
    expect(keptInAll).toBeGreaterThan(0)
  })
})
