/**
 * `npm run bench -- agentx FILE --harness VENV`: runs SemiAnalysis' published AgentX harness against kvfold and llama-server. It replays
 * sessions of coding agents at their own pace, with agents and subagents in parallel. Lengths are scaled, times are not.
 */
import { execFileSync, spawn } from 'node:child_process'
import { createWriteStream, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { cpus, tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { openNative } from '../../src/runtime/native/binding.js'
import { beginRecord, fileOf, keep, OPTIONS, whole } from '../record.js'
import { longestOf, wekaOf, type WekaTrace } from './agentx/weka.js'
import { cpuSince, HERE, type Serving, startKvfold, startLlamaServer } from './serve/servers.js'
import { readLines } from './traces/trace.js'

const TOKENIZER = fileURLToPath(new URL('agentx/tokenizer.py', import.meta.url))
/** The name of the tokenizer's repository. */
const REPOSITORY = 'kvfold/bench'
/** The name of the model in requests. */
const MODEL = 'bench'
/** Host memory for cells, in MiB: llama-server's default. */
const HOST_CACHE = 8192
/** Cells per token of a prompt. The chat template, and texts that are cut at blocks, need more than one. */
const MARGIN = 1.3

export async function agentx(args: readonly string[]): Promise<void> {
  const options = optionsOf(args)
  const out = options.out ?? mkdtempSync(join(tmpdir(), 'kvfold-agentx-'))
  const traces = await tracesOf(options)
  const folder = join(out, 'traces')
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  for (const trace of traces) writeFileSync(join(folder, `${trace.id}.json`), JSON.stringify(trace))
  const hub = hubOf(out, options)

  const native = await openNative({ gpu: 'cpu' })
  const longest = Math.max(...traces.map(longestOf))
  const shown = (arg: string) => (resolve(arg) === options.harness ? 'VENV' : resolve(arg) === options.out ? 'FOLDER' : arg)
  const origin = beginRecord(['agentx', ...args.map(shown)], options.model, native.backend.release, options.threads)
  const result = {
    harness: versionOf(options.harness),
    sessions: traces.map(({ id }) => id),
    users: options.users,
    scale: options.scale,
    seconds: options.seconds,
    longest,
    rows: [] as Row[],
  }
  const cells = options.users * Math.ceil((MARGIN * longest) / 256) * 256
  const serving: Serving = { model: options.model, slots: options.users, threads: options.threads, cells }
  for (const { server, contract, flags, start } of settingsOf(options, serving)) {
    const running = await start()
    const begun = running.cpu()
    try {
      const artifacts = join(out, `${server}-${contract}`)
      await runHarness(options, { url: running.url, hub, folder, artifacts, flags })
      const cpu = cpuSince(begun, running)
      result.rows.push({ server, contract, cells, ...figuresOf(artifacts), cpuSeconds: cpu === null ? null : cpu / 1000 })
      await keep(options.write, { ...origin(), ...result })
    } finally {
      await running.close()
    }
  }
  if (options.json) console.log(JSON.stringify(result))
  else show(result.rows)
  if (options.out === undefined) rmSync(out, { recursive: true, force: true })
}

interface Options {
  readonly file: string
  /** The folder of the Python environment with agentx-harness and gguf. */
  readonly harness: string
  readonly model: string
  readonly scale: number
  readonly sessions: number
  /** Sessions with more tokens in one prompt and its answer (scaled) are left out. */
  readonly longest: number
  readonly users: number
  readonly seconds: number
  readonly servers: readonly string[]
  readonly contracts: readonly string[]
  readonly threads: number
  readonly json: boolean
  /** The folder for the harness's files. Without it, they are deleted. */
  readonly out: string | undefined
  readonly write: string | undefined
}

/** @throws Error that names the bad option */
function optionsOf(args: readonly string[]): Options {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: {
      ...OPTIONS,
      harness: { type: 'string' },
      scale: { type: 'string', default: '32' },
      sessions: { type: 'string', default: '6' },
      longest: { type: 'string', default: '6144' },
      users: { type: 'string', default: '2' },
      seconds: { type: 'string', default: '600' },
      server: { type: 'string', multiple: true, default: ['kvfold', 'llama-server'] },
      contract: { type: 'string', default: 'exact' },
      threads: { type: 'string', default: String(cpus().length) },
      out: { type: 'string' },
    },
  })
  const [file] = positionals
  if (file === undefined || values.harness === undefined)
    throw new Error(
      'agentx needs a file of traces and --harness with the folder of a Python environment; docs/peers.md says how.',
    )
  const number = (name: 'scale' | 'sessions' | 'longest' | 'users' | 'seconds' | 'threads') => whole(name, values[name])
  return {
    ...{ file, harness: resolve(values.harness), model: fileOf(values.model), scale: 1 / number('scale') },
    ...{ sessions: number('sessions'), longest: number('longest'), users: number('users'), seconds: number('seconds') },
    ...{ servers: values.server, contracts: values.contract.split(','), threads: number('threads') },
    ...{ json: values.json, out: values.out === undefined ? undefined : resolve(values.out), write: values.write },
  }
}

