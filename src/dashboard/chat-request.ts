/** Owns what the chat pane asks: a thread as its clients know it, in OpenAI's form. Pure. */
import type { ChatMessage } from '../chat/message.js'
import type { Acm, ContractChoice, Export, SentMessage } from './wire.js'

export interface ChatSettings {
  readonly acm: Acm
  /** Null: the thread's, or else the server's. */
  readonly contract: ContractChoice | null
  readonly temperature: number
  readonly maxTokens: number
  /** Of new threads; empty: none. */
  readonly system: string
}

/** `known` null: a new thread. */
export function chatBody(
  { model, thread, known }: { readonly model: string; readonly thread: string | null; readonly known: Export | null },
  text: string,
  { acm, contract, temperature, maxTokens, system }: ChatSettings,
): object {
  return {
    model,
    messages: [...(known === null ? beginning(system) : clientView(known)), { role: 'user', content: text }],
    stream: true,
    stream_options: { include_usage: true },
    temperature,
    max_tokens: maxTokens,
    kvfold: {
      acm,
      events: true,
      ...(thread === null ? {} : { thread }),
      ...(contract === null ? {} : { contract }),
    },
  }
}

const beginning = (system: string): SentMessage[] => (system.trim() === '' ? [] : [{ role: 'system', content: system }])

/** Messages as clients know them: without the calls that were carried out inside. */
export function clientView({ messages }: Pick<Export, 'messages'>): SentMessage[] {
  return messages.flatMap(({ message, seen }): SentMessage[] => {
    if (seen === 'nothing') return []
    return [sent(seen === 'same' ? message : seen)]
  })
}

function sent({ role, content, reasoning, toolCalls, toolCallId, name }: Omit<ChatMessage, 'sampled'>): SentMessage {
  return {
    role,
    content,
    ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
    ...(toolCalls === undefined || toolCalls.length === 0
      ? {}
      : {
          tool_calls: toolCalls.map((call) => ({
            id: call.id,
            type: 'function',
            function: { name: call.name, arguments: call.malformed ?? JSON.stringify(call.arguments) },
          })),
        }),
    ...(toolCallId === undefined ? {} : { tool_call_id: toolCallId }),
    ...(name === undefined ? {} : { name }),
  }
}
