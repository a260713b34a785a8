/**
 * Holds the server to the request fields that llama-server, OpenAI, vLLM, Anthropic and Ollama document: each is taken, refused with a
 * sentence, or named in `kvfold.ignored`. None is ignored in silence.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Reranker } from '../../../../src/runtime/engine/reranker.js'
import { openNative } from '../../../../src/runtime/native/binding.js'
import { isRecord } from '../../../../src/runtime/core/json.js'
import { Api } from '../../../conformance/api.js'
import { TEST_GPU } from '../../../support/device.js'
import { synthesizeEncoder } from '../../../support/synthetic-encoder.js'
import { serving, type Serving } from '../support/serving.js'

let folder: string
let served: Serving
let api: Api
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-fields-'))
  const path = join(folder, 'ranker.gguf')
  await synthesizeEncoder(path, { architecture: 'bert', pooling: 'rank' })
  const load = async () => Reranker.load(await openNative({ gpu: TEST_GPU }), path, { threads: 1, batchThreads: 1 })
  served = await serving({ embeds: true, service: { reranker: { name: 'ranker', load } } })
  api = new Api(served.url)
})
afterAll(async () => {
  await served.close()
  rmSync(folder, { recursive: true })
})

/** Each field with a value that its own server takes. */
type Fields = Readonly<Record<string, unknown>>

interface Route {
  readonly path: string
  /** The fields without which there is no request. */
  readonly body: Fields
  /** They do what they say, or say something that changes no answer. */
  readonly taken: Fields
  /** The answer is an error that names the field, or tells of it. */
  readonly refused?: Fields
  /** Named in `kvfold.ignored`. */
  readonly ignored?: Fields
  /** Those of the two whose answer would be another with another model: one with tokens for fill-in, or whose template reads them. */
  readonly byModel?: readonly string[]
  /** For a refused field that most requests may have: when it is refused. */
  readonly when?: Readonly<Record<string, string>>
  /** What the page says about the route's fields. */
  readonly note?: string
}

const tool = { type: 'function', function: { name: 'weather', description: '', parameters: { type: 'object', properties: {} } } }
const messages = [{ role: 'user', content: 'Hi' }]
const schema = { type: 'object', properties: {} }

/** Of OpenAI's two completion routes. */
const OPENAI_SAMPLING: Fields = {
  ...{ frequency_penalty: 0.1, presence_penalty: 0.1, logit_bias: { 5: -1 }, seed: 1, temperature: 0.5, top_p: 0.9 },
  ...{
    stop: ['zzz'],
    stream: false,
    stream_options: { include_usage: true, continuous_usage_stats: true, include_obfuscation: false },
    user: 'me',
    n: 1,
  },
}

/** llama-server's sampling fields, which all of its routes take. */
const LLAMA_SAMPLING: Fields = {
  ...{
    dynatemp_range: 0.1,
    dynatemp_exponent: 1,
    top_k: 5,
    min_p: 0.1,
    top_n_sigma: 1,
    xtc_probability: 0.1,
    xtc_threshold: 0.2,
  },
  ...{ typical_p: 0.9, repeat_last_n: 16, repeat_penalty: 1.1, dry_multiplier: 0.5, dry_base: 2, dry_allowed_length: 3 },
  ...{ dry_penalty_last_n: 32, dry_sequence_breakers: ['\n'], mirostat: 2, mirostat_tau: 4, mirostat_eta: 0.2 },
  ...{ adaptive_target: 0.5, adaptive_decay: 0.5, min_keep: 1, samplers: ['top_k', 'temperature'], ignore_eos: true },
  ...{ timings_per_token: true, return_progress: true, cache_prompt: true, sse_ping_interval: 5, lora: [] },
  ...{ grammar: 'root ::= [a-z]', json_schema: schema },
  ...{ 'speculative.n_max': 4, 'speculative.n_min': 1, 'speculative.type': 'ngram-simple' },
}

/** Fields of llama-server that say how its own cache, slots and parsers work, or that kvfold does not have. */
const LLAMA_OTHER: Fields = {
  ...{ n_keep: 1, n_discard: 1, n_indent: 1, n_cache_reuse: 1, t_max_predict_ms: 5, post_sampling_probs: true },
  ...{ backend_sampling: true, verbose: true, grammar_lazy: false, grammar_triggers: [], preserved_tokens: [], chat_format: 0 },
  ...{ generation_prompt: '', parse_tool_calls: true, chat_parser: '', 'speculative.p_min': 0.5 },
}

