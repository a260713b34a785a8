/**
 * Serving under load, compared with llama-server on the same GGUF and slots: 16 clients, mixed prompt sizes, streams. The rounds of all
 * servers alternate, so that a noisy machine hurts all of them. Figures are ratios of medians over rounds. Every stream is checked to its
 * end.
 * `npm run --silent bench -- serve [--model path] [--clients 16] [--slots 4] [--prompts 48,192,768,2048] [--generated 64] [--rounds 5]
 * [--seconds 60] [--max-gap 50,1000] [--peers unified,separate] [--json] [--write name]`; without a model, one with random weights.
 */
import { cpus } from 'node:os'
import { parseArgs } from 'node:util'
import { openNative } from '../../../src/runtime/native/binding.js'
import { median, randomTokens } from '../../random-tokens.js'
import { beginRecord, keep } from '../../record.js'
import { benchModel } from '../../shape.js'
import type { ServerProcess } from '../../server-process.js'
import { type Quantiles, quantiles } from '../../statistics.js'
import { cpuSince, endsOf, HERE, startKvfold, startLlamaServer } from './servers.js'
import { streamCompletion, type StreamResult } from './stream.js'

const CELLS = 16_384
/** Leaves one core to the clients and Node. */
const THREADS = Math.max(1, cpus().length - 1)

interface Target {
  readonly name: string
  readonly server: ServerProcess
  readonly rounds: Round[]
}

interface Round {
  readonly streams: readonly StreamResult[]
  readonly seconds: number
  /** Resident memory of the server at the end, in bytes; null if it cannot be read. */
  readonly memory: number | null
  /** CPU milliseconds of the server's process; null if they cannot be read. Other work on the machine disturbs them less than wall time. */
  readonly cpu: number | null
}

const { values: flags } = parseArgs({
  // Skip the benchmark's name.
  args: process.argv.slice(3),
  options: {
    clients: { type: 'string', default: '16' },
    slots: { type: 'string', default: '4' },
    rounds: { type: 'string', default: '5' },
    seconds: { type: 'string', default: '60' },
    /** Prompt sizes in tokens, which the clients use in turn. */
    prompts: { type: 'string', default: '48,192,768,2048' },
    /** Tokens of every answer. */
    generated: { type: 'string', default: '64' },
    /** For each of these gaps, one more kvfold runs beside the one with the default gap. */
    'max-gap': { type: 'string', default: '' },
    /** How llama-server keeps its KV cache: unified, separate, or one server of each. */
    peers: { type: 'string', default: 'unified,separate' },
    /** The package folder of another kvfold to compare with. */
    beside: { type: 'string' },
    model: { type: 'string' },
    json: { type: 'boolean', default: false },
    write: { type: 'string' },
  },
})
const prompts = flags.prompts.split(',').map(Number)
const generated = Number(flags.generated)
const clients = Number(flags.clients)
const slots = Number(flags.slots)
const { path: model, vocabulary } = await benchModel(flags.model, 'serve')
const { release } = (await openNative({ gpu: 'cpu' })).backend
const origin = beginRecord(process.argv.slice(2), model, release, THREADS)
const banned = await endsOf(model)
const targets = await start()
let salt = 0
for (let round = 0; round <= Number(flags.rounds); round++)
  for (const target of round % 2 === 0 ? targets : [...targets].reverse()) {
    // The first round warms caches and thread pools.
    const outcome = await (round === 0 ? load(target, 5, [48], 16) : load(target, Number(flags.seconds)))
    if (round > 0) target.rounds.push(outcome)
    if (!flags.json && round > 0) console.log(`round ${round}  ${line(target.name, summary([outcome]))}`)
  }
for (const { server } of targets) await server.close()
await report()

async function start(): Promise<Target[]> {
  const serving = { model, slots, threads: THREADS, cells: CELLS }
  const kvfold = (name: string, root: string, extra: readonly string[] = []) =>
    startKvfold(name, root, serving, ['--queue', '64', ...extra])
  const ours = await kvfold('kvfold', HERE)
  const gaps: Target[] = []
  for (const gap of flags['max-gap'].split(',').filter((each) => each !== '')) {
    const name = `kvfold --max-gap ${gap}`
    gaps.push({ name, server: await kvfold(name, HERE, ['--max-gap', gap]), rounds: [] })
  }
  const peers: Target[] = []
  for (const kept of flags.peers.split(',')) {
    const flag = kept === 'unified' ? '--kv-unified' : '--no-kv-unified'
    const server = await startLlamaServer(serving, ['--ubatch-size', '512', flag])
    peers.push({ name: `llama-server ${flag}`, server, rounds: [] })
  }
  return [
    { name: 'kvfold', server: ours, rounds: [] },
    ...peers,
    ...gaps,
    ...(flags.beside === undefined
      ? []
      : [{ name: 'kvfold beside', server: await kvfold('kvfold beside', flags.beside), rounds: [] }]),
  ]
}

