/**
 * The time between two decodes: chat streams from a model with almost no work, on kvfold and llama-server in turn, so that mostly the
 * servers' own work remains. The CPU time of the server's process is reported too, because a busy machine disturbs it less than wall time.
 */
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { synthesizeModel } from '../../../src/runtime/native/synthetic.js'
import { median } from '../../random-tokens.js'
import type { ServerProcess } from '../../server-process.js'
import { cpuSince, endsOf, HERE, startKvfold, startLlamaServer } from './servers.js'

const { values: flags } = parseArgs({
  // Skip the benchmark's name.
  args: process.argv.slice(3),
  options: {
    streams: { type: 'string', default: '1,4,16' },
    rounds: { type: 'string', default: '9' },
    tokens: { type: 'string', default: '400' },
    /** The package folder of another kvfold to compare with. */
    beside: { type: 'string' },
    json: { type: 'boolean', default: false },
  },
})
const SLOTS = 16
const CELLS = 131_072
const model = join(tmpdir(), 'kvfold-bench-overhead.gguf')
/** The model that `kvfold model synth --layers 1 --embedding 64 --context 131072` makes. */
const SHAPE = {
  architecture: 'llama',
  layers: 1,
  embedding: 64,
  heads: 4,
  kvHeads: 4,
  feedForward: 256,
  vocabulary: 512,
  context: CELLS,
} as const
await synthesizeModel(model, SHAPE)
/** Bans for the tokens that end an answer, because random weights may sample one anywhere. */
const bans = Object.fromEntries((await endsOf(model)).map((token) => [token, -100]))

interface Target {
  readonly name: string
  readonly server: ServerProcess
  /** By number of streams, for each round: `steps` has milliseconds per step, `cpu` has CPU milliseconds per token. */
  readonly steps: Map<number, number[]>
  readonly cpu: Map<number, number[]>
}

const counts = flags.streams.split(',').map(Number)
const targets = await start()
for (let round = 0; round <= Number(flags.rounds); round++)
  for (const streams of counts)
    for (const target of round % 2 === 0 ? targets : [...targets].reverse()) await measure(target, streams, round)
for (const { server } of targets) await server.close()
report()

async function start(): Promise<Target[]> {
  const serving = { model, slots: SLOTS, threads: 1, cells: CELLS }
  const theirs = await startLlamaServer(serving, ['--kv-unified'])
  const target = (name: string, server: ServerProcess): Target => ({ name, server, steps: new Map(), cpu: new Map() })
  const ours = await startKvfold('kvfold', HERE, serving)
  const beside =
    flags.beside === undefined ? [] : [target('kvfold beside', await startKvfold('kvfold beside', flags.beside, serving))]
  return [target('kvfold', ours), target('llama-server', theirs), ...beside]
}

/** Measures one round. The first round is a warm-up and is not kept. */
async function measure({ server, steps, cpu }: Target, streams: number, round: number): Promise<void> {
  const before = server.cpu()
  const each = await Promise.all(Array.from({ length: streams }, (_, number) => chat(server.url, `${round} ${number}`)))
  const spent = cpuSince(before, server)
  if (round === 0) return
  const add = (to: Map<number, number[]>, value: number) => to.set(streams, [...(to.get(streams) ?? []), value])
  add(steps, median(each.map(({ milliseconds, tokens }) => milliseconds / (tokens - 1))))
  const tokens = each.reduce((sum, stream) => sum + stream.tokens, 0)
  if (spent !== null) add(cpu, spent / tokens)
}

/** Reads one streamed answer. Returns its number of tokens, and the milliseconds from the first to the last chunk with text. */
async function chat(url: string, salt: string): Promise<{ milliseconds: number; tokens: number }> {
  const limit = Number(flags.tokens)
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', connection: 'close' },
    body: JSON.stringify({
      model: 'bench',
      messages: [{ role: 'user', content: `Round ${salt}.` }],
      max_tokens: limit,
      temperature: 0,
      logit_bias: bans,
      stream: true,
      stream_options: { include_usage: true },
    }),
  })
  if (!response.ok || response.body === null) throw new Error(`status ${response.status}: ${await response.text()}`)
  let first: number | null = null
  let last = 0
  let tail = ''
  const decoder = new TextDecoder()
  for await (const bytes of response.body) {
    const text = decoder.decode(bytes as Uint8Array, { stream: true })
    if (/"content":"[^"]/.test(text)) {
      last = performance.now()
      first ??= last
    }
    tail = (tail + text).slice(-4000)
  }
  const [, tokens = '0'] = /"completion_tokens":(\d+)/.exec(tail) ?? []
  if (first === null || Number(tokens) < 2) throw new Error(`an answer of ${tokens} tokens: ${tail}`)
  return { milliseconds: last - first, tokens: Number(tokens) }
}

function report(): void {
  const [ours, theirs] = targets as [Target, Target]
  const rows = counts.map((streams) => ({
    streams,
    servers: targets.map(({ name, steps, cpu }) => ({
      name,
      step: median(steps.get(streams) ?? []),
      cpu: median(cpu.get(streams) ?? []),
    })),
    ratio: median((ours.steps.get(streams) ?? []).map((step, round) => step / (theirs.steps.get(streams) ?? [])[round]!)),
  }))
  if (flags.json) {
    console.log(JSON.stringify({ bench: 'serve-overhead', rounds: Number(flags.rounds), tokens: Number(flags.tokens), rows }))
    return
  }
  for (const { streams, servers, ratio } of rows) {
    const line = servers.map(({ name, step, cpu }) => `${name} ${step.toFixed(3)} ms a step, ${cpu.toFixed(3)} ms CPU a token`)
    console.log(`${String(streams).padStart(2)} streams: ${line.join('; ')}; kvfold / llama-server ${ratio.toFixed(3)}`)
  }
}
