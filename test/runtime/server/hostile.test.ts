/** Sends malformed and hostile requests: each gets the right status and an error in JSON, and the server still works after all of them. */
import { connect } from 'node:net'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { serving, type Serving } from './support/serving.js'

const BODY_LIMIT = 256 * 1024

let served: Serving

beforeAll(async () => {
  served = await serving({ bodyLimit: BODY_LIMIT })
})

afterAll(() => served.close())

interface Hostile {
  readonly name: string
  readonly path: string
  readonly method?: string
  readonly body?: string | Uint8Array
  readonly headers?: Readonly<Record<string, string>>
  readonly status: number
  /** The field that the error must name. */
  readonly param?: string
}

const user = { role: 'user', content: 'Hi' }
const chat = (fields: object): string => JSON.stringify({ messages: [user], max_tokens: 2, ...fields })
const nested = (depth: number, open: string, close: string): string => open.repeat(depth) + close.repeat(depth)

const CHAT = '/v1/chat/completions'

/** Fields of a chat completion with invalid values. Null is not among them, because a null field counts as missing. */
const FIELDS: readonly (readonly [param: string, values: readonly unknown[]])[] = [
  ['model', [7, {}, [], true, 'm'.repeat(2000)]],
  ['messages', ['Hi', {}, 7, [], true]],
  ['max_tokens', [-2, 1.5, '5', []]],
  ['max_completion_tokens', [-7, 'many']],
  ['temperature', [-0.1, 101, 'hot', {}]],
  ['top_p', [-1, 1.1, 'x']],
  ['top_k', [-2, 1.5, 'x']],
  ['min_p', [-1, 2]],
  ['repetition_penalty', [0, -1, 'x']],
  ['frequency_penalty', [-3, 3, []]],
  ['presence_penalty', [-3, 3, []]],
  ['seed', [1.5, 'x', {}, 1e300]],
  ['n', [0, -1, 17, 1e9, 1.5, '2']],
  ['stop', [7, {}, Array.from({ length: 17 }, () => 'x')]],
  ['stream', ['yes', 1, {}]],
  ['stream_options', ['x', 7]],
  ['logprobs', [1, 'x']],
  ['top_logprobs', [-1, 21, 2.5, 3]],
  ['logit_bias', [7, 'x', { a: 'x' }, { '-1': 1 }, [['a', true]], [1]]],
  ['tools', ['x', {}, 7]],
  ['tool_choice', [7, 'sometimes', 'required', []]],
  ['parallel_tool_calls', ['x', 1]],
  ['response_format', ['json', 7, []]],
  ['kvfold', ['x', [], 7]],
  ['functions', [[]]],
  ['function_call', ['auto']],
  ['audio', [{}]],
  ['modalities', [['audio'], 'text']],
]

