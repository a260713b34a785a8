/** Runs a simulated fleet: it starts all machines and clients, causes the faults, lets everything heal, and checks the result. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { TestPostgres } from '../../support/postgres.js'
import { Client, type Refused } from './clients.js'
import { Fate, type Fault, faultsOf } from './faults.js'
import { Database, type Machine, Served } from './machines.js'
import { loopback, Namespaces, type Network } from './network.js'
import { wrongAt } from './verdict.js'

export interface RunOptions {
  readonly seed: number
  /** The duration of the faults, and of the calm before and after them. */
  readonly seconds: number
  readonly faults: number
  readonly clients: number
  readonly engines: number
  readonly network: 'namespaces' | 'loopback'
  /** Faults to use instead of the seeded ones. */
  readonly series?: readonly Fault[]
  readonly say: (line: string) => void
}

/** A fault, and the operations per second before and after it, with those of a run without faults at the same times. */
export interface Felt extends Fault {
  readonly before: number
  readonly after: number
  /** Seconds from its beginning to the next completed operation. */
  readonly next: number
}

export interface Report extends Omit<RunOptions, 'say' | 'series'> {
  /** What is wrong; empty if everything is as promised. */
  readonly wrong: readonly string[]
  readonly acknowledged: Readonly<Record<string, number>>
  readonly attempts: number
  /** Connections that broke under a client, and attempts that it gave up. */
  readonly broken: number
  readonly givenUp: number
  /** Seconds of the slowest attempt. */
  readonly slowest: number
  /** For each error code, how often clients got it, and one of the messages. */
  readonly told: Readonly<Record<string, { readonly count: number; readonly message: string }>>
  /** Operations per second: before the first fault, during the faults, and after the last was over. */
  readonly throughput: { readonly calm: number; readonly struck: number; readonly healed: number }
  readonly felt: readonly Felt[]
  /** Completed operations in each second. */
  readonly bySecond: readonly number[]
  /** Starts of fronts that failed because the database or all engines were away. */
  readonly refusals: number
}

/** The share of the seconds that is calm, before the faults and after them. */
const CALM = 0.1
/** The seconds before and after a fault over which throughput is measured. */
const AROUND = 5
/** Milliseconds for everything to heal, and for clients to finish their conversations. */
const HEAL_LIMIT = 120_000

export async function run(options: RunOptions): Promise<Report> {
  const { seed, seconds, say } = options
  const folder = mkdtempSync(join(tmpdir(), 'kvfold-fleet-'))
  const network: Network = options.network === 'namespaces' ? new Namespaces() : loopback()
  const own = network instanceof Namespaces ? network.own : null
  const host = network.host('database')
  const postgres = await TestPostgres.make(own === null ? null : host)
  const machines: Machine[] = []
  try {
    const database = new Database(host, postgres)
    const local = await postgres.database()
    const store = own === null ? local : `${postgres.address}${new URL(local.replace('@/', '@socket/')).pathname}`
    const keys = Array.from({ length: options.clients }, (_, number) => `key-of-client-${number}`)
    const keysFile = join(folder, 'keys')
    writeFileSync(keysFile, keys.map((key, number) => `client${number}:${key}\n`).join(''), { mode: 0o600 })
    const quiet = ['--log-level', 'warn', '--allowed-hosts', '*']
    const engines = await Promise.all(
      Array.from({ length: options.engines }, (_, number) =>
        Served.make('engine', network.host(`engine${number + 1}`), [
          ...[
            '--gpu',
            'cpu',
            '--threads',
            '1',
            '--trial',
            'off',
            '--store',
            'none',
            '--slots',
            '8',
            '--context',
            '32768',
            ...quiet,
          ],
        ]),
      ),
    )
    const fronts = await Promise.all(
      [1, 2].map((number) =>
        Served.make('front', network.host(`front${number}`), [
          ...['--store', store, '--api-keys-file', keysFile, '--slots', String(options.clients), ...quiet],
          ...engines.flatMap(({ url }) => ['--engine', url]),
        ]),
      ),
    )
    machines.push(...engines, ...fronts, database)
    await Promise.all(engines.map((engine) => engine.start()))
    await Promise.all(fronts.map((front) => front.start()))
    say(`${options.engines} engines and 2 fronts are there`)

    const begun = performance.now()
    const now = () => (performance.now() - begun) / 1000
    const done: number[] = []
    let isOver = false
    const urls = fronts.map(({ url }) => url)
    const clients = keys.map(
      (key, number) => new Client({ number, seed, fronts: urls, key, isOver: () => isOver, onDone: () => void done.push(now()) }),
    )
    const talks = Promise.all(clients.map((client) => client.talk()))
    talks.catch((error: unknown) => {
      say(`a client failed: ${String(error instanceof Error ? error.stack : error)}`)
    })
    const struck = { machines, network, clients: own }
    const times = { begin: seconds * CALM, end: seconds * (1 - CALM) }
    const fate = new Fate(struck)
    const faults = options.series ?? faultsOf(seed, options.faults, times, struck)
    const strikes: Promise<void>[] = []
    for (const fault of faults) {
      await sleep(Math.max(0, (fault.at - now()) * 1000))
      say(
        `${now().toFixed(1)} s, ${done.length} done: ${fault.kind} ${fault.of}${fault.from === null ? '' : ` from ${fault.from}`} for ${fault.lasts.toFixed(1)} s`,
      )
      strikes.push(fate.strike(fault))
    }
    await within(Promise.all(strikes), 'heal')
    const healed = now()
    say(`${healed.toFixed(1)} s: all is healed`)
    await sleep(Math.max(seconds * CALM, seconds - healed) * 1000)
    const end = now()
    isOver = true
    await within(talks, 'end')
    say(`${now().toFixed(1)} s: all clients have ended; judging`)

    const wrong: string[] = []
    for (const [number, client] of clients.entries())
      wrong.push(...(await wrongAt(urls, client, keys[number]!)).map((each) => `client ${number}: ${each}`))
    for (const served of [...fronts, ...engines])
      for (const death of served.deaths) wrong.push(`${served.name} ended by itself: ${death}`)
    const between = (from: number, to: number) => done.filter((at) => at >= from && at < to).length / (to - from)
    return {
      ...{
        seed,
        seconds,
        faults: options.faults,
        clients: options.clients,
        engines: options.engines,
        network: options.network,
        wrong,
      },
      acknowledged: countsOf(clients.flatMap(({ acknowledged }) => acknowledged.map(({ kind }) => kind))),
      attempts: clients.reduce((sum, { attempts }) => sum + [...attempts.values()].reduce((a, b) => a + b, 0), 0),
      broken: clients.reduce((sum, { broken }) => sum + broken, 0),
      givenUp: clients.reduce((sum, { givenUp }) => sum + givenUp, 0),
      slowest: Math.max(...clients.map(({ slowest }) => slowest)) / 1000,
      told: toldIn(clients.flatMap(({ refused }) => refused)),
      throughput: { calm: between(0, times.begin), struck: between(times.begin, healed), healed: between(healed, end) },
      felt: faults.map((fault) => ({
        ...fault,
        before: between(Math.max(0, fault.at - AROUND), fault.at),
        after: between(fault.at, fault.at + AROUND),
        next: (done.find((at) => at > fault.at) ?? Infinity) - fault.at,
      })),
      bySecond: Array.from({ length: Math.floor(end) }, (_, at) => done.filter((each) => Math.floor(each) === at).length),
      refusals: fronts.reduce((sum, { refusals }) => sum + refusals.length, 0),
    }
  } finally {
    await Promise.all(machines.map((machine) => machine.kill()))
    await postgres.remove()
    network.close()
    rmSync(folder, { recursive: true, force: true })
  }
}

