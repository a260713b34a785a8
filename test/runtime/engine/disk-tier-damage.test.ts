/**
 * Damages disk caches under a real engine. Every saved sequence is returned unchanged, or counted and reported. No altered sequence reaches
 * the device, and every answer is that of a fresh prefill. The long run damages 200 caches.
 */
import { spawnSync } from 'node:child_process'
import {
  chmodSync,
  copyFileSync,
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { createHash } from 'node:crypto'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, expect, it, vi } from 'vitest'
import { processSpace } from '../../../src/runtime/core/processes.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { Random } from '../../../src/runtime/core/random.js'
import { SECRET_FILE } from '../../../src/runtime/engine/cache-secret.js'
import { DiskTierFolder } from '../../../src/runtime/engine/disk-tier.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { TEST_GPU } from '../../support/device.js'
import { mambaModel, tinyModel } from '../../support/models.js'
import { neverEnding } from '../../../bench/random-tokens.js'
import { LONG } from '../../support/long.js'

/** How many caches are damaged for each model. */
const CACHES = LONG ? 200 : 44
/** The tolerance of log-probabilities after a restored prefix and a fresh one; batches of other shapes round differently. */
const CLOSE = 0.01
const TALKS = 4
const FIXED = 128

interface Subject {
  readonly name: string
  readonly model: () => Promise<string>
  /** Outcomes that must occur. Half of the checkpoints are never read, so fewer kinds occur with them. */
  readonly outcomes: readonly ('served' | 'refused' | 'unreadable' | 'gone' | 'reasons')[]
}
const SUBJECTS: readonly Subject[] = [
  { name: 'cells', model: () => tinyModel(), outcomes: ['served', 'refused', 'unreadable', 'gone', 'reasons'] },
  { name: 'checkpoints', model: mambaModel, outcomes: ['served', 'refused', 'reasons'] },
]

const prompt = (talk: number) =>
  Int32Array.from({ length: 90 + 30 * talk }, (_, at) => 1 + ((at * 7 + talk * 31 + (at >> 3) * talk) % 250))

let root: string
beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'kvfold-disk-damage-'))
})
afterAll(() => {
  rmSync(root, { recursive: true })
})
afterEach(() => {
  vi.restoreAllMocks()
})

async function load({ model }: Subject, folder: string | null, told: string[] = []): Promise<LlamaEngine> {
  const options = { cells: 1024, sequences: 8, slots: 1, threads: 1, batchThreads: 1, hostBytes: 2 ** 26 }
  const disk = folder === null ? {} : { disk: { folder, bytes: 2 ** 28 }, tell: (sentence: string) => told.push(sentence) }
  return LlamaEngine.load(await openNative({ gpu: TEST_GPU }), await model(), { ...options, ...disk })
}

/** Returns the tokens, log-probabilities and ledger that answers are compared by. */
async function answer(engine: LlamaEngine, talk: number) {
  const { tokens, logprobs, ledger } = await engine.complete({
    conversation: conversationId(`talk${talk}`),
    tokens: prompt(talk),
    maxTokens: 3,
    logprobs: 1,
    sampling: { logitBias: neverEnding(engine.model) },
  })
  return { tokens, logprobs: logprobs.map(({ logprob }) => logprob), ledger }
}

const itemsIn = (folder: string): string[] =>
  readdirSync(folder)
    .filter((name) => name.endsWith('.kvshelf'))
    .sort()

const changed = (path: string, change: (bytes: Buffer) => Buffer | undefined) => {
  const bytes = readFileSync(path)
  writeFileSync(path, change(bytes) ?? bytes)
}
/** Returns the bytes before the state: the size of the head, from the state's length in it. */
function headLength(bytes: Buffer): number {
  return bytes.length - Number(bytes.readBigUInt64LE(40))
}

interface Place {
  readonly folder: string
  /** The paths of two different items. */
  readonly one: string
  readonly two: string
  readonly random: Random
}
/** Damages the cache. Returns how many items it removed in a way that the engine cannot notice. */
type Damager = (place: Place) => number | undefined