/** Chat completions that are invalid further inside. */
const INSIDE: readonly (readonly [param: string, fields: object])[] = [
  ['messages[0]', { messages: [7] }],
  ['messages[0].role', { messages: [{ content: 'x' }] }],
  ['messages[0].role', { messages: [{ role: 'root', content: 'x' }] }],
  ['messages[0].content', { messages: [{ role: 'user' }] }],
  ['messages[0].content', { messages: [{ role: 'user', content: 7 }] }],
  ['messages[0].content', { messages: [{ role: 'user', content: { type: 'text' } }] }],
  ['messages[0].content[0]', { messages: [{ role: 'user', content: ['x'] }] }],
  ['messages[0].content[0]', { messages: [{ role: 'user', content: [{ text: 'x' }] }] }],
  ['messages[0].content[0].text', { messages: [{ role: 'user', content: [{ type: 'text' }] }] }],
  ['messages[0].content[0].type', { messages: [{ role: 'user', content: [{ type: 'input_audio', input_audio: {} }] }] }],
  ['messages[0].content[0].type', { messages: [{ role: 'user', content: [{ type: '__proto__', text: 'x' }] }] }],
  ['messages[0].content[0].type', { messages: [{ role: 'user', content: [{ type: 'toString', text: 'x' }] }] }],
  ['messages[0].tool_call_id', { messages: [{ role: 'tool', content: 'x' }] }],
  ['messages[0].tool_calls', { messages: [{ role: 'user', content: 'x', tool_calls: 'x' }] }],
  [
    'messages[0].tool_calls',
    { messages: [{ role: 'user', content: 'x', tool_calls: [{ id: 'a', function: { name: 'f', arguments: '' } }] }] },
  ],
  [
    'messages[0].tool_calls[0].id',
    { messages: [{ role: 'assistant', tool_calls: [{ function: { name: 'f', arguments: '' } }] }, user] },
  ],
  ['messages[0].tool_calls[0].function', { messages: [{ role: 'assistant', tool_calls: [{ id: 'a' }] }, user] }],
  [
    'messages[0].tool_calls[0].function.arguments',
    { messages: [{ role: 'assistant', tool_calls: [{ id: 'a', function: { name: 'f', arguments: {} } }] }, user] },
  ],
  [
    'messages[0].tool_calls[0].type',
    {
      messages: [{ role: 'assistant', tool_calls: [{ id: 'a', type: 'custom', function: { name: 'f', arguments: '' } }] }, user],
    },
  ],
  ['messages[0].function_call', { messages: [{ role: 'assistant', function_call: {} }, user] }],
  ['stop[0]', { stop: [1] }],
  ['tools[0]', { tools: [7] }],
  ['tools[0].type', { tools: [{}] }],
  ['tools[0].type', { tools: [{ type: 'nonsense' }] }],
  ['tools[0].function', { tools: [{ type: 'function' }] }],
  ['tools[0].function.name', { tools: [{ type: 'function', function: {} }] }],
  ['tools[0].function.name', { tools: [{ type: 'function', function: { name: 'a b' } }] }],
  ['tools[0].function.name', { tools: [{ type: 'function', function: { name: '"}' } }] }],
  ['tools[0].function.parameters', { tools: [{ type: 'function', function: { name: 'a', parameters: 'x' } }] }],
  ['tools[1].function.name', { tools: [1, 2].map(() => ({ type: 'function', function: { name: 'a' } })) }],
  [
    'tool_choice',
    { tools: [{ type: 'function', function: { name: 'a' } }], tool_choice: { type: 'function', function: { name: 'b' } } },
  ],
  ['tool_choice.allowed_tools.mode', { tool_choice: { type: 'allowed_tools' } }],
  ['tool_choice.allowed_tools.tools', { tool_choice: { type: 'allowed_tools', allowed_tools: { mode: 'auto', tools: [] } } }],
  ['tool_choice.type', { tool_choice: { type: 'mcp' } }],
  ['samplers[1]', { samplers: ['top_k', 'top_z'] }],
  ['samplers[0]', { samplers: '?' }],
  ['reasoning_format', { reasoning_format: 'none' }],
  ['prompt_logprobs', { prompt_logprobs: 21 }],
  ['tool_choice.function.name', { tool_choice: { type: 'function', function: {} } }],
  ['response_format.type', { response_format: {} }],
  ['response_format.type', { response_format: { type: 'xml' } }],
  ['response_format.json_schema.schema', { response_format: { type: 'json_schema' } }],
  ['response_format.json_schema.schema', { response_format: { type: 'json_schema', json_schema: { schema: 'x' } } }],
  ['kvfold.acm', { kvfold: { acm: 'always' } }],
  ['kvfold.contract', { kvfold: { contract: 'loose' } }],
  ['kvfold.thread', { kvfold: { thread: '' } }],
  ['kvfold.thread', { kvfold: { thread: 't'.repeat(300) } }],
  ['kvfold.timeout', { kvfold: { timeout: 0 } }],
  ['kvfold.timeout', { kvfold: { timeout: -5 } }],
  ['kvfold.priority', { kvfold: { priority: 1e9 } }],
  ['kvfold.ping', { kvfold: { ping: 0 } }],
  ['kvfold.policy.threshold', { kvfold: { policy: { threshold: 2 } } }],
  ['kvfold.policy.tresholds', { kvfold: { policy: { tresholds: 1 } } }],
  ['kvfold.ledgers', { kvfold: { ledgers: true } }],
  ['kvfold.grammar', { kvfold: { grammar: '' } }],
  ['kvfold.grammar', { kvfold: { grammar: 'root ::= "a"' }, response_format: { type: 'json_object' } }],
]

