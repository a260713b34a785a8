/** A process that puts sequences on disk until it is killed, and reports each action on stdout; and the samples that it puts. */
import { readdirSync, writeSync } from 'node:fs'
import { conversationId } from '../../../../src/runtime/core/ids.js'
import { mix, Random } from '../../../../src/runtime/core/random.js'
import { DiskTierFolder } from '../../../../src/runtime/engine/disk-tier.js'
import type { OffloadRecord } from '../../../../src/runtime/kv/ports.js'
import { WORDS } from '../../../../src/runtime/kv/cell-hash.js'

/** The identity that the process writes under. */
export const IDENTITY = Buffer.alloc(32, 'writer')

/** Returns a record of 1 to 300 tokens that begins with `seed`, and a state of `bytes` bytes; the same for the same seed. */
export function sampleOf(
  seed: number,
  bytes = new Random(seed).below(3 * 2 ** 20),
): { record: OffloadRecord; state: Uint8Array } {
  const random = new Random(seed, 1)
  const numbers = (length: number) => Int32Array.from({ length }, () => random.word() | 0)
  const held = 1 + random.below(300)
  const tokens = numbers(held)
  tokens[0] = seed
  const words = new Uint32Array(Math.ceil(bytes / 4))
  for (let at = 0; at < words.length; at++) words[at] = mix(seed + at)
  return {
    record: {
      conversation: conversationId(`talk ${'é'.repeat(seed % 4)}${seed}`),
      unedited: numbers(random.below(400)),
      tokens,
      sourceIds: numbers(held),
      positions: numbers(held),
      hashes: numbers(WORDS * held),
    },
    state: new Uint8Array(words.buffer, 0, bytes),
  }
}

const say = (line: string) => writeSync(1, `${line}\n`)

/**
 * Prints `put <id>` once an item is kept, `drop <id>` before one is dropped, `none <folder> <counts>` when one could not be kept. Never
 * ends by itself.
 */
async function main(folder: string, budget: number, first: number): Promise<void> {
  say('begin')
  const disk = await DiskTierFolder.open({ folder, budget, identity: IDENTITY })
  for (let seed = first; ; seed++) {
    const { record, state } = sampleOf(seed)
    const item = await disk.put(record, state)
    say(item === null ? `none ${JSON.stringify(readdirSync(folder))} ${JSON.stringify(disk.counts)}` : `put ${item.id}`)
    const other = disk.items[seed % Math.max(1, disk.items.length)]
    if (other === undefined) continue
    if (seed % 3 === 0) {
      say(`drop ${other.id}`)
      void disk.drop(other.id)
    } else await disk.take(other.id)
  }
}

if (process.argv[1] === import.meta.filename) {
  // The parent may have left this signal at its default, which ends the process; a write beyond the limit must fail instead.
  process.on('SIGXFSZ', () => undefined)
  const [folder = '', budget = '', first = ''] = process.argv.slice(2)
  await main(folder, Number(budget), Number(first))
}
