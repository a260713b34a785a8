/** Owns the syntax of chat's slash commands: one line in, what it asks for out. Pure. */
import { CONTRACTS, type Contract } from '../../core/contract.js'

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
  | { readonly name: 'save'; readonly file: string }
  /** A slash command that cannot be understood, and how it is meant. */
  | { readonly name: 'wrong'; readonly reason: string }

/** Usage and meaning, in the order of /help. */
export const chatHelp: readonly (readonly [usage: string, meaning: string])[] = [
  ['/messages', 'list the messages and their fragments'],
  ['/fragment <message> [pieces]', 'cut message number <message> into pieces (default 5) that can be folded'],
  ['/fragment "start" "end" [pieces]', 'cut from one text to another, both included'],
  ['/fold <id> [exact|splice|blend]', 'hide a fragment behind a marker'],
  ['/restore <id>', 'show it again'],
  ['/summarize <id> <focus>', 'have the model write a summary and show that instead'],
  ['/search <text>', 'find exact text, hidden parts included'],
  ['/detail <id>', 'show more around a search hit'],
  ['/ledger', 'what every step reused, recomputed and computed anew'],
  ['/refresh', 'compute again what carries the trace of hidden text'],
  ['/clear', 'start a new conversation'],
  ['/save <file>', 'write conversation and ledger as JSON'],
  ['/exit', 'leave (Ctrl-D too); Ctrl-C stops an answer'],
]

const DEFAULT_PIECES = 5

/** The command on this line; null when it is a message to the model. A message that begins with a slash is written with two. */
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
      return rest === '' ? { name: word } : wrong(`/${word} takes nothing after it.`)
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
    case 'save':
      return rest === '' ? usage('/save') : { name: word, file: rest }
    default:
      return wrong(`There is no /${word}; /help lists the commands, and a message that begins with a slash is written with two.`)
  }
}

/** The message on a line that is no command. */
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