/** Bodies of other routes. */
const OTHERS: readonly (readonly [path: string, param: string, body: object])[] = [
  ['/v1/completions', 'prompt', {}],
  ['/v1/completions', 'prompt', { prompt: 7 }],
  ['/v1/completions', 'prompt', { prompt: [] }],
  ['/v1/completions', 'prompt', { prompt: Array.from({ length: 65 }, () => 'a') }],
  ['/v1/completions', 'prompt[1]', { prompt: [1, -2] }],
  ['/v1/completions', 'prompt[0]', { prompt: [1.5] }],
  ['/v1/completions', 'prompt[0]', { prompt: [2 ** 32 + 1] }],
  ['/v1/completions', 'prompt[0]', { prompt: [[], []] }],
  ['/v1/completions', 'prompt[0][0]', { prompt: [[[[]]]] }],
  ['/v1/completions', 'stream', { prompt: 'x', echo: true, logprobs: 1, stream: true }],
  ['/v1/completions', 'max_tokens', { prompt: 'x', max_tokens: -2 }],
  ['/completion', 'n_predict', { prompt: 'x', n_predict: -2 }],
  ['/completion', 'logit_bias', { prompt: 'x', logit_bias: [['a', true]] }],
  ['/completion', 'stream', { prompt: ['x', 'y'], stream: true }],
  ['/completion', 'logit_bias', { prompt: 'x', logit_bias: [['x'.repeat(65_537), 1]] }],
  ['/completion', 'prompt.multimodal_data', { prompt: { prompt_string: 'x', multimodal_data: [] } }],
  ['/v1/completions', 'prompt', { prompt: [1], suffix: 'y' }],
  ['/infill', 'input_suffix', { input_prefix: 'x' }],
  ['/infill', 'input_extra[0].text', { input_prefix: 'x', input_suffix: 'y', input_extra: [{}] }],
  ['/v1/completions', 'best_of', { prompt: 'x', best_of: 3 }],
  ['/v1/completions', 'logprobs', { prompt: 'x', logprobs: 50 }],
  ['/v1/completions', 'response_format.type', { prompt: 'x', response_format: { type: 'xml' } }],
  ['/v1/completions', 'json_schema', { prompt: 'x', json_schema: 'object' }],
  ['/v1/completions', 'kvfold.acm', { prompt: 'x', kvfold: { acm: 'tools' } }],
  ['/v1/responses', 'input', {}],
  ['/v1/responses', 'input', { input: 7 }],
  ['/v1/responses', 'input', { input: [] }],
  ['/v1/responses', 'input[0]', { input: [7] }],
  ['/v1/responses', 'input[0].role', { input: [{ content: 'x' }] }],
  ['/v1/responses', 'input[0].content', { input: [{ role: 'user' }] }],
  [
    '/v1/responses',
    'input[0].content[0].type',
    { input: [{ role: 'user', content: [{ type: 'input_image', image_url: 'x' }] }] },
  ],
  ['/v1/responses', 'input[0].encrypted_content', { input: [{ type: 'compaction', id: 'x' }] }],
  ['/v1/responses', 'input[0].type', { input: [{ type: { a: 1 } }] }],
  ['/v1/responses', 'input[0].call_id', { input: [{ type: 'function_call_output', output: 'x' }] }],
  ['/v1/responses', 'input[0].arguments', { input: [{ type: 'function_call', call_id: 'a', name: 'f' }] }],
  ['/v1/responses', 'background', { input: 'x', background: true }],
  ['/v1/responses', 'conversation', { input: 'x', conversation: 'c' }],
  ['/v1/responses', 'prompt', { input: 'x', prompt: { id: 'p' } }],
  ['/v1/responses', 'truncation', { input: 'x', truncation: 'middle' }],
  ['/v1/responses', 'top_logprobs', { input: 'x', top_logprobs: 3 }],
  ['/v1/responses', 'max_tool_calls', { input: 'x', max_tool_calls: 3 }],
  ['/v1/responses', 'tools[0].type', { input: 'x', tools: [{ type: 'search_files' }] }],
  ['/v1/responses', 'text.format.schema', { input: 'x', text: { format: { type: 'json_schema' } } }],
  ['/v1/responses', 'instructions', { input: 'x', instructions: 7 }],
  ['/v1/embeddings', 'input', {}],
  ['/v1/embeddings', 'input.multimodal_data', { input: { prompt_string: 'x', multimodal_data: [] } }],
  ['/embedding', 'content[0].multimodal_data', { content: [{ prompt_string: 'x', multimodal_data: [] }] }],
  ['/pooling', 'input.multimodal_data', { input: { prompt_string: 'x', multimodal_data: [] } }],
  ['/v1/embeddings', 'input', { input: [] }],
  ['/v1/embeddings', 'input[1]', { input: ['x', {}] }],
  ['/v1/embeddings', 'input[0]', { input: [2 ** 32 + 1] }],
  ['/v1/embeddings', 'dimensions', { input: 'x', dimensions: 0 }],
  ['/v1/embeddings', 'encoding_format', { input: 'x', encoding_format: 'hex' }],
  ['/tokenize', 'content', {}],
  ['/tokenize', 'content', { content: 7 }],
  ['/detokenize', 'tokens', {}],
  ['/detokenize', 'tokens[1]', { tokens: [1, -1] }],
  ['/detokenize', 'tokens[0]', { tokens: ['x'] }],
  ['/detokenize', 'tokens[0]', { tokens: [1e12] }],
  ['/kvfold/threads/x/fragments', 'startMarker', { endMarker: 'x' }],
  ['/kvfold/threads/x/fragments', 'numFragments', { startMarker: 'a', endMarker: 'b', numFragments: 0 }],
  ['/kvfold/threads/x/fragments', 'fragments', { startMarker: 'a', endMarker: 'b', fragments: 3 }],
  ['/kvfold/threads/x/search', 'query', { query: '' }],
  ['/kvfold/threads/x/search', 'role', { query: 'a', role: 'root' }],
]

