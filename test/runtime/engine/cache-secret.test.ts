/**
 * Tests the secret of a disk cache in a real folder. It is kept, shared by processes that may read it, and replaced when it is unusable.
 * Sequences saved under another secret are refused.
 */
import { createHash } from 'node:crypto'
import {
  chmodSync,
  chownSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { openSecret, SECRET_FILE } from '../../../src/runtime/engine/cache-secret.js'
import { DiskTierFolder } from '../../../src/runtime/engine/disk-tier.js'
import { SavedCells } from '../../../src/runtime/engine/disk-tier-file.js'
import { IDENTITY, sampleOf } from './support/disk-tier-writer.js'

let folder: string
let names = 0
const path = () => join(folder, SECRET_FILE)
const read = () => openSecret(folder, join(folder, `${names++}.tmp`))
const openShelf = () => DiskTierFolder.open({ folder, budget: Infinity, identity: IDENTITY })

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-secret-'))
})
afterEach(() => {
  rmSync(folder, { recursive: true })
})

/** Ways to make the file unusable, and the message about each. */
const SPOILT: readonly (readonly [string, () => void, RegExp])[] = [
  [
    'the group may read',
    () => {
      chmodSync(path(), 0o640)
    },
    /open to others \(mode 640\)/,
  ],
  [
    'everybody may read',
    () => {
      chmodSync(path(), 0o604)
    },
    /open to others \(mode 604\)/,
  ],
  [
    'everybody may write',
    () => {
      chmodSync(path(), 0o602)
    },
    /open to others \(mode 602\)/,
  ],
  [
    'has a bit changed',
    () => {
      const content = readFileSync(path())
      content[20]! ^= 4
      writeFileSync(path(), content)
    },
    /is damaged/,
  ],
  [
    'is cut short',
    () => {
      writeFileSync(path(), readFileSync(path()).subarray(0, 71))
    },
    /is damaged/,
  ],
  [
    'has more behind it',
    () => {
      writeFileSync(path(), 'x', { flag: 'a' })
    },
    /is damaged/,
  ],
  [
    'is empty',
    () => {
      writeFileSync(path(), '')
    },
    /is damaged/,
  ],
  [
    'is a link to another',
    () => {
      renameSync(path(), join(folder, 'elsewhere'))
      symlinkSync('elsewhere', path())
    },
    /cannot be read \(ELOOP\)/,
  ],
]

describe('the secret', () => {
  it('is made once, for this user only, and is the same for every process that opens the folder, at once or later', async () => {
    const all = await Promise.all(Array.from({ length: 12 }, read))
    const [{ secret }] = all as [(typeof all)[0]]
    expect(secret).toHaveLength(32)
    for (const each of [...all, await read()]) expect(each).toEqual({ secret, note: null })
    expect(statSync(path()).mode & 0o777).toBe(0o600)
    expect(readdirSync(folder)).toEqual([SECRET_FILE])
    mkdirSync(join(folder, 'other'))
    expect((await openSecret(join(folder, 'other'), join(folder, 'x.tmp'))).secret).not.toEqual(secret)
  })

  for (const [how, spoil, told] of SPOILT)
    it(`that ${how} is replaced, and the user is told`, async () => {
      const { secret } = await read()
      spoil()
      const found = await read()
      expect(found.note).toMatch(told)
      expect(found.note).toContain(path())
      expect(found.secret).not.toEqual(secret)
      expect(lstatSync(path()).isFile()).toBe(true)
      expect(statSync(path()).mode & 0o777).toBe(0o600)
      expect(await read()).toEqual({ secret: found.secret, note: null })
    })

  it.skipIf(process.getuid?.() !== 0)('that belongs to another user is replaced', async () => {
    const { secret } = await read()
    chownSync(path(), 1, 1)
    const found = await read()
    expect(found.note).toMatch(/belongs to another user/)
    expect(found.secret).not.toEqual(secret)
  })

  it('that cannot be saved is valid until the program ends, and the user is told', async () => {
    mkdirSync(path())
    const found = await read()
    expect(found.note).toMatch(/could not write the secret/)
    expect(found.secret).toHaveLength(32)
    expect((await read()).secret).not.toEqual(found.secret)
    expect(readdirSync(folder)).toEqual([SECRET_FILE])
  })
})

describe('a saved sequence', () => {
  const { record, state } = sampleOf(3, 1000)

  it('under this secret is found by the next opening, and by another process that has the folder open', async () => {
    const [one, two] = [await openShelf(), await openShelf()]
    expect(one.secret).toEqual(two.secret)
    const item = await one.put(record, state)
    await two.put(sampleOf(4, 10).record, sampleOf(4, 10).state)
    for (const disk of [two, await openShelf()]) {
      expect(disk.notes).toEqual([])
      expect(disk.counts.refused).toBe(0)
      expect(disk.items.find(({ id }) => id === item!.id)?.record).toEqual(record)
    }
  })

  for (const [how, spoil, told] of SPOILT)
    it(`under a secret that ${how} is refused, counted and deleted`, async () => {
      await (await openShelf()).put(record, state)
      spoil()
      const after = await openShelf()
      expect(after.notes).toEqual([expect.stringMatching(told), expect.stringMatching(/: 1 saved sequence deleted \(damaged/)])
      expect(after.items).toEqual([])
      expect(after.counts).toEqual({ refused: 1, unreadable: 0, gone: 0, evicted: 0, failed: 0 })
      expect(readdirSync(folder).filter((name) => name.endsWith('.kvshelf'))).toEqual([])
      await after.put(record, state)
      expect((await openShelf()).items).toHaveLength(1)
    })

  it('of a process with another secret is refused by a process that already runs', async () => {
    const before = await openShelf()
    rmSync(path())
    await (await openShelf()).put(record, state)
    await before.put(sampleOf(5, 10).record, sampleOf(5, 10).state)
    expect(before.counts.refused).toBe(1)
    expect(before.items).toHaveLength(1)
  })

  it('of a deleted conversation is deleted without the secret', async () => {
    await (await openShelf()).put({ ...record, conversation: 'gone' as typeof record.conversation }, state)
    rmSync(path())
    expect(await new SavedCells([folder]).drop(['gone'])).toBe(1)
  })

  it('of an earlier version, with unkeyed hashes, is refused and deleted', async () => {
    await openShelf()
    // A file of the format kvshelf1: only the head, with one token, one number of base, and no state.
    const fixed = Buffer.alloc(96)
    fixed.write('kvshelf1', 'latin1')
    fixed.set(IDENTITY, 8)
    fixed.writeUInt32LE(1, 48)
    fixed.writeUInt32LE(1, 52)
    fixed.writeUInt32LE(4, 56)
    const rest = Buffer.concat([Buffer.alloc(4 * 6, 1), Buffer.from('talk')])
    const sum = createHash('sha256').update(fixed.subarray(0, 64)).update(rest).digest()
    fixed.set(sum, 64)
    writeFileSync(join(folder, `${'a'.repeat(32)}.kvshelf`), Buffer.concat([fixed, rest]))
    const disk = await openShelf()
    expect(disk.items).toEqual([])
    expect(disk.counts.refused).toBe(1)
    expect(readdirSync(folder)).toEqual([SECRET_FILE])
  })
})
