/** Owns what of a text or a list goes into a prompt so that the window holds it and an answer. */
import type { ChatMessage } from '../../chat/message.js'
import { KvfoldError } from '../../core/errors.js'
import type { Chunk, LongText } from './long-text.js'
import type { SampleEngine } from './sample-engine.js'

/**
 * The first of `items`, as many as fit a prompt with `reserve` tokens after it (at most a quarter of the window is reserved). Pure.
 * @throws KvfoldError context/full when not even one does, and there is one
 */
export function fitting<Item>(
  engine: SampleEngine,
  items: readonly Item[],
  promptOf: (items: readonly Item[]) => readonly ChatMessage[],
  reserve: number,
): readonly Item[] {
  const room = engine.window - Math.min(reserve, Math.floor(engine.window / 4))
  let kept = items.length
  while (kept > 0 && engine.count(promptOf(items.slice(0, kept)), []) > room) kept--
  if (kept === 0 && items.length > 0) throw full(engine.window, 'the question and what was found for it')
  return items.slice(0, kept)
}

export interface PartOptions {
  /** Tokens. */
  readonly most: number
  /** Tokens kept free behind the prompt. */
  readonly reserve: number
  readonly promptOf: (text: string) => readonly ChatMessage[]
}

/**
 * The part of the text from sentence `at` on that goes into the next prompt: at most `most` tokens, fewer where the window does not hold them.
 * Null at the end of the text.
 * @throws KvfoldError context/full when there is no room for any
 */
export function nextPart(
  engine: SampleEngine,
  text: LongText,
  at: number,
  { most, reserve, promptOf }: PartOptions,
): (Chunk & { readonly end: number }) | null {
  const room = engine.window - engine.count(promptOf(''), []) - reserve
  const part = text.take(at, Math.max(1, Math.min(most, room)))
  if (part !== null && part.tokens > room) throw full(engine.window, 'a part of the text beside the question')
  return part
}

const full = (window: number, what: string): KvfoldError =>
  new KvfoldError('context/full', `The window of ${window} tokens has no room for ${what}; take a larger one.`)
