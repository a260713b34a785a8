/** Owns what the chat asks: a thread as its clients know it, in OpenAI's form. Pure. */
import type { ChatMessage } from '../chat/message.js'
import { argumentsOf } from './pieces.js'
import type { Acm, ContractChoice, Export, SentMessage } from './wire.js'

/** Null, of any of them: as the thread or the server has it. */
export interface ChatSettings {
  readonly acm: Acm | null
  readonly contract: ContractChoice | null
  readonly temperature: number | null
  readonly maxTokens: number | null
  /** Of new threads; empty: none. */
  readonly system: string
}

export const USUAL: ChatSettings = { acm: null, contract: null, temperature: null, maxTokens: null, system: '' }

/** What is to be answered. */
export interface ChatTask {
  /** The thread that it goes on with, or branches off; null: a new one. */
  readonly known: Export | null
  /** Messages of the thread that come before: fewer than it has are a branch. Default: all. */
  readonly before?: number
  /** What is said then; null: what stands there is answered again, or a cut answer goes on. */
  readonly text: string | null
}

/** Its tools stay where they are in the prompt, and none is called: nobody here would carry a call out. */
export function chatBody(model: string, { known, before, text }: ChatTask, settings: ChatSettings): object {
  const { acm, contract, temperature, maxTokens, system } = settings
  const tools = known?.tools ?? []
  const earlier = known === null ? beginning(system) : clientView({ messages: known.messages.slice(0, before) })
  return {
    model,
    messages: text === null ? withoutLastThought(earlier) : [...earlier, { role: 'user', content: text }],
    ...(tools.length === 0
      ? {}
      : {
          tools: tools.map((tool) => ({ type: 'function', function: tool })),
          ...(acm === 'memtool' ? {} : { tool_choice: 'none' }),
        }),
    stream: true,
    stream_options: { include_usage: true },
    ...(temperature === null ? {} : { temperature }),
    ...(maxTokens === null ? {} : { max_tokens: maxTokens }),
    kvfold: {
      events: true,
      ...(acm === null ? {} : { acm }),
      ...(known === null ? {} : { thread: known.id }),
      ...(contract === null ? {} : { contract }),
    },
  }
}

const beginning = (system: string): SentMessage[] => (system.trim() === '' ? [] : [{ role: 'system', content: system }])

/** The server goes on with a last answer only where that comes without the thought before it. */
const withoutLastThought = (messages: readonly SentMessage[]): SentMessage[] =>
  messages.map((message, at) => (at === messages.length - 1 ? { ...message, reasoning_content: undefined } : message))

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
            function: { name: call.name, arguments: argumentsOf(call) },
          })),
        }),
    ...(toolCallId === undefined ? {} : { tool_call_id: toolCallId }),
    ...(name === undefined ? {} : { name }),
  }
}