const DAMAGES: Readonly<Record<string, Damager>> = {
  'bytes flipped': ({ one, random }) => {
    changed(one, (bytes) => {
      for (let left = 1 + random.below(8); left > 0; left--) bytes[random.below(bytes.length)]! ^= 1 << random.below(8)
      return undefined
    })
    return undefined
  },
  'a bit of the state flipped': ({ one, random }) => {
    changed(one, (bytes) => {
      const head = headLength(bytes)
      bytes[head + random.below(bytes.length - head)]! ^= 1 << random.below(8)
      return undefined
    })
    return undefined
  },
  'a bit of the head flipped': ({ one, random }) => {
    changed(one, (bytes) => {
      bytes[random.below(headLength(bytes))]! ^= 1 << random.below(8)
      return undefined
    })
    return undefined
  },
  'a run of zeros': ({ one, random }) => {
    changed(one, (bytes) => {
      const at = random.below(bytes.length)
      bytes.fill(0, at, Math.min(bytes.length, at + 4096))
      return undefined
    })
    return undefined
  },
  'cut short': ({ one, random }) => {
    truncateSync(one, random.below(statSync(one).size))
    return undefined
  },
  'cut to nothing': ({ one }) => {
    truncateSync(one, 0)
    return undefined
  },
  'cut, and as long as before': ({ one, random }) => {
    const { size } = statSync(one)
    truncateSync(one, random.below(size - 1))
    truncateSync(one, size)
    writeFileSync(one, 'x', { flag: 'r+' })
    return undefined
  },
  'longer by a byte': ({ one }) => {
    writeFileSync(one, 'x', { flag: 'a' })
    return undefined
  },
  'a hole of a terabyte': ({ one }) => {
    truncateSync(one, 2 ** 40)
    return undefined
  },
  'a size that asks for all memory': ({ one }) => {
    changed(one, (bytes) => {
      bytes.writeUInt32LE(0xffff_ffff, 48)
      bytes.writeBigUInt64LE(0n, 40)
      return bytes
    })
    // The file gets the length that it claims: seven numbers a token.
    const lengths = readFileSync(one)
    const head = FIXED + 4 * (7 * 0xffff_ffff + lengths.readUInt32LE(52)) + lengths.readUInt32LE(56)
    truncateSync(one, head)
    return undefined
  },
  "another item's state": ({ one, two }) => {
    const state = readFileSync(two)
    changed(one, (bytes) => Buffer.concat([bytes.subarray(0, headLength(bytes)), state.subarray(headLength(state))]))
    return undefined
  },
  "another item's state, of this length": ({ one, two }) => {
    const state = readFileSync(two).subarray(headLength(readFileSync(two)))
    changed(one, (bytes) => {
      const at = headLength(bytes)
      const length = bytes.length - at
      Buffer.concat(Array.from({ length: Math.ceil(length / state.length) }, () => state)).copy(bytes, at, 0, length)
      return undefined
    })
    return undefined
  },
  'a head made to fit, without the secret': ({ one }) => {
    changed(one, (bytes) => {
      const at = headLength(bytes)
      bytes.writeInt32LE(bytes.readInt32LE(at - 20) + 1, at - 20)
      const sum = createHash('sha256').update(bytes.subarray(0, 64)).update(bytes.subarray(FIXED, at)).digest()
      sum.copy(bytes, 64)
      return undefined
    })
    return undefined
  },
  'items swapped': ({ one, two }) => {
    renameSync(one, `${one}.x`)
    renameSync(two, one)
    renameSync(`${one}.x`, two)
    return undefined
  },
  'an item of an earlier format': ({ one }) => {
    changed(one, (bytes) => {
      bytes.write('kvshelf1', 'latin1')
      return undefined
    })
    return undefined
  },
  'half-written files': ({ folder, one, random }) => {
    const ended = spawnSync(process.execPath, ['--version']).pid
    copyFileSync(one, join(folder, `kvshelf-${processSpace()}-${ended}-0000000a-${'a'.repeat(32)}.tmp`))
    truncateSync(one, random.below(statSync(one).size))
    return undefined
  },
  deleted: ({ one }) => {
    rmSync(one)
    return 1
  },
  'a folder in its place': ({ one }) => {
    rmSync(one)
    mkdirSync(one)
    return 1
  },
  'a pipe in its place': ({ one }) => {
    rmSync(one)
    spawnSync('/bin/sh', ['-c', 'mkfifo "$0"', one])
    return 1
  },
  'a link in its place': ({ one, two }) => {
    rmSync(one)
    symlinkSync(two, one)
    return 1
  },
  'a damaged secret': ({ folder, random }) => {
    changed(join(folder, SECRET_FILE), (bytes) => {
      bytes[random.below(bytes.length)]! ^= 1 << random.below(8)
      return undefined
    })
    return undefined
  },
  'a secret that others may read': ({ folder }) => {
    chmodSync(join(folder, SECRET_FILE), 0o644)
    return undefined
  },
}