/** vLLM's sampling fields, which both completion routes take. */
const VLLM_SAMPLING: Fields = {
  ...{ repetition_penalty: 1.1, min_tokens: 1, stop_token_ids: [5], bad_words: ['zzz'], allowed_token_ids: [5, 6, 7] },
  ...{ ignore_eos: true, top_k: 5, min_p: 0.1, return_tokens_as_token_ids: true, return_token_ids: true },
  ...{ structured_outputs: { regex: '[a-z]' }, guided_json: schema, guided_regex: '[a-z]', guided_choice: ['a'] },
  ...{ guided_grammar: 'root ::= [a-z]', cache_salt: 'a' },
}

const VLLM_OTHER: Fields = {
  ...{ use_beam_search: true, length_penalty: 1.1, include_stop_str_in_output: true, skip_special_tokens: false },
  ...{ spaces_between_special_tokens: false, truncate_prompt_tokens: 5, add_special_tokens: false, priority: 1 },
  ...{ request_id: 'a', logits_processors: [] },
  ...{ kv_transfer_params: {}, vllm_xargs: {}, guided_decoding_backend: 'auto', stream_interval: 2, repetition_detection: {} },
}

const LLAMA: Route = {
  path: '/completion',
  body: { prompt: 'a', n_predict: 1 },
  taken: {
    ...LLAMA_SAMPLING,
    ...{ max_tokens: 1, n_cmpl: 2, n: 2, temperature: 0.5, top_p: 0.9, frequency_penalty: 0.1, presence_penalty: 0.1, seed: 1 },
    ...{ logit_bias: [['a', false]], n_probs: 2, stop: ['zzz'], stream: false, return_tokens: true },
    ...{ response_fields: ['content'], id_slot: 0, sse_ping_interval: 5 },
  },
  ignored: {
    ...LLAMA_OTHER,
    reasoning_control: true,
    ...{
      reasoning_format: 'none',
      echo: true,
      max_completion_tokens: 1,
      reasoning_budget_tokens: 3,
      continue_final_message: true,
    },
  },
}

