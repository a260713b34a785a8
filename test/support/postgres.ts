/** A real PostgreSQL of Debian's package, in a folder of its own, that tests start, stop and start again; it listens on a UNIX socket, and elsewhere where asked to. */
import { execFile, spawn, spawnSync, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { appendFileSync, chmodSync, existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { createConnection, createServer, type AddressInfo, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import pg from 'pg'

const INSTALLED = '/usr/lib/postgresql'

/** The folder of its programs; the newest. Null: it is not installed. */
export function postgresPrograms(): string | null {
  if (!existsSync(INSTALLED)) return null
  const versions = readdirSync(INSTALLED)
    .filter((version) => existsSync(join(INSTALLED, version, 'bin', 'initdb')))
    .sort((a, b) => Number(b) - Number(a))
  return versions[0] === undefined ? null : join(INSTALLED, versions[0], 'bin')
}

/** Why tests of it are skipped; null: they are not. */
export const noPostgres: string | null =
  postgresPrograms() === null
    ? 'PostgreSQL is not installed: node scripts/test-parts.mjs postgresql'
    : process.getuid?.() === 0 && spawnSync('id', ['postgres']).status !== 0
      ? 'PostgreSQL does not run as root, and there is no user postgres'
      : null

/** A machine of its own for it. */
export interface ElsewhereOptions {
  readonly address: string
  /** The words that run a program there, as the same process. */
  readonly on: (words: readonly string[]) => readonly string[]
}

/** Tries to start after a crash: what its last processes have in memory goes with them, a moment later. */
const TRIES = 50

export class TestPostgres {
  #server: ChildProcess | null = null
  #databases = 0

  private constructor(
    private readonly folder: string,
    private readonly programs: string,
    private readonly elsewhere: ElsewhereOptions | null,
  ) {}

  /** It runs. @param elsewhere default: here, and reached by its socket alone; there, whoever reaches it needs no password */
  static async make(elsewhere: ElsewhereOptions | null = null): Promise<TestPostgres> {
    const folder = mkdtempSync(join(tmpdir(), 'kvfold-pg-'))
    chmodSync(folder, 0o777)
    const postgres = new TestPostgres(folder, postgresPrograms()!, elsewhere)
    const [program, ...args] = postgres.#command('initdb', [
      ...['-D', postgres.#data, '-U', 'kvfold', '-A', 'trust', '-E', 'UTF8', '--locale=C', '--no-sync'],
    ])
    await promisify(execFile)(program!, args, { cwd: folder })
    if (elsewhere !== null) appendFileSync(join(postgres.#data, 'pg_hba.conf'), 'host all all 0.0.0.0/0 trust\n')
    await postgres.start()
    return postgres
  }

  /** A database of its own. */
  async database(): Promise<string> {
    const name = `test_${++this.#databases}`
    await this.sql(`CREATE DATABASE ${name}`)
    return this.url(name)
  }

  /** As other machines reach it. */
  get address(): string {
    const { address = '' } = this.elsewhere ?? {}
    return `postgres://kvfold@${address}:5432`
  }

  url(database = 'postgres'): string {
    return `postgres://kvfold@/${database}?host=${encodeURIComponent(this.folder)}`
  }

  /** One statement, as somebody else. */
  async sql(statement: string, url = this.url()): Promise<readonly Record<string, unknown>[]> {
    const client = new pg.Client({ connectionString: url })
    client.on('error', () => undefined)
    await client.connect()
    try {
      return (await client.query<Record<string, unknown>>(statement)).rows
    } finally {
      await client.end()
    }
  }

  /** Resolves when it takes connections. */
  async start(): Promise<void> {
    for (let tries = 1; ; tries++)
      try {
        await this.#started()
        return
      } catch (error) {
        if (tries === TRIES || !String(error).includes('is still in use')) throw error
        await sleep(100)
      }
  }

  async #started(): Promise<void> {
    const { address = '', on = same } = this.elsewhere ?? {}
    const own = this.#command('postgres', [
      ...['-D', this.#data, '-k', this.folder, '-c', `listen_addresses=${address}`, '-c', 'max_connections=60'],
      // Its tests kill processes, not machines.
      ...['-c', 'fsync=off', '-c', 'shared_buffers=16MB'],
    ])
    const [program, ...args] = on(own)
    const server = spawn(program!, args, { cwd: this.folder, stdio: ['ignore', 'ignore', 'pipe'] })
    this.#server = server
    let log = ''
    await new Promise<void>((resolve, reject) => {
      server.once('exit', () => {
        reject(new Error(`PostgreSQL did not start: ${log}`))
      })
      server.stderr.on('data', (bytes: Buffer) => {
        log = (log + bytes.toString()).slice(-10_000)
        if (log.includes('database system is ready to accept connections')) resolve()
      })
    })
  }

  /** Without a word (`kill`), as a crash of it (`immediate`), or breaking connections off in order. Resolves when it is gone. */
  async stop(how: 'fast' | 'immediate' | 'kill' = 'fast'): Promise<void> {
    const server = this.#server
    if (server === null) return
    this.#server = null
    const gone = once(server, 'exit')
    server.kill(({ fast: 'SIGINT', immediate: 'SIGQUIT', kill: 'SIGKILL' } as const)[how])
    await gone
  }

  async remove(): Promise<void> {
    await this.stop('immediate')
    rmSync(this.folder, { recursive: true, force: true })
  }

  get #data(): string {
    return join(this.folder, 'data')
  }

  /** It refuses to run as root. The program takes the place of what changes the user, and gets its signals. */
  #command(name: string, args: readonly string[]): readonly string[] {
    const own = [join(this.programs, name), ...args]
    return process.getuid?.() === 0 ? ['setpriv', '--reuid=postgres', '--regid=postgres', '--clear-groups', '--', ...own] : own
  }
}

