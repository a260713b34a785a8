/** Runs an engine that shares cells in a separate process. It carries out one request per input line, and prints the result. */
import { createInterface } from 'node:readline'
import { writeSync } from 'node:fs'
import { sharedCells, type SharedPlace } from '../../../../src/fleet/cells/shared-cells-folder.js'
import { Random } from '../../../../src/runtime/core/random.js'
import { conversationId } from '../../../../src/runtime/core/ids.js'
import { LlamaEngine } from '../../../../src/runtime/engine/llama.js'
import { openNative } from '../../../../src/runtime/native/binding.js'
import { neverEnding } from '../../../../bench/random-tokens.js'
import { TEST_GPU } from '../../../support/device.js'
import { tinyModel } from '../../../support/models.js'

/** A text of this many tokens; texts of one family begin alike. */
export interface Ask {
  readonly family: number
  readonly length: number
  /** From here on the text is that of `own`. */
  readonly fork: number
  readonly own: number
  readonly conversation: string
  readonly tenant: string
}

export interface Answered {
  /** Fewer if the request was cancelled. */
  readonly logprobs: readonly number[]
  readonly cancelled: boolean
  readonly shared: number
  readonly computed: number
}

/** Returns the tokens of the text. The tiny model has more than 256 tokens; these are plain ones. */
export function tokensOf({ family, length, fork, own }: Pick<Ask, 'family' | 'length' | 'fork' | 'own'>): Int32Array {
  const [common, alone] = [new Random(family, 7), new Random(family, 11 + own)]
  return Int32Array.from({ length }, (_, at) => 5 + (at < fork ? common : alone).below(200))
}

export async function loadSharing(shared: SharedPlace | null): Promise<LlamaEngine> {
  const options = { cells: 4096, sequences: 12, slots: 3, threads: 1, batchThreads: 1, hostBytes: 2 ** 22 }
  return LlamaEngine.load(await openNative({ gpu: TEST_GPU }), await tinyModel(), {
    ...options,
    ...(shared === null ? {} : { shared: sharedCells(shared) }),
  })
}

export async function answer(engine: LlamaEngine, ask: Ask): Promise<Answered> {
  const { logprobs, ledger, finish } = await engine.complete({
    conversation: conversationId(ask.conversation),
    tenant: ask.tenant,
    tokens: tokensOf(ask),
    maxTokens: 2,
    logprobs: 1,
    sampling: { logitBias: neverEnding(engine.model) },
  })
  const { tiers, submitted } = ledger
  const said = logprobs.map(({ logprob }) => logprob)
  return { logprobs: said, cancelled: finish === 'cancelled', shared: tiers.shared ?? 0, computed: submitted }
}

async function main(folder: string, bytes: number, secret: string): Promise<void> {
  const engine = await loadSharing({ folder, bytes, secret: Buffer.from(secret, 'hex') })
  const say = (what: object) => writeSync(1, `${JSON.stringify(what)}\n`)
  say({ ready: true })
  for await (const line of createInterface(process.stdin)) {
    const { id, ask, forget } = JSON.parse(line) as { id: number; ask?: Ask; forget?: string }
    const done = async () => {
      if (ask !== undefined) return answer(engine, ask)
      if (forget !== undefined) await engine.erase(conversationId(forget))
      else {
        await engine.published()
        await engine.check('full')
      }
      return engine.cacheTotals.shared
    }
    void done().then(
      (result) => say({ id, result }),
      (error: unknown) => say({ id, error: String(error) }),
    )
  }
  await engine.dispose()
}

if (process.argv[1] === import.meta.filename) {
  process.on('SIGXFSZ', () => undefined)
  const [folder = '', bytes = '', secret = ''] = process.argv.slice(2)
  await main(folder, Number(bytes), secret)
}
