/** Lists the input items of a stored response, made again from the messages of its thread. */
import type { ChatMessage } from '../../../chat/message.js'
import { FieldError } from '../../problem.js'
import { argumentsOf } from '../tools.js'

interface InputItem {
  readonly id: string
  readonly [field: string]: unknown
}

/**
 * Returns messages as input items.
 * @param response id of the response, which the items' ids contain
 * @param messages those that the response answered, without its `instructions`
 */
export function inputItems(response: string, messages: readonly ChatMessage[]): readonly InputItem[] {
  const status = 'completed'
  const said = (role: string, type: 'input_text' | 'output_text', text: string) => ({
    ...{ type: 'message', role, status },
    content: [{ type, text, ...(type === 'output_text' ? { annotations: [] } : {}) }],
  })
  return messages
    .flatMap((message): object[] => {
      const { role, content, reasoning, toolCalls = [], toolCallId } = message
      if (role === 'tool') return [{ type: 'function_call_output', call_id: toolCallId ?? '', output: content, status }]
      if (role !== 'assistant') return [said(role, 'input_text', content)]
      return [
        ...(reasoning === undefined
          ? []
          : [{ type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text: reasoning }], status }]),
        ...(content === '' && toolCalls.length > 0 ? [] : [said(role, 'output_text', content)]),
        ...toolCalls.map((call) => ({
          ...{ type: 'function_call', call_id: call.id, name: call.name, arguments: argumentsOf(call), status },
        })),
      ]
    })
    .map((item, index) => ({ id: `in_${response}_${index}`, ...item }))
}

/** Query fields of a list page, as in OpenAI's API. */
interface PageQuery {
  readonly limit?: string
  readonly order?: 'asc' | 'desc'
  readonly after?: string
}

/** Returns one page of the items. @throws FieldError when no item has the id `after` */
export function pageOf(items: readonly InputItem[], { limit = '20', order = 'desc', after }: PageQuery): object {
  const all = order === 'asc' ? items : [...items].reverse()
  const from = after === undefined ? 0 : all.findIndex(({ id }) => id === after) + 1
  if (after !== undefined && from === 0)
    throw new FieldError('after', 'after names no input item of this response; leave it out for the first page.')
  const data = all.slice(from, from + Number(limit))
  return {
    ...{ object: 'list', data, first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null },
    has_more: from + data.length < all.length,
  }
}
