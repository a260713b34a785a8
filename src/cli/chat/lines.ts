/** Owns the lines a person types or a pipe delivers, and Ctrl-C while a terminal reads keys. */
import { createInterface, type Interface } from 'node:readline'
import type { Interrupt } from '../shell.js'
import type { Terminal } from '../terminal.js'

const PROMPT = '> '
const MORE = '. '

/**
 * One line at a time; lines that arrive meanwhile wait. In a terminal a prompt is shown while it waits and keys edit the line; a line that
 * ends in a backslash goes on in the next one. Ctrl-C at the prompt drops what was typed; on an empty line a second one leaves.
 */
export class Lines {
  readonly interactive: boolean
  readonly #reader: Interface
  readonly #queue: string[] = []
  #ended = false
  #wake: (() => void) | null = null
  #warned = false
  readonly #onAbort = (): void => {
    this.#wake?.()
  }

  constructor(
    private readonly out: Terminal,
    private readonly interrupt: Interrupt,
  ) {
    this.interactive = process.stdin.isTTY && out.live
    this.#reader = createInterface({
      input: process.stdin,
      terminal: this.interactive,
      ...(this.interactive ? { output: process.stdout } : {}),
    })
    this.#reader.setPrompt(PROMPT)
    this.#reader.on('line', (line) => {
      this.#queue.push(line)
      this.#wake?.()
    })
    this.#reader.on('close', () => {
      this.#ended = true
      this.#wake?.()
    })
    // In raw mode Ctrl-C is a key and no signal.
    this.#reader.on('SIGINT', () => {
      this.#onInterrupt()
    })
  }

  /** The next line, null at the end of input or when interrupted. */
  async next(): Promise<string | null> {
    this.#reader.setPrompt(PROMPT)
    const parts: string[] = []
    for (;;) {
      const line = await this.#line()
      if (line === null) return parts.length === 0 ? null : parts.join('\n')
      this.#warned = false
      if (!this.interactive || !line.endsWith('\\')) return [...parts, line].join('\n')
      parts.push(line.slice(0, -1))
      this.#reader.setPrompt(MORE)
    }
  }

  close(): void {
    this.#reader.close()
  }

  async #line(): Promise<string | null> {
    const { signal } = this.interrupt
    while (this.#queue.length === 0) {
      if (this.#ended || signal.aborted) {
        if (this.interactive) this.out.write('\n')
        return null
      }
      if (this.interactive) this.#reader.prompt(true)
      await new Promise<void>((resolve) => {
        this.#wake = resolve
        signal.addEventListener('abort', this.#onAbort, { once: true })
      })
      signal.removeEventListener('abort', this.#onAbort)
      this.#wake = null
    }
    return this.#queue.shift() ?? null
  }

  #onInterrupt(): void {
    const waiting = this.#wake !== null
    if (!waiting || this.#warned) this.interrupt.trigger()
    else if (this.#reader.line === '') {
      this.#warned = true
      this.out.write('\n')
      this.out.print(this.out.colours.dim('(Ctrl-C again or /exit to leave)'))
      this.#reader.prompt()
    } else {
      this.#reader.write(null, { ctrl: true, name: 'e' })
      this.#reader.write(null, { ctrl: true, name: 'u' })
    }
  }
}