const ROUTES: readonly Route[] = [
  LLAMA,
  {
    path: '/infill',
    body: { input_prefix: 'a', input_suffix: 'b', n_predict: 1 },
    taken: {},
    // The built-in model has no tokens for them (fill.test.ts).
    refused: { input_extra: [{ filename: 'a', text: 'b' }], prompt: 'c' },
    byModel: ['input_extra', 'prompt'],
  },
  {
    path: '/v1/chat/completions',
    body: { model: 'builtin', messages, max_tokens: 1 },
    taken: {
      ...OPENAI_SAMPLING,
      ...LLAMA_SAMPLING,
      reasoning_control: true,
      ...VLLM_SAMPLING,
      ...{
        logprobs: true,
        max_completion_tokens: 1,
        n_predict: 1,
        metadata: {},
        modalities: ['text'],
        parallel_tool_calls: false,
      },
      ...{
        prompt_cache_key: 'a',
        prompt_cache_retention: '24h',
        response_format: { type: 'json_object' },
        safety_identifier: 'a',
      },
      ...{
        service_tier: 'auto',
        reasoning_budget: 3,
        thinking_budget_tokens: 3,
        store: true,
        tools: [tool],
        tool_choice: 'none',
      },
      ...{
        reasoning_format: 'auto',
        add_generation_prompt: true,
        continue_final_message: false,
        regex: '[a-z]',
        ebnf: 'root ::= [a-z]',
        prompt_logprobs: 1,
      },
    },
    refused: {
      ...{ audio: {}, functions: [], function_call: 'auto', prompt_logprobs: -1, structural_tag: '{}' },
      guided_whitespace_pattern: ' ',
    },
    ignored: {
      ...VLLM_OTHER,
      ...LLAMA_OTHER,
      ...{
        prediction: {},
        verbosity: 'low',
        moderation: {},
        echo: true,
        documents: [],
        chat_template: 'x',
        mm_processor_kwargs: {},
        web_search_options: {},
      },
      ...{ include_reasoning: true, best_of: 1, n_probs: 2, id_slot: 0, post_sampling_probs: true },
      ...{ reasoning_effort: 'low', enable_thinking: true },
    },
    byModel: ['reasoning_effort', 'enable_thinking'],
    note: '`kvfold.priority` sets the place in the queue. The chat template belongs to the server: `--chat-template`.',
  },
  {
    path: '/v1/completions',
    body: { model: 'builtin', prompt: 'a', max_tokens: 1 },
    taken: {
      ...OPENAI_SAMPLING,
      ...LLAMA_SAMPLING,
      ...VLLM_SAMPLING,
      ...{ best_of: 1, echo: true, logprobs: 1, prompt_logprobs: 1, response_format: { type: 'json_object' } },
    },
    refused: { suffix: 'b', structural_tag: '{}' },
    ignored: { ...VLLM_OTHER, ...LLAMA_OTHER, reasoning_control: true, prompt_embeds: 'AA==' },
    byModel: ['suffix'],
  },
  {
    path: '/v1/responses',
    body: { model: 'builtin', input: 'Hi', max_output_tokens: 4 },
    taken: {
      ...{
        background: false,
        context_management: [{ type: 'compaction', compact_threshold: 20_000 }],
        instructions: 'Be brief.',
      },
      ...{ metadata: { a: 'b' }, parallel_tool_calls: false, prompt_cache_key: 'a', prompt_cache_retention: '24h' },
      ...{
        safety_identifier: 'a',
        service_tier: 'auto',
        store: false,
        stream: false,
        stream_options: { include_obfuscation: false },
      },
      ...{
        temperature: 0.5,
        top_p: 0.9,
        text: { format: { type: 'text' } },
        tool_choice: 'auto',
        truncation: 'auto',
        user: 'me',
      },
      tools: [{ type: 'function', name: 'weather', parameters: schema }],
      include: ['message.output_text.logprobs'],
      // Those of the other routes, too.
      ...{
        top_k: 5,
        min_p: 0.1,
        seed: 1,
        frequency_penalty: 0.1,
        presence_penalty: 0.1,
        repetition_penalty: 1.1,
        ignore_eos: true,
        timings_per_token: true,
        return_progress: true,
        grammar: 'root ::= [a-z]',
        json_schema: schema,
      },
      ...{ structured_outputs: { regex: '[a-z]' }, regex: '[a-z]', guided_regex: '[a-z]', guided_choice: ['a'], cache_salt: 'a' },
    },
    refused: {
      ...{ conversation: 'a', prompt: { id: 'a' }, max_tool_calls: 1, previous_response_id: 'resp_nothing' },
      top_logprobs: 1,
    },
    ignored: {
      ...{ 'reasoning.effort': { reasoning: { effort: 'low' } }, 'reasoning.summary': { reasoning: { summary: 'auto' } } },
      'text.verbosity': { text: { verbosity: 'low' } },
      'include: reasoning.encrypted_content': { include: ['reasoning.encrypted_content'] },
      'tools[0]: web_search': { tools: [{ type: 'web_search' }] },
      ...{ max_tokens: 1, stop: ['a'], n: 1, priority: 1, request_id: 'a', mm_processor_kwargs: {} },
      ...{ enable_response_messages: true, previous_input_messages: [] },
      'stream_options.continuous_usage_stats': { stream_options: { continuous_usage_stats: true } },
    },
    byModel: ['reasoning.effort'],
    when: { previous_response_id: 'unknown', top_logprobs: 'without include' },
    note:
      'OpenAI has no `max_tokens`, `stop` and `n` on this route: its limit is `max_output_tokens`, and it gives one answer. So kvfold\n' +
      'ignores them, as any field that a route does not have.',
  },
  {
    path: '/v1/embeddings',
    body: { model: 'builtin', input: 'a' },
    taken: { dimensions: 4, encoding_format: 'base64', user: 'me' },
    ignored: {
      ...{
        truncate_prompt_tokens: 3,
        add_special_tokens: false,
        priority: 1,
        request_id: 'a',
        normalize: true,
        embd_normalize: 2,
      },
      ...{ additional_data: {}, mm_processor_kwargs: {}, chat_template: 'x', cache_salt: 'a' },
    },
  },
  {
    path: '/embedding',
    body: { model: 'builtin', content: 'a' },
    taken: { dimensions: 4, user: 'me' },
    ignored: { encoding_format: 'base64', embd_normalize: 2 },
  },
  {
    path: '/pooling',
    body: { model: 'builtin', input: 'a' },
    taken: { task: 'embed', dimensions: 4, encoding_format: 'base64', user: 'me' },
    ignored: {
      ...{ truncate_prompt_tokens: 3, add_special_tokens: false, priority: 1, request_id: 'a', normalize: true },
      ...{ use_activation: true, mm_processor_kwargs: {}, embed_dtype: 'float32', endianness: 'native', cache_salt: 'a' },
    },
  },
  {
    path: '/score',
    body: { model: 'ranker', text_1: 'a', text_2: 'b' },
    taken: {},
    ignored: {
      ...{ truncate_prompt_tokens: 3, priority: 1, request_id: 'a', use_activation: false, mm_processor_kwargs: {} },
      cache_salt: 'a',
    },
  },
  {
    path: '/v1/rerank',
    body: { model: 'ranker', query: 'a', documents: ['b'] },
    taken: { top_n: 1, return_documents: true, raw_scores: true, truncate: false },
    refused: { rank_fields: ['a'], max_tokens_per_doc: 5, truncate_prompt_tokens: 3, instruction: 'a' },
    ignored: { priority: 1, request_id: 'a', use_activation: false, mm_processor_kwargs: {}, truncation_direction: 'Left' },
  },
  {
    path: '/v1/messages',
    body: { model: 'builtin', messages, max_tokens: 1 },
    taken: {
      ...{ cache_control: { type: 'ephemeral' }, metadata: { user_id: 'me' }, service_tier: 'auto', stop_sequences: ['zzz'] },
      ...{ stream: false, system: 'Be brief.', temperature: 0.5, top_k: 5, top_p: 0.9 },
      ...{ tools: [{ name: 'weather', input_schema: schema }], tool_choice: { type: 'none' }, mcp_servers: [] },
      context_management: { edits: [{ type: 'clear_tool_uses_20250919' }] },
      output_config: { format: { type: 'json_schema', schema } },
      output_format: { type: 'json_schema', schema },
    },
    refused: { container: 'a', tools: [{ type: 'computer_20250124', name: 'a' }] },
    ignored: {
      'tools[0]: code_execution_20250825': { tools: [{ type: 'code_execution_20250825', name: 'a' }] },
      ...{ inference_geo: 'us', speed: 'fast', 'thinking.display': { thinking: { type: 'adaptive', display: 'omitted' } } },
      thinking: { type: 'enabled', budget_tokens: 1024 },
      ...{ 'output_config.effort': { output_config: { effort: 'low' } }, min_p: 0.1, user_profile_id: 'a' },
    },
    byModel: ['thinking', 'output_config.effort'],
  },
  {
    path: '/api/chat',
    body: { model: 'builtin', messages, stream: false, options: { num_predict: 1 } },
    taken: { format: 'json', tools: [tool], stream: false, keep_alive: '5m' },
    ignored: { think: true, logprobs: true, top_logprobs: 2, truncate: true, shift: true },
    byModel: ['think'],
    note: 'kvfold never cuts a conversation, so `truncate` and `shift` have no effect: `--overflow` says what happens instead.',
  },
  {
    path: '/api/generate',
    body: { model: 'builtin', prompt: 'a', stream: false, options: { num_predict: 1 } },
    taken: { format: 'json', system: 'Be brief.', raw: true, stream: false, keep_alive: '5m' },
    refused: { suffix: 'b', template: 'x', images: ['AA=='], context: [1] },
    ignored: {
      ...{ think: true, logprobs: true, top_logprobs: 2, truncate: true, shift: true },
      ...{ width: 5, height: 5, steps: 5 },
    },
    byModel: ['think', 'suffix'],
  },
  {
    path: '/api/embed',
    body: { model: 'builtin', input: 'a' },
    taken: { dimensions: 4, truncate: false, keep_alive: '5m' },
    ignored: { options: {} },
  },
  {
    path: '/api/embeddings',
    body: { model: 'builtin', prompt: 'a' },
    taken: { keep_alive: '5m' },
    ignored: { options: {} },
  },
]