/** Lets all clients send requests without pause until the time is up. A round ends with its last stream. */
async function load({ server }: Target, seconds: number, sizes = prompts, answer = generated): Promise<Round> {
  const before = server.cpu()
  const begun = performance.now()
  const streams: StreamResult[] = []
  const client = async (number: number) => {
    for (let turn = 0; performance.now() - begun < 1000 * seconds; turn++) {
      const size = sizes[(number + turn) % sizes.length]!
      const prompt = [...randomTokens(size, ++salt, vocabulary)]
      streams.push(await streamCompletion({ url: server.url, prompt, tokens: answer, banned, model: 'bench' }))
    }
  }
  await Promise.all(Array.from({ length: clients }, (_, number) => client(number)))
  const took = (performance.now() - begun) / 1000
  return { streams, seconds: took, memory: server.memory(), cpu: cpuSince(before, server) }
}

interface Summary {
  readonly streams: number
  readonly faults: readonly string[]
  /** Generated tokens per second. */
  readonly throughput: number
  readonly firstToken: Spread
  readonly gap: Spread
  /** CPU milliseconds of the server per generated token; null if they cannot be read. */
  readonly cpu: number | null
  /** Resident memory at the end of each round, in MiB. With a leak it grows from round to round. */
  readonly memory: readonly number[]
}

/** The spread of times. A server that computes a whole prompt between two tokens shows it from the 99th percentile on. */
interface Spread extends Quantiles {
  readonly max: number
}

function summary(rounds: readonly Round[]): Summary {
  const streams = rounds.flatMap((round) => round.streams)
  const whole = streams.filter(({ fault }) => fault === null)
  return {
    streams: streams.length,
    faults: [...new Set(streams.flatMap(({ fault }) => (fault === null ? [] : [fault])))],
    throughput: median(rounds.map(throughput)),
    firstToken: spread(whole.map(({ firstToken }) => firstToken)),
    gap: spread(whole.flatMap(({ gaps }) => gaps)),
    cpu: rounds.some(({ cpu }) => cpu === null) ? null : median(rounds.map(cpuOfToken)),
    memory: rounds.flatMap(({ memory }) => (memory === null ? [] : [Math.round(memory / 2 ** 20)])),
  }
}

function throughput({ streams, seconds }: Round): number {
  return streams.reduce((sum, { generated }) => sum + generated, 0) / seconds
}

function cpuOfToken({ streams, cpu }: Round): number {
  return (cpu ?? Number.NaN) / streams.reduce((sum, { generated }) => sum + generated, 0)
}

function spread(values: readonly number[]): Spread {
  return {
    ...quantiles(values),
    max: values.length === 0 ? Number.NaN : values.reduce((most, value) => Math.max(most, value)),
  }
}

function line(name: string, { streams, faults, throughput: rate, firstToken, gap, memory, cpu }: Summary): string {
  const range = ({ p50, p95, p99, max }: Spread) => [p50, p95, p99, max].map((value) => value.toFixed(0)).join(' / ')
  const wrong = faults.length === 0 ? 'all whole' : `FAULTS: ${faults.join('; ')}`
  return `${name.padEnd(30)} ${rate.toFixed(1).padStart(7)} tokens/s   first token ${range(firstToken)}   gap ${range(gap)}   CPU ${cpu?.toFixed(2) ?? '?'} ms a token   ${streams} streams, ${wrong}, ${memory.join(', ')} MiB`
}

function ratioOf(ours: readonly Round[], theirs: readonly Round[], quantile: keyof Spread): number {
  return median(ours.map((round, index) => summary([round]).gap[quantile] / summary([theirs[index]!]).gap[quantile]))
}

async function report(): Promise<void> {
  const rows = targets.map(({ name, rounds }) => ({ name, ...summary(rounds) }))
  const [ours] = targets as [Target, ...Target[]]
  const ratios = targets.slice(1).map(({ name, rounds }) => ({
    peer: name,
    throughput: median(ours.rounds.map((round, index) => throughput(round) / throughput(rounds[index]!))),
    cpu: median(ours.rounds.map((round, index) => cpuOfToken(round) / cpuOfToken(rounds[index]!))),
    gap: ratioOf(ours.rounds, rounds, 'p95'),
    gap99: ratioOf(ours.rounds, rounds, 'p99'),
  }))
  const settings = { clients, slots, prompts, generated, cells: CELLS }
  const result = { ...origin(), ...settings, seconds: Number(flags.seconds), rows, ratios }
  await keep(flags.write, result)
  if (flags.json) {
    console.log(JSON.stringify(result))
    return
  }
  console.log('first token and gap: median, 95th, 99th percentile and longest, in milliseconds')
  for (const row of rows) console.log(line(row.name, row))
  for (const { peer, throughput: ratio, cpu, gap, gap99 } of ratios)
    console.log(
      `kvfold / ${peer}, medians of ${flags.rounds} rounds: throughput ${ratio.toFixed(3)} (above 1 is faster), CPU a token ${cpu.toFixed(3)}, gap at the 95th percentile ${gap.toFixed(3)}, at the 99th ${gap99.toFixed(3)} (below 1 is smoother)`,
    )
}