it.each(SUBJECTS)(
  `${CACHES} damaged disk caches ($name): sequences are returned as saved, or counted and reported`,
  { timeout: LONG ? 1_800_000 : 240_000 },
  async (subject) => {
    const source = join(root, `whole-${subject.name}`)
    const maker = await load(subject, source)
    for (let talk = 0; talk < TALKS; talk++) await answer(maker, talk)
    await maker.dispose()
    const names = itemsIn(source)
    expect(names.length).toBeGreaterThanOrEqual(TALKS)
    const states = new Map(
      names.map((name) => {
        const bytes = readFileSync(join(source, name))
        return [
          createHash('sha256')
            .update(bytes.subarray(headLength(bytes)))
            .digest('hex'),
          name,
        ]
      }),
    )
    const reference = await load(subject, null)
    const fresh = []
    for (let talk = 0; talk < TALKS; talk++) fresh.push(await answer(reference, talk))
    await reference.dispose()

    const totals = { served: 0, refused: 0, unreadable: 0, gone: 0, untraced: 0, reasons: 0 }
    // eslint-disable-next-line @typescript-eslint/unbound-method
    const take = DiskTierFolder.prototype.take
    let served = new Set<string>()
    let lost = 0
    let tier: DiskTierFolder | null = null
    const open = DiskTierFolder.open.bind(DiskTierFolder)
    vi.spyOn(DiskTierFolder, 'open').mockImplementation(async (options) => (tier = await open(options)))
    vi.spyOn(DiskTierFolder.prototype, 'take').mockImplementation(async function (this: DiskTierFolder, id) {
      const state = await take.call(this, id)
      if (state === null) lost++
      else {
        served.add(id)
        expect(states.has(createHash('sha256').update(state).digest('hex'))).toBe(true)
      }
      return state
    })
    const kinds = Object.entries(DAMAGES)
    for (let round = 0; round < CACHES; round++) {
      const [kind, damage] = kinds[round % kinds.length]!
      // Half of the rounds do the damage while the cache is open: an item may be changed between listing and reading.
      const isOpen = Math.floor(round / kinds.length) % 2 === 1
      const told = `round ${round}: ${kind}${isOpen ? ', while it is open' : ''}`
      const folder = join(root, `round${round}`)
      cpSync(source, folder, { recursive: true })
      const random = new Random(round, 23)
      const [one, two] = random.shuffled(names).map((name) => join(folder, name))
      const spoil = () => damage({ folder, one: one!, two: two!, random }) ?? 0
      served = new Set()
      const sentences: string[] = []
      const untraced = isOpen ? 0 : spoil()
      const engine = await load(subject, folder, sentences)
      if (isOpen) spoil()
      for (let talk = 0; talk < TALKS; talk++) {
        const before = lost
        const { tokens, logprobs, ledger } = await answer(engine, talk)
        expect(tokens, told).toEqual(fresh[talk]!.tokens)
        for (const [at, logprob] of logprobs.entries())
          expect(Math.abs(logprob - fresh[talk]!.logprobs[at]!), told).toBeLessThan(CLOSE)
        if (lost > before) {
          expect(ledger.recomputeReason, told).toMatch(/damaged or missing/u)
          totals.reasons++
        }
      }
      await engine.check('full')
      const { refused, onDisk } = engine.cacheTotals.tiers
      const { unreadable, gone, failed, evicted } = onDisk!
      // Each item was returned, is still there, or was counted.
      const whole = new Set([...served, ...tier!.items.map(({ id }) => id)]).size
      expect(whole + refused + unreadable + gone + untraced, told).toBe(names.length)
      expect([failed, evicted], told).toEqual([0, 0])
      // Each was also reported, except deletions.
      const said = [...engine.notes, ...sentences].map((line) => Number(/: (\d+) saved sequences? /u.exec(line)?.[1] ?? 0))
      expect(
        said.reduce((sum, count) => sum + count, 0),
        told,
      ).toBe(refused + unreadable)
      await engine.dispose()
      for (const [key, count] of Object.entries({ served: served.size, refused, unreadable, gone, untraced }))
        totals[key as 'served'] += count
      rmSync(folder, { recursive: true })
    }
    if (LONG) console.log(subject.name, JSON.stringify(totals))
    for (const outcome of subject.outcomes) expect(totals[outcome], outcome).toBeGreaterThan(0)
  },
)