/** Bodies of Anthropic's route, whose errors do not name the field separately. */
const MESSAGES: readonly (readonly [says: string, body: object])[] = [
  ['messages', { max_tokens: 5 }],
  ['max_tokens', { messages: [user] }],
  ['max_tokens', { messages: [user], max_tokens: 0 }],
  ['messages[0].role', { messages: [{ role: 'tool', content: 'x' }], max_tokens: 5 }],
  ['messages[0].content', { messages: [{ role: 'user' }], max_tokens: 5 }],
  ['messages[0].content[0]', { messages: [{ role: 'user', content: [7] }], max_tokens: 5 }],
  [
    'messages[0].content[0] is of type "image"',
    { messages: [{ role: 'user', content: [{ type: 'image', source: {} }] }], max_tokens: 5 },
  ],
  ['messages[0].content[0].tool_use_id', { messages: [{ role: 'user', content: [{ type: 'tool_result' }] }], max_tokens: 5 }],
  [
    'messages[0].content[0].input',
    { messages: [{ role: 'assistant', content: [{ type: 'tool_use', id: 'a', name: 'f', input: 'x' }] }, user], max_tokens: 5 },
  ],
  ['tools[0] is of type', { messages: [user], max_tokens: 5, tools: [{ type: 'computer_20250124', name: 'computer' }] }],
  ['tool_choice.name', { messages: [user], max_tokens: 5, tool_choice: { type: 'tool' } }],
  ['mcp_servers', { messages: [user], max_tokens: 5, mcp_servers: [{}] }],
  ['temperature', { messages: [user], max_tokens: 5, temperature: 1.5 }],
  ['output_config.format.type', { messages: [user], max_tokens: 5, output_config: { format: { type: 'xml' } } }],
  ['system', { messages: [user], max_tokens: 5, system: 7 }],
]

