/**
 * `node --import tsx bench/runtime/peers/main.ts [--model GGUF] [--length tokens] [--order first-to-last,...] [--json]`: the prompt tokens
 * and seconds that the peers need for the eight-folds episode, by default on a synthetic model. The first run builds llama-server. Each
 * episode gets a fresh peer, so that no state of an earlier one is left.
 */
import { parseArgs } from 'node:util'
import { benchModel, SHAPE } from '../../shape.js'
import { eightFolds, ORDERS, PREFILL, type Episode, type Order } from './episode.js'
import { buildLlamaServer } from './llama-server.js'
import { llamaServerPeer } from './llama-server-peer.js'
import { nodeLlamaCppPeer } from './node-llama-cpp-peer.js'
import type { Peer, PeerAnswer, PeerOptions } from './peer.js'

const SEED = 1
/** On a busy machine, more threads would wait for each other. */
const THREADS = 1

interface Row {
  readonly peer: string
  readonly order: Order
  /** Prompt tokens evaluated in all steps, without the prefill. */
  readonly tokens: number
  readonly seconds: number
  readonly prefillSeconds: number
  readonly tokensPerStep: readonly number[]
}

async function runEpisode(peer: Peer, order: Order, { prefill, steps }: Episode): Promise<Row> {
  const first = await peer.show(prefill)
  const answers: PeerAnswer[] = []
  for (const step of steps) answers.push(await peer.show(step.tokens))
  const milliseconds = answers.reduce((total, answer) => total + answer.milliseconds, 0)
  return {
    peer: peer.name,
    order,
    tokens: answers.reduce((total, answer) => total + answer.evaluated, 0),
    seconds: milliseconds / 1000,
    prefillSeconds: first.milliseconds / 1000,
    tokensPerStep: answers.map((answer) => answer.evaluated),
  }
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      model: { type: 'string' },
      length: { type: 'string', default: String(PREFILL) },
      order: { type: 'string', default: ORDERS.join() },
      json: { type: 'boolean', default: false },
    },
  })
  const { json } = values
  const length = Number(values.length)
  const binary = await buildLlamaServer()
  const { path, vocabulary, said } = await benchModel(values.model, 'peers')
  const options: PeerOptions = { model: path, contextSize: SHAPE.context, threads: THREADS }
  const rows: Row[] = []
  for (const start of [() => llamaServerPeer(binary, options), () => nodeLlamaCppPeer(options)])
    for (const order of ORDERS.filter((one) => values.order.split(',').includes(one))) {
      const peer = await start()
      try {
        const row = await runEpisode(peer, order, eightFolds(order, vocabulary, SEED, length))
        rows.push(row)
        if (!json)
          console.log(
            `${row.peer.padEnd(22)} ${order.padEnd(14)} ${String(row.tokens).padStart(6)} prompt tokens   ${row.seconds.toFixed(2)} s` +
              `   (prefill ${row.prefillSeconds.toFixed(2)} s, not counted)`,
          )
      } finally {
        await peer.close()
      }
    }
  if (json) console.log(JSON.stringify({ bench: 'peers', contextTokens: length, model: said, threads: THREADS, rows }))
}

await main()
process.exit(0)
