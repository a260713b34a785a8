/**
 * Serving under load against llama-server on the same GGUF and slots: 16 clients, mixed prompt sizes, streams. Rounds of all servers alternate, so that a
 * noisy machine hurts all of them; figures are ratios of medians over rounds. Every stream is checked to its end.
 */
import { cpus, tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { openNative } from '../../src/native/binding.js'
import { synthesizeModel } from '../../src/native/synthetic.js'
import { buildLlamaServer } from '../peers/llama-server.js'
import { withoutSettings } from '../peers/llama-server-peer.js'
import { median, randomTokens } from '../random-tokens.js'
import { SHAPE } from '../shape.js'
import { startServer, type ServerProcess } from '../server-process.js'
import { streamCompletion, type StreamResult } from './stream.js'

const PROMPTS = [48, 192, 768, 2048]
const GENERATED = 64
const CELLS = 16_384
/** One core is left to the clients and to Node. */
const THREADS = Math.max(1, cpus().length - 1)

interface Target {
  readonly name: string
  readonly server: ServerProcess
  readonly rounds: Round[]
}

interface Round {
  readonly streams: readonly StreamResult[]
  readonly seconds: number
  /** Resident memory of the server at the end, in bytes; null where it cannot be told. */
  readonly memory: number | null
}

const { values: flags } = parseArgs({
  options: {
    clients: { type: 'string', default: '16' },
    slots: { type: 'string', default: '4' },
    rounds: { type: 'string', default: '5' },
    seconds: { type: 'string', default: '60' },
    'max-gap': { type: 'string' },
    json: { type: 'boolean', default: false },
  },
})
const clients = Number(flags.clients)
const slots = Number(flags.slots)
const model = join(tmpdir(), 'kvfold-bench-serve.gguf')

await synthesizeModel(model, { ...SHAPE, type: 'f16', seed: 1 })
const banned = await endsOfGeneration()
const targets = await start()
let salt = 0
for (let round = 0; round <= Number(flags.rounds); round++)
  for (const target of round % 2 === 0 ? targets : [...targets].reverse()) {
    // The first round warms caches and thread pools.
    const outcome = await load(target, round === 0 ? 5 : Number(flags.seconds))
    if (round > 0) target.rounds.push(outcome)
    if (!flags.json && round > 0) console.log(`round ${round}  ${line(target.name, summary([outcome]))}`)
  }
for (const { server } of targets) await server.close()
report()
process.exit(0)

async function start(): Promise<Target[]> {
  const binary = await buildLlamaServer()
  const main = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url))
  const ours = await startServer('kvfold serve', process.execPath, (port) => [
    ...[
      main,
      'serve',
      '--model',
      `bench=${model}`,
      '--port',
      String(port),
      '--slots',
      String(slots),
      '--threads',
      String(THREADS),
    ],
    ...['--context', String(CELLS), '--store', 'none', '--flash-attention', 'on', '--log-level', 'error', '--queue', '64'],
    ...(flags['max-gap'] === undefined ? [] : ['--max-gap', flags['max-gap']]),
  ])
  const theirs = (unified: boolean) =>
    startServer(
      'llama-server',
      binary,
      (port) => [
        ...['--model', model, '--host', '127.0.0.1', '--port', String(port), '--parallel', String(slots)],
        ...['--threads', String(THREADS), '--threads-batch', String(THREADS), '--ctx-size', String(CELLS)],
        ...['--ubatch-size', '512', '--flash-attn', 'on', '--offline', '--no-ui', unified ? '--kv-unified' : '--no-kv-unified'],
      ],
      withoutSettings(process.env),
    )
  return [
    { name: 'kvfold', server: ours, rounds: [] },
    { name: 'llama-server --kv-unified', server: await theirs(true), rounds: [] },
    { name: 'llama-server --no-kv-unified', server: await theirs(false), rounds: [] },
  ]
}

