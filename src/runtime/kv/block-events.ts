/**
 * Makes events of the blocks of tokens that the cache gains or loses as exact cells, for routers in other programs (vLLM's KV events). A
 * block is named by a hash of its tokens and of all tokens before it. Cell hashes are never shown.
 */
import { createHash } from 'node:crypto'
import { PUBLIC } from '../core/ids.js'
import type { Steps } from '../core/turns.js'
import { FreshHashes, FreshText } from './cell-hash.js'
import type { OffloadRecord } from './ports.js'
import type { Tier } from './sequence.js'
import { type CacheSalt, COMMON } from './tenant-salts.js'

/** Tokens per announced block. */
export const EVENT_BLOCK = 16
/** The most blocks in one event. */
const MOST_BLOCKS = 128
/** Number of tokens of a saved sequence that are checked in one step of work. */
const STRIDE = 512

/** The tiers whose cells are announced. Cells of the shared tier are not, because they belong to no engine. */
export type EventTier = Exclude<Tier, 'shared'>

/** A sequence on the device. `tokens` shares memory with the cache, so it is valid until the cache changes. */
export interface DeviceText {
  readonly holder: object
  readonly salt: CacheSalt
  readonly tokens: Int32Array
  /** Number of exact tokens at the beginning. */
  readonly exact: number
  /** Index of the first token that may have changed since the last call of `changes`. */
  readonly changed: number
}

/** A sequence in a lower tier; its record never changes. */
export interface StoredText {
  readonly record: OffloadRecord
  readonly tier: 'host' | 'disk'
  readonly salt: CacheSalt
}

/** All sequences of a cache at one moment. */
export interface HeldTexts {
  readonly device: readonly DeviceText[]
  readonly stored: readonly StoredText[]
}

/** New consecutive blocks in a tier. `parent` is the block before them; null at the beginning of a text. */
export interface BlocksStored {
  readonly kind: 'stored'
  readonly tier: EventTier
  readonly hashes: readonly bigint[]
  readonly parent: bigint | null
  readonly tokens: readonly number[]
  /** The tenant, if it has a name. Only its requests find these blocks. */
  readonly tenant: string | null
  /** The key of the adapters that computed the blocks (AdapterSet); empty for none. */
  readonly adapters: string
}

/** Blocks that a tier has lost. Later blocks of a text come before earlier ones. */
export interface BlocksRemoved {
  readonly kind: 'removed'
  readonly tier: EventTier
  readonly hashes: readonly bigint[]
}

export type BlockEvent = BlocksStored | BlocksRemoved

/**
 * The change of one sequence since the last comparison. Its first `kept` blocks are unchanged; `tokens` are those of the blocks behind
 * them.
 */
interface News {
  readonly holder: object
  readonly tier: EventTier
  readonly salt: CacheSalt
  readonly kept: number
  readonly tokens: Int32Array
  /** Set for a saved sequence: its record, in which the exact beginning is still to be counted. */
  readonly record?: OffloadRecord
}

/**
 * The changes since the last comparison: the sequences that are gone, and those that are new or longer. `eventsOf` makes events of them.
 */
export interface TextChanges {
  readonly gone: readonly object[]
  readonly news: readonly News[]
}

interface Chain {
  readonly tier: EventTier
  readonly digests: Buffer[]
}

interface Block {
  readonly hash: bigint
  readonly parent: bigint | null
  readonly salt: CacheSalt
  /** The block's tokens; null once the block was announced. */
  tokens: Int32Array | null
  holders: number
}

/**
 * Finds the blocks that a cache gained and lost since the last comparison. Call `changes` while no decode runs. Then run all steps of
 * `eventsOf` before the next call.
 */
export class BlockEvents {
  readonly #chains = new Map<object, Chain>()
  readonly #blocks = { device: new Map<bigint, Block>(), host: new Map<bigint, Block>(), disk: new Map<bigint, Block>() }
  readonly #changed = { device: new Set<Block>(), host: new Set<Block>(), disk: new Set<Block>() }

