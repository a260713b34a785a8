/** Turns a trace's session into the chat requests that a client would have sent, and finds for each why its tokens are new. */
import { Random } from '../../../src/runtime/core/random.js'
import type { TraceRequest, TraceSession } from './trace.js'

/** A message in OpenAI's format. Tool results are user messages, because no small model could be made to call the tools. */
export interface ScriptMessage {
  readonly role: 'system' | 'user' | 'assistant'
  readonly content: string
}

/** Why a prompt has tokens that no earlier prompt has. */
export type Cause = 'append' | 'cold' | 'rewritten' | 'edit' | 'compaction'

export interface ScriptRequest {
  readonly session: string
  /** Seconds since the session began. */
  readonly at: number
  /** Seconds since the last request of the conversation that this one continues; 0 for the first request. */
  readonly pause: number
  readonly messages: readonly ScriptMessage[]
  /** Tokens to generate. */
  readonly answer: number
  readonly cause: Cause
}

export interface ScriptOptions {
  /**
   * Words that are one token each. Every answer repeats the first one, and a logit bias makes the server do so too, so that clients send
   * back what it said.
   */
  readonly words: readonly string[]
  /** Tokens of our text per token of the trace. */
  readonly scale: number
  readonly reading: Reading
}

/**
 * How to read a change. A trace says where a prompt changed, but not what follows. `same`: one block changed, and the old text continues
 * behind it. `other`: all text behind the change is new.
 */
export type Reading = (typeof READINGS)[number]
export const READINGS = ['same', 'other'] as const

/** A message's blocks in a prompt: from the end of the message before it to block `end`, exclusive. */
interface Part {
  readonly role: ScriptMessage['role']
  readonly end: number
  /** Tokens of the message, if it is an answer as the server gave it; null if its text comes from the blocks. */
  readonly said: number | null
}

interface Prompt extends TraceRequest {
  readonly parts: readonly Part[]
}

/** What a prompt shares with an earlier one. */
interface Continued {
  readonly base: Prompt
  /** Number of blocks at the beginning that both share. */
  readonly common: number
  /** Under the reading `same`: by how many blocks the rest of `base` moved forward, because something in between was dropped. */
  readonly shift: number
}

/** A change within this many blocks behind the system prompt counts as directly behind it. */
const NEAR = 4
/** A prompt with less than this share of the previous one's blocks counts as compacted. */
const COMPACTED = 0.5
/** How many earlier prompts are searched for the one that a prompt continues. */
const REMEMBERED = 64

/** Yields a session's requests in order. @throws Error if the scale leaves less than a word per block */
export function* scriptOf(session: TraceSession, { words, scale, reading }: ScriptOptions): Generator<ScriptRequest> {
  const length = Math.round(session.block * scale)
  if (length < 1) throw new Error(`A scale of ${scale} leaves no word of a block of ${session.block} tokens.`)
  const texts = new BlockTexts(numberOf(session.id), length, words)
  const answerOf = ({ out }: TraceRequest) => Math.max(1, Math.round(out * scale))
  const earlier: Prompt[] = []
  for (const request of session.requests) {
    const from = continuedFrom(earlier, request.blocks)
    if (from !== null && reading === 'same') texts.repeat(request.blocks, from)
    const parts = from === null ? begun(session, request.blocks.length) : partsOf(request, from, reading, answerOf(from.base))
    earlier.push({ ...request, parts })
    yield {
      session: session.id,
      at: request.at,
      pause: from === null ? 0 : request.at - from.base.at,
      messages: messagesOf(request, parts, texts, words[0]!),
      answer: answerOf(request),
      cause: from === null ? 'cold' : causeOf(from, request.blocks.length, session),
    }
    if (earlier.length > REMEMBERED) earlier.shift()
  }
}

const numberOf = (id: string): number => Number(/\d+/.exec(id)?.[0] ?? 0)

/** The text of each block, drawn at random from its id. */
class BlockTexts {
  readonly #texts = new Map<number, string>()
  /** For a block that repeats another block's text, that block. */
  readonly #repeated = new Map<number, number>()

  constructor(
    private readonly session: number,
    private readonly length: number,
    private readonly words: readonly string[],
  ) {}

