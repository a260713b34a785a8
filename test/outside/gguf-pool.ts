/** Owns the processes that take damaged models: hands out numbers, notices who dies, hangs or takes too much memory, and asks again to be sure. */
import { spawn, type ChildProcess } from 'node:child_process'
import { join } from 'node:path'
import { createInterface } from 'node:readline'

export interface Crash {
  readonly seed: number
  readonly number: number
  readonly what: string
  /** `trial`: a trial was ended, and the model is refused. `info`: then `model info` died. `serve`: the server would have. */
  readonly phase: 'info' | 'trial' | 'serve'
  readonly how: string
  /** The last words on stderr. */
  readonly said: string
}

export interface Tally {
  readonly variants: number
  readonly works: number
  /** Refusals by what they say, less its figures. */
  readonly refusals: ReadonlyMap<string, number>
  /** Errors that are no refusals. */
  readonly thrown: readonly string[]
  /** Trials that were ended: the model is refused. */
  readonly ended: readonly Crash[]
  /** What a trial let pass. */
  readonly crashes: readonly Crash[]
}

/** Milliseconds for one variant, and MiB: more is a crash. */
const PATIENCE = 60_000
const MEMORY = 3072
/** Characters of a refusal. */
const LONGEST = 4000
/** KiB of address space, far above what any sound run maps. */
const ADDRESSES = 40 * 2 ** 20

interface Message {
  readonly kind: 'ready' | 'variant' | 'phase' | 'done'
  readonly what?: string
  readonly phase?: Crash['phase']
  readonly outcome?: string
  readonly peak?: number
}

/** Variants `numbers` of `seed`, by `workers` processes at a time. */
export async function takeVariants(folder: string, seed: number, numbers: readonly number[], workers: number): Promise<Tally> {
  const waiting = [...numbers].reverse()
  const tally = {
    variants: numbers.length,
    works: 0,
    refusals: new Map<string, number>(),
    thrown: [] as string[],
    ended: [] as Crash[],
    crashes: [] as Crash[],
  }
  const work = async () => {
    let worker = new Worker(folder)
    for (let number = waiting.pop(); number !== undefined; number = waiting.pop()) {
      const taken = await worker.take(seed, number)
      if (typeof taken === 'string') {
        const [, code = '', text = ''] = /^refused \(([^)]*)\): (.*)$/s.exec(taken) ?? []
        if (taken === 'works') tally.works++
        else if (code === '' || taken.length > LONGEST) tally.thrown.push(`${seed}/${number}: ${taken.slice(0, LONGEST)}`)
        else {
          const kind = `${code}: ${text
            .replaceAll(/"[^"]*"/g, '"…"')
            .replaceAll(/[\d.]+/g, '#')
            .slice(0, 160)}`
          tally.refusals.set(kind, (tally.refusals.get(kind) ?? 0) + 1)
        }
        continue
      }
      await worker.end()
      if (taken.phase === 'trial') {
        tally.ended.push(taken)
        worker = new Worker(folder)
        continue
      }
      // Alone in a new process: what the variants before it left behind may have been the cause.
      const fresh = new Worker(folder)
      const again = await fresh.take(seed, number)
      tally.crashes.push(typeof again === 'string' ? { ...taken, how: `${taken.how}, though not alone` } : again)
      await fresh.end()
      worker = new Worker(folder)
    }
    await worker.end()
  }
  await Promise.all(Array.from({ length: workers }, work))
  return tally
}

class Worker {
  readonly #child: ChildProcess
  readonly #exited: Promise<string>
  readonly #messages: AsyncIterator<string>
  #said = ''

  constructor(folder: string) {
    const script = join(import.meta.dirname, 'gguf-child.ts')
    const command = `ulimit -v ${ADDRESSES}; ulimit -c 0; exec "$0" --import tsx "${script}" "${folder}"`
    this.#child = spawn('/bin/sh', ['-c', command, process.execPath], { env: { ...process.env, GGML_NO_BACKTRACE: '1' } })
    this.#child.stderr!.on('data', (data: Buffer) => (this.#said = (this.#said + data.toString()).slice(-4000)))
    this.#child.stdin!.on('error', () => undefined)
    this.#exited = new Promise((resolve) =>
      this.#child.once('close', (code, signal) => {
        resolve(signal ?? `exit ${code}`)
      }),
    )
    this.#messages = createInterface({ input: this.#child.stdout! })[Symbol.asyncIterator]()
  }

  /** What became of the variant, or its crash. */
  async take(seed: number, number: number): Promise<string | Crash> {
    this.#said = ''
    this.#child.stdin!.write(`${JSON.stringify({ seed, number })}\n`)
    let what = 'unknown'
    let phase: Crash['phase'] = 'info'
    const clocked = { hangs: false }
    const crash = (how: string): Crash => ({
      seed,
      number,
      what,
      phase,
      how,
      said: this.#said.trim().split('\n').slice(0, 3).join(' | '),
    })
    const clock = setTimeout(() => {
      clocked.hangs = true
      this.#child.kill('SIGKILL')
    }, PATIENCE)
    try {
      for (;;) {
        const next = await this.#messages.next()
        if (next.done === true) return crash(clocked.hangs ? `no answer in ${PATIENCE / 1000} s` : await this.#exited)
        const message = JSON.parse(next.value) as Message
        if (message.kind === 'variant') what = message.what ?? what
        else if (message.kind === 'phase') phase = message.phase ?? phase
        else if (message.kind === 'done')
          return (message.peak ?? 0) > MEMORY ? crash(`${Math.round(message.peak ?? 0)} MiB`) : (message.outcome ?? '')
      }
    } finally {
      clearTimeout(clock)
    }
  }

  async end(): Promise<void> {
    this.#child.stdin!.end()
    const clock = setTimeout(() => this.#child.kill('SIGKILL'), 10_000)
    await this.#exited
    clearTimeout(clock)
  }
}
