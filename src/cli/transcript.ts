/** Owns transcripts with stretches to fold: those that a person named, or else those that an agent would prune; and the folds, carried out. */
import Type from 'typebox'
import type { ChatMessage, ToolDefinition } from '../chat/message.js'
import { noted } from '../context/size-note.js'
import { KvfoldError } from '../core/errors.js'
import { checked, inWords, strict, Text } from '../core/schema.js'
import { span, type Span } from '../core/span.js'
import { readRecorded, type Recorded, Unreadable } from './recorded.js'
import { Conversation, type ConversationState } from '../context/conversation.js'
import type { Fragment } from '../context/fragment.js'
import { portsOf } from '../context/ports.js'
import { freshConversation, type LlamaEngine } from '../engine/llama.js'
import { refuseHopeless } from '../engine/room.js'

/** A stretch of one message's content. */
interface TranscriptFold {
  readonly message: number
  readonly span: Span
  /** What is shown instead of the text; null: that something is folded. */
  readonly summary: string | null
}

export interface Transcript {
  readonly messages: readonly ChatMessage[]
  readonly tools: readonly ToolDefinition[]
  /** Empty where there is nothing worth a fold. */
  readonly folds: readonly TranscriptFold[]
  /** Whether the folds are our proposal, because the file has none. */
  readonly proposed: boolean
}

const Folds = Type.Array(
  strict({
    message: Type.Integer({ minimum: 0 }),
    from: Type.Optional(Text),
    to: Type.Optional(Text),
    summary: Type.Optional(Text),
  }),
  { minItems: 1 },
)

/** @throws KvfoldError cli/bad-usage that names the first thing wrong */
export function parseTranscript(json: string, source: string): Transcript {
  const { messages, tools, body } = recordedIn(json, source)
  const given = body?.['folds']
  const noting = { messages: noted(messages, tools), tools }
  if (given === undefined) return { ...noting, folds: proposed(messages), proposed: true }
  const parsed = checked(Type.Object({ folds: Folds }), { folds: given })
  if (!parsed.ok) throw wrong(source, inWords(parsed.faults[0]))
  return {
    ...noting,
    folds: parsed.value.folds.map(({ summary, ...fold }, index) => ({
      message: fold.message,
      span: stretchOf(messages, fold, (why) => wrong(source, `folds.${index}: ${why}`)),
      summary: summary ?? null,
    })),
    proposed: false,
  }
}

/** A conversation in any of the forms that people have. @throws KvfoldError cli/bad-usage */
function recordedIn(text: string, source: string): Recorded {
  try {
    return readRecorded(text)
  } catch (error) {
    if (error instanceof Unreadable) throw wrong(source, error.message)
    throw error
  }
}

/** Tool results and long messages that are no more than this are not worth a marker. */
const LEAST = { tool: 400, other: 2000 }
/** Results that an agent may still be at work with. */
const NEWEST = 3

/** What an agent would prune: tool results but the newest; where there are none, long messages before the last one. */
function proposed(messages: readonly ChatMessage[]): readonly TranscriptFold[] {
  const whole = (message: number): TranscriptFold => ({
    message,
    span: span(0, messages[message]?.content.length ?? 0),
    summary: null,
  })
  const results = messages.flatMap(({ role }, at) => (role === 'tool' ? [at] : [])).slice(0, -NEWEST)
  const old = results.filter((at) => (messages[at]?.content.length ?? 0) >= LEAST.tool)
  if (old.length > 0) return old.map(whole)
  return messages.flatMap(({ role, content }, at) =>
    role !== 'system' && at < messages.length - 1 && content.length >= LEAST.other ? [whole(at)] : [],
  )
}

const wrong = (source: string, why: string): KvfoldError =>
  new KvfoldError('cli/bad-usage', `The transcript ${source} cannot be used: ${why}. \`kvfold plan --help\` shows the format.`)

/** From where `from` begins to where the first `to` after it ends; without them from the beginning, and to the end. */
function stretchOf(
  messages: readonly ChatMessage[],
  {
    message: index,
    from,
    to,
  }: { readonly message: number; readonly from?: string | undefined; readonly to?: string | undefined },
  fail: (why: string) => KvfoldError,
): Span {
  const content = messages[index]?.content
  if (content === undefined) throw fail(`there is no message ${index}; the first is 0, the last ${messages.length - 1}`)
  const start = from === undefined ? 0 : content.indexOf(from)
  if (start < 0) throw fail(`message ${index} does not contain ${JSON.stringify(from)}`)
  const last = to === undefined ? content.length : content.indexOf(to, start + (from?.length ?? 0))
  if (last < 0) throw fail(`message ${index} does not contain ${JSON.stringify(to)} after the beginning of the fold`)
  const end = last + (to?.length ?? 0)
  if (start === end) throw fail(`message ${index} is empty`)
  return span(start, end)
}

/** The transcript as a conversation to go on with, with the folds that a person named in it. Its tools are those of other programs. @throws KvfoldError cli/bad-usage */
export async function begunBy(
  engine: LlamaEngine,
  { messages, folds, proposed: isProposed }: Transcript,
): Promise<ConversationState> {
  for (const { content } of messages) refuseHopeless(engine.model, engine.info.context, content)
  const fragments = isProposed ? [] : await foldedBy(engine, messages, [], folds)
  return { id: freshConversation(), messages, fragments, searches: [], ids: fragments.length }
}

/** The folded fragments, in order. @throws KvfoldError cli/bad-usage for a fold that cannot be made */
export async function foldedBy(
  engine: LlamaEngine,
  messages: readonly ChatMessage[],
  tools: readonly ToolDefinition[],
  folds: Transcript['folds'],
): Promise<readonly Fragment[]> {
  const id = freshConversation()
  let summary = ''
  const conversation = new Conversation(id, {
    ...portsOf(engine, id, tools),
    summarize: () => Promise.resolve({ ok: true, summary, ledger: [] }),
  })
  for (const message of messages) conversation.add(message)
  for (const [index, fold] of folds.entries()) {
    if (fold.message >= messages.length)
      throw new KvfoldError('cli/bad-usage', `folds.${index} is in the answer, which cannot be folded.`)
    const cut = conversation.cut([fold], 1)
    const fragment = cut.ok ? cut.fragments[0] : undefined
    if (fragment === undefined)
      throw new KvfoldError(
        'cli/bad-usage',
        `folds.${index} cannot be made: ${cut.ok ? 'it is less than a token.' : cut.message}`,
      )
    summary = fold.summary ?? ''
    if (fold.summary === null) conversation.fold(fragment.id)
    else await conversation.summarize(fragment.id, 'what follows')
  }
  return conversation.fragments
}
