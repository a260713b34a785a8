/**
 * `npm run bench -- traces FILE`: replays sessions of coding agents on kvfold, llama-server and any other server. Reports what each one
 * computes, why, and how long a user waits for the first token. Lengths are scaled, so that a small model on two cores gets through a day's
 * sessions.
 */
import { cpus, tmpdir } from 'node:os'
import { mkdtempSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { openNative } from '../../src/runtime/native/binding.js'
import { beginRecord, fileOf, keep, oneOf, OPTIONS, whole } from '../record.js'
import { cpuSince, HERE, type Serving, startKvfold, startLlamaServer } from './serve/servers.js'
import { InfinitePrefixCache } from './traces/prefix-cache.js'
import { promptOf, TEMPLATE, wordsOf } from './traces/prompt.js'
import { type Planned, replay, type Replayed } from './traces/replay.js'
import { type Reading, READINGS, scriptOf } from './traces/script.js'
import { readTraces, type TraceSession } from './traces/trace.js'
import { inOrder } from './traces/users.js'

/** Where cells go for which the device has no room. */
const TIERS = ['none', 'memory', 'disk'] as const
type Tiers = (typeof TIERS)[number]

export interface Row extends Replayed {
  readonly server: string
  readonly contract: string
  readonly tiers: Tiers | null
  /** The number of longest sessions for which the cells are enough; null for a server that was running already. */
  readonly sessions: number | null
  readonly cells: number | null
  /** CPU seconds of the server's process; null for a server that was running already. */
  readonly cpuSeconds: number | null
}

/** Host memory for cells, in MiB: llama-server's default. */
const HOST_CACHE = 8192
const DISK_CACHE = 32_768

export async function traces(args: readonly string[]): Promise<void> {
  const options = optionsOf(args)
  const native = await openNative({ gpu: 'cpu' })
  const vocabulary = await native.loadModel(options.model, { vocabOnly: true })
  const words = wordsOf(vocabulary)
  const [word] = vocabulary.tokenize(words[0]!)
  const bias = { [word!]: 100 }
  const sessions = await sessionsOf(options.file, options.sessions)
  const script = { words, scale: options.scale, reading: options.reading }
  const requests = () => inOrder(sessions, options.users, (session) => scriptOf(session, script))

  const known = new InfinitePrefixCache(vocabulary.info.vocabulary)
  const plan: Omit<Planned, 'request'>[] = []
  const longest = new Map<string, number>()
  for (const { messages, session, answer } of requests()) {
    const tokens = vocabulary.tokenize(promptOf(messages), { parseSpecial: true })
    plan.push({ prompt: tokens.length, ideal: known.add(tokens) })
    known.add([...tokens, ...Array.from({ length: answer }, () => word!)])
    longest.set(session, Math.max(longest.get(session) ?? 0, tokens.length + answer))
  }
  await vocabulary.dispose()
  const planned = function* (): Generator<Planned> {
    let index = 0
    for (const request of requests()) yield { request, ...plan[index++]! }
  }

  const origin = beginRecord(['traces', ...args], options.model, native.backend.release, options.threads)
  const total = (of: (each: Omit<Planned, 'request'>) => number) => plan.reduce((sum, each) => sum + of(each), 0)
  const result = {
    sessions: sessions.length,
    users: options.users,
    scale: options.scale,
    reading: options.reading,
    requests: plan.length,
    prompts: total(({ prompt }) => prompt),
    infinitePrefixCache: total(({ ideal }) => ideal),
    longest: Math.max(...longest.values()),
    rows: [] as Row[],
  }
  if (!options.json)
    console.log(
      `${result.requests} requests of ${result.sessions} sessions, ${count(result.prompts)} tokens of prompts, ${count(result.longest)} at most. ` +
        `A prefix cache that never forgets computes ${count(result.infinitePrefixCache)} of them.\n`,
    )
  if (!options.json) head()
  for (const setting of settingsOf(options, result.longest)) {
    const server = await setting.start()
    const begun = server.cpu()
    try {
      const replayed = await replay({ url: server.url, model: options.name, bias }, planned(), (done) => {
        if (process.stderr.isTTY) process.stderr.write(`\r${setting.row.server}: ${done} of ${plan.length} `)
      })
      if (process.stderr.isTTY) process.stderr.write('\r')
      const cpu = cpuSince(begun, server)
      result.rows.push({ ...setting.row, ...replayed, cpuSeconds: cpu === null ? null : cpu / 1000 })
      if (!options.json) line(result.rows.at(-1)!, result.infinitePrefixCache)
      await keep(options.write, { ...origin(), ...result })
    } finally {
      await server.close()
    }
  }
  if (options.json) console.log(JSON.stringify(result))
}

interface Options {
  readonly file: string
  readonly model: string
  /** The model's name in requests. */
  readonly name: string
  readonly scale: number
  readonly sessions: number
  readonly users: number
  readonly reading: Reading
  readonly servers: readonly string[]
  readonly contracts: readonly string[]
  readonly tiers: readonly Tiers[]
  readonly cellsFor: readonly number[]
  readonly threads: number
  readonly json: boolean
  readonly write: string | undefined
}

/** @throws Error that names the bad option */
function optionsOf(args: readonly string[]): Options {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: {
      ...OPTIONS,
      scale: { type: 'string', default: '1/16' },
      sessions: { type: 'string', default: '8' },
      users: { type: 'string', default: '4' },
      reading: { type: 'string', default: 'same' },
      server: { type: 'string', multiple: true, default: ['kvfold', 'llama-server'] },
      contract: { type: 'string', default: 'exact,splice' },
      tiers: { type: 'string', default: 'memory' },
      'cells-for': { type: 'string', default: '1,4' },
      threads: { type: 'string', default: String(Math.max(1, cpus().length - 1)) },
      /** The model's name on a server given by URL. */
      name: { type: 'string', default: 'bench' },
    },
  })
  const [file] = positionals
  if (file === undefined)
    throw bad(
      'traces needs a file of traces. The sessions of callanjfox/kv-cache-tester (folder traces/) will do: bench -- traces FOLDER.',
    )
  return {
    file,
    model: fileOf(values.model),
    name: values.name,
    scale: fraction(values.scale),
    sessions: whole('sessions', values.sessions),
    users: whole('users', values.users),
    reading: oneOf('reading', READINGS, values.reading),
    servers: values.server,
    contracts: values.contract.split(',').map((each) => oneOf('contract', ['exact', 'splice', 'blend', 'auto'] as const, each)),
    tiers: values.tiers.split(',').map((each) => oneOf('tiers', TIERS, each)),
    cellsFor: values['cells-for'].split(',').map((each) => whole('cells-for', each)),
    threads: whole('threads', values.threads),
    json: values.json,
    write: values.write,
  }
}

