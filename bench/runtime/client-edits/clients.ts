/** Owns the clients of the bench: agents that send their whole conversation every turn, and what each of them makes of it before. */
import { Random } from '../../../src/runtime/core/random.js'

/** As OpenAI's API has it. */
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

/** One turn of a conversation: what the client adds, and what it was answered. */
export interface Turn {
  readonly asked: readonly Message[]
  readonly answer: string
}

export const TURNS = 24
/** Messages of a client's that stay whole. */
const WHOLE = 3
export const PLACEHOLDER = '[Old content cleared]'

/** What a client sends for its next turn. `turns`: all so far, the last one not answered yet. */
export type Client = (turns: readonly Turn[]) => readonly Message[]

const answered = (content: string): Message => ({ role: 'assistant', content })
/** A turn's messages, the answer with them if there is one. */
const whole = ({ asked, answer }: Turn): readonly Message[] => (answer === '' ? asked : [...asked, answered(answer)])
const cleared = ({ asked, answer }: Turn): readonly Message[] =>
  whole({ asked: asked.map((message, at) => (at === asked.length - 1 ? { ...message, content: PLACEHOLDER } : message)), answer })
/** With the long messages of the first `count` turns cleared. */
const clearedUpTo = (turns: readonly Turn[], count: number): readonly Message[] =>
  turns.flatMap((turn, at) => (at < count ? cleared(turn) : whole(turn)))

export const plain: Client = (turns) => turns.flatMap(whole)

export const prunes: Client = (turns) => clearedUpTo(turns, turns.length - WHOLE)

export const prunesEveryTenth: Client = (turns) => clearedUpTo(turns, 10 * Math.floor(turns.length / 10) - WHOLE)

/** Keeps the first turn and the last six. */
export const removes: Client = (turns) => turns.filter((_, at) => at === 0 || at >= turns.length - 6).flatMap(whole)

/** After every fifth turn a note stands before the turn that was the last one then. */
export const inserts: Client = (turns) =>
  turns.flatMap((turn, at) =>
    at > 0 && at % 5 === 0 && turns.length > at + 1
      ? [{ role: 'user', content: `Note ${at}: mind the time.` } as const, ...whole(turn)]
      : whole(turn),
  )

/** Prunes, and every eighth turn it wants to see everything again. */
export const restores: Client = (turns) => (turns.length % 8 === 0 ? plain(turns) : prunes(turns))

/** After eight turns one message takes the place of all but the last two, and so on. */
export const compacts: Client = (turns) => {
  const upTo = 8 * Math.floor((turns.length - 1) / 8) - 2
  if (upTo <= 0) return plain(turns)
  return [
    { role: 'user', content: `Summary of the first ${upTo} turns: it was about words.` },
    ...turns.slice(upTo).flatMap(whole),
  ]
}

/** The client tells every earlier answer with other words at its end. */
export const forks: Client = (turns) =>
  turns.flatMap(({ asked, answer }) => whole({ asked, answer: answer === '' ? '' : `${answer} (noted)` }))

/** Words that mean nothing, the same for the same seed; about this many characters. */
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

/** What a client adds in a turn: a long message, or a question, a call and its long result. */
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
