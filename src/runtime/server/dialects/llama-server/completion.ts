/** The routes `/completion` and `/completions` of llama-server: the model continues text or tokens, with llama-server's field names. */
import Type from 'typebox'
import { definedFields, isRecord } from '../../../core/json.js'
import type { NamedLogprob, Sampling, TokenLogprob } from '../../../engine/engine.js'
import type { AnyAnswer, AskEvent, CompletionAnswer, CompletionAsk, Tenant } from '../../ask.js'
import { ANSWER, type App, ERRORS, type Ports } from '../../routes/route.js'
import { FieldError, type Problem } from '../../problem.js'
import type { Frame, StreamShape } from '../../request-lifecycle.js'
import {
  nullsDownTo,
  PromptField,
  promptsOf,
  SamplingFields,
  SpeculateFields,
  speculateOf,
  samplingOf,
  samplingSettings,
  StopField,
  stopOf,
} from '../fields.js'
import { ignoredIn } from '../kvfold-field.js'
import { FormFields, formOf, WITH_NULLS } from '../openai/answer-form.js'
import { openAiError } from '../openai/wire.js'

const NULLS = 3

const LlamaBody = Type.Object({
  model: Type.Optional(Type.String({ maxLength: 1024, description: 'default: the first' })),
  prompt: PromptField,
  n_predict: Type.Optional(Type.Integer({ minimum: -1, description: 'tokens of the answer; -1: as many as the context holds' })),
  max_tokens: Type.Optional(Type.Integer({ minimum: -1, description: 'as n_predict' })),
  ...SamplingFields,
  ...SpeculateFields,
  logit_bias: Type.Optional(
    Type.Unsafe<unknown>({
      type: ['object', 'array'],
      description: 'token id, or a text, to what is added to its logit; or pairs of them; false: never',
    }),
  ),
  n_probs: Type.Optional(Type.Integer({ minimum: 0, maximum: 20, description: 'alternatives to report for each token' })),
  stop: StopField,
  stream: Type.Optional(Type.Boolean()),
  return_tokens: Type.Optional(Type.Boolean({ description: 'whether the answer has its token ids, too' })),
  response_fields: Type.Optional(
    Type.Array(Type.String(), { maxItems: 64, description: 'only these fields; `a/b` for one within another' }),
  ),
  cache_prompt: Type.Optional(Type.Boolean({ description: 'what is in the cache is always used; it changes no answer' })),
  id_slot: Type.Optional(Type.Integer({ description: 'slots are nobody’s here' })),
  ...FormFields,
})

type LlamaRequest = Type.Static<typeof LlamaBody>

export function addLlamaCompletions(app: App, { service, sampling, exchange }: Ports): void {
  for (const path of ['/completion', '/completions'])
    app.post(
      path,
      {
        schema: {
          summary: 'Completion of text or tokens (llama-server)',
          tags: ['llama-server'],
          body: LlamaBody,
          response: { 200: ANSWER, ...ERRORS },
        },
        preValidation: nullsDownTo(NULLS, WITH_NULLS),
      },
      async (request, reply) => {
        const { body, tenant } = request
        const running = exchange(request, reply)
        const asks = await running.before(() =>
          asksOf(body, promptsOf(body.prompt), tenant, sampling, (text) => service.tokenize(body.model, text)),
        )
        const wish = { body, asks, ignored: ignoredIn(body, LlamaBody) }
        const begin = (signal: AbortSignal) => asks.map((ask) => service.complete({ ...ask, signal }))
        if (body.stream === true) return running.stream(begin, new LlamaStream(wish))
        const answers = (await running.answers(begin)).map((answer, index) => completion(answer, index, wish))
        return answers.length === 1 ? answers[0] : answers
      },
    )
}

type Tokenize = (text: string) => Promise<Int32Array>