const bad = (message: string): Error => new Error(message)

function fraction(text: string): number {
  const [, above = '', below = '1'] = /^([1-9]\d*)(?:\/([1-9]\d*))?$/.exec(text) ?? []
  const value = Number(above) / Number(below)
  if (above === '' || value > 1) throw bad(`--scale must be a fraction like 1/16, at most 1; it is ${JSON.stringify(text)}.`)
  return value
}

/** Reads all sessions, and returns the requested number of them, spread over the file. */
async function sessionsOf(file: string, number: number): Promise<TraceSession[]> {
  const all: TraceSession[] = []
  for await (const session of readTraces(file)) if (session.requests.length > 0) all.push(session)
  if (all.length === 0) throw bad(`${file} has no session with a request.`)
  const step = Math.max(1, all.length / number)
  return all.filter((_, index) => Math.floor(index / step) !== Math.floor((index - 1) / step)).slice(0, number)
}

interface Running {
  readonly url: string
  /** See ServerProcess.cpu. */
  readonly cpu: () => number | null
  readonly close: () => Promise<void>
}

interface Setting {
  readonly row: Omit<Row, keyof Replayed | 'cpuSeconds'>
  readonly start: () => Promise<Running>
}

/** Yields what is measured: each server with cells for each number of sessions, kvfold under each contract and with each tier. */
function* settingsOf({ servers, cellsFor, contracts, tiers, model, threads }: Options, longest: number): Generator<Setting> {
  for (const url of servers.filter((each) => each.includes('://')))
    yield {
      row: { server: url, contract: 'its own', tiers: null, sessions: null, cells: null },
      start: () => Promise.resolve({ url: url.replace(/\/$/, ''), cpu: () => null, close: () => Promise.resolve() }),
    }
  for (const sessions of cellsFor) {
    const serving: Serving = { model, slots: sessions, threads, cells: sessions * Math.ceil((longest + 16) / 256) * 256 }
    const where = { sessions, cells: serving.cells }
    if (servers.includes('llama-server'))
      for (const tier of tiers.filter((each) => each !== 'disk')) {
        const cache = ['--cache-ram', String(tier === 'none' ? 0 : HOST_CACHE)]
        const flags = [...cache, '--jinja', '--chat-template-file', TEMPLATE, '--alias', 'bench']
        yield {
          row: { server: 'llama-server', contract: 'exact', tiers: tier, ...where },
          start: () => startLlamaServer(serving, flags),
        }
      }
    if (!servers.includes('kvfold')) continue
    for (const contract of contracts)
      for (const tier of tiers)
        yield { row: { server: 'kvfold', contract, tiers: tier, ...where }, start: () => startTiered(serving, contract, tier) }
  }
}

