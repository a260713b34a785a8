/** A chat request: its body, with the thread as clients know it, in the format of OpenAI's API; and what to show of it. Pure. */
import type { ChatMessage } from '../chat/message.js'
import { argumentsOf } from './pieces.js'
import type { Acm, ContractChoice, Export, SentMessage, ThreadDetail } from './wire.js'

/** Settings of a chat request. Null: as the thread or the server has it. */
export interface ChatSettings {
  readonly acm: Acm | null
  readonly contract: ContractChoice | null
  readonly temperature: number | null
  readonly maxTokens: number | null
  /** The system message of new threads. Empty: none. */
  readonly system: string
}

export const USUAL: ChatSettings = { acm: null, contract: null, temperature: null, maxTokens: null, system: '' }

/** What to ask, and in which thread. */
export interface ChatTask {
  /** The thread to continue or to branch from. Null: a new one. */
  readonly known: Export | null
  /** How many of the thread's messages come before the question. If not all, the question begins a branch. Default: all. */
  readonly before?: number
  /** The question. Null: the last question is answered again, or a cut-off answer is continued. */
  readonly text: string | null
}

/**
 * Makes the body of the request. The prompt keeps the thread's tools, but `tool_choice` forbids calls (except under memtool), because the
 * dashboard cannot carry them out.
 */
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
    reasoning_control: true,
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

/** Removes the reasoning of the last message. The server continues a cut-off answer only if it comes without reasoning. */
const withoutLastThought = (messages: readonly SentMessage[]): SentMessage[] =>
  messages.map((message, at) => (at === messages.length - 1 ? { ...message, reasoning_content: undefined } : message))

/** Returns the messages as clients know them: without steps and calls that the server carried out itself. */
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

/** A request that is running, that failed, or whose answer the loaded thread does not contain yet. */
export interface Pending {
  /** The question. Null: the last question is answered again, or a cut-off answer is continued. */
  readonly question: string | null
  readonly thread: string | null
  /** The completion's id, by which the server can end its reasoning. Null until the first chunk arrives. */
  readonly completion: string | null
  /** Whether the server has started on it. From then on, the thread contains the question. */
  readonly isBegun: boolean
  /** How many messages of the thread to show above the request. Null for a branch: those before its question. */
  readonly before: number | null
  readonly text: string
  readonly reasoning: string
  readonly notes: readonly string[]
  readonly problem: string | null
  /** `stopped`: the user stopped it; the thread keeps the text generated until then. */
  readonly state: 'running' | 'answered' | 'stopped' | 'failed'
}

/** Returns a text that changes whenever the request takes more room on the page. */
export const sizeOf = (pending: Pending | null): string =>
  pending === null
    ? ''
    : [pending.reasoning.length, pending.text.length, pending.notes.length, pending.problem === null ? '' : 'failed'].join(' ')

/**
 * Divides what to show between the thread and the request. `until`: how many messages of the thread to show; `rest`: what to show of the
 * request below them. After a failure, shows the whole thread, and of the request only what the thread lacks.
 */
export function dividedBetween(
  thread: Pick<ThreadDetail, 'messages' | 'running'>,
  pending: Pending,
): { readonly until: number; readonly rest: Pending } {
  const { length } = thread.messages
  const before = messagesBefore(pending, thread)
  if (pending.state !== 'failed') return { until: before, rest: pending }
  // A request that never began has no text of its own, only that of the cut-off answer which it should continue.
  if (!pending.isBegun) return { until: length, rest: { ...pending, text: '' } }
  if (thread.running) return { until: before, rest: pending }
  const hasAnswer = length > before + (pending.question === null ? 0 : 1)
  if (!hasAnswer) return { until: before, rest: pending }
  return { until: length, rest: { ...pending, question: null, text: '', reasoning: '', notes: [] } }
}

/** Returns how many messages of the thread come before the request's question, or before its answer if it has no question. */
function messagesBefore({ before, question }: Pending, { messages }: Pick<ThreadDetail, 'messages'>): number {
  if (before !== null) return before
  const last = messages.findLastIndex(({ message }) => message.role === 'user')
  return question === null ? last + 1 : last
}