/** Returns the fault's name in the docs. */
const named = ({ kind, of, from }: Fault): string => {
  const what = /^(engine|front|database)/u.exec(of)![0]
  if (kind === 'kill') return `${what} killed`
  if (kind === 'freeze') return `${what} stands still`
  if (kind === 'loss') return `machine of ${what} lost`
  return [what, from === null ? '' : from.replace(/\d+$/u, '')].sort().join(' and ') + ' cut apart'
}

export interface KindFelt {
  readonly times: number
  /** Means of `Felt`, and the longest `next`. */
  readonly before: number
  readonly after: number
  readonly next: number
  /** Means of the run without faults, at the same times. */
  readonly control: { readonly before: number; readonly after: number } | null
}

/**
 * Summarises the faults by kind.
 * @param control Operations in each second of the run without faults; null if there is none.
 */
export function kindsOf(felt: readonly Felt[], control: readonly number[] | null): Record<string, KindFelt> {
  const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length
  const done = (from: number, to: number) => mean((control ?? []).slice(Math.round(from), Math.round(to)))
  const kindOf = (name: string): KindFelt => {
    const faults = felt.filter((each) => named(each) === name)
    const beside = {
      before: mean(faults.map(({ at }) => done(at - AROUND, at))),
      after: mean(faults.map(({ at }) => done(at, at + AROUND))),
    }
    return {
      times: faults.length,
      before: mean(faults.map(({ before }) => before)),
      after: mean(faults.map(({ after }) => after)),
      next: Math.max(...faults.map(({ next }) => next)),
      control: control === null ? null : beside,
    }
  }
  return Object.fromEntries([...new Set(felt.map(named))].sort().map((name) => [name, kindOf(name)]))
}

function countsOf(names: readonly string[]): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const name of names) counts[name] = (counts[name] ?? 0) + 1
  return counts
}

function toldIn(refused: readonly Refused[]): Report['told'] {
  const told: Record<string, { count: number; message: string }> = {}
  for (const { status, code, message } of refused) {
    const key = `${status === 0 ? 'stream' : status} ${code}`
    told[key] = { message, count: (told[key]?.count ?? 0) + 1 }
  }
  return told
}

async function within<T>(work: Promise<T>, what: string): Promise<T> {
  const late = new AbortController()
  try {
    const limit = sleep(HEAL_LIMIT, undefined, { signal: late.signal }).then(() => {
      throw new Error(`after ${HEAL_LIMIT / 1000} s: all faults are over, and what is left does not ${what}`)
    })
    limit.catch(() => undefined)
    return await Promise.race([work, limit])
  } finally {
    late.abort()
  }
}
