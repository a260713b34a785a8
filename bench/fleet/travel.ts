/**
 * What it takes to move a conversation's cells from one engine to another through a folder, against computing them: bytes, and milliseconds to the first
 * token. Each engine is loaded alone, one after the other; the folder is on this machine's disk, and what was just written may be read from memory.
 *
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
  /** Milliseconds to the first token: all computed. */
  readonly computed: number
  /** Milliseconds from the answer until the other engine can take all; steps of others go on meanwhile. */
  readonly put: number
  /** Milliseconds to the first token where the cells came from the folder. */
  readonly taken: number
  readonly bytes: number
  /** Tokens that came, and those that were computed all the same. */
  readonly came: number
  readonly rest: number
  /** Differences of the first token's log-probability: between the cells that came and those where they were computed, the last token decoded alone in both; */
  readonly difference: number
  /** and between those and a prefill in whole batches: what the shape of a batch does. */
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
  // From the same cells, where they are.
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
