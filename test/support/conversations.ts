/** Conversations and tools that chat tests render. */
import type { ChatMessage, ToolDefinition } from '../../src/runtime/chat/message.js'

export const weatherTool: ToolDefinition = {
  name: 'get_weather',
  description: 'Tells the weather.',
  parameters: { type: 'object', properties: { city: { type: 'string', description: 'Where.' } }, required: ['city'] },
}

/** The contents of a conversation: system, user, two tool results, an answer, the user again. */
export type Contents = readonly [string, string, string, string, string, string]

export const plainContents: Contents = ['Be kind.', 'Hi there', 'sun', 'rain', 'Sun and rain', 'Thanks']

/** Makes a conversation of system, user, assistant with two calls, two results, answer, user. */
export function weatherConversation([system, question, first, second, answer, thanks]: Contents = plainContents): ChatMessage[] {
  return [
    { role: 'system', content: system },
    { role: 'user', content: question },
    {
      role: 'assistant',
      content: '',
      toolCalls: [
        { id: 'call_1', name: 'get_weather', arguments: { city: 'Rome' } },
        { id: 'call_2', name: 'get_weather', arguments: { city: 'Oslo' } },
      ],
    },
    { role: 'tool', content: first, name: 'get_weather', toolCallId: 'call_1' },
    { role: 'tool', content: second, name: 'get_weather', toolCallId: 'call_2' },
    { role: 'assistant', content: answer },
    { role: 'user', content: thanks },
  ]
}

/**
 * A conversation with everything that may confuse a template: white space, quotes, escapes, tags, foreign letters, reasoning, typed
 * arguments.
 */
export const oddConversation: readonly ChatMessage[] = [
  { role: 'system', content: '  Be "kind" \\ {{x}}\n' },
  { role: 'user', content: '\n Hi <|im_end|> 😀 é there\t ' },
  {
    role: 'assistant',
    content: 'Let me see.\n',
    reasoning: 'I think\nthus.',
    toolCalls: [{ id: 'call_1', name: 'get_weather', arguments: { city: 'São "P"\n', n: 1.5, b: true, l: [1, null], o: {} } }],
  },
  { role: 'tool', content: ' {"a": 1} ', name: 'get_weather', toolCallId: 'call_1' },
  { role: 'assistant', content: ' Sun </think> and rain\n', reasoning: 'hm' },
  { role: 'user', content: 'Thanks' },
]
