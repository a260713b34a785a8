/**
 * Renders conversations as agents and client packages send them (docs/clients.md), with every real template: each message must be shown.
 */
import { describe, expect, it } from 'vitest'
import type { ChatMessage } from '../../../../src/runtime/chat/message.js'
import { atOnce } from '../../../../src/runtime/core/turns.js'
import { messagesAsk, type MessagesRequest } from '../../../../src/runtime/server/dialects/anthropic/messages-ask.js'
import { chatAsk, type ChatRequest } from '../../../../src/runtime/server/dialects/openai/chat.js'
import { messagesOfItems } from '../../../../src/runtime/server/dialects/openai/response-items.js'
import { resultsInOrder } from '../../../../src/runtime/server/dialects/results.js'
import { realTemplates } from '../../../support/bundle.js'
import { coversAll, ruledFormat, shownContents } from '../../../support/chat-formats.js'
import { weatherTool } from '../../../support/conversations.js'

const system = (content: unknown) => ({ role: 'system' as const, content })
const user = (content: unknown) => ({ role: 'user' as const, content })
const answer = (content: string, more: object = {}) => ({ role: 'assistant' as const, content, ...more })
const text = (of: string, type = 'text') => ({ type, text: of })
const call = (id: string, city: string) => ({
  ...{ id, type: 'function' as const },
  function: { name: 'get_weather', arguments: city.startsWith('{') ? city : JSON.stringify({ city }) },
})
const calling = (...calls: readonly ReturnType<typeof call>[]) => ({ role: 'assistant' as const, tool_calls: [...calls] })
const result = (id: string, content: unknown) => ({ role: 'tool' as const, tool_call_id: id, content })

const chat = (...messages: ChatRequest['messages']): readonly ChatMessage[] =>
  atOnce(chatAsk({ messages, add_generation_prompt: true }, 'public', {})).messages
const anthropic = (request: Omit<MessagesRequest, 'max_tokens'>): readonly ChatMessage[] =>
  atOnce(messagesAsk({ max_tokens: 9, ...request }, 'public', {})).messages
const responses = (instructions: string, ...input: readonly object[]): readonly ChatMessage[] => [
  { role: 'system', content: instructions },
  ...atOnce(resultsInOrder(atOnce(messagesOfItems(input)))),
]

const developer = (of: string) => ({ type: 'message', role: 'developer', content: [text(of, 'input_text')] })
const asked = (of: string) => ({ type: 'message', role: 'user', content: [text(of, 'input_text')] })
const said = (of: string) => ({ type: 'message', role: 'assistant', content: [text(of, 'output_text')] })
const functionCall = (id: string, given: string) => ({
  type: 'function_call',
  call_id: id,
  name: 'get_weather',
  arguments: given,
})
const output = (id: string, of: unknown) => ({ type: 'function_call_output', call_id: id, output: of })

const use = (id: string, city: string) => ({ type: 'tool_use', id, name: 'get_weather', input: { city } })
const used = (id: string, content: unknown, more: object = {}) => ({ type: 'tool_result', tool_use_id: id, content, ...more })

