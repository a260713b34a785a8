/** Owns the items of a response's input: what they are as messages. */
import { randomUUID } from 'node:crypto'
import type { ChatMessage, ToolCall } from '../../../chat/message.js'
import { FieldError, unsupported } from '../../problem.js'
import { isRecord } from '../../json-body.js'
import type { ResponsePlace } from '../../responses/responses.js'
import { textOf } from '../fields.js'
import { callOf } from '../tools.js'

const PARTS = { input_text: 'text', output_text: 'text', text: 'text', refusal: 'refusal' } as const
const THOUGHTS = { reasoning_text: 'text' } as const

/** An assistant's message as it comes together from items. */
interface Draft {
  reasoning?: string
  content?: string
  readonly calls: ToolCall[]
}

/**
 * What the assistant thought, said and called come as items of their own; those that follow each other are one message, as we sent them.
 * @param names the tools of calls made before, by the calls' ids
 * @throws FieldError
 */
export function messagesOfItems(input: unknown, names = new Map<string, string>()): ChatMessage[] {
  if (typeof input === 'string') return [{ role: 'user', content: input }]
  if (!Array.isArray(input)) throw new FieldError('input', 'input must be a string or a list of items.')
  const messages: ChatMessage[] = []
  let draft: Draft | null = null
  const flush = () => {
    if (draft !== null) messages.push(finished(draft))
    draft = null
  }
  const assistant = (isFull: (draft: Draft) => boolean): Draft => {
    if (draft !== null && isFull(draft)) flush()
    return (draft ??= { calls: [] })
  }
  input.forEach((item: unknown, index) => {
    const place = `input[${index}]`
    if (!isRecord(item)) throw new FieldError(place, `${place} must be an object.`)
    switch (item['type'] ?? 'message') {
      case 'message': {
        const role = roleOf(item['role'], place)
        const content = textOf(item['content'], `${place}.content`, PARTS)
        if (role === 'assistant')
          assistant(({ content: said, calls }) => said !== undefined || calls.length > 0).content = content
        else {
          flush()
          messages.push({ role, content })
        }
        break
      }
      case 'reasoning': {
        const text = Array.isArray(item['content']) ? textOf(item['content'], `${place}.content`, THOUGHTS) : ''
        const target = assistant(
          ({ content, calls, reasoning }) => content !== undefined || calls.length > 0 || reasoning !== undefined,
        )
        if (text !== '') target.reasoning = text
        break
      }
      case 'function_call': {
        const [id, name, args] = [
          stringOf(item, 'call_id', place),
          stringOf(item, 'name', place),
          stringOf(item, 'arguments', place),
        ]
        names.set(id, name)
        assistant(() => false).calls.push(callOf(id, name, args))
        break
      }
      case 'function_call_output': {
        flush()
        const id = stringOf(item, 'call_id', place)
        const name = names.get(id)
        const content = textOf(item['output'], `${place}.output`, PARTS)
        messages.push({ role: 'tool', content, toolCallId: id, ...(name === undefined ? {} : { name }) })
        break
      }
      default:
        throw unsupported(
          `${place}.type`,
          `${place} is of type ${JSON.stringify(item['type']).slice(0, 40)}, which this server does not take.`,
        )
    }
  })
  flush()
  if (messages.length === 0) throw new FieldError('input', 'input is empty.')
  return messages
}

function finished({ content = '', reasoning, calls }: Draft): ChatMessage {
  return {
    role: 'assistant',
    content,
    ...(reasoning === undefined ? {} : { reasoning }),
    ...(calls.length === 0 ? {} : { toolCalls: calls }),
  }
}

function roleOf(role: unknown, place: string): 'system' | 'user' | 'assistant' {
  if (role === 'developer' || role === 'system') return 'system'
  if (role === 'user' || role === 'assistant') return role
  throw new FieldError(`${place}.role`, `${place}.role must be one of "user", "assistant", "system", "developer".`)
}

function stringOf(item: Readonly<Record<string, unknown>>, key: string, place: string): string {
  const value = item[key]
  if (typeof value !== 'string') throw new FieldError(`${place}.${key}`, `${place}.${key} must be a string.`)
  return value
}

// Ids of responses: they say which thread a response stands in and where, so that nothing else has to be kept to go on from one.

export interface InstructedPlace extends ResponsePlace {
  /** Whether the first of them came from `instructions`, which hold for one response only. */
  readonly instructed: boolean
}

export const responseId = ({ thread, messages, instructed }: InstructedPlace): string =>
  `resp_${thread}_${messages}${instructed ? 'i' : ''}`

/** The id of a response that is not to be gone on from. */
export const unstoredId = (): string => `resp_${randomUUID().replaceAll('-', '')}`

/** Null: no id of ours, or one of a response that was not stored. */
export function placeOf(id: string): InstructedPlace | null {
  const [, thread, messages, instructed] = /^resp_(.+)_(\d{1,9})(i?)$/.exec(id) ?? []
  return thread === undefined ? null : { thread, messages: Number(messages), instructed: instructed === 'i' }
}
