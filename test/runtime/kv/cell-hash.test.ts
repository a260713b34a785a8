/**
 * Tests cell hashes: they use the published cipher with a key per tenant. They collide no more often than chance, and do not depend on the
 * path to a text.
 */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Random } from '../../../src/runtime/core/random.js'
import { CellHasher, FreshHashes, sameHash, WORDS } from '../../../src/runtime/kv/cell-hash.js'
import { type CacheSalt, CacheSalts, sameSalt } from '../../../src/runtime/kv/tenant-salts.js'
import { LONG } from '../../support/long.js'

/** A fixed salt, so that the statistical tests always give the same result. */
const SALT = new CacheSalts(Buffer.alloc(32, 'a secret')).of('anna')

const hashIn = (hashes: Int32Array, at: number): string => hashes.subarray(WORDS * at, WORDS * (at + 1)).join()

/** Converts four words to a number of 128 bits. */
const numberOf = (words: Int32Array): bigint => words.reduceRight((sum, word) => (sum << 32n) | BigInt(word >>> 0), 0n)
const wordsOf = (number: bigint): Int32Array =>
  Int32Array.from({ length: 4 }, (_, word) => Number((number >> (32n * BigInt(word))) & 0xffffffffn) | 0)
/** Doubles a number in GF(2^128), as the textbook defines it. */
const doubled = (number: bigint): bigint => ((number << 1n) & ((1n << 128n) - 1n)) ^ (number >> 127n === 1n ? 0x87n : 0n)

/** Encrypts a block of four words with the key in the salt. */
function encrypted(key: Int32Array, block: bigint): bigint {
  const out = new Int32Array(WORDS)
  new CellHasher({ key, start: wordsOf(block) }).place(0, 0, out, 0)
  return numberOf(out)
}

describe('the cipher', () => {
  it('is Chaskey-12: messages of up to a block have the published tags', () => {
    // From N. Mouha's reference implementation (public domain). The message is 00 01 02 ... with as many bytes as the entry's place in the
    // list.
    const key = numberOf(Int32Array.of(0x833d3433, 0x009f389f, 0x2398e64f, 0x417acf39))
    const tags: readonly (readonly [number, readonly number[]])[] = [
      [0, [0x43cb1f41, 0x51eba0c2, 0xff0a8ac3, 0x7ee3f642]],
      [1, [0xf9ac2067, 0x9c35a846, 0x441aad3d, 0x777b7330]],
      [7, [0xb7d29cb8, 0x40a2819d, 0xae403cdb, 0x6fbefa95]],
      [15, [0x03cfb44b, 0x283c8163, 0xfca71448, 0xc40a0aea]],
      [16, [0x5dd0e2a9, 0xfb5eac8c, 0x633a392e, 0x500c36f3]],
    ]
    for (const [length, tag] of tags) {
      const block = Buffer.alloc(16)
      for (let at = 0; at < length; at++) block[at] = at
      if (length < 16) block[length] = 1
      const last = length < 16 ? doubled(doubled(key)) : doubled(key)
      const message = numberOf(Int32Array.from({ length: 4 }, (_, word) => block.readInt32LE(4 * word)))
      expect([length, encrypted(wordsOf(last), key ^ message)]).toEqual([length, numberOf(Int32Array.from(tag))])
    }
  })

  it('gives the hashes as defined, each over all tokens seen before it', () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 0, max: 2 ** 31 - 1 }), { maxLength: 600 }), (tokens) => {
        const hashes = new FreshHashes(SALT).of(Int32Array.from(tokens))
        let state = numberOf(SALT.start)
        for (const [at, token] of tokens.entries()) {
          const hash = encrypted(SALT.key, state ^ BigInt(token) ^ (BigInt(at) << 32n))
          expect(numberOf(hashes.subarray(WORDS * at, WORDS * (at + 1)))).toBe(hash)
          state = doubled(state) ^ hash
        }
      }),
      { numRuns: 30 },
    )
  })
})