const CASES: readonly Hostile[] = [
  ...FIELDS.flatMap(([param, values]) =>
    values.map((value, index): Hostile => {
      const body = chat({ [param]: value })
      return { name: `${param} = ${JSON.stringify(value).slice(0, 30)} (${index})`, path: CHAT, body, status: 400, param }
    }),
  ),
  ...INSIDE.map(([param, fields]): Hostile => ({
    name: `${param} in ${JSON.stringify(fields).slice(0, 60)}`,
    path: CHAT,
    body: chat(fields),
    status: 400,
    param,
  })),
  ...OTHERS.map(([path, param, body]): Hostile => ({
    name: `${path} ${JSON.stringify(body).slice(0, 60)}`,
    path,
    body: JSON.stringify(body),
    status: 400,
    param,
  })),
  { name: 'no body', path: CHAT, method: 'POST', status: 400 },
  { name: 'an empty body', path: CHAT, body: '', status: 400 },
  { name: 'blanks', path: CHAT, body: '  \n ', status: 400, param: 'body' },
  { name: 'no JSON', path: CHAT, body: 'messages=Hi', status: 400, param: 'body' },
  { name: 'JSON that ends too early', path: CHAT, body: '{"messages":[{"role":"user"', status: 400, param: 'body' },
  { name: 'JSON with something after it', path: CHAT, body: `${chat({})} x`, status: 400, param: 'body' },
  { name: 'NaN', path: CHAT, body: '{"messages":[],"temperature":NaN}', status: 400, param: 'body' },
  {
    name: 'a number too large',
    path: CHAT,
    body: '{"messages":[{"role":"user","content":"x"}],"max_tokens":1e999}',
    status: 400,
    param: 'max_tokens',
  },
  ...['null', '7', '"x"', '[]', 'true'].map((body): Hostile => ({
    name: `the body ${body}`,
    path: CHAT,
    body,
    status: 400,
    param: 'body',
  })),
  { name: 'lists 100,000 deep', path: CHAT, body: nested(100_000, '[', ']'), status: 400, param: 'body' },
  {
    name: 'objects 30,000 deep',
    path: CHAT,
    body: nested(30_000, '{"a":', '}').replace(':}', ':1}'),
    status: 400,
    param: 'body',
  },
  {
    name: 'a deep schema',
    path: CHAT,
    body: chat({ response_format: { type: 'json_schema', json_schema: { schema: 0 } } }).replace(
      ':0',
      `:${nested(200, '{"not":', '}').replace(':}', ':{}}')}`,
    ),
    status: 400,
    param: 'body',
  },
  {
    name: 'brackets in a string only',
    path: CHAT,
    body: chat({ model: nested(400, '[', ']') }),
    status: 404,
  },
  {
    name: '__proto__',
    path: CHAT,
    body: '{"messages":[{"role":"user","content":"x"}],"__proto__":{"stream":true}}',
    status: 400,
    param: 'body',
  },
  {
    name: '__proto__ further inside',
    path: CHAT,
    body: '{"messages":[{"role":"user","content":"x","__proto__":{"a":1}}]}',
    status: 400,
    param: 'body',
  },
  { name: '__proto__ in escapes', path: CHAT, body: '{"messages":[],"\\u005f_proto__":{"a":1}}', status: 400, param: 'body' },
  {
    name: 'constructor.prototype',
    path: CHAT,
    body: '{"messages":[],"constructor":{"prototype":{"a":1}}}',
    status: 400,
    param: 'body',
  },
  {
    name: 'bad UTF-8',
    path: CHAT,
    body: Buffer.concat([Buffer.from('{"messages":[{"role":"user","content":"'), Buffer.from([0xff, 0xfe]), Buffer.from('"}]}')]),
    status: 400,
    param: 'body',
  },
  { name: 'half a character', path: CHAT, body: Buffer.from(chat({ model: 'ü' })).subarray(0, -3), status: 400, param: 'body' },
  { name: 'UTF-16', path: CHAT, body: Buffer.from(chat({}), 'utf16le'), status: 400, param: 'body' },
  {
    name: 'a body of random bytes',
    path: CHAT,
    body: Buffer.from(Array.from({ length: 4096 }, (_, index) => (index * 197 + 13) % 256)),
    status: 400,
    param: 'body',
  },
  { name: 'a body over the limit', path: CHAT, body: chat({ model: 'm'.repeat(BODY_LIMIT) }), status: 413 },
  { name: 'another content type', path: CHAT, body: chat({}), headers: { 'content-type': 'text/html' }, status: 415 },
  {
    name: 'a form of parts',
    path: CHAT,
    body: '--b\r\n\r\n{}\r\n--b--',
    headers: { 'content-type': 'multipart/form-data; boundary=b' },
    status: 415,
  },
  { name: 'a form', path: CHAT, body: 'a=b', headers: { 'content-type': 'application/x-www-form-urlencoded' }, status: 400 },
  { name: 'a broken content type', path: CHAT, body: chat({}), headers: { 'content-type': '///' }, status: 415 },
  { name: 'a compressed body', path: CHAT, body: chat({}), headers: { 'content-encoding': 'gzip' }, status: 415 },
  { name: 'an unknown model', path: CHAT, body: chat({ model: 'gpt-9' }), status: 404 },
  { name: 'a path as a model', path: CHAT, body: chat({ model: '../../etc/passwd' }), status: 404 },
  { name: 'a model of control characters', path: CHAT, body: chat({ model: '\u0000\u001b[2J' }), status: 404 },
  { name: 'an unknown thread', path: CHAT, body: chat({ kvfold: { thread: 'thread_of_somebody' } }), status: 404 },
  { name: 'a grammar that is none', path: CHAT, body: chat({ kvfold: { grammar: 'root ::= (' } }), status: 400 },
  {
    name: 'a schema that is beyond us',
    path: CHAT,
    body: chat({ response_format: { type: 'json_schema', json_schema: { schema: { $ref: '#/nowhere' } } } }),
    status: 400,
  },
  {
    name: 'a prompt that does not fit',
    path: CHAT,
    body: chat({ messages: [{ role: 'user', content: 'word '.repeat(40_000) }] }),
    status: 400,
  },
  { name: 'tokens that are none', path: '/v1/completions', body: JSON.stringify({ prompt: [2_000_000_000] }), status: 400 },
  { name: 'tokens that are none, to text', path: '/detokenize', body: JSON.stringify({ tokens: [2_000_000_000] }), status: 400 },
  {
    name: 'an unknown earlier response',
    path: '/v1/responses',
    body: JSON.stringify({ input: 'x', previous_response_id: 'resp_x_1' }),
    status: 404,
    param: 'previous_response_id',
  },
  {
    name: 'an earlier response that is none',
    path: '/v1/responses',
    body: JSON.stringify({ input: 'x', previous_response_id: '../x' }),
    status: 404,
    param: 'previous_response_id',
  },
  { name: 'an unknown path', path: '/v1/nothing', status: 404 },
  { name: 'a path above', path: '/v1/../../../etc/passwd', status: 404 },
  { name: 'a path above, encoded', path: '/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd', status: 404 },
  { name: 'a NUL in a path', path: '/v1/models/%00', status: 404 },
  { name: 'a broken escape', path: '/v1/models/%zz', status: 400 },
  { name: 'a broken character in a path', path: '/kvfold/threads/%ff', status: 400 },
  { name: 'a long path', path: `/v1/models/${'m'.repeat(6000)}`, status: 404 },
  { name: 'a long id', path: `/kvfold/threads/${'t'.repeat(300)}`, status: 414 },
  { name: 'an unknown thread by path', path: '/kvfold/threads/nobody', status: 404 },
  { name: '__proto__ as a thread', path: '/kvfold/threads/__proto__', status: 404 },
  { name: 'an unknown thread to fold in', path: '/kvfold/threads/nobody/fragments/f1/fold', body: '{}', status: 404 },
  { name: 'an unknown thread to delete', path: '/kvfold/threads/nobody', method: 'DELETE', status: 404 },
  {
    name: 'a detail of nothing',
    path: '/kvfold/threads/nobody/search/s1?extendedContext=-5',
    status: 400,
    param: 'extendedContext',
  },
  { name: 'the wrong method', path: CHAT, method: 'GET', status: 405 },
  { name: 'the wrong method for health', path: '/health', body: '{}', status: 405 },
  { name: 'a method nobody knows', path: CHAT, method: 'PROPFIND', status: 405 },
]