  /**
   * Compares the sequences with those of the last call, and returns the changes. It copies only new tokens, so its time grows with the new
   * tokens and the number of sequences.
   */
  changes({ device, stored }: HeldTexts): TextChanges {
    const held = new Set<object>()
    const news: News[] = []
    for (const { holder, salt, tokens, exact, changed } of device) {
      held.add(holder)
      const known = this.#chains.get(holder)?.digests.length ?? 0
      const whole = Math.floor(exact / EVENT_BLOCK)
      const kept = Math.min(known, whole, Math.floor(changed / EVENT_BLOCK))
      if (kept === known && kept === whole) continue
      news.push({ holder, salt, kept, tier: 'device', tokens: tokens.slice(kept * EVENT_BLOCK, whole * EVENT_BLOCK) })
    }
    for (const { record, tier, salt } of stored) {
      held.add(record)
      if (this.#chains.get(record)?.tier !== tier)
        news.push({ holder: record, salt, kept: 0, tier, tokens: record.tokens, record })
    }
    return { gone: [...this.#chains.keys()].filter((holder) => !held.has(holder)), news }
  }

  /** Turns changes into events, and returns them in order: first the removed blocks, then the stored ones. */
  *eventsOf({ gone, news }: TextChanges): Steps<BlockEvent[]> {
    for (const holder of gone) {
      yield* this.#cut(this.#chains.get(holder)!, 0)
      this.#chains.delete(holder)
    }
    for (const { holder, tier, salt, kept, tokens, record } of news) {
      const known = this.#chains.get(holder)
      if (known !== undefined) yield* this.#cut(known, kept)
      const chain: Chain = known?.tier === tier ? known : { tier, digests: [] }
      this.#chains.set(holder, chain)
      const exact = record === undefined ? tokens.length : yield* exactIn(record, salt)
      for (let at = 0; at + EVENT_BLOCK <= exact; at += EVENT_BLOCK) {
        this.#add(chain, salt, tokens.subarray(at, at + EVENT_BLOCK))
        yield
      }
    }
    return [...this.#removed(), ...(yield* this.#stored())]
  }

  /** Returns the events for a cache that has lost everything. */
  *end(): Steps<BlockEvent[]> {
    return yield* this.eventsOf(this.changes({ device: [], stored: [] }))
  }

  /** Removes all blocks of a chain behind the first `kept` ones. */
  *#cut({ tier, digests }: Chain, kept: number): Steps<void> {
    while (digests.length > kept) {
      const block = this.#blocks[tier].get(hashOf(digests.pop()!))!
      block.holders--
      this.#changed[tier].add(block)
      yield
    }
  }

  #add({ tier, digests }: Chain, salt: CacheSalt, tokens: Int32Array): void {
    const before = digests.at(-1)
    const digest = blockDigest(before ?? seedOf(salt), tokens)
    digests.push(digest)
    const hash = hashOf(digest)
    const blocks = this.#blocks[tier]
    const known = blocks.get(hash)
    const parent = before === undefined ? null : hashOf(before)
    const block = known ?? { hash, parent, salt, tokens: tokens.slice(), holders: 0 }
    block.holders++
    blocks.set(hash, block)
    this.#changed[tier].add(block)
  }

  #removed(): BlocksRemoved[] {
    return TIERS.flatMap((tier) => {
      const lost = [...this.#changed[tier]].filter(({ holders }) => holders === 0)
      for (const block of lost) {
        this.#blocks[tier].delete(block.hash)
        this.#changed[tier].delete(block)
      }
      const hashes = lost.filter(({ tokens }) => tokens === null).map(({ hash }) => hash)
      return inPieces(hashes).map((piece) => ({ kind: 'removed' as const, tier, hashes: piece }))
    })
  }

  *#stored(): Steps<BlocksStored[]> {
    const events: StoredRun[] = []
    for (const tier of TIERS) {
      for (const block of this.#changed[tier]) {
        const { hash, parent, salt, tokens } = block
        if (tokens === null) continue
        block.tokens = null
        const last = events.at(-1)
        const goesOn = last?.tier === tier && parent !== null && last.hashes.at(-1) === parent
        if (goesOn && last.hashes.length < MOST_BLOCKS) {
          last.hashes.push(hash)
          last.tokens.push(...tokens)
        } else events.push({ kind: 'stored', tier, hashes: [hash], parent, tokens: [...tokens], ...namesOf(salt) })
        yield
      }
      this.#changed[tier].clear()
    }
    return events
  }
}

/** A `stored` event that further blocks may still join. */
type StoredRun = BlocksStored & { readonly hashes: bigint[]; readonly tokens: number[] }

const TIERS = ['device', 'host', 'disk'] as const

function inPieces<T>(all: readonly T[]): T[][] {
  return Array.from({ length: Math.ceil(all.length / MOST_BLOCKS) }, (_, at) =>
    all.slice(at * MOST_BLOCKS, (at + 1) * MOST_BLOCKS),
  )
}

/** Counts the exact entries at the beginning of a saved sequence. */
function* exactIn({ tokens, positions, hashes }: OffloadRecord, salt: CacheSalt): Steps<number> {
  const fresh = new FreshHashes(salt)
  for (let end = STRIDE; ; end += STRIDE) {
    const text = new FreshText(tokens.subarray(0, end), fresh)
    for (let at = end - STRIDE; at < Math.min(end, tokens.length); at++)
      if (positions[at] !== at || !text.isAt(at, hashes, at)) return at
    if (end >= tokens.length) return tokens.length
    yield
  }
}

// The names of blocks.

const NO_DIGEST = Buffer.alloc(32)

/**
 * Returns the digest of a block: SHA-256 of the digest before it (32 bytes) and of its token ids (4 bytes each, little endian). The block's
 * hash is the number in the last 8 bytes, big endian.
 */
export function blockDigest(before: Buffer, tokens: Int32Array): Buffer {
  const ids = Buffer.alloc(4 * tokens.length)
  for (const [at, token] of tokens.entries()) ids.writeInt32LE(token, 4 * at)
  return createHash('sha256').update(before).update(ids).digest()
}

export const hashOf = (digest: Buffer): bigint => digest.readBigUInt64BE(24)

/** The digest before the first block. It keeps the blocks of tenants and of adapters apart. */
function seedOf(salt: CacheSalt): Buffer {
  const { tenant, adapters } = namesOf(salt)
  if (tenant === null && adapters === '') return NO_DIGEST
  return createHash('sha256')
    .update(JSON.stringify([tenant, adapters]))
    .digest()
}

const namesOf = ({ tenant, adapters = '' }: CacheSalt = COMMON): {
  readonly tenant: string | null
  readonly adapters: string
} => ({
  tenant: tenant === undefined || tenant === PUBLIC ? null : tenant,
  adapters,
})
