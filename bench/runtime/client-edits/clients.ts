/** The benchmark's clients: agents that send their whole conversation every turn, each with its own way of changing it first. */
import { Random } from '../../../src/runtime/core/random.js'

/** A message in OpenAI's format. */
export interface Message {
  readonly role: 'user' | 'assistant' | 'tool'
  readonly content: string
  readonly tool_calls?: readonly {
    readonly id: string
    readonly type: 'function'
    readonly function: { readonly name: string; readonly arguments: string }
  }[]
  readonly tool_call_id?: string
}

/** One turn of a conversation: the client's new messages, and the answer. */
export interface Turn {
  readonly asked: readonly Message[]
  readonly answer: string
}

export const TURNS = 24
/** How many of the latest turns a pruning client leaves complete. */
const WHOLE = 3
export const PLACEHOLDER = '[Old content cleared]'

/** Returns the messages that a client sends for its next turn. `turns`: all so far; the last one has no answer yet. */
export type Client = (turns: readonly Turn[]) => readonly Message[]

const answered = (content: string): Message => ({ role: 'assistant', content })
/** Returns a turn's messages, with its answer if there is one. */
const whole = ({ asked, answer }: Turn): readonly Message[] => (answer === '' ? asked : [...asked, answered(answer)])
const cleared = ({ asked, answer }: Turn): readonly Message[] =>
  whole({ asked: asked.map((message, at) => (at === asked.length - 1 ? { ...message, content: PLACEHOLDER } : message)), answer })
/** Returns all messages, with the long ones of the first `count` turns cleared. */
const clearedUpTo = (turns: readonly Turn[], count: number): readonly Message[] =>
  turns.flatMap((turn, at) => (at < count ? cleared(turn) : whole(turn)))

export const plain: Client = (turns) => turns.flatMap(whole)

export const prunes: Client = (turns) => clearedUpTo(turns, turns.length - WHOLE)

export const prunesEveryTenth: Client = (turns) => clearedUpTo(turns, 10 * Math.floor(turns.length / 10) - WHOLE)

/** Keeps the first turn and the last six. */
export const removes: Client = (turns) => turns.filter((_, at) => at === 0 || at >= turns.length - 6).flatMap(whole)

/** After every fifth turn, inserts a note before the turn that was then the last one. */
export const inserts: Client = (turns) =>
  turns.flatMap((turn, at) =>
    at > 0 && at % 5 === 0 && turns.length > at + 1
      ? [{ role: 'user', content: `Note ${at}: mind the time.` } as const, ...whole(turn)]
      : whole(turn),
  )

/** Prunes, but every eighth turn sends everything again. */
export const restores: Client = (turns) => (turns.length % 8 === 0 ? plain(turns) : prunes(turns))

/** Every eight turns, one message replaces all but the last two turns. */
export const compacts: Client = (turns) => {
  const upTo = 8 * Math.floor((turns.length - 1) / 8) - 2
  if (upTo <= 0) return plain(turns)
  return [
    { role: 'user', content: `Summary of the first ${upTo} turns: it was about words.` },
    ...turns.slice(upTo).flatMap(whole),
  ]
}

/** Rewords the end of every earlier answer. */
export const forks: Client = (turns) =>
  turns.flatMap(({ asked, answer }) => whole({ asked, answer: answer === '' ? '' : `${answer} (noted)` }))

/** Returns about this many characters of meaningless words; the same seed gives the same words. */
export function words(seed: number, characters: number): string {
  const random = new Random(seed, characters)
  const list =
    'river stone light window paper garden number summer letter silver copper market harbour valley winter engine bridge corner'.split(
      ' ',
    )
  let text = ''
  while (text.length < characters) text += `${list[random.below(list.length)]!} ${random.below(1000)}. `
  return text.trim()
}

/** Returns the messages that a client adds in a turn: a long message or, with tools, a question, a call and its long result. */
export function askedIn(turn: number, characters: number, withTools: boolean): readonly Message[] {
  const text = words(turn, characters)
  if (!withTools) return [{ role: 'user', content: `Turn ${turn}. ${text}` }]
  const id = `call_bench_${turn}`
  return [
    { role: 'user', content: `Turn ${turn}: read file ${turn}.` },
    {
      role: 'assistant',
      content: '',
      tool_calls: [{ id, type: 'function', function: { name: 'read', arguments: `{"file": ${turn}}` } }],
    },
    { role: 'tool', content: text, tool_call_id: id },
  ]
}
