/** Owns what a last message of the assistant means: the beginning of the answer. */
import type { ChatMessage } from '../../chat/message.js'
import { FieldError } from '../problem.js'
import type { Thinks } from './template-fields.js'

/** The messages before it, and its text; all of them where the last is another's or empty. @throws FieldError */
export function begun(
  messages: readonly ChatMessage[],
  place: string,
  { enable_thinking: isThinking, thinking }: Thinks,
): { readonly messages: readonly ChatMessage[]; readonly beginning: string | undefined } {
  const last = messages.at(-1)
  if (last?.role !== 'assistant') return { messages, beginning: undefined }
  const bad = (why: string) => new FieldError(place, `${place} is the beginning of the answer: ${why}`)
  if (last.toolCalls !== undefined) throw bad('it has calls, whose results are missing.')
  if (last.reasoning !== undefined) throw bad('a thought cannot be gone on with; leave it out.')
  if (isThinking === true || thinking?.type === 'enabled')
    throw bad('an answer that has begun is not thought about any more; leave it out, or ask without thinking.')
  return { messages: messages.slice(0, -1), beginning: last.content === '' ? undefined : last.content }
}
