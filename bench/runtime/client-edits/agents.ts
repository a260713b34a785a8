/**
 * Clients that manage their context as agents in use do, by the agents' public sources and documentation, at about a hundredth of the size:
 * the table's sessions have about 2,500 tokens, the agents' 200,000. Requests in which an agent asks for a summary are left out.
 */
import { type ModelMessage, pruneMessages } from 'ai'
import { type Client, type Message, plain, type Turn } from './clients.js'

const SCALE = 100

/** Returns the tokens as these agents estimate them. */
const tokensOf = (messages: readonly Message[]): number =>
  messages.reduce((sum, { content }) => sum + Math.ceil(content.length / 4), 0)

/**
 * opencode: goes back from the newest tool output, skipping the last two user turns. The first 40,000 tokens of output stay. Older output
 * is cleared once that frees 20,000 tokens, and stays cleared.
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

/** Tokens at which the context counts as nearly full: its size less room for an answer. */
const FULL = 80_000 / SCALE

const summaryOf = (turns: readonly Turn[], words: string): Message => ({
  role: 'user',
  content: `${words} Files ${turns.map((_, at) => at).join(', ')} were read; each is a list of words and numbers.`,
})

/** Claude Code: if the context is nearly full, one message with a summary replaces everything before the current question. */
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

/** pi: if the context is nearly full, a summary replaces all but the last 20,000 tokens. It never separates a call from its result. */
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

/** A program on the AI SDK that keeps only the tool calls of its last messages. */
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

/** Returns the message as `@ai-sdk/openai-compatible` sends it. */
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