describe('hashes', () => {
  const COUNT = 2 ** 20
  const EXPECTED = (COUNT * (COUNT - 1)) / 2 / 2 ** 32

  /** Counts, for each of the four words, the pairs of hashes that agree in it. */
  function collisions(hashes: Int32Array): number[] {
    return Array.from({ length: WORDS }, (_, word) => {
      const words = Uint32Array.from({ length: COUNT }, (_none, at) => hashes[WORDS * at + word]!).sort()
      let pairs = 0
      for (let at = 0; at < COUNT;) {
        let end = at + 1
        while (end < COUNT && words[end] === words[at]) end++
        pairs += ((end - at) * (end - at - 1)) / 2
        at = end
      }
      return pairs
    })
  }

  const inputs: Record<string, () => Int32Array> = {
    'one token over and over': () => new FreshHashes(SALT).of(new Int32Array(COUNT).fill(7)),
    'tokens that count': () => new FreshHashes(SALT).of(Int32Array.from({ length: COUNT }, (_, at) => at)),
    'two tokens in turn': () => new FreshHashes(SALT).of(Int32Array.from({ length: COUNT }, (_, at) => at & 1)),
    'every token at every position of a grid, nothing seen': () => {
      const hashes = new Int32Array(WORDS * COUNT)
      const hasher = new CellHasher(SALT)
      for (let at = 0; at < COUNT; at++) hasher.place(at & 1023, at >> 10, hashes, at)
      return hashes
    },
    'texts of 64 tokens that differ in one bit of one token': () => {
      const hashes = new Int32Array(WORDS * COUNT)
      const text = Int32Array.from({ length: 64 }, (_, at) => 1000 + at)
      for (let at = 0; at < COUNT; at += 64) {
        const changed = text.slice()
        changed[0]! ^= at >> 6
        hashes.set(new FreshHashes(SALT).of(changed), WORDS * at)
      }
      return hashes
    },
  }
  for (const [name, make] of Object.entries(inputs))
    it(`collide in 32 bits as often as chance predicts: ${name}`, () => {
      // The count has a Poisson distribution; the bound is 6 standard deviations.
      for (const pairs of collisions(make())) expect(Math.abs(pairs - EXPECTED)).toBeLessThan(6 * Math.sqrt(EXPECTED))
    })

  it('change each bit half of the time when any bit of token, position, earlier text or salt changes', () => {
    const random = new Random(5)
    const words = () => Int32Array.from({ length: 4 }, () => random.word() | 0)
    const ROUNDS = 1000
    /** Returns the hash of a last cell, from 4 + 4 words of salt, 3 tokens and a position. */
    const hashOf = (input: Int32Array): bigint => {
      const hasher = new CellHasher({ key: input.slice(0, 4), start: input.slice(4, 8) })
      const out = new Int32Array(WORDS)
      for (let at = 0; at < 2; at++) {
        hasher.place(input[8 + at]!, at, out, 0)
        hasher.see(out, 0)
      }
      hasher.place(input[10]!, input[11]!, out, 0)
      return numberOf(out)
    }
    for (let bit = 0; bit < 12 * 32; bit++) {
      const flips = new Int32Array(128)
      let all = 0
      const rounds = bit % 32 === 0 ? ROUNDS : 100
      for (let round = 0; round < rounds; round++) {
        const input = Int32Array.of(...words(), ...words(), ...words())
        const before = hashOf(input)
        input[bit >> 5]! ^= 1 << (bit & 31)
        const difference = before ^ hashOf(input)
        for (let out = 0; out < 128; out++)
          if ((difference >> BigInt(out)) & 1n) {
            flips[out]!++
            all++
          }
      }
      // The count has a binomial distribution; the bound is 6 standard deviations.
      expect(Math.abs(all - 64 * rounds)).toBeLessThan(6 * Math.sqrt(32 * rounds))
      for (const count of flips) expect(Math.abs(count - rounds / 2)).toBeLessThan(6 * Math.sqrt(rounds / 4))
    }
  })

  it('are equal exactly for equal histories, through forks, edits and cells computed beside hidden text', () => {
    const random = new Random(9)
    interface Cell {
      readonly token: number
      readonly position: number
      readonly hash: Int32Array
      /** The number of the history that the hash must identify. */
      readonly history: number
    }
    const histories = new Map<string, number>()
    const named = (history: string) => {
      const known = histories.get(history) ?? histories.size
      histories.set(history, known)
      return known
    }
    const byHash = new Map<string, number>()
    const compute = (seen: readonly Cell[], token: number, position: number): Cell => {
      const hasher = new CellHasher(SALT)
      for (const cell of seen) hasher.see(cell.hash, 0)
      const hash = new Int32Array(WORDS)
      hasher.place(token, position, hash, 0)
      const history = named(`${seen.map((cell) => cell.history).join()}:${token}@${position}`)
      const name = hash.join()
      expect(byHash.get(name) ?? history).toBe(history)
      byHash.set(name, history)
      return { token, position, hash, history }
    }
    for (let run = 0; run < 2000; run++) {
      let live: Cell[] = []
      for (let step = 0; step < 20; step++) {
        // Few tokens, so that the same histories occur again and again.
        const choice = random.below(8)
        if (choice === 0 && live.length > 2) {
          const start = random.below(live.length - 1)
          live = [...live.slice(0, start), ...live.slice(start + 1 + random.below(2))]
        } else if (choice === 1) live = live.slice(0, random.below(live.length + 1))
        else live.push(compute(live, random.below(2), (live.at(-1)?.position ?? -1) + 1 + (random.below(6) === 0 ? 1 : 0)))
      }
    }
    expect(byHash.size).toBe(histories.size)
    expect(byHash.size).toBeGreaterThan(5000)
  })
})

