/** Owns how an answer becomes Ollama's, whole or a line an event. */
import type { ToolCall } from '../../../chat/message.js'
import type { AnyAnswer, Answer, AskEvent, CompletionAnswer } from '../../ask.js'
import type { Frame } from '../../event-writer.js'
import type { Problem } from '../../problem.js'
import type { StreamShape } from '../../request-lifecycle.js'

/** Of `/api/chat` or `/api/generate`: where they put what the model says. */
export type OllamaKind = 'chat' | 'generate'

const NANOSECONDS = 1e6

export function ollamaAnswer(kind: OllamaKind, answer: Answer | CompletionAnswer): object {
  const [said, thought, calls] =
    'message' in answer
      ? [answer.message.content, answer.message.reasoning ?? '', answer.message.toolCalls ?? []]
      : [answer.text, '', []]
  return { ...part(kind, answer.model, said, thought, calls), ...end(answer) }
}

export class OllamaStream implements StreamShape<Answer | CompletionAnswer> {
  readonly lines = true
  #model = ''

  constructor(private readonly kind: OllamaKind) {}

  on(event: AskEvent): readonly Frame[] {
    if (event.type === 'started') this.#model = event.model
    if (event.type === 'text') return [this.#part(event.text, '', [])]
    if (event.type === 'reasoning') return [this.#part('', event.text, [])]
    if (event.type === 'call') return [this.#part('', '', [event.call])]
    return []
  }

  done(answer: Answer | CompletionAnswer): readonly Frame[] {
    return [{ data: { ...part(this.kind, answer.model, '', '', []), ...end(answer) } }]
  }

  end(): readonly Frame[] {
    return []
  }

  failed(problem: Problem): readonly Frame[] {
    return [{ data: ollamaError(problem) }]
  }

  #part(text: string, thinking: string, calls: readonly ToolCall[]): Frame {
    return { data: { ...part(this.kind, this.#model, text, thinking, calls), done: false } }
  }
}

export const ollamaError = ({ message }: Problem): object => ({ error: message })

function part(kind: OllamaKind, model: string, text: string, thinking: string, calls: readonly ToolCall[]): object {
  const thought = thinking === '' ? {} : { thinking }
  const called =
    calls.length === 0
      ? {}
      : { tool_calls: calls.map(({ id, name, arguments: args }, index) => ({ id, function: { index, name, arguments: args } })) }
  const said =
    kind === 'generate'
      ? { response: text, ...thought }
      : { message: { role: 'assistant', content: text, ...thought, ...called } }
  return { model, created_at: new Date().toISOString(), ...said }
}

/** Times in nanoseconds. */
function end({ finish, timing, usage, waited }: AnyAnswer): object {
  const { firstToken, total } = timing
  const nanoseconds = (milliseconds: number) => Math.round(Math.max(0, milliseconds) * NANOSECONDS)
  return {
    done: true,
    done_reason: finish === 'length' ? 'length' : 'stop',
    total_duration: nanoseconds(waited + total),
    load_duration: nanoseconds(waited),
    prompt_eval_count: usage.promptTokens,
    prompt_eval_duration: nanoseconds(firstToken),
    eval_count: usage.completionTokens,
    eval_duration: nanoseconds(total - firstToken),
  }
}
