/**
 * Compares moving a conversation's cells from one engine to another through a folder with computing them again: bytes, and milliseconds to
 * the first token. The engines are loaded one after the other, and each runs alone. The folder is on this machine's disk, so freshly
 * written files may be read from memory.
 * `npm run --silent bench -- travel [--model FILE] [--tokens 16384] [--threads 2] [--rounds 3] [--folder DIR] [--json] [--write NAME]`
 */
import { mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs'
import { freemem, tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { conversationId } from '../../src/runtime/core/ids.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { number, table, terminal } from '../../src/runtime/figures/table.js'
import { BLOCK } from '../../src/runtime/kv/ports.js'
import { sharedCells } from '../../src/fleet/cells/shared-cells-folder.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { median, neverEnding, randomTokens } from '../random-tokens.js'
import { beginRecord, keep, OPTIONS } from '../record.js'

const SECRET = Buffer.alloc(32, 'of this bench')

interface Round {
  /** Milliseconds to the first token if the engine computes everything. */
  readonly computed: number
  /** Milliseconds from the answer until another engine can take all cells. Steps of other requests go on meanwhile. */
  readonly put: number
  /** Milliseconds to the first token if the cells come from the folder. */
  readonly taken: number
  readonly bytes: number
  /** `came`: tokens whose cells came from the folder. `rest`: tokens that the engine still computed. */
  readonly came: number
  readonly rest: number
  /**
   * Difference of the first token's log-probability between moved cells and the same cells on the first engine. Both decode the last token
   * by itself.
   */
  readonly difference: number
  /** The same difference between the first engine's cells and its prefill in whole batches: the effect of the batch's shape. */
  readonly batches: number
}

export async function travel(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      ...OPTIONS,
      tokens: { type: 'string', default: '16384' },
      threads: { type: 'string', default: '2' },
      rounds: { type: 'string', default: '3' },
      folder: { type: 'string', default: tmpdir() },
    },
  })
  const [tokens, threads, rounds] = [Number(values.tokens), Number(values.threads), Number(values.rounds)]
  const native = await openNative({ gpu: 'cpu' })
  const record = beginRecord(['travel', ...args], values.model, native.backend.release, threads)
  const done: Round[] = []
  for (let round = 0; round < rounds; round++) {
    const folder = mkdtempSync(join(values.folder, 'kvfold-travel-'))
    try {
      done.push(await play({ model: values.model, tokens, threads, folder, round }))
    } finally {
      rmSync(folder, { recursive: true })
    }
  }
  const middle = (of: (round: Round) => number) => median(done.map(of))
  const [computed, put, taken, bytes] = [
    middle((each) => each.computed),
    middle((each) => each.put),
    middle((each) => each.taken),
    middle((each) => each.bytes),
  ]
  const medians = { computed, put, taken, bytes, share: taken / computed, bytesPerToken: bytes / done[0]!.came }
  const result = { ...record(), tokens, block: BLOCK, freeMemory: freemem(), medians, rounds: done }
  await keep(values.write, result)
  if (values.json) {
    console.log(JSON.stringify(result))
    return
  }
  const columns = [
    number('computed, ms', ({ computed }: Round) => computed.toFixed(0)),
    number('put, ms', ({ put }: Round) => put.toFixed(0)),
    number('taken, ms', ({ taken }: Round) => taken.toFixed(0)),
    number('MiB', ({ bytes }: Round) => (bytes / 2 ** 20).toFixed(1)),
    number('tokens that came', ({ came }: Round) => String(came)),
    number('difference, nats', ({ difference }: Round) => difference.toExponential(1)),
    number('of batches', ({ batches }: Round) => batches.toExponential(1)),
  ]
  for (const line of terminal(table(columns, done))) console.log(line)
}

async function play(of: {
  readonly model: string
  readonly tokens: number
  readonly threads: number
  readonly folder: string
  readonly round: number
}): Promise<Round> {
  const { model, tokens, threads, folder, round } = of
  const native = await openNative({ gpu: 'cpu' })
  const shared = sharedCells({ folder, bytes: 2 ** 36, secret: SECRET })
  const load = () =>
    LlamaEngine.load(native, model, {
      ...{ cells: tokens + 1024, sequences: 8, slots: 1, threads, batchThreads: threads, hostBytes: 0, shared },
    })
  const ask = async (engine: LlamaEngine, conversation = 'travels') => {
    const { vocabulary } = engine.modelInfo
    const { logprobs, timing, ledger } = await engine.complete({
      conversation: conversationId(conversation),
      tokens: randomTokens(tokens, round + 1, Math.min(vocabulary, 4096)),
      maxTokens: 1,
      logprobs: 1,
      sampling: { logitBias: neverEnding(engine.model) },
    })
    return { logprob: logprobs[0]!.logprob, milliseconds: timing.firstToken, ledger }
  }
  const one = await load()
  const first = await ask(one)
  const from = performance.now()
  await one.published()
  const put = performance.now() - from
  // The same prompt again, from the first engine's own cells.
  const again = await ask(one, 'again')
  await one.dispose()
  const names = readdirSync(folder).filter((name) => name.endsWith('.kvcells'))
  const bytes = names.reduce((sum, name) => sum + statSync(join(folder, name)).size, 0)
  const other = await load()
  const second = await ask(other)
  await other.dispose()
  const came = second.ledger.tiers.shared ?? 0
  return {
    ...{ computed: first.milliseconds, put, taken: second.milliseconds, bytes, came, rest: second.ledger.submitted },
    difference: Math.abs(again.logprob - second.logprob),
    batches: Math.abs(again.logprob - first.logprob),
  }
}