describe('continuing from known hashes', () => {
  const SIZES = [0, 1, 254, 255, 256, 257, 511, 512, 513, 1030]

  it('gives the same hashes as hashing the whole text, whatever the previous text was', () => {
    fc.assert(
      fc.property(
        fc.array(fc.record({ keep: fc.nat(1100), add: fc.constantFrom(...SIZES), token: fc.nat(3) }), { maxLength: 12 }),
        (edits) => {
          const known = new FreshHashes(SALT)
          let text = new Int32Array()
          const given: { readonly hashes: Int32Array; readonly copy: Int32Array }[] = []
          for (const { keep, add, token } of edits) {
            text = Int32Array.from([...text.subarray(0, keep), ...Array.from({ length: add }, () => token)])
            const hashes = known.of(text)
            expect(hashes).toEqual(new FreshHashes(SALT).of(text))
            expect(known.of(text.slice())).toBe(hashes)
            given.push({ hashes, copy: hashes.slice() })
          }
          for (const { hashes, copy } of given) expect(hashes).toEqual(copy)
        },
      ),
      { numRuns: LONG ? 300 : 20 },
    )
  })

  it('goes back at most to the wanted cell and fewer than 256 cells before it', () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.nat(700), fc.nat(1200)), { maxLength: 8 }), (moves) => {
        const hasher = new CellHasher(SALT)
        const seen: Int32Array[] = []
        for (const [more, back] of moves) {
          for (let count = 0; count < more; count++) {
            const hash = new Int32Array(WORDS)
            hasher.place(count, seen.length, hash, 0)
            hasher.see(hash, 0)
            seen.push(hash)
          }
          const left = hasher.goBack(back)
          expect(left).toBe(hasher.seen)
          expect(left).toBeLessThanOrEqual(seen.length)
          if (back >= seen.length) expect(left).toBe(seen.length)
          else expect(left <= back && back - left < 256).toBe(true)
          seen.length = left
          const other = new CellHasher(SALT)
          for (const hash of seen) other.see(hash, 0)
          const [a, b] = [new Int32Array(WORDS), new Int32Array(WORDS)]
          hasher.place(1, left, a, 0)
          other.place(1, left, b, 0)
          expect(a).toEqual(b)
        }
      }),
      { numRuns: LONG ? 300 : 20 },
    )
  })

  it('compares all four words', () => {
    for (let word = 0; word < WORDS; word++) {
      const [a, b] = [new Int32Array(2 * WORDS), new Int32Array(WORDS)]
      expect(sameHash(a, 1, b, 0)).toBe(true)
      b[word] = 1
      expect(sameHash(a, 1, b, 0)).toBe(false)
      expect(sameHash(a, 0, a, 1)).toBe(true)
    }
  })
})

describe('salts', () => {
  const secret = Buffer.alloc(32, 1)
  const all = (salts: readonly CacheSalt[]) => new Set(salts.flatMap(({ key, start }) => [key.join(), start.join()])).size

  it('are the same for the same secret and tenant, and share nothing otherwise', () => {
    // In UTF-8, each of the last two becomes one replacement character.
    const tenants = [undefined, '', 'undefined', 'common', 'anna', 'anna\0', 'Anna', ', common', '\ud800', '\ud801']
    const secrets = [secret, Buffer.alloc(32, 2), undefined, undefined].map((each) => new CacheSalts(each))
    expect(all(secrets.flatMap((salts) => tenants.map((tenant) => salts.of(tenant))))).toBe(2 * 4 * tenants.length)
    for (const tenant of tenants) {
      expect(new CacheSalts(secret).of(tenant)).toEqual(secrets[0]!.of(tenant))
      expect(sameSalt(new CacheSalts(secret).of(tenant), secrets[0]!.of(tenant))).toBe(true)
      expect(sameSalt(secrets[0]!.of(tenant), secrets[1]!.of(tenant))).toBe(false)
    }
  })

  it('make hashes differ from the first token on, even for equal texts', () => {
    fc.assert(
      fc.property(fc.array(fc.nat(50_000), { maxLength: 300 }), fc.string(), fc.string(), (tokens, one, other) => {
        fc.pre(one !== other)
        const text = Int32Array.from(tokens)
        const salts = new CacheSalts(secret)
        const sets = [one, other, undefined].map((tenant) => {
          const hashes = new FreshHashes(salts.of(tenant)).of(text)
          return tokens.map((_, at) => hashIn(hashes, at))
        })
        expect(new Set(sets.flat()).size).toBe(3 * tokens.length)
      }),
    )
  })
})
