/** What surrounds a command: its streams, input from stdin or a file, Ctrl-C, and the reporting of errors. */
import { Terminal, printable } from './terminal.js'
import { KvfoldError } from '../core/errors.js'
import { readText } from './options.js'

export interface Shell {
  /** For results: stdout. */
  readonly out: Terminal
  /** For progress and remarks: stderr, so that a pipe gets only results. */
  readonly notes: Terminal
  readonly interrupt: Interrupt
  readonly input: Input
  /** The command line without the program's name. */
  readonly words: readonly string[]
}

/** The input of a command, typed or piped, such as process.stdin. */
export type Input = NodeJS.ReadableStream & { readonly isTTY?: boolean; destroy(): unknown }

/** Returns the command as typed, for records of its results. User names and passwords in URLs are removed. */
export const commandOf = ({ words }: Shell): string => ['kvfold', ...words].join(' ').replace(/(\/\/)[^/\s@]+@/g, '$1')

export const openShell = (): Shell => ({
  out: new Terminal(process.stdout),
  notes: new Terminal(process.stderr),
  interrupt: new Interrupt(),
  input: process.stdin,
  words: process.argv.slice(2),
})

// Ctrl-C: the first one stops what is running, the second one ends the process.

/** The exit code that shells expect after SIGINT. */
export const INTERRUPTED = 130

/**
 * Catches SIGINT and SIGTERM until `release`. The first one aborts `signal`, the next one ends the process. `renew` starts over, for
 * programs that go on after an interrupt.
 */
export class Interrupt {
  #controller = new AbortController()
  readonly #onSignal = (): void => {
    this.trigger()
  }

  constructor() {
    process.on('SIGINT', this.#onSignal)
    process.on('SIGTERM', this.#onSignal)
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  get interrupted(): boolean {
    return this.#controller.signal.aborted
  }

  /** Acts like a SIGINT. For terminals in raw mode, where Ctrl-C is a key and not a signal. */
  trigger(): void {
    if (this.interrupted) process.exit(INTERRUPTED)
    this.#controller.abort()
  }

  renew(): void {
    this.#controller = new AbortController()
  }

  release(): void {
    process.off('SIGINT', this.#onSignal)
    process.off('SIGTERM', this.#onSignal)
  }
}

// Reporting errors: one line on stderr and an exit code; a stack trace only on request.

const FAILED = 1
export const BAD_USAGE = 2

/** Returns the line that reports an error, without a newline. With KVFOLD_DEBUG=1, stack trace and causes follow. */
export function describe(error: unknown, debug = process.env['KVFOLD_DEBUG'] === '1'): string {
  const line =
    error instanceof KvfoldError
      ? `kvfold: ${oneLine(error.message)} [${error.code}]`
      : `kvfold: ${oneLine(error instanceof Error ? error.message : String(error))} [unexpected; KVFOLD_DEBUG=1 shows where]`
  return debug && error instanceof Error ? `${line}\n${stacks(error)}` : line
}

export const exitCode = (error: unknown): number =>
  error instanceof KvfoldError && error.code === 'cli/bad-usage' ? BAD_USAGE : FAILED

const oneLine = (text: string): string => printable(text.replace(/\s*\n\s*/g, ' ').trim())

function stacks(error: Error): string {
  const own = error.stack ?? error.message
  return error.cause instanceof Error ? `${own}\ncaused by: ${stacks(error.cause)}` : own
}

/** Reads a file; or stdin, for `-` and when no file is given. @throws KvfoldError cli/bad-usage, engine/cancelled */
export async function readInput(file: string | undefined, { input, interrupt }: Shell): Promise<string> {
  if (file !== undefined && file !== '-') return readText(file, 'run')
  if (file === undefined && input.isTTY === true)
    throw new KvfoldError(
      'cli/bad-usage',
      'There is no prompt: give --prompt <text>, a file, or text on stdin (`-` reads what you type up to Ctrl-D).',
    )
  return readAll(input, interrupt.signal)
}

async function readAll(input: Input, signal: AbortSignal): Promise<string> {
  const stop = (): void => {
    input.destroy()
  }
  signal.addEventListener('abort', stop, { once: true })
  try {
    const chunks: Buffer[] = []
    for await (const chunk of input) chunks.push(chunk as Buffer)
    return Buffer.concat(chunks).toString('utf8')
  } catch (error) {
    if (signal.aborted) throw new KvfoldError('engine/cancelled', 'Reading stdin was interrupted.')
    throw error
  } finally {
    signal.removeEventListener('abort', stop)
  }
}
