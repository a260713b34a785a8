/**
 * `node --import tsx bench/peers/main.ts [--json]`: what the peers compute for the eight-folds episode, in prompt tokens and seconds, on a
 * synthetic model. The first run builds llama-server. Every episode meets a fresh peer: nothing is left over from the one before.
 */
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { synthesizeModel } from '../../src/native/synthetic.js'
import { eightFolds, ORDERS, PREFILL, type Episode, type Order } from './episode.js'
import { SHAPE } from '../shape.js'
import { buildLlamaServer } from './llama-server.js'
import { llamaServerPeer } from './llama-server-peer.js'
import { nodeLlamaCppPeer } from './node-llama-cpp-peer.js'
import type { Peer, PeerAnswer, PeerOptions } from './peer.js'

const SEED = 1
/** More of them on a busy machine wait for each other. */
const THREADS = 1

interface Row {
  readonly peer: string
  readonly order: Order
  /** Prompt tokens evaluated in all steps, the prefill left out. */
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

async function main(json: boolean): Promise<void> {
  const binary = await buildLlamaServer()
  const options: PeerOptions = { model: join(tmpdir(), 'kvfold-bench-peers.gguf'), contextSize: SHAPE.context, threads: THREADS }
  await synthesizeModel(options.model, { ...SHAPE, type: 'f16', seed: 1 })
  const rows: Row[] = []
  for (const start of [() => llamaServerPeer(binary, options), () => nodeLlamaCppPeer(options)])
    for (const order of ORDERS) {
      const peer = await start()
      try {
        const row = await runEpisode(peer, order, eightFolds(order, SHAPE.vocabulary, SEED))
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
  if (json) console.log(JSON.stringify({ bench: 'peers', contextTokens: PREFILL, model: SHAPE, threads: THREADS, rows }))
}

await main(process.argv.includes('--json'))
process.exit(0)