async function asksOf(
  body: LlamaRequest,
  prompts: readonly CompletionAsk['prompt'][],
  tenant: Tenant,
  defaults: Sampling,
  tokenize: Tokenize,
): Promise<readonly CompletionAsk[]> {
  const { logit_bias, ...rest } = body
  const { n_predict, max_tokens, n_probs = 0, stop, stream, model } = rest
  const most = n_predict ?? max_tokens ?? -1
  if (most === 0) throw new FieldError('n_predict', 'n_predict must be at least 1, or -1 for as many as the context holds.')
  if (stream === true && prompts.length > 1)
    throw new FieldError('stream', 'stream takes one prompt a request; send several without it.')
  const chosen = samplingOf(rest, defaults)
  const bias = logit_bias === undefined ? {} : { logitBias: await biasOf(logit_bias, tokenize) }
  return prompts.map((prompt) => ({
    tenant,
    prompt,
    sampling: { ...chosen, ...bias },
    ...definedFields({
      model,
      speculate: speculateOf(body),
      maxTokens: most === -1 ? undefined : most,
      stop: stopOf(stop),
      format: formOf(body),
      logprobs: n_probs === 0 ? undefined : n_probs,
    }),
  }))
}

/** The most pairs of `logit_bias`, and the most characters of their texts. */
const MOST_BIASES = 65_536
/** A token id written as text. */
const ID = /^\d{1,9}$/

/** Reads pairs of a token id or text, and a number or false; a text means each of its tokens. @throws FieldError */
async function biasOf(bias: unknown, tokenize: Tokenize): Promise<NonNullable<Sampling['logitBias']>> {
  const pairs = Array.isArray(bias) ? (bias as readonly unknown[]) : Object.entries(bias as object)
  if (pairs.length > MOST_BIASES)
    throw new FieldError('logit_bias', `logit_bias has ${pairs.length} pairs; send ${MOST_BIASES} at most.`)
  const texts = pairs.flatMap((pair) =>
    Array.isArray(pair) && typeof pair[0] === 'string' && !ID.test(pair[0]) ? [pair[0]] : [],
  )
  const size = texts.reduce((sum, text) => sum + text.length, 0)
  if (size > MOST_BIASES)
    throw new FieldError('logit_bias', `logit_bias has texts of ${size} characters; send ${MOST_BIASES} at most.`)
  const all = pairs.map(async (pair) => {
    const [of, added] = Array.isArray(pair) ? (pair as readonly unknown[]) : []
    const amount = added === false ? -Infinity : added
    if (typeof amount !== 'number')
      throw new FieldError('logit_bias', 'logit_bias must be pairs of a token id or a text and a number, or false for never.')
    if (typeof of === 'number' && Number.isInteger(of) && of >= 0) return [{ token: of, bias: amount }]
    if (typeof of !== 'string') throw new FieldError('logit_bias', 'logit_bias: a pair begins with a token id or a text.')
    const tokens = ID.test(of) ? [Number(of)] : Array.from(await tokenize(of))
    return tokens.map((token) => ({ token, bias: amount }))
  })
  return (await Promise.all(all)).flat()
}

// Writes the answer, whole or in chunks, and the timings of any answer by llama-server's names.

export interface LlamaWish {
  readonly body: {
    readonly stream?: boolean
    readonly return_tokens?: boolean
    readonly response_fields?: readonly string[]
  }
  readonly asks: readonly CompletionAsk[]
  /** Names of the request's fields that are not supported. */
  readonly ignored: readonly string[]
}

function completion(answer: CompletionAnswer, index: number, wish: LlamaWish): object {
  const { body } = wish
  const whole = {
    content: answer.text,
    tokens: body.return_tokens === true ? answer.tokens : [],
    ...end(answer, index, wish),
    ...(answer.logprobs === undefined ? {} : { completion_probabilities: answer.logprobs.map(probabilities) }),
  }
  return body.response_fields === undefined ? whole : chosen(whole, body.response_fields)
}

