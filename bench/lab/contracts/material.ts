/** Owns what the grid of contracts is measured on: a prompt, the stretch of it that may be folded, and a tool result that comes later. */
import type { ChatFormat } from '../../../src/runtime/chat/format.js'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { Conversation } from '../../../src/runtime/context/conversation.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { length, span, type Span } from '../../../src/runtime/core/span.js'
import { ownWords, piSample, type PiSample } from '../../../src/lab/pi-llm.js'
import { commonPrefix } from '../../../src/runtime/kv/prompt.js'
import { randomTokens } from '../../random-tokens.js'

export interface Material {
  /** The prompt. */
  readonly base: Int32Array
  /** The prompt, and after it a call with its result, about 60 tokens together. */
  readonly later: Int32Array
  /** Where holes may lie, in tokens of `base`. */
  readonly foldable: Span
  /** Shown in the place of a hole. */
  readonly marker: Int32Array
  /** An answer up to where the model has to know something; predictions are compared after it. Possibly empty. */
  readonly opening: Int32Array
}

export const PLACES = ['early', 'middle', 'late'] as const
export type Place = (typeof PLACES)[number]

const MARKER = 20
const RESULT = 60
/** Share of a random prompt that stays at each end. */
const MARGIN = 0.05
/** Below so many tokens, the names of all keys alone would be a good part of the prompt. */
const SHORT = 2048
const FEW_KEYS = 12

/** Where a hole of this share of the prompt lies; null when what may be folded is shorter. */
export function holeAt({ base, foldable }: Material, place: Place, share: number): Span | null {
  const size = Math.round(share * base.length)
  const free = length(foldable) - size
  if (free < 0) return null
  const before = { early: 0, middle: Math.floor(free / 2), late: free }[place]
  return span(foldable.start + before, foldable.start + before + size)
}

/** Tokens without meaning. */
export function randomMaterial(size: number, seed: number, vocabulary: number): Material {
  const base = randomTokens(size, 3 * seed + 1, vocabulary)
  const margin = Math.round(MARGIN * size)
  return {
    base,
    later: Int32Array.from([...base, ...randomTokens(RESULT, 3 * seed + 2, vocabulary)]),
    foldable: span(margin, size - margin),
    marker: randomTokens(MARKER, 3 * seed + 3, vocabulary),
    opening: new Int32Array(),
  }
}

/** A PI-LLM prompt of about `size` tokens; its stream may be folded, behind the marker that a fold really leaves. */
export function piMaterial(format: ChatFormat, size: number, seed: number): Material {
  const { keys, prompt } = sampleOf(format, size, seed)
  const user: ChatMessage = { role: 'user', content: prompt }
  const base = format.render({ messages: [user] }).tokens
  const later = withResult(format, user, base.length + RESULT)
  const opened: ChatMessage = { role: 'assistant', content: `The current value of ${keys[0]!} is` }
  const written = format.render({ messages: [user, opened], generationPrompt: false })
  if (Math.min(commonPrefix(base, later), commonPrefix(base, written.tokens)) < base.length)
    throw new Error('the template shows a prompt differently once something follows')
  const opening = written.tokens.slice(base.length, written.messages[1]?.content?.tokens.end)
  return { base, later, opening, ...wholeStreamFolded(format, user) }
}

function sampleOf(format: ChatFormat, size: number, seed: number): PiSample {
  const words = ownWords()
  const keys = size < SHORT ? FEW_KEYS : words.keys.length
  const sample = (updates: number) => piSample({ words, keys, updates, seed })
  const tokens = (updates: number) =>
    format.render({ messages: [{ role: 'user', content: sample(updates).prompt }] }).tokens.length
  const more = tokens(2) - tokens(1)
  return sample(Math.max(1, Math.round((size - tokens(1)) / more) + 1))
}

/** The stream's place in the prompt, and the marker when all of it is folded. */
function wholeStreamFolded(format: ChatFormat, user: ChatMessage): Pick<Material, 'foldable' | 'marker'> {
  const conversation = new Conversation(conversationId('material'), {
    snap: (messages, message, chars) => format.snap({ messages, tools: [], message, chars }),
  })
  conversation.add(user)
  const start = user.content.indexOf('\n', user.content.indexOf('starts here.')) + 1
  const end = user.content.indexOf('\n\n', start)
  const cut = conversation.cut([{ message: 0, span: span(start, end) }], 1)
  if (!cut.ok) throw new Error('the stream cannot be cut')
  conversation.fold(cut.fragments[0]!.id)
  const { tokens, origin } = format.render({ messages: [user], edits: conversation.edits() })
  const [hole] = origin.holes
  if (hole === undefined) throw new Error('the stream was not folded')
  return { foldable: hole.span, marker: tokens.slice(hole.span.start, hole.span.start + hole.marker) }
}

/** The prompt with a call and a result after it, which names as many ids as make all of it `size` tokens long. */
function withResult(format: ChatFormat, user: ChatMessage, size: number): Int32Array {
  const call = { id: 'call_1', name: 'fold_fragment', arguments: { fragment_id: 'f04242' } }
  const ids: string[] = []
  for (;;) {
    ids.push(`f${(ids.length * 7919 + 4242).toString(16).padStart(5, '0')}`)
    const messages: ChatMessage[] = [
      user,
      { role: 'assistant', content: '', toolCalls: [call] },
      { role: 'tool', content: `Folded ${ids.join(', ')}.`, toolCallId: call.id, name: call.name },
    ]
    const { tokens } = format.render({ messages })
    if (tokens.length >= size) return tokens
  }
}