describe('hostile requests', () => {
  it.each(CASES.map((one) => [one.name, one] as const))('%s', async (_, { path, method, body, headers, status, param }) => {
    const answer = await raw(path, { method: method ?? (body === undefined ? 'GET' : 'POST'), body, headers })
    const error = (JSON.parse(answer.body) as { error: { message: string; type: string; param: string | null; code: string } })
      .error
    expect({ status: answer.status, ...error }).toMatchObject({ status, ...(param === undefined ? {} : { param }) })
    expect(answer.head).toMatch(/content-type: application\/json/i)
    expect(error.message).toMatch(/\.$|: /)
    expect(error.code).not.toBe('internal/invariant')
  })

  it.each(MESSAGES)('/v1/messages: %s', async (says, body) => {
    const answer = await raw('/v1/messages', { method: 'POST', body: JSON.stringify(body) })
    const { type, error } = JSON.parse(answer.body) as { type: string; error: { type: string; message: string } }
    expect(answer.status).toBe(400)
    expect(type).toBe('error')
    expect(error.type).toBe('invalid_request_error')
    expect(error.message).toContain(says)
  })

  it.each([
    ['headers of 64 KiB', `GET /health HTTP/1.1\r\nhost: localhost\r\nx-flood: ${'x'.repeat(65_536)}\r\n\r\n`, 431],
    [
      '3,000 headers',
      `GET /health HTTP/1.1\r\nhost: localhost\r\n${Array.from({ length: 3000 }, (_, index) => `x-${index}: y`).join('\r\n')}\r\n\r\n`,
      431,
    ],
    ['no HTTP at all', 'HELLO THERE\r\n\r\n', 400],
    ['a header with a line break', 'GET /health HTTP/1.1\r\nhost: localhost\r\nx: a\rb\r\n\r\n', 400],
    ['two lengths', 'POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\ncontent-length: 9\r\n\r\n{}', 400],
    [
      'a length and chunks',
      'POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n',
      400,
    ],
    ['a negative length', 'POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n', 400],
    [
      'broken chunks',
      'POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n',
      400,
    ],
    ['no host', 'GET /health HTTP/1.1\r\n\r\n', 400],
    [
      'a name that was rebound to this machine',
      'GET /v1/models HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n',
      403,
    ],
  ] as const)('%s', async (_, text, status) => {
    const answer = await bytes(text)
    expect(Number(/^HTTP\/1\.1 (\d+)/.exec(answer)?.[1])).toBe(status)
    // Node itself answers a request without a host.
    if (text !== 'GET /health HTTP/1.1\r\n\r\n')
      expect(JSON.parse(answer.slice(answer.indexOf('\r\n\r\n') + 4))).toMatchObject({ error: { type: 'invalid_request_error' } })
  })

  it('survives half a request and a client that hangs up', async () => {
    await new Promise<void>((resolve) => {
      const { port } = new URL(served.url)
      const socket = connect(Number(port), '127.0.0.1', () => {
        socket.write(
          'POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"mess',
        )
        setTimeout(() => {
          socket.destroy()
          resolve()
        }, 50)
      })
    })
  })

  it('leaves the server working', async () => {
    expect(CASES.length + MESSAGES.length).toBeGreaterThanOrEqual(200)
    expect(await (await fetch(`${served.url}/health`)).json()).toEqual({ status: 'ok' })
    const answer = await raw(CHAT, { method: 'POST', body: chat({}) })
    expect(answer.status).toBe(200)
    expect(served.service.status()).toMatchObject({ running: 0, queue: { waiting: 0 } })
    expect(({} as Record<string, unknown>)['stream']).toBeUndefined()
    expect(served.log.filter((line) => line.includes('"level":50'))).toEqual([])
  })
})