/** Ollama's options, which are one field of the request. */
const OPTIONS = {
  taken: {
    ...{ seed: 1, temperature: 0.5, top_k: 5, top_p: 0.9, min_p: 0.1, typical_p: 0.9, repeat_last_n: 16, repeat_penalty: 1.1 },
    ...{
      presence_penalty: 0.1,
      frequency_penalty: 0.1,
      mirostat: 2,
      mirostat_tau: 4,
      mirostat_eta: 0.2,
      stop: ['zzz'],
      num_predict: 1,
    },
  },
  ignored: {
    ...{ tfs_z: 1, penalize_newline: true, num_ctx: 2048, num_keep: 5, num_batch: 8, num_gpu: 1, main_gpu: 0, num_thread: 1 },
    ...{
      use_mmap: true,
      use_mlock: false,
      numa: false,
      low_vram: false,
      vocab_only: false,
      f16_kv: true,
      logits_all: false,
      num_gqa: 1,
    },
  },
  note: 'Those about memory and processors belong to the server: `--context`, `--gpu-layers`, `--threads`.',
} as const

/** Routes of OpenAI's that kvfold lacks. A name in braces stands for any id. */
const ABSENT = [
  ...['/v1/audio/speech', '/v1/audio/transcriptions', '/v1/audio/translations', '/v1/images/generations', '/v1/images/edits'],
  ...['/v1/videos', '/v1/realtime/client_secrets', '/v1/moderations', '/v1/files', '/v1/uploads', '/v1/batches'],
  ...['/v1/vector_stores', '/v1/containers', '/v1/fine_tuning/jobs', '/v1/evals', '/v1/assistants', '/v1/threads'],
  ...['/v1/conversations', '/v1/chat/completions/{id}', '/v1/responses/{id}/cancel'],
]