/** Returns the requested number of sessions that are short enough, spread over the file. */
async function tracesOf({ file, scale, sessions, longest }: Options): Promise<WekaTrace[]> {
  const fitting: WekaTrace[] = []
  for await (const line of readLines(file)) {
    const trace = wekaOf(line, scale, MODEL)
    if (trace.requests.length > 1 && longestOf(trace) <= longest) fitting.push(trace)
  }
  if (fitting.length < sessions) throw new Error(`${file} has ${fitting.length} sessions of at most ${longest} scaled tokens.`)
  return Array.from({ length: sessions }, (_, index) => fitting[Math.floor((index * fitting.length) / sessions)]!)
}

interface Running {
  readonly url: string
  cpu(): number | null
  close(): Promise<void>
}

interface Setting {
  readonly server: string
  readonly contract: string
  /** Further flags of the harness. */
  readonly flags: readonly string[]
  readonly start: () => Promise<Running>
}

function* settingsOf({ servers, contracts }: Options, serving: Serving): Generator<Setting> {
  if (servers.includes('kvfold'))
    for (const contract of contracts) {
      const start = () => startKvfold('kvfold', HERE, serving, ['--host-cache', String(HOST_CACHE), '--client-edits', contract])
      yield { server: 'kvfold', contract, flags: [], start }
    }
  if (servers.includes('llama-server')) {
    const start = () => startLlamaServer(serving, ['--cache-ram', String(HOST_CACHE), '--jinja', '--metrics', '--alias', MODEL])
    // llama-server closes a connection after its answer, and the harness fails when it writes to one that is closing.
    yield { server: 'llama-server', contract: 'exact', flags: ['--connection-reuse-strategy', 'never'], start }
  }
}

/**
 * Writes the model's tokenizer as a repository in a hub cache, the only kind that the harness loads without a network. Returns the cache's
 * folder.
 */
