/** Owns what an attention study needs to know of PI-LLM: where values stand in a prompt and in an answer, and how a program folds the stream. */
import type { WatchedPair } from '../attention/pairs.js'
import type { ChatMessage, Edit } from '../chat/message.js'
import { Conversation } from '../context/conversation.js'
import { portsOf } from '../context/ports.js'
import { invariant, KvfoldError } from '../core/errors.js'
import { span, type Span } from '../core/span.js'
import { freshConversation, type LlamaEngine } from '../engine/llama.js'
import { lastValues, type PiSample } from './pi-llm.js'

/** A program cuts the stream into so many pieces and leaves the last one open (as the bench of contracts does). */
const PIECES = 4
const STARTS = 'The stream of updates starts here.'
const ENDS = 'The stream of updates ends here.'

/** Where every key's values stand in the prompt, the first message. A value that occurs more than once is told apart by its place. */
export function watchedPairs({ keys, updates, prompt }: PiSample): WatchedPair[] {
  const last = lastValues(updates)
  const places = new Map<string, Span[]>(keys.map((key) => [key, []]))
  let at = prompt.indexOf(`${STARTS}\n`) + STARTS.length + 1
  for (const { key, value } of updates) {
    const start = at + key.length + 2
    invariant(
      prompt.slice(at, start + value.length) === `${key}: ${value}`,
      `The stream does not read ${key}: ${value} at ${at}.`,
    )
    places.get(key)?.push(span(start, start + value.length))
    at = start + value.length + 2
  }
  return keys.map((key): WatchedPair => {
    const stretches = (places.get(key) ?? []).map((chars) => ({ message: 0, chars }))
    const current = stretches.pop()
    invariant(current !== undefined, `The stream has no value for ${key}.`)
    return { key, value: last.get(key) ?? '', current, older: stretches }
  })
}

/**
 * Where an answer gives the right value of a key: in the sentence `The current value of <key> is <value>.` or a line `<key>: <value>`, the last
 * one if there are several. Keys whose value it does not give, or of which it last says something else, are missing.
 */
export function valuesSaid(pairs: readonly Pick<WatchedPair, 'key' | 'value'>[], answer: string): ReadonlyMap<string, Span> {
  return new Map(
    pairs.flatMap(({ key, value }) => {
      const says = new RegExp(String.raw`(?<![\p{L}\p{N}])${literal(key)}[\s*"']*(?:\sis:?\s|:)[\s*"']*`, 'giu')
      const last = [...answer.matchAll(says)].at(-1)
      if (last === undefined) return []
      const start = last.index + last[0].length
      const end = start + value.length
      const whole = answer.slice(start, end).toLowerCase() === value.toLowerCase() && !/[\p{L}\p{N}]/u.test(answer.charAt(end))
      return whole ? [[key, span(start, end)] as const] : []
    }),
  )
}

const literal = (text: string): string => text.replace(/[\\^$.*+?()[\]{}|/-]/gu, String.raw`\$&`)

/** Three quarters of the stream folded, the newest left open. @throws KvfoldError eval/bad-data for a stream too short to be cut */
export function olderFolded(engine: LlamaEngine, messages: readonly ChatMessage[]): readonly Edit[] {
  const id = freshConversation()
  const conversation = new Conversation(id, portsOf(engine, id, []))
  for (const message of messages) conversation.add(message)
  const cut = conversation.fragment({ startMarker: STARTS, endMarker: ENDS, numFragments: PIECES })
  if (!cut.ok) throw new KvfoldError('eval/bad-data', `The stream cannot be cut: ${cut.message}`)
  for (const fragment of cut.fragments.slice(0, -1)) conversation.fold(fragment.id)
  return conversation.edits()
}
