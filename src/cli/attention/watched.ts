/** Owns reading which stretches of a transcript somebody watches. */
import { z } from 'zod'
import type { WatchedSpan } from '../../attention/spans.js'
import type { ChatMessage } from '../../chat/message.js'
import { KvfoldError } from '../../core/errors.js'
import { span } from '../../core/span.js'

const place = z.strictObject({
  name: z.string().min(1).optional(),
  text: z.string().min(1).optional(),
  message: z.int().nonnegative().optional(),
  from: z.string().min(1).optional(),
  to: z.string().min(1).optional(),
})
const file = z.object({ spans: z.array(z.union([z.string().min(1), place])).min(1) })

/**
 * The `spans` of a transcript: literal text, which stands for its last occurrence, or a stretch as folds have them.
 * @throws KvfoldError attention/bad-request that names the first thing wrong
 */
export function parseWatched(json: string, source: string, messages: readonly ChatMessage[]): WatchedSpan[] {
  const parsed = file.safeParse(JSON.parse(json))
  if (!parsed.success) {
    const [issue] = parsed.error.issues
    throw wrong(source, `${issue?.path.join('.') ?? ''}: ${issue?.message ?? 'wrong'}`)
  }
  const spans = parsed.data.spans.map((one, index) =>
    watched(typeof one === 'string' ? { text: one } : one, messages, (why) => wrong(source, `spans.${index}: ${why}`)),
  )
  const twice = spans.find(({ name }, index) => spans.findIndex((other) => other.name === name) < index)
  if (twice !== undefined) throw wrong(source, `two spans are called ${JSON.stringify(twice.name)}; give them a "name" each`)
  return spans
}

function watched(
  { name, text, message, from, to }: z.output<typeof place>,
  messages: readonly ChatMessage[],
  fail: (why: string) => KvfoldError,
): WatchedSpan {
  if (text === undefined && message === undefined) throw fail('it needs "text", or "message" with "from" and "to"')
  if (message !== undefined && messages[message] === undefined)
    throw fail(`there is no message ${message} before the answer; the first is 0, the last ${messages.length - 1}`)
  const start = text ?? from
  const index = message ?? messages.findLastIndex(({ content }) => start !== undefined && content.includes(start))
  const content = messages[index]?.content
  if (content === undefined) throw fail(`no message contains ${JSON.stringify(text)}`)
  const first = start === undefined ? 0 : text === undefined ? content.indexOf(start) : content.lastIndexOf(start)
  if (first < 0) throw fail(`message ${index} does not contain ${JSON.stringify(start)}`)
  const after = first + (start?.length ?? 0)
  const last = text !== undefined ? after : to === undefined ? content.length : content.indexOf(to, after)
  if (last < 0) throw fail(`message ${index} does not contain ${JSON.stringify(to)} after the beginning of the span`)
  const end = text !== undefined ? after : last + (to?.length ?? 0)
  if (first === end) throw fail(`message ${index} is empty`)
  const inside = content.slice(first, end)
  return { name: name ?? shortened(inside), text: inside, message: index, chars: span(first, end) }
}

const shortened = (text: string): string => (text.length > 40 ? `${text.slice(0, 39)}…` : text)

const wrong = (source: string, why: string): KvfoldError =>
  new KvfoldError(
    'attention/bad-request',
    `The spans of ${source} cannot be watched: ${why}. \`kvfold attention file --help\` shows the format.`,
  )