const same = (words: readonly string[]): readonly string[] => words

/** Of servers that are cut off from it: enough for one that answers. */
export const IMPATIENT = { connect: 1000, query: 30_000, silent: 800 } as const

/** A way to the database that nothing passes while it is cut, not even a word that it is; whoever comes then is let in and not answered. */
export interface Way {
  readonly url: string
  cut(): void
  heal(): void
  end(): void
}

export async function wayTo(url: string): Promise<Way> {
  const there = new URL(url.replace('@/', '@socket/'))
  const path = join(there.searchParams.get('host')!, '.s.PGSQL.5432')
  const pairs = new Set<readonly [Socket, Socket]>()
  const mute = new Set<Socket>()
  let isCut = false
  const server = createServer((here) => {
    here.on('error', () => undefined)
    if (isCut) {
      mute.add(here)
      return
    }
    const beyond = createConnection(path).on('error', () => undefined)
    const pair = [here, beyond] as const
    pairs.add(pair)
    for (const [from, to] of [pair, [beyond, here]] as const)
      from
        .on('data', (bytes) => to.write(bytes))
        .on('close', () => {
          if (isCut) return
          to.destroy()
          pairs.delete(pair)
        })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const end = () => {
    for (const socket of [...pairs].flat().concat([...mute])) socket.destroy()
  }
  return {
    url: `postgres://kvfold@127.0.0.1:${(server.address() as AddressInfo).port}${there.pathname}`,
    cut: () => {
      isCut = true
      for (const [here, beyond] of pairs) for (const socket of [here, beyond]) socket.pause()
    },
    // What was sent meanwhile arrives, and so does the end of what was given up.
    heal: () => {
      isCut = false
      for (const [here, beyond] of pairs) {
        if (here.destroyed || beyond.destroyed) for (const socket of [here, beyond]) socket.destroy()
        for (const socket of [here, beyond]) socket.resume()
      }
    },
    end: () => {
      end()
      server.close()
    },
  }
}