/** Sends a request byte for byte; `fetch` would normalise paths and methods. */
async function raw(
  path: string,
  {
    method,
    body,
    headers = {},
  }: { method: string; body?: string | Uint8Array | undefined; headers?: Readonly<Record<string, string>> | undefined },
): Promise<{ status: number; head: string; body: string }> {
  const payload = body === undefined ? Buffer.alloc(0) : Buffer.from(body as string)
  const all: Record<string, string> = {
    host: 'localhost',
    connection: 'close',
    ...(body === undefined ? {} : { 'content-type': 'application/json', 'content-length': String(payload.length) }),
    ...headers,
  }
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}`)
  const answer = await bytes(Buffer.concat([Buffer.from(`${method} ${path} HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n`), payload]))
  const [head = '', ...rest] = answer.split('\r\n\r\n')
  return { status: Number(/^HTTP\/1\.1 (\d+)/.exec(head)?.[1]), head, body: unchunked(head, rest.join('\r\n\r\n')) }
}

function bytes(data: string | Uint8Array): Promise<string> {
  return new Promise((resolve, reject) => {
    const { port } = new URL(served.url)
    let answer = ''
    const socket = connect(Number(port), '127.0.0.1', () => socket.write(data))
    socket.setEncoding('utf8')
    socket.on('data', (text: string) => (answer += text))
    socket.on('close', () => {
      resolve(answer)
    })
    // A server that has read enough may close while the test still writes.
    socket.on('error', (error) => {
      if (answer === '') reject(error)
    })
    socket.setTimeout(30_000, () => socket.destroy(new Error('no answer')))
  })
}

const unchunked = (head: string, body: string): string =>
  /transfer-encoding: chunked/i.test(head) ? body.replace(/^[0-9a-f]+\r\n|\r\n[0-9a-f]+\r\n/gi, '').trim() : body