/** Names beside each other, as many as a line of the page holds. */
function block(names: readonly string[]): string {
  const lines = ['']
  for (const name of names) {
    if (lines.at(-1)!.length + name.length > 130) lines.push('')
    lines[lines.length - 1] += `${name}  `
  }
  return `\`\`\`text\n${lines.map((line) => line.trimEnd()).join('\n')}\n\`\`\`\n`
}

function section({ path, taken, refused = {}, ignored = {}, byModel = [], when = {}, note }: Omit<Route, 'body'>): string {
  const listed = (what: string, fields: Fields) => {
    const names = Object.entries(fields).map(([name, value]) => {
      const told = when[name] === undefined ? name : `${name} (${when[name]})`
      // A field of which only some values are refused has the value beside it.
      return `${name in taken ? `${name}: ${JSON.stringify(value)}` : told}${byModel.includes(name) ? '*' : ''}`
    })
    return names.length === 0 ? '' : `\n${what}:\n${block(names)}`
  }
  const said = note === undefined ? '' : `\n${note}\n`
  return `\n## ${path}${listed('Refused', refused)}${listed('Named as ignored', ignored)}${said}`
}

/** A request, its status and what its answer has beside the text. */
async function example(path: string, more: Fields): Promise<string> {
  const body = { model: 'builtin', messages, ...more }
  const { status, body: said } = await api.post(path, body)
  const { error, kvfold } = said as Readonly<Record<string, unknown>>
  const shown = error === undefined ? { '...': '...', kvfold } : { error }
  return `POST ${path}\n${JSON.stringify(body)}\n\n${status}\n${JSON.stringify(shown).replace('"...":"..."', '...')}`
}

/** The page of fields: what each route refuses and ignores. The rest of its server's documented fields do what they say. */
async function page(): Promise<string> {
  const routes = [...ROUTES, { path: "Ollama's options", ...OPTIONS }].map(section)
  return `# Fields that are refused or ignored

A test sends every field that llama-server, OpenAI, vLLM, Anthropic and Ollama document, and writes this page. A field that would change what
the client gets is refused with an error that names it. One that only tunes another server is named in \`kvfold.ignored\` of the answer. All
other documented fields do what they say. Fields that no server documents are named as ignored, too. Fields that only say something about a
request, such as \`user\` and \`metadata\`, change nothing and are not named.

A refused field and an ignored one:

\`\`\`
${await example('/v1/chat/completions', { functions: [] })}

${await example('/v1/chat/completions', { prediction: {} })}
\`\`\`

The test asks the built-in model, which has no tokens for fill-in and whose template reads no variables. So fields with a star (*) work with
[models that have them](http-api.md#thinking).
\`npx vitest run test/runtime/server/dialects/every-field.test.ts -u\` writes the page anew.
${routes.join('')}
## Routes that are absent

These routes of OpenAI's are a 404. kvfold makes text and vectors only, keeps no files or jobs, and keeps conversations as its own
[threads](serving.md#threads).
${block(ABSENT)}`
}