  of(block: number): string {
    const source = this.#repeated.get(block) ?? block
    let text = this.#texts.get(source)
    if (text === undefined) {
      const random = new Random(source, this.session)
      text = Array.from({ length: this.length }, () => this.words[random.below(this.words.length)]!).join('')
      this.#texts.set(source, text)
    }
    return text
  }

  /** Lets the blocks behind the changed one repeat the text of those that they stand for. */
  repeat(blocks: readonly number[], { base, common, shift }: Continued): void {
    for (let index = common + 1; index < blocks.length && index + shift < base.blocks.length; index++) {
      const before = base.blocks[index + shift]!
      this.#repeated.set(blocks[index]!, this.#repeated.get(before) ?? before)
    }
  }
}

/**
 * Returns what these blocks share with the prompt that has the longest common beginning with them, the latest of several. Null if there is
 * none.
 */
function continuedFrom(earlier: readonly Prompt[], blocks: readonly number[]): Continued | null {
  let [base, common]: [Prompt | null, number] = [null, 0]
  for (const prompt of earlier.toReversed()) {
    const shared = commonOf(prompt.blocks, blocks)
    if (shared > common) [base, common] = [prompt, shared]
  }
  return base === null ? null : { base, common, shift: Math.max(0, base.blocks.length - blocks.length) }
}

function commonOf(one: readonly number[], other: readonly number[]): number {
  let common = 0
  while (common < one.length && common < other.length && one[common] === other[common]) common++
  return common
}

/**
 * Returns the messages of a conversation's first prompt. If it is too short for the session's tools, as a subagent's may be, the system
 * message gets half of it.
 */
function begun({ tools, system, block }: TraceSession, length: number): Part[] {
  const head = Math.round((tools + system) / block)
  const end = head < length ? head : Math.floor(length / 2)
  const first: Part = { role: 'user', end: length, said: null }
  return end === 0 ? [first] : [{ role: 'system', end, said: null }, first]
}

/** Returns the messages of a prompt: those of the prompt that it continues, then that prompt's answer and what came behind it. */
function partsOf({ blocks: { length } }: TraceRequest, from: Continued, reading: Reading, said: number): Part[] {
  const { base, common, shift } = from
  const parts: Part[] = []
  let begin = 0
  for (const part of base.parts) {
    const last = parts.at(-1)?.end ?? 0
    const end = part.end <= common ? part.end : Math.max(common, part.end - shift)
    const isWhole = part.end <= common || (reading === 'same' && begin > common + shift)
    begin = part.end
    if (end <= last) continue
    parts.push({ ...part, end: Math.min(end, length), said: isWhole && end <= length ? part.said : null })
    if (end >= length) return parts
  }
  const last = parts.at(-1)?.end ?? 0
  const answer = Math.max(1, Math.min(Math.round(base.out / TOKENS), length - last - 1))
  // A single block is not divided into an answer and what came behind it.
  if (length - last > 1) parts.push({ role: 'assistant', end: last + answer, said })
  return last < length ? [...parts, { role: 'user', end: length, said: null }] : parts
}
/** Assumed tokens per block, to estimate the answer's share of the new blocks. */
const TOKENS = 64

function causeOf({ base, common }: Continued, length: number, { tools, block }: TraceSession): Cause {
  const head = base.parts[0]!.end
  if (common + NEAR < Math.min(head, Math.round(tools / block))) return 'cold'
  // The last block of a prompt often changes, because agents end their last message with a reminder.
  if (base.blocks.length - common <= 1) return 'append'
  if (length < COMPACTED * base.blocks.length) return 'compaction'
  return common <= head + NEAR ? 'rewritten' : 'edit'
}

function messagesOf({ blocks }: TraceRequest, parts: readonly Part[], texts: BlockTexts, word: string): ScriptMessage[] {
  let begin = 0
  return parts.map(({ role, end, said }, index) => {
    const text = said === null ? blocks.slice(begin, end).map((block) => texts.of(block)) : [word.repeat(said)]
    begin = end
    // A prompt ends with the user's message.
    return { role: index === parts.length - 1 ? 'user' : role, content: text.join('') }
  })
}
