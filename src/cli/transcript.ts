/** Owns the transcripts that people write by hand: messages and tools as OpenAI's chat API has them, and stretches to fold. */
import { z } from 'zod'
import type { ChatMessage, ToolDefinition } from '../chat/message.js'
import { noted } from '../context/size-note.js'
import { KvfoldError } from '../core/errors.js'
import { span, type Span } from '../core/span.js'

/** A stretch of one message's content. */
export interface TranscriptFold {
  readonly message: number
  readonly span: Span
  /** What is shown instead of the text; null: that something is folded. */
  readonly summary: string | null
}

export interface Transcript {
  readonly messages: readonly ChatMessage[]
  readonly tools: readonly ToolDefinition[]
  readonly folds: readonly TranscriptFold[]
}

const text = z.union([z.string(), z.array(z.object({ type: z.literal('text'), text: z.string() }))])

const message = z.object({
  role: z.enum(['system', 'developer', 'user', 'assistant', 'tool']),
  content: text.nullish(),
  tool_calls: z.array(z.object({ id: z.string(), function: z.object({ name: z.string(), arguments: z.string() }) })).nullish(),
  tool_call_id: z.string().optional(),
  name: z.string().optional(),
})

const transcript = z.object({
  messages: z.array(message).min(1),
  tools: z
    .array(
      z.object({
        type: z.literal('function'),
        function: z.object({
          name: z.string(),
          description: z.string().default(''),
          parameters: z.record(z.string(), z.unknown()).default({ type: 'object', properties: {} }),
        }),
      }),
    )
    .default([]),
  folds: z
    .array(
      z.strictObject({
        message: z.int().nonnegative(),
        from: z.string().min(1).optional(),
        to: z.string().min(1).optional(),
        summary: z.string().min(1).optional(),
      }),
    )
    .min(1),
})

/** @throws KvfoldError cli/bad-usage that names the first thing wrong */
export function parseTranscript(json: string, source: string): Transcript {
  let input: unknown
  try {
    input = JSON.parse(json)
  } catch (error) {
    throw wrong(source, `it is not JSON (${error instanceof Error ? error.message : String(error)})`)
  }
  const parsed = transcript.safeParse(input)
  if (!parsed.success) {
    const [issue] = parsed.error.issues
    throw wrong(
      source,
      `${issue === undefined || issue.path.length === 0 ? 'it' : issue.path.join('.')}: ${issue?.message ?? 'wrong'}`,
    )
  }
  const { messages: given, tools, folds } = parsed.data
  const messages = given.map(messageOf)
  const definitions = tools.map((tool) => tool.function)
  return {
    messages: noted(messages, definitions),
    tools: definitions,
    folds: folds.map(({ summary, ...fold }, index) => ({
      message: fold.message,
      span: stretchOf(messages, fold, (why) => wrong(source, `folds.${index}: ${why}`)),
      summary: summary ?? null,
    })),
  }
}

const wrong = (source: string, why: string): KvfoldError =>
  new KvfoldError('cli/bad-usage', `The transcript ${source} cannot be used: ${why}. \`kvfold plan --help\` shows the format.`)

function messageOf({ role, content, tool_calls, tool_call_id, name }: z.output<typeof message>): ChatMessage {
  const joined = typeof content === 'string' ? content : (content ?? []).map((part) => part.text).join('')
  const toolCalls = (tool_calls ?? []).map(({ id, function: { name: called, arguments: args } }) => {
    const parsed = objectOf(args)
    return { id, name: called, arguments: parsed ?? {}, ...(parsed === null ? { malformed: args } : {}) }
  })
  return {
    role: role === 'developer' ? 'system' : role,
    content: joined,
    ...(toolCalls.length === 0 ? {} : { toolCalls }),
    ...(tool_call_id === undefined ? {} : { toolCallId: tool_call_id }),
    ...(name === undefined ? {} : { name }),
  }
}

function objectOf(json: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(json)
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : null
  } catch {
    return null
  }
}

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