const SHAPES: Readonly<Record<string, readonly ChatMessage[]>> = {
  'Codex: instructions, a developer item, the environment, a turn with two calls': responses(
    'You are a coding agent.',
    ...[developer('<permissions>read only</permissions>'), asked('<environment_context>linux</environment_context>')],
    ...[asked('Look around.'), { type: 'reasoning', summary: [], content: [text('Hm.', 'reasoning_text')] }],
    ...[functionCall('fc_1', '{"city":"Rome"}'), functionCall('fc_2', '{"city":"Oslo"}')],
    ...[output('fc_2', 'ice'), output('fc_1', 'sun'), said('Sun and ice.'), asked('Thanks, and now?')],
  ),
  'Codex: a turn that was interrupted, and a developer item later on': responses(
    'You are a coding agent.',
    ...[asked('Look around.'), functionCall('fc_1', '{"city":"Ro'), output('fc_1', 'aborted')],
    ...[asked('<turn_aborted>'), developer('The mode is now: plan.'), asked('Go on.')],
  ),
  'Codex: an image in a result': responses(
    'You are a coding agent.',
    ...[asked('Shoot.'), functionCall('fc_1', '{}'), output('fc_1', [{ type: 'input_image', image_url: 'data:,' }])],
  ),
  'Claude Code: a system prompt in blocks, reminders beside results, an error': anthropic({
    system: [text('You are a coding agent.'), text('Be short.')],
    messages: [
      user([text('<system-reminder>Context.</system-reminder>'), text('Look around.')]),
      {
        role: 'assistant',
        content: [{ type: 'thinking', thinking: 'Hm.', signature: '' }, use('tu_1', 'Rome'), use('tu_2', 'Oslo')],
      },
      user([text('[Request interrupted]'), used('tu_2', 'no', { is_error: true }), used('tu_1', [text('sun')]), text('Go on.')]),
    ],
  }),
  'Claude Code: interrupted before the result': anthropic({
    system: 'You are a coding agent.',
    messages: [
      user('Look around.'),
      ...[{ role: 'assistant' as const, content: [text('Let me see.')] }, user('No, wait.'), user([text('Do this.')])],
      { role: 'assistant', content: [use('tu_1', 'Rome')] },
      user('Stop.'),
    ],
  }),
  'opencode, Continue: two system messages': chat(
    system('You are a coding agent.'),
    system('The project has rules.'),
    user('Hi.'),
  ),
  'pi, Qwen Code: contents in parts, a cut call, its error': chat(
    system([text('You are a coding agent.')]),
    ...[user([text('One.'), text('Two.')]), calling(call('c_1', '{"city": "Ro')), result('c_1', 'Error: no JSON.')],
    ...[calling(call('c_2', 'Rome')), result('c_2', [text('sun')]), answer('Sun.'), user([text('And?')])],
  ),
  '@openai/agents: a handoff, two answers in a row': chat(
    ...[system('You triage.'), user('Weather?'), calling(call('h_1', 'Rome')), result('h_1', 'Transferred.')],
    ...[answer('I am the weather agent.'), answer('Which city?'), user('Oslo.')],
  ),
  'LangChain: messages trimmed to begin with an answer': chat(system('Be kind.'), answer('As I said.'), user('And now?')),
  'LangChain: a developer message in the middle': chat(
    ...[user('Hi.'), answer('Hello.'), { role: 'developer' as const, content: 'Speak French.' }, user('Hello?')],
  ),
  'LlamaIndex: memory as a second system message, two users in a row': chat(
    ...[system('Be kind.'), system('The user likes tea.'), user('Hi.'), user('Anybody there?')],
  ),
  'AI SDK: an empty answer, an answer that was only thought': chat(
    ...[user('Hi.'), answer(''), user('Hello?'), answer('', { reasoning_content: 'Hm.' }), user('Hello!')],
  ),
  'Open WebUI: a system message alone before a long chat, an empty message': chat(
    ...[system(''), user('Hi.'), answer('Hello.'), user('')],
  ),
  'LiteLLM: results of several steps, one of them missing': chat(
    ...[user('Go.'), calling(call('c_1', 'Rome'), call('c_2', 'Oslo')), result('c_2', 'ice'), answer('Half.'), user('So?')],
    ...[calling(call('c_3', 'Bern')), result('c_3', 'fog')],
  ),
}

it('joins text behind a call with the call, as the answer was one message', () => {
  const items = [asked('Look.'), functionCall('fc_1', '{"city":"Rome"}'), said('I will tell you.'), output('fc_1', 'sun')]
  expect(responses('Be short.', ...items)).toMatchObject([
    {},
    { role: 'user' },
    { role: 'assistant', content: 'I will tell you.', toolCalls: [{ id: 'fc_1' }] },
    { role: 'tool', toolCallId: 'fc_1' },
  ])
})

const tools = [weatherTool]

describe.each(realTemplates())('$name', ({ name, source }) => {
  const { format, tokenizer } = ruledFormat(source)

  it('shows every message of every client', () => {
    for (const [shape, messages] of Object.entries(SHAPES))
      for (const shown of [[], tools]) {
        const rendered = format.render({ messages, tools: shown })
        expect(coversAll(rendered), shape).toBe(true)
        const contents = shownContents(rendered, tokenizer)
        messages.forEach(({ role, content, toolCalls }, index) => {
          // Some templates leave out text beside calls, and this one the system message behind results.
          if (toolCalls !== undefined || (role === 'system' && name === 'mistralai-Mistral-Nemo-Instruct-2407')) return
          expect(contents[index] ?? '', shape).toBe(content)
        })
      }
  })
})