async function startTiered(serving: Serving, contract: string, tiers: Tiers): Promise<Running> {
  const folder = tiers === 'disk' ? mkdtempSync(join(tmpdir(), 'kvfold-traces-')) : null
  const disk = folder === null ? [] : ['--disk-cache', folder, '--disk-cache-size', String(DISK_CACHE)]
  const host = ['--host-cache', String(tiers === 'memory' ? HOST_CACHE : 0)]
  const edits = ['--client-edits', contract, '--chat-template', TEMPLATE]
  const server = await startKvfold('kvfold', HERE, serving, [...host, ...disk, ...edits])
  return {
    url: server.url,
    cpu: () => server.cpu(),
    close: async () => {
      await server.close()
      if (folder !== null) rmSync(folder, { recursive: true, force: true })
    },
  }
}

const CAUSES = ['append', 'cold', 'rewritten', 'edit', 'compaction', 'evicted', 'returned'] as const

function head(): void {
  const names = [
    'server',
    'contract',
    'tiers',
    'cells',
    'computed',
    'of infinite',
    ...CAUSES,
    'approximate',
    'first token p50',
    'p95',
    'CPU',
  ]
  console.log(`| ${names.join(' | ')} |`)
  console.log(`| ${names.map((_, index) => (index < 4 ? '---' : '---:')).join(' | ')} |`)
}

function line(row: Row, infinite: number): void {
  const { server, contract, tiers, cells, computed, byCause, approximate, firstToken, cpuSeconds } = row
  const of = (computed / infinite).toFixed(2)
  const numbers = [computed, ...CAUSES.map((cause) => byCause[cause]), approximate].map((each) =>
    each === null ? '-' : count(each),
  )
  const times = [firstToken.p50, firstToken.p95].map((time) => `${Math.round(time)} ms`)
  const cpu = cpuSeconds === null ? '-' : `${Math.round(cpuSeconds)} s`
  console.log(
    `| ${[server, contract, tiers ?? '-', cells ?? '-', numbers[0], of, ...numbers.slice(1), ...times, cpu].join(' | ')} |`,
  )
}

const count = (tokens: number): string => tokens.toLocaleString('en')
