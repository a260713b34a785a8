/**
 * Runs a real PostgreSQL of Debian's package in a temporary folder; tests can stop and start it. It listens on a UNIX socket, and on an
 * address on request.
 */
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

/** Returns the folder of the newest installed PostgreSQL's programs, or null if none is installed. */
export function postgresPrograms(): string | null {
  if (!existsSync(INSTALLED)) return null
  const versions = readdirSync(INSTALLED)
    .filter((version) => existsSync(join(INSTALLED, version, 'bin', 'initdb')))
    .sort((a, b) => Number(b) - Number(a))
  return versions[0] === undefined ? null : join(INSTALLED, versions[0], 'bin')
}

/** The reason why its tests are skipped, or null if they run. */
export const noPostgres: string | null =
  postgresPrograms() === null
    ? 'PostgreSQL is not installed: node scripts/test-parts.mjs postgresql'
    : process.getuid?.() === 0 && spawnSync('id', ['postgres']).status !== 0
      ? 'PostgreSQL does not run as root, and there is no user postgres'
      : null

/** Options to run it on a simulated machine. */
export interface ElsewhereOptions {
  readonly address: string
  /** Returns the command that runs a program on that machine, as the same process. */
  readonly on: (words: readonly string[]) => readonly string[]
}

/** How often a start is tried after a crash, while its last processes still hold shared memory. */
const TRIES = 50

export class TestPostgres {
  #server: ChildProcess | null = null
  #databases = 0

  private constructor(
    private readonly folder: string,
    private readonly programs: string,
    private readonly elsewhere: ElsewhereOptions | null,
  ) {}

  /**
   * Makes and starts a server.
   * @param elsewhere Default: this machine, where only its socket is open. On another machine every connection is accepted without a
   * password.
   */
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

  /** Makes a new database, and returns its URL. */
  async database(): Promise<string> {
    const name = `test_${++this.#databases}`
    await this.sql(`CREATE DATABASE ${name}`)
    return this.url(name)
  }

  /** Its address for other machines. */
  get address(): string {
    const { address = '' } = this.elsewhere ?? {}
    return `postgres://kvfold@${address}:5432`
  }

  url(database = 'postgres'): string {
    return `postgres://kvfold@/${database}?host=${encodeURIComponent(this.folder)}`
  }

  /** Runs one statement over a separate connection. */
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

  /** Starts it. Resolves when it accepts connections. */
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
      // The tests kill processes, not machines, so fsync is off.
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

  /** Stops it: killed (`kill`), as after a crash (`immediate`), or with connections closed in order. Resolves when it has ended. */
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

  /**
   * Returns the command for one of its programs. It refuses to run as root, so `setpriv` changes the user and then becomes the program,
   * which gets its signals.
   */
  #command(name: string, args: readonly string[]): readonly string[] {
    const own = [join(this.programs, name), ...args]
    return process.getuid?.() === 0 ? ['setpriv', '--reuid=postgres', '--regid=postgres', '--clear-groups', '--', ...own] : own
  }
}

const same = (words: readonly string[]): readonly string[] => words

/** Timeouts for servers that may be cut off; long enough for a database that answers. */
export const IMPATIENT = { connect: 1000, query: 30_000, silent: 800 } as const

/**
 * A connection to the database that passes nothing while it is cut, not even the end of a connection. New connections are then accepted and
 * not answered.
 */
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
    // Data sent during the cut arrives, and so do the ends of connections that were given up.
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
