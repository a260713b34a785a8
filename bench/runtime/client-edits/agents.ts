/**
 * Owns clients that manage their context as agents in use do, by their public sources and documentation, at a hundredth of their sizes: the sessions of
 * the table have some 2,500 tokens, theirs 200,000. The requests by which they have summaries written are left out.
 */
import { type ModelMessage, pruneMessages } from 'ai'
import { type Client, type Message, plain, type Turn } from './clients.js'

const SCALE = 100

/** As they estimate it. */
const tokensOf = (messages: readonly Message[]): number =>
  messages.reduce((sum, { content }) => sum + Math.ceil(content.length / 4), 0)

/**
 * opencode: from the newest tool output back, those of the last two user turns left out, the first 40,000 tokens stay and the others are cleared, once that is
 * worth 20,000; what was cleared stays so.
 */
export function opencode(): Client {
  const [protectedTokens, minimum] = [40_000 / SCALE, 20_000 / SCALE]
  const cleared = new Set<string>()
  return (turns) => {
    const messages = plain(turns)
    const outputs = plain(turns.slice(0, -2)).filter(({ role, tool_call_id: id }) => role === 'tool' && !cleared.has(id!))
    let kept = 0
    const old = outputs.reverse().filter((message) => (kept += tokensOf([message])) > protectedTokens)
    if (tokensOf(old) > minimum) for (const { tool_call_id: id } of old) cleared.add(id!)
    return messages.map((message) =>
      cleared.has(message.tool_call_id ?? '') ? { ...message, content: '[Old tool result content cleared]' } : message,
    )
  }
}

/** Where the context is nearly full, less room for an answer. */
const FULL = 80_000 / SCALE

const summaryOf = (turns: readonly Turn[], words: string): Message => ({
  role: 'user',
  content: `${words} Files ${turns.map((_, at) => at).join(', ')} were read; each is a list of words and numbers.`,
})

/** Claude Code: when the context is nearly full, one message with a summary takes the place of all before the question at hand. */
export function claudeCode(): Client {
  let from = 0
  return (turns) => {
    const shown = () => [
      ...(from === 0 ? [] : [summaryOf(turns.slice(0, from), 'The conversation so far ran out of context. What was before:')]),
      ...plain(turns.slice(from)),
    ]
    if (tokensOf(shown()) > FULL) from = turns.length - 1
    return shown()
  }
}

/** pi: when the context is nearly full, a summary takes the place of all but the last 20,000 tokens, never between a call and its result. */
export function pi(): Client {
  const recent = 20_000 / SCALE
  let from = 0
  return (turns) => {
    const shown = () => [
      ...(from === 0 ? [] : [summaryOf(turns.slice(0, from), 'Compacted history:')]),
      ...plain(turns.slice(from)),
    ]
    if (tokensOf(shown()) > FULL) while (tokensOf(plain(turns.slice(from + 1))) > recent) from++
    return shown()
  }
}

/** A program over the AI SDK that keeps the tool calls of its last messages alone. */
export const aiSdk: Client = (turns) => {
  const pruned = pruneMessages({
    messages: plain(turns).map(modelMessage),
    toolCalls: 'before-last-9-messages',
    emptyMessages: 'remove',
  })
  return pruned.map(wireMessage)
}

function modelMessage({ role, content, tool_calls: calls = [], tool_call_id: id = '' }: Message): ModelMessage {
  if (role === 'user') return { role, content }
  if (role === 'tool')
    return {
      role,
      content: [{ type: 'tool-result', toolCallId: id, toolName: 'read', output: { type: 'text', value: content } }],
    }
  const called = calls.map(({ id: toolCallId, function: { name, arguments: args } }) => ({
    type: 'tool-call' as const,
    ...{ toolCallId, toolName: name, input: JSON.parse(args) as unknown },
  }))
  return { role, content: [...(content === '' ? [] : [{ type: 'text' as const, text: content }]), ...called] }
}

/** As `@ai-sdk/openai-compatible` sends it. */
function wireMessage({ role, content }: ModelMessage): Message {
  if (typeof content === 'string') return { role: role as 'user', content }
  const [first] = content
  if (first?.type === 'tool-result')
    return {
      role: 'tool',
      tool_call_id: first.toolCallId,
      content: first.output.type === 'text' ? first.output.value : '',
    }
  const text = content.flatMap((part) => (part.type === 'text' ? [part.text] : [])).join('')
  const calls = content.flatMap((part) =>
    part.type === 'tool-call'
      ? [
          {
            id: part.toolCallId,
            type: 'function' as const,
            function: { name: part.toolName, arguments: JSON.stringify(part.input) },
          },
        ]
      : [],
  )
  return { role: 'assistant', content: text, ...(calls.length === 0 ? {} : { tool_calls: calls }) }
}