/** All clients ask again and again until the time is up; a round ends with its last stream. */
async function load({ server }: Target, seconds: number): Promise<Round> {
  const begun = performance.now()
  const streams: StreamResult[] = []
  const client = async (number: number) => {
    for (let turn = 0; performance.now() - begun < 1000 * seconds; turn++) {
      const size = PROMPTS[(number + turn) % PROMPTS.length]!
      const prompt = [...randomTokens(size, ++salt, SHAPE.vocabulary)]
      streams.push(await streamCompletion({ url: server.url, prompt, tokens: GENERATED, banned, model: 'bench' }))
    }
  }
  await Promise.all(Array.from({ length: clients }, (_, number) => client(number)))
  return { streams, seconds: (performance.now() - begun) / 1000, memory: server.memory() }
}

/** Random weights may end an answer at any time; all servers must generate the same number of tokens. */
async function endsOfGeneration(): Promise<number[]> {
  const native = await openNative({ gpu: 'cpu' })
  const vocabulary = await native.loadModel(model, { vocabOnly: true })
  const tokens = Array.from({ length: SHAPE.vocabulary }, (_, token) => token)
  const ends = tokens.filter((token) => vocabulary.isEndOfGeneration(token))
  await vocabulary.dispose()
  return ends
}

interface Summary {
  readonly streams: number
  readonly faults: readonly string[]
  /** Generated tokens a second. */
  readonly throughput: number
  readonly firstToken: Quantiles
  readonly gap: Quantiles
  /** Resident memory at the end of each round, MiB: what leaks goes on growing. */
  readonly memory: readonly number[]
}

interface Quantiles {
  readonly p50: number
  readonly p95: number
}

function summary(rounds: readonly Round[]): Summary {
  const streams = rounds.flatMap((round) => round.streams)
  const whole = streams.filter(({ fault }) => fault === null)
  return {
    streams: streams.length,
    faults: [...new Set(streams.flatMap(({ fault }) => (fault === null ? [] : [fault])))],
    throughput: median(rounds.map(throughput)),
    firstToken: quantiles(whole.map(({ firstToken }) => firstToken)),
    gap: quantiles(whole.flatMap(({ gaps }) => gaps)),
    memory: rounds.flatMap(({ memory }) => (memory === null ? [] : [Math.round(memory / 2 ** 20)])),
  }
}

function throughput({ streams, seconds }: Round): number {
  return streams.reduce((sum, { generated }) => sum + generated, 0) / seconds
}

function quantiles(values: readonly number[]): Quantiles {
  const sorted = [...values].sort((a, b) => a - b)
  const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? Number.NaN
  return { p50: at(0.5), p95: at(0.95) }
}

function line(name: string, { streams, faults, throughput: rate, firstToken, gap, memory }: Summary): string {
  const range = ({ p50, p95 }: Quantiles) => `${p50.toFixed(0)} / ${p95.toFixed(0)} ms`
  const wrong = faults.length === 0 ? 'all whole' : `FAULTS: ${faults.join('; ')}`
  return `${name.padEnd(30)} ${rate.toFixed(1).padStart(7)} tokens/s   first token ${range(firstToken)}   gap ${range(gap)}   ${streams} streams, ${wrong}, ${memory.join(', ')} MiB`
}

function report(): void {
  const rows = targets.map(({ name, rounds }) => ({ name, ...summary(rounds) }))
  const [ours] = targets as [Target, ...Target[]]
  const ratios = targets.slice(1).map(({ name, rounds }) => ({
    peer: name,
    throughput: median(ours.rounds.map((round, index) => throughput(round) / throughput(rounds[index]!))),
    gap: median(ours.rounds.map((round, index) => summary([round]).gap.p95 / summary([rounds[index]!]).gap.p95)),
  }))
  const settings = { clients, slots, prompts: PROMPTS, generated: GENERATED, cells: CELLS, threads: THREADS, model: SHAPE }
  if (flags.json) {
    console.log(JSON.stringify({ bench: 'serve', ...settings, seconds: Number(flags.seconds), rows, ratios }))
    return
  }
  for (const row of rows) console.log(line(row.name, row))
  for (const { peer, throughput: ratio, gap } of ratios)
    console.log(
      `kvfold / ${peer}, medians of ${flags.rounds} rounds: throughput ${ratio.toFixed(3)} (above 1 is faster), 95th percentile of the gap ${gap.toFixed(3)} (below 1 is smoother)`,
    )
}
