/** Owns what clients of a simulated fleet ask: conversations that were made once as real clients make them, and are had again and again, each time by somebody else. */
import { Random } from '../../../src/runtime/core/random.js'
import { claudeCode, opencode, pi } from '../../runtime/client-edits/agents.js'
import { askedIn, type Client, type Message, plain, type Turn } from '../../runtime/client-edits/clients.js'
import { ANSWER, saidBy, systemOf } from '../engines/sessions.js'

/** A message of a prompt. */
export interface Said {
  readonly role: Message['role'] | 'system'
  /** Equal texts have equal numbers. */
  readonly text: number
  /** What the template writes around it included. */
  readonly tokens: number
  readonly characters: number
}

export interface Request {
  readonly messages: readonly Said[]
  /** Tokens of the answer, and what it is called as a message of later prompts. */
  readonly answer: Said
}

/** The requests of a conversation, each after the answer of the one before. */
export type Script = readonly Request[]

export interface TrafficOptions {
  readonly scripts: number
  readonly turns: number
  readonly seed: number
  /** Of each message of a client's. */
  readonly characters: number
  /** Of every message, times those counted: a small model's texts stand for longer ones. */
  readonly scale: number
}

/** Counts the tokens of a message as it stands in a prompt. */
export type Count = (message: { readonly role: Said['role']; readonly content: string }) => number

/** Texts by what they say. */
class Texts {
  readonly #known = new Map<string, Said>()

  constructor(
    private readonly count: Count,
    private readonly scale: number,
  ) {}

  of({ role, content, tool_calls: calls = [] }: Pick<Message, 'content' | 'tool_calls'> & { readonly role: Said['role'] }): Said {
    const text = content + calls.map(({ function: called }) => `${called.name} ${called.arguments}`).join(' ')
    const key = `${role} ${text}`
    const known = this.#known.get(key)
    if (known !== undefined) return known
    const tokens = Math.round(this.scale * this.count({ role, content: text }))
    const said = { role, text: this.#known.size, tokens, characters: Math.round(this.scale * text.length) }
    this.#known.set(key, said)
    return said
  }
}

/** Those of `bench -- engines`: what clients say is appended, and all have one system prompt. */
export function chats({ scripts, turns, characters, seed, scale }: TrafficOptions, count: Count, word: string): Script[] {
  const texts = new Texts(count, scale)
  const system = texts.of(systemOf(seed))
  const answer = texts.of({ role: 'assistant', content: word.repeat(ANSWER) })
  return Array.from({ length: scripts }, (_, client) => {
    const messages: Said[] = [system]
    return saidBy(client, { turns, characters, seed }).map((content) => {
      messages.push(texts.of({ role: 'user', content }))
      const request = { messages: [...messages], answer }
      messages.push(answer)
      return request
    })
  })
}

/** Coding agents that read files, a quarter of each kind, and clear or compact what is old as their programs do (`bench -- client-edits`). */
export function agents({ scripts, turns, characters, seed, scale }: TrafficOptions, count: Count): Script[] {
  const texts = new Texts(count, scale)
  const system = texts.of(systemOf(seed))
  const kinds: readonly (() => Client)[] = [opencode, claudeCode, pi, () => plain]
  return Array.from({ length: scripts }, (_, script) => {
    const random = new Random(seed, script)
    const client = kinds[script % kinds.length]!()
    const history: Turn[] = []
    const length = Math.ceil(turns / 2) + random.below(Math.floor(turns / 2) + 1)
    return Array.from({ length }, (__, turn) => {
      // Lengths of files differ: from a fifth of the mean to almost twice it.
      const size = Math.round(characters * (0.2 + random.below(1600) / 1000))
      history.push({ asked: askedIn(1000 * script + turn, size, true), answer: '' })
      const messages = [system, ...client(history).map((message) => texts.of(message))]
      const answer = `Read ${turn}: ${'noted '.repeat(4 + random.below(12))}`
      history.push({ ...history.pop()!, answer })
      return { messages, answer: texts.of({ role: 'assistant', content: answer }) }
    })
  })
}
