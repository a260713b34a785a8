/**
 * The processes of a simulated fleet: fronts, engines and the database. Each is started again when it ends, as an operator's service
 * manager would do.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { KVFOLD } from '../../runtime/cli/support/process.js'
import type { TestPostgres } from '../../support/postgres.js'
import type { Host } from './network.js'

const ROOT = join(import.meta.dirname, '../../..')
/** Milliseconds between an unexpected end of a process and its next start. */
const AGAIN = 500
/** The time limit of a start, in milliseconds. */
const START_LIMIT = 120_000

export interface Machine {
  readonly name: string
  readonly kind: 'front' | 'engine' | 'database'
  readonly host: Host
  /** Ends it as a power cut does. Resolves when it has ended. */
  kill(): Promise<void>
  /** Resolves when it serves again. */
  start(): Promise<void>
}

/** `kvfold serve` on a machine. */
export class Served implements Machine {
  readonly url: string
  #child: ChildProcess | null = null
  /** The state that was requested last. */
  #wanted: 'started' | 'killed' = 'killed'
  /** Unexpected ends while it served, with its last output. */
  readonly deaths: string[] = []
  /** Starts that failed, with their output. */
  readonly refusals: string[] = []
  /** Its stderr. */
  log = ''

  private constructor(
    readonly name: string,
    readonly kind: 'front' | 'engine',
    readonly host: Host,
    private readonly words: readonly string[],
    private readonly environment: Readonly<Record<string, string>>,
    port: number,
  ) {
    this.url = `http://${host.address}:${port}`
    this.words = [...words, '--host', host.address, '--port', String(port)]
  }

  static async make(
    kind: 'front' | 'engine',
    host: Host,
    words: readonly string[],
    environment: Readonly<Record<string, string>> = {},
  ): Promise<Served> {
    return new Served(host.name, kind, host, words, environment, await portOn(host))
  }

  async start(): Promise<void> {
    this.#wanted = 'started'
    const limit = performance.now() + START_LIMIT
    while (!(await this.#started())) {
      if (this.#isKilled) return
      if (performance.now() > limit)
        throw new Error(`${this.name} does not start: ${this.refusals.at(-1) ?? this.log.slice(-2000)}`)
      await sleep(AGAIN)
    }
  }

  async kill(): Promise<void> {
    this.#wanted = 'killed'
    const child = this.#child
    this.#child = null
    if (child === null || child.exitCode !== null || child.signalCode !== null) return
    const gone = once(child, 'exit')
    child.kill('SIGKILL')
    await gone
  }

  /** Stops it in the middle of its work without ending it; its connections stay open. */
  freeze(): void {
    this.#child?.kill('SIGSTOP')
  }

  thaw(): void {
    this.#child?.kill('SIGCONT')
  }

  get #isKilled(): boolean {
    return this.#wanted === 'killed'
  }

  /** Starts it. Resolves with true when it serves, with false when it ended. */
  #started(): Promise<boolean> {
    const [program = '', ...words] = this.host.on([process.execPath, ...KVFOLD, 'serve', ...this.words])
    const child = spawn(program, words, {
      cwd: ROOT,
      env: { ...process.env, ...this.environment },
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    this.#child = child
    let [said, serves] = ['', false]
    return new Promise((resolve) => {
      child.stderr.setEncoding('utf8').on('data', (text: string) => {
        said = (said + text).slice(-4000)
        this.log += text
      })
      child.stdout.setEncoding('utf8').on('data', (text: string) => {
        said = (said + text).slice(-4000)
        if (serves || !/ at http/u.test(said)) return
        serves = true
        resolve(true)
      })
      child.once('exit', (code, signal) => {
        resolve(false)
        if (this.#child !== child) return
        this.#child = null
        if (this.#isKilled) return
        const last = `${signal ?? code}: ${said.trim().split('\n').slice(-3).join(' ')}`
        if (!serves) this.refusals.push(last)
        else {
          this.deaths.push(last)
          void sleep(AGAIN).then(() => (this.#isKilled ? undefined : this.start()))
        }
      })
    })
  }
}

export class Database implements Machine {
  readonly name = 'database'
  readonly kind = 'database'

  constructor(
    readonly host: Host,
    private readonly postgres: TestPostgres,
  ) {}

  kill(): Promise<void> {
    return this.postgres.stop('kill')
  }

  start(): Promise<void> {
    return this.postgres.start()
  }
}

/** Returns a free port. On a separate machine all ports are free; on a shared one it takes one where nothing listened a moment ago. */
async function portOn({ address }: Host): Promise<number> {
  if (address !== '127.0.0.1') return 8080
  const probe = createServer()
  await new Promise<void>((resolve, reject) => probe.once('error', reject).listen(0, '127.0.0.1', resolve))
  const { port } = probe.address() as AddressInfo
  await new Promise((resolve) => probe.close(resolve))
  return port
}
