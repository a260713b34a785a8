/** What a person types: lines from a terminal or pipe, Ctrl-C while the terminal is in raw mode, and the syntax of slash commands. */
import { createInterface, type Interface } from 'node:readline'
import { type Contract, CONTRACTS } from '../../core/contract.js'
import type { Shell } from '../shell.js'

export type ChatCommand =
  | { readonly name: 'help' | 'messages' | 'ledger' | 'refresh' | 'clear' | 'exit' }
  | {
      readonly name: 'fragment'
      readonly where: { readonly message: number } | { readonly start: string; readonly end: string }
      readonly pieces: number
    }
  | { readonly name: 'fold'; readonly id: string; readonly contract?: Contract }
  | { readonly name: 'restore' | 'detail'; readonly id: string }
  | { readonly name: 'summarize'; readonly id: string; readonly focus: string }
  | { readonly name: 'search'; readonly text: string }
  /** `words`: search the tools for these words. Null: list all tools. */
  | { readonly name: 'tools'; readonly words: string | null }
  | { readonly name: 'save'; readonly file: string }
  /** A slash command with wrong syntax. `reason` has the correct usage. */
  | { readonly name: 'wrong'; readonly reason: string }

/** The slash commands: usage and meaning, in the order of /help. */
export const chatHelp: readonly (readonly [usage: string, meaning: string])[] = [
  ['/messages', 'list the messages and their fragments'],
  ['/fragment <message> [pieces]', 'cut message number <message> into pieces (default 5) that can be folded'],
  ['/fragment "start" "end" [pieces]', 'cut from one text to another, both included'],
  ['/fold <id> [exact|splice|blend]', 'hide a fragment behind a marker'],
  ['/restore <id>', 'show a folded fragment again'],
  ['/summarize <id> <focus>', 'have the model write a summary and show that instead'],
  ['/search <text>', 'find exact text, hidden parts included'],
  ['/detail <id>', 'show more around a search hit'],
  ['/tools [words]', 'list the MCP servers and the tools that the model has, or find tools by words'],
  ['/ledger', 'show the tokens that each step reused, recomputed and computed new'],
  ['/refresh', 'compute approximate tokens again, which carry a trace of hidden text'],
  ['/clear', 'start a new conversation'],
  ['/save <file>', 'write conversation and ledger as JSON'],
  ['/exit', 'leave (Ctrl-D too); Ctrl-C stops an answer'],
]

const DEFAULT_PIECES = 5

/** Parses a line as a slash command. Returns null for a message to the model. A message that begins with a slash is typed with two. */
export function parseCommand(line: string): ChatCommand | null {
  if (!line.startsWith('/') || line.startsWith('//')) return null
  const [, word = '', rest = ''] = /^\/(\S*)\s*([^]*)$/.exec(line.trimEnd()) ?? []
  switch (word) {
    case 'help':
    case 'messages':
    case 'ledger':
    case 'refresh':
    case 'clear':
    case 'exit':
      return rest === '' ? { name: word } : wrong(`/${word} takes no arguments.`)
    case 'fold':
      return fold(rest)
    case 'restore':
    case 'detail':
      return /^\S+$/.test(rest) ? { name: word, id: rest } : usage(`/${word}`)
    case 'fragment':
      return fragment(rest)
    case 'summarize': {
      const [, id, focus] = /^(\S+)\s+([^]+)$/.exec(rest) ?? []
      return id === undefined || focus === undefined ? usage('/summarize') : { name: word, id, focus }
    }
    case 'search':
      return rest === '' ? usage('/search') : { name: word, text: rest }
    case 'tools':
      return { name: word, words: rest === '' ? null : rest }
    case 'save':
      return rest === '' ? usage('/save') : { name: word, file: rest }
    default:
      return wrong(
        `There is no command /${word}; /help lists all commands. A message that begins with a slash is typed with two.`,
      )
  }
}

/** Returns the message of a line that is not a command. */
export const messageOf = (line: string): string => (line.startsWith('//') ? line.slice(1) : line)

function fold(rest: string): ChatCommand {
  const [id = '', named, ...more] = rest.split(/\s+/)
  const contract = CONTRACTS.find((one) => one === named)
  if (id === '' || more.length > 0 || (named !== undefined && contract === undefined)) return usage('/fold')
  return { name: 'fold', id, ...(contract === undefined ? {} : { contract }) }
}

function fragment(rest: string): ChatCommand {
  const numbers = /^(\d+)(?:\s+(\d+))?$/.exec(rest)
  if (numbers !== null) {
    const message = Number(numbers[1])
    return pieces({ message }, numbers[2])
  }
  const quoted = /^"((?:[^"\\]|\\.)+)"\s+"((?:[^"\\]|\\.)+)"(?:\s+(\d+))?$/.exec(rest)
  if (quoted === null) return usage('/fragment')
  const text = (raw: string | undefined): string =>
    (raw ?? '').replace(/\\(.)/g, (_all, character: string) => (character === 'n' ? '\n' : character))
  return pieces({ start: text(quoted[1]), end: text(quoted[2]) }, quoted[3])
}

function pieces(where: { message: number } | { start: string; end: string }, given: string | undefined): ChatCommand {
  const count = given === undefined ? DEFAULT_PIECES : Number(given)
  if (!Number.isSafeInteger(count) || count < 1) return wrong('The number of pieces must be a whole number from 1.')
  return { name: 'fragment', where, pieces: count }
}

const wrong = (reason: string): ChatCommand => ({ name: 'wrong', reason })

const usage = (word: string): ChatCommand =>
  wrong(
    `Write ${chatHelp
      .map(([form]) => form)
      .filter((form) => form.split(' ', 1)[0] === word)
      .join(' or ')}.`,
  )

// Reads the lines that a person types or a pipe delivers.

const PROMPT = '> '
const MORE = '. '

/**
 * Reads one line at a time. Lines that arrive while another one is handled are queued. On a terminal it shows a prompt and lets keys edit
 * the line. A line that ends with a backslash continues on the next one. Ctrl-C at the prompt drops the typed text; on an empty line, the
 * second Ctrl-C leaves.
 */
export class TypedLines {
  readonly interactive: boolean
  readonly #reader: Interface
  readonly #queue: string[] = []
  #ended = false
  #wake: (() => void) | null = null
  #warned = false
  readonly #onAbort = (): void => {
    this.#wake?.()
  }

  constructor(private readonly shell: Shell) {
    const { input, out } = shell
    this.interactive = input.isTTY === true && out.live
    this.#reader = createInterface({
      input,
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
    // In raw mode the terminal sends no signal for Ctrl-C: readline reports the key.
    this.#reader.on('SIGINT', () => {
      this.#onInterrupt()
    })
  }

  /** Returns the next line; null at the end of the input or after an interrupt. */
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
    const { signal } = this.shell.interrupt
    while (this.#queue.length === 0) {
      if (this.#ended || signal.aborted) {
        if (this.interactive) this.shell.out.write('\n')
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
    const isEmpty = this.#reader.line === ''
    if (!waiting || (this.#warned && isEmpty)) this.shell.interrupt.trigger()
    else if (isEmpty) {
      this.#warned = true
      this.shell.out.write('\n')
      this.shell.out.print(this.shell.out.colours.dim('(Ctrl-C again or /exit to leave)'))
      this.#reader.prompt()
    } else {
      this.#warned = false
      this.#reader.write(null, { ctrl: true, name: 'e' })
      this.#reader.write(null, { ctrl: true, name: 'u' })
    }
  }
}