it('are listed on a page', async () => {
  await expect(await page()).toMatchFileSnapshot('../../../../docs/http-fields.md')
})

it('belong to routes that are there', async () => {
  for (const path of ABSENT) expect([path, (await api.post(path.replace('{id}', 'a'), {})).status]).toEqual([path, 404])
})

interface Outcome {
  readonly status: number
  readonly error: string
  readonly ignored: readonly string[]
}

/** A name with a dot or a colon is where the answer names a field that the value holds within. */
const bodyWith = (body: Fields, name: string, value: unknown): Fields =>
  /[.:]/.test(name) && isRecord(value) ? { ...body, ...value } : { ...body, [name]: value }

async function outcome(path: string, body: Fields): Promise<Outcome> {
  const { status, body: said } = await api.post(path, body)
  const error = said?.error === undefined || said.error === null ? '' : JSON.stringify(said.error)
  const one = Array.isArray(said) ? said[0] : said
  return { status, error, ignored: (one?.kvfold?.ignored ?? []) as readonly string[] }
}

const named = (fields: Fields = {}) => Object.entries(fields)

describe.each(ROUTES.map((route) => [route.path, route] as const))('%s', (path, { body, taken, refused, ignored }) => {
  it('takes', async () => {
    for (const [name, value] of named(taken)) {
      const said = await outcome(path, bodyWith(body, name, value))
      expect({ name, ...said }).toEqual({ name, status: 200, error: '', ignored: [] })
    }
  })

  it('refuses with a sentence', async () => {
    for (const [name, value] of named(refused)) {
      const said = await outcome(path, bodyWith(body, name, value))
      expect([400, 404, 501]).toContain(said.status)
      const param = path === '/infill' ? 'cannot fill a gap' : name
      expect({ name, names: said.error.includes(param), isSentence: said.error.length > 20 }).toEqual({
        ...{ name, names: true, isSentence: true },
      })
    }
  })

  it('names as ignored', async () => {
    for (const [name, value] of named(ignored)) {
      const said = await outcome(path, bodyWith(body, name, value))
      const { status, error, ignored: told } = said
      expect({ name, status, error, isNamed: told.some((each) => each === name || each.startsWith(`${name}.`)) }).toEqual({
        name,
        status: 200,
        error: '',
        isNamed: true,
      })
    }
  })

  it('names a field that no server has', async () => {
    if (path === '/infill') return
    expect((await outcome(path, { ...body, surely_no_field: 1 })).ignored).toContain('surely_no_field')
  })

  it('documents what it takes', async () => {
    const { body: document } = await api.get('/openapi.json')
    const content = document.paths[path].post.requestBody.content['application/json'].schema
    const known = Object.keys(content.properties as object)
    const missing = [...named(taken), ...named(refused)].map(([name]) => name).filter((name) => !known.includes(name))
    expect(missing).toEqual([])
  })
})

describe.each(['/api/chat', '/api/generate'])('the options of %s', (path) => {
  const body = { model: 'builtin', stream: false, ...(path === '/api/chat' ? { messages } : { prompt: 'a' }) }
  it('are taken, or named as ignored', async () => {
    for (const [name, value] of named(OPTIONS.taken))
      expect([name, await outcome(path, { ...body, options: { num_predict: 1, [name]: value } })]).toEqual([
        name,
        { status: 200, error: '', ignored: [] },
      ])
    for (const [name, value] of named(OPTIONS.ignored))
      expect([name, await outcome(path, { ...body, options: { num_predict: 1, [name]: value } })]).toEqual([
        name,
        { status: 200, error: '', ignored: [`options.${name}`] },
      ])
  })
})