/** The fields of the last chunk, which the whole answer has, too. */
function end(answer: CompletionAnswer, index: number, { body, asks, ignored }: LlamaWish): object {
  const { model, text, usage, finish, stop, ledger, unread } = answer
  const { maxTokens = -1 } = asks[index]!
  return {
    index,
    id_slot: 0,
    stop: true,
    model,
    tokens_predicted: usage.completionTokens,
    tokens_evaluated: usage.promptTokens,
    generation_settings: {
      n_predict: maxTokens,
      ...samplingSettings(answer.sampling),
      stop: asks[index]!.stop ?? [],
      stream: body.stream === true,
    },
    prompt: asks[index]!.prompt,
    has_new_line: text.includes('\n'),
    truncated: false,
    stop_type: finish === 'length' ? 'limit' : finish === 'cancelled' ? 'none' : stop === undefined ? 'eos' : 'word',
    stopping_word: stop ?? '',
    tokens_cached: ledger.shown,
    timings: timings(answer),
    ...(ignored.length + unread.length === 0 ? {} : { kvfold: { ignored: [...ignored, ...unread] } }),
  }
}

/** Returns the timings of an answer in milliseconds and tokens per second. The time to the first token counts as the prompt's. */
export function timings({ timing, usage }: Pick<AnyAnswer, 'timing' | 'usage'>): object {
  const { firstToken, total, prefillTokens, generatedTokens } = timing
  const generating = Math.max(0, total - firstToken)
  const each = (milliseconds: number, tokens: number) => (tokens === 0 ? 0 : milliseconds / tokens)
  const pace = (milliseconds: number, tokens: number) => (milliseconds === 0 ? 0 : (1000 * tokens) / milliseconds)
  return {
    cache_n: usage.cachedTokens,
    prompt_n: prefillTokens,
    prompt_ms: firstToken,
    prompt_per_token_ms: each(firstToken, prefillTokens),
    prompt_per_second: pace(firstToken, prefillTokens),
    predicted_n: generatedTokens,
    predicted_ms: generating,
    predicted_per_token_ms: each(generating, generatedTokens),
    predicted_per_second: pace(generating, generatedTokens),
    ...(usage.drafts === undefined ? {} : { draft_n: usage.drafts.drafted, draft_n_accepted: usage.drafts.accepted }),
  }
}

class LlamaStream implements StreamShape<CompletionAnswer> {
  #tokens: number[] = []
  #logprobs: TokenLogprob[] = []

  constructor(private readonly wish: LlamaWish) {}

  on(event: AskEvent, index: number): readonly Frame[] {
    if (event.type === 'tokens') {
      this.#tokens.push(...event.tokens)
      this.#logprobs.push(...(event.logprobs ?? []))
    }
    if (event.type !== 'text') return []
    const [tokens, logprobs] = [this.#tokens, this.#logprobs]
    this.#tokens = []
    this.#logprobs = []
    const told = logprobs.length === 0 ? {} : { completion_probabilities: logprobs.map(probabilities) }
    return [{ data: { index, content: event.text, tokens, stop: false, ...told } }]
  }

  done(answer: CompletionAnswer, index: number): readonly Frame[] {
    return [{ data: { content: '', tokens: [], ...end(answer, index, this.wish) } }]
  }

  end(): readonly Frame[] {
    return []
  }

  failed(problem: Problem): readonly Frame[] {
    return [{ data: openAiError(problem) }]
  }
}

const probabilities = (one: TokenLogprob): object => ({ ...named(one), top_logprobs: one.top.map(named) })

const named = ({ token, text, bytes, logprob }: NamedLogprob): object => ({
  id: token,
  token: text,
  bytes: bytes ?? [...Buffer.from(text)],
  logprob,
})

/** Returns only these fields. `a/b` is field b of a, under the name `a/b`. */
function chosen(whole: object, fields: readonly string[]): object {
  const found = fields.flatMap((field) => {
    const path = field.split('/')
    const value = path.reduce<unknown>((at, key) => (isRecord(at) ? at[key] : undefined), whole)
    return value === undefined ? [] : [[field, value] as const]
  })
  return fields.length === 0 ? whole : Object.fromEntries(found)
}