function hubOf(out: string, { harness, model }: Options): string {
  const hub = join(out, 'hub')
  const repository = join(hub, `models--${REPOSITORY.replace('/', '--')}`)
  const commit = '0'.repeat(40)
  mkdirSync(join(repository, 'refs'), { recursive: true })
  writeFileSync(join(repository, 'refs/main'), commit)
  execFileSync(join(harness, 'bin/python'), [TOKENIZER, model, join(repository, 'snapshots', commit)], {
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  return hub
}

const versionOf = (harness: string): string =>
  execFileSync(join(harness, 'bin/agentx'), ['--version'], { encoding: 'utf8' }).trim()

interface Place {
  readonly url: string
  readonly hub: string
  readonly folder: string
  readonly artifacts: string
  readonly flags: readonly string[]
}

/** Runs the harness to its end; its output is in `harness.log`. @throws Error when it fails */
async function runHarness({ harness, users, seconds }: Options, { url, hub, folder, artifacts, flags }: Place): Promise<void> {
  rmSync(artifacts, { recursive: true, force: true })
  mkdirSync(artifacts, { recursive: true })
  const log = join(artifacts, 'harness.log')
  // A local file of traces is no official submission, nor is a run of less than 900 seconds. Hence --unsafe-override.
  const args = [
    ...['profile', '--url', url, '--endpoint', '/v1/chat/completions', '--model', MODEL, '--tokenizer', REPOSITORY],
    ...['--input-file', folder, '--custom-dataset-type', 'weka_trace', '--concurrency', String(users)],
    ...['--benchmark-duration', String(seconds), '--unsafe-override', '--ui', 'none', '--output-artifact-dir', artifacts],
    ...['--workers-max', '1', '--record-processors', '1', ...flags],
  ]
  const env = { ...process.env, HF_HUB_CACHE: hub, HF_HUB_OFFLINE: '1' }
  const child = spawn(join(harness, 'bin/agentx'), args, { env, stdio: ['ignore', 'pipe', 'pipe'] })
  const file = createWriteStream(log)
  for (const stream of [child.stdout, child.stderr]) stream.pipe(file, { end: false })
  const code = await new Promise<number | null>((done, failed) => child.once('error', failed).once('close', done))
  file.end()
  if (code !== 0) throw new Error(`The harness ended with ${code ?? 'a signal'}; its log is ${log}.`)
}

interface Row extends Figures {
  readonly server: string
  readonly contract: string
  readonly cells: number
  /** CPU seconds of the server's process, including the warm-up. */
  readonly cpuSeconds: number | null
}

type Times = Readonly<Record<'p50' | 'p95', number | null>>

interface Figures {
  readonly requests: number
  readonly failed: number
  /** Tokens as the server counts them. */
  readonly prompts: number
  readonly cached: number
  readonly generated: number
  /** Percentage of the prompts' blocks that a cache without eviction would have, by the trace's block ids. */
  readonly theoretical: number
  /** Milliseconds; so are `betweenTokens` and `request`. */
  readonly firstToken: Times
  readonly betweenTokens: Times
  readonly request: Times
}

type Metric = Readonly<Record<string, number | null | undefined>>

/** Reads the harness's summary. */
function figuresOf(artifacts: string): Figures {
  const summary = JSON.parse(readFileSync(join(artifacts, 'profile_export_aiperf.json'), 'utf8')) as Record<string, Metric | null>
  const number = (name: string) => summary[name]?.avg ?? 0
  const times = (name: string): Times => ({ p50: summary[name]?.p50 ?? null, p95: summary[name]?.p95 ?? null })
  return {
    requests: number('request_count'),
    failed: number('error_request_count'),
    prompts: number('total_usage_prompt_tokens'),
    cached: number('total_usage_prompt_cache_read_tokens'),
    generated: number('total_usage_completion_tokens'),
    theoretical: number('theoretical_prefix_cache_hit'),
    firstToken: times('time_to_first_token'),
    betweenTokens: times('inter_token_latency'),
    request: times('request_latency'),
  }
}

function show(rows: readonly Row[]): void {
  const names = [
    'server',
    'contract',
    'requests',
    'failed',
    'prompts',
    'cached',
    'generated',
    'first token p50',
    'p95',
    'gap p50',
    'p95',
  ]
  console.log(`| ${names.join(' | ')} |`)
  console.log(`| ${names.map((_, index) => (index < 2 ? '---' : '---:')).join(' | ')} |`)
  const ms = (time: number | null) => (time === null ? '-' : `${Math.round(time)} ms`)
  for (const { server, contract, requests, failed, prompts, cached, generated, firstToken, betweenTokens } of rows) {
    const counts = [requests, failed, prompts, cached, generated].map((each) => each.toLocaleString('en'))
    const times = [firstToken.p50, firstToken.p95, betweenTokens.p50, betweenTokens.p95].map(ms)
    console.log(`| ${[server, contract, ...counts, ...times].join(' | ')} |`)
  }
}
