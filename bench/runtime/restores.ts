/**
 * Tokens that a fold and its restore submit, by cells (as a multiple of the conversation), contract and tier. If a restore submits more
 * than one token, the table has the ledger's reason. The model is small and synthetic, because counts do not depend on it.
 * `npm run --silent bench -- restores [--json] [--write name]`
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { CONTRACTS, type Contract } from '../../src/runtime/core/contract.js'
import { conversationId } from '../../src/runtime/core/ids.js'
import { LlamaEngine, type LlamaEngineOptions } from '../../src/runtime/engine/llama.js'
import { type Column, number, table, terminal } from '../../src/runtime/figures/table.js'
import type { LedgerEntry } from '../../src/runtime/kv/ledger.js'
import { openNative } from '../../src/runtime/native/binding.js'
import type { Native } from '../../src/runtime/native/types.js'
import { edited } from '../driver.js'
import { randomTokens } from '../random-tokens.js'
import { beginRecord, keep } from '../record.js'
import { benchModel } from '../shape.js'

const SHAPE = {
  architecture: 'llama',
  layers: 2,
  embedding: 64,
  heads: 4,
  kvHeads: 2,
  feedForward: 128,
  vocabulary: 1024,
  context: 8192,
} as const
const LENGTH = 600
const MARKER = 12
/** Token spans that are folded: one near the beginning, one with most of the text, one near the end, and one shorter than the marker. */
const HOLES = [
  [24, 64],
  [100, 520],
  [500, 560],
  [200, 206],
] as const
/**
 * Sizes of the context, as a multiple of the conversation. A context needs one cell more than it has tokens, and the smallest contexts are
 * multiples of 32.
 */
const ROOMS = [1, 1.3, 2, 4]
const TIERS = ['device', 'host', 'disk'] as const
type Tier = (typeof TIERS)[number]

/** One fold and its restore, in submitted tokens. */
interface Restore {
  readonly cells: number
  readonly room: number
  readonly contract: Contract
  /** The lowest tier that may be used. */
  readonly tier: Tier
  readonly hole: readonly [number, number]
  readonly fold: number
  readonly foldContract: Contract
  readonly restore: number
  readonly approximate: number
  /** Where the restore's reused tokens came from. */
  readonly from: { readonly parked: number; readonly host: number; readonly disk: number }
  readonly reason: string | null
}

const OPTIONS: Record<Tier, (folder: string) => Pick<LlamaEngineOptions, 'hostBytes' | 'disk'>> = {
  device: () => ({ hostBytes: 0 }),
  host: () => ({ hostBytes: 2 ** 28 }),
  // Keeps nothing in memory, except cells that are still being written to the disk.
  disk: (folder) => ({ hostBytes: 1, disk: { folder, bytes: 2 ** 30 } }),
}

/** Returns one row for each room, contract, tier and hole. */
async function measureRestores(native: Native, path: string): Promise<Restore[]> {
  const folder = mkdtempSync(join(tmpdir(), 'kvfold-restores-'))
  try {
    const rows: Restore[] = []
    for (const room of ROOMS)
      for (const tier of TIERS) {
        const cells = 32 * Math.ceil((room * LENGTH + 2) / 32)
        const disk = OPTIONS[tier](join(folder, `${tier}-${room}`))
        const settings = { cells, sequences: 8, threads: 1, batchThreads: 1, flashAttention: 'off' } as const
        const engine = await LlamaEngine.load(native, path, { ...settings, ...disk })
        for (const contract of CONTRACTS)
          for (const hole of HOLES) rows.push(await measure(engine, { cells, room, contract, tier, hole }))
        await engine.dispose()
      }
    return rows
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

async function measure(
  engine: LlamaEngine,
  of: Pick<Restore, 'cells' | 'room' | 'contract' | 'tier' | 'hole'>,
): Promise<Restore> {
  const conversation = conversationId(`${of.contract} ${of.hole.join('-')}`)
  const base = randomTokens(LENGTH, 1 + of.hole[0], SHAPE.vocabulary)
  const marker = randomTokens(MARKER, 99, SHAPE.vocabulary)
  const show = async (holes: Parameters<typeof edited>[1]): Promise<LedgerEntry> => {
    const { tokens, origin } = edited(base, holes)
    const terms = { contract: of.contract }
    const before = engine.submitted
    const { ledger } = await engine.complete({
      conversation,
      tokens,
      ...(origin === undefined ? {} : { origin }),
      terms,
      maxTokens: 0,
    })
    // `engine.submitted` is the addon's own counter, independent of the ledger.
    if (engine.submitted - before !== ledger.submitted) throw new Error('the ledger and the addon count otherwise')
    return ledger
  }
  await show([])
  const [start, end] = of.hole
  const fold = await show([{ start, end, marker }])
  const back = await show([])
  await engine.check('full')
  engine.forget(conversation)
  const { host, disk } = back.tiers
  return {
    ...of,
    fold: fold.submitted,
    foldContract: fold.contract,
    restore: back.submitted,
    approximate: back.approximate,
    from: { parked: back.sources.parked, host, disk },
    reason: back.recomputeReason ?? null,
  }
}

export async function restores(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: { json: { type: 'boolean', default: false }, write: { type: 'string' } },
  })
  const native = await openNative({ gpu: 'cpu' })
  const { path } = await benchModel(undefined, 'restores', SHAPE)
  const origin = beginRecord(['restores', ...args], path, native.backend.release, 1)
  const rows = await measureRestores(native, path)
  const result = { ...origin(), tokens: LENGTH, marker: MARKER, shape: SHAPE, rows }
  await keep(values.write, result)
  if (values.json) {
    console.log(JSON.stringify(result))
    return
  }
  console.log(`${LENGTH} tokens, a marker of ${MARKER}; tokens submitted at the fold and at the restore`)
  type Row = (typeof rows)[number]
  const columns: Column<Row>[] = [
    { title: 'room', text: ({ room, cells }) => `${room}x (${cells})` },
    { title: 'contract', text: ({ contract }) => contract },
    { title: 'tier', text: ({ tier }) => tier },
    { title: 'hole', text: ({ hole }) => `[${hole.join(', ')})` },
    number('fold', ({ fold }) => String(fold)),
    number('restore', ({ restore }) => String(restore)),
    { title: 'why', text: ({ reason }) => reason ?? '' },
  ]
  for (const line of terminal(table(columns, rows))) console.log(line)
}
