/**
 * llama-server's routes for bare completions: `/completion` and `/completions` continue text or tokens, `/infill` fills a gap in a text.
 */
import type { FastifyReply, FastifyRequest } from 'fastify'
import Type from 'typebox'
import { definedFields, isRecord } from '../../../core/json.js'
import type { NamedLogprob, Sampling, TokenLogprob } from '../../../engine/engine.js'
import { type AskEvent, type CompletionAnswer, type CompletionAsk, nthSampling, type Tenant } from '../../ask.js'
import { type App, described, type Ports } from '../../routes/route.js'
import { FieldError, type Problem } from '../../problem.js'
import type { Frame, StreamShape } from '../../request-lifecycle.js'
import { LoraField, nullsDownTo, PingField, pingOf, PromptField, promptsOf, StopField, stopOf } from '../fields.js'
import { ignoredIn } from '../kvfold-field.js'
import { FormFields, formOf, WITH_NULLS } from '../openai/answer-form.js'
import { openAiError } from '../openai/wire.js'
import {
  LimitFields,
  limitsOf,
  SamplingFields,
  samplingOf,
  samplingSettings,
  SpeculateFields,
  speculateOf,
} from '../sampling-fields.js'
import { RunningTimings, timings } from './timings.js'

const NULLS = 3

/** The most answers to one prompt. */
const MOST_ANSWERS = 16

const LlamaFields = {
  model: Type.Optional(Type.String({ maxLength: 1024, description: 'default: the first' })),
  n_predict: Type.Optional(
    Type.Integer({
      minimum: -1,
      description: 'tokens of the answer; -1: as many as the context holds; 0: only the prompt is computed',
    }),
  ),
  max_tokens: Type.Optional(Type.Integer({ minimum: -1, description: 'as n_predict' })),
  n_cmpl: Type.Optional(Type.Integer({ minimum: 1, maximum: MOST_ANSWERS, description: 'answers to each prompt' })),
  n: Type.Optional(Type.Integer({ minimum: 1, maximum: MOST_ANSWERS, description: 'as n_cmpl' })),
  ...SamplingFields,
  ...LimitFields,
  ...SpeculateFields,
  n_probs: Type.Optional(Type.Integer({ minimum: 0, maximum: 20, description: 'alternatives to report for each token' })),
  stop: StopField,
  lora: LoraField,
  stream: Type.Optional(Type.Boolean()),
  return_tokens: Type.Optional(Type.Boolean({ description: 'whether the answer has its token ids, too' })),
  timings_per_token: Type.Optional(Type.Boolean({ description: 'whether each part of a stream tells how long it took' })),
  return_progress: Type.Optional(Type.Boolean({ description: 'whether a stream tells how much of the prompt is computed' })),
  sse_ping_interval: PingField,
  response_fields: Type.Optional(
    Type.Array(Type.String(), { maxItems: 64, description: 'only these fields; `a/b` for one within another' }),
  ),
  cache_prompt: Type.Optional(Type.Boolean({ description: 'what is in the cache is always used; it changes no answer' })),
  id_slot: Type.Optional(Type.Integer({ description: 'no effect: a request gets any free slot' })),
  ...FormFields,
}

const LlamaBody = Type.Object({ prompt: PromptField, ...LlamaFields })

const InfillBody = Type.Object({
  input_prefix: Type.String({ description: 'the text before the gap' }),
  input_suffix: Type.String({ description: 'the text after the gap' }),
  input_extra: Type.Optional(
    Type.Array(Type.Object({ text: Type.String(), filename: Type.Optional(Type.String({ maxLength: 4096 })) }), {
      maxItems: 1024,
      description: 'other files, which the model sees first',
    }),
  ),
  prompt: Type.Optional(Type.String({ description: 'the beginning of what fills the gap' })),
  ...LlamaFields,
})

type LlamaRequest = Type.Static<ReturnType<typeof Type.Object<typeof LlamaFields>>>

export function addLlamaCompletions(app: App, { service, sampling, exchange }: Ports): void {
  const preValidation = nullsDownTo(NULLS, WITH_NULLS)
  /** Answers each prompt as often as the body asks for. */
  const answered = async (
    request: FastifyRequest,
    reply: FastifyReply,
    body: LlamaRequest,
    schema: { readonly properties: object },
    promptsIn: () => readonly Prompted[],
  ): Promise<unknown> => {
    const running = exchange(request, reply)
    const asks = await running.before(() => Promise.resolve().then(() => asksOf(body, promptsIn(), request.tenant, sampling)))
    const wish = { body, asks, ignored: ignoredIn(body, schema) }
    const begin = (signal: AbortSignal) =>
      service.completeAll(
        asks.map((ask) => ({ ...ask, signal })),
        answersOf(body),
      )
    if (body.stream === true) return running.stream(begin, new LlamaStream(wish), pingOf(body))
    const answers = (await running.answers(begin)).map((answer, index) => completion(answer, index, wish))
    return answers.length === 1 ? answers[0] : answers
  }
  for (const path of ['/completion', '/completions'])
    app.post(
      path,
      { schema: { ...described('Completion of text or tokens (llama-server)', 'llama-server'), body: LlamaBody }, preValidation },
      (request, reply) =>
        answered(request, reply, request.body, LlamaBody, () => promptsOf(request.body.prompt).map((prompt) => ({ prompt }))),
    )
  app.post(
    '/infill',
    { schema: { ...described('Fills a gap in a text (llama-server)', 'llama-server'), body: InfillBody }, preValidation },
    (request, reply) => answered(request, reply, request.body, InfillBody, () => [gapIn(request.body)]),
  )
}

type Prompted = Pick<CompletionAsk, 'prompt' | 'fill'>

const gapIn = ({
  input_prefix: prefix,
  input_suffix: suffix,
  input_extra,
  prompt = '',
}: Type.Static<typeof InfillBody>): Prompted => ({
  prompt,
  fill: { prefix, suffix, files: (input_extra ?? []).map(({ text, filename: name = UNNAMED }) => ({ name, text })) },
})

/** llama-server's name for a file without a name. */
const UNNAMED = 'tmp'

/** Returns how many answers each prompt gets. */
const answersOf = ({ n_cmpl, n }: LlamaRequest): number => n_cmpl ?? n ?? 1

/**
 * Returns one `CompletionAsk` per prompt and answer. All share one object for the answer's format, which may be large. @throws FieldError
 */
function asksOf(body: LlamaRequest, prompts: readonly Prompted[], tenant: Tenant, defaults: Sampling): readonly CompletionAsk[] {
  const { n_predict, max_tokens, n_probs = 0, stop, stream, model } = body
  const most = n_predict ?? max_tokens ?? -1
  if (stream === true && prompts.length > 1)
    throw new FieldError('stream', 'stream takes one prompt a request; send several without it.')
  const chosen = samplingOf(body, defaults)
  const shared = {
    tenant,
    ...limitsOf(body),
    ...definedFields({
      model,
      maxTokens: most === -1 ? undefined : most,
      stop: stopOf(stop),
      lora: body.lora,
      speculate: speculateOf(body),
      format: formOf(body),
      logprobs: n_probs === 0 ? undefined : n_probs,
    }),
  }
  return prompts.flatMap((prompted) =>
    Array.from({ length: answersOf(body) }, (_, index) => ({ ...shared, ...prompted, sampling: nthSampling(chosen, index) })),
  )
}

// Writes an answer, whole or in chunks.

interface LlamaWish {
  readonly body: {
    readonly stream?: boolean
    readonly return_tokens?: boolean
    readonly response_fields?: readonly string[]
    readonly n_probs?: number
    readonly timings_per_token?: boolean
    readonly return_progress?: boolean
  }
  readonly asks: readonly CompletionAsk[]
  /** Fields of the request without effect. */
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

/** Returns the fields of a stream's last chunk, which a whole answer also has. */
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
      max_tokens: maxTokens,
      ...samplingSettings(answer.sampling, asks[index]!.limits),
      n_probs: body.n_probs ?? 0,
      timings_per_token: body.timings_per_token === true,
      stop: asks[index]!.stop ?? [],
      stream: body.stream === true,
      lora: asks[index]!.lora ?? [],
    },
    prompt: asks[index]!.prompt,
    has_new_line: text.includes('\n'),
    truncated: false,
    stop_type: finish === 'length' ? 'limit' : finish === 'cancelled' ? 'none' : typeof stop === 'string' ? 'word' : 'eos',
    stopping_word: typeof stop === 'string' ? stop : '',
    tokens_cached: ledger.shown,
    timings: timings(answer),
    ...(ignored.length + unread.length === 0 ? {} : { kvfold: { ignored: [...ignored, ...unread] } }),
  }
}

class LlamaStream implements StreamShape<CompletionAnswer> {
  /** For each answer: sampled tokens whose text was not sent yet. */
  readonly #untold = new Map<number, { readonly tokens: number[]; readonly logprobs: TokenLogprob[] }>()
  readonly #running = new Map<number, RunningTimings>()

  constructor(private readonly wish: LlamaWish) {}

  on(event: AskEvent, index: number): readonly Frame[] {
    const { timings_per_token: timed = false, return_progress: tells = false } = this.wish.body
    const running = this.#running.get(index) ?? new RunningTimings()
    this.#running.set(index, running)
    running.on(event)
    const times = timed ? { timings: running.timings } : {}
    if (tells && (event.type === 'plan' || event.type === 'progress'))
      return [{ data: { index, content: '', tokens: [], stop: false, ...times, prompt_progress: running.progress } }]
    const { tokens, logprobs } = this.#untold.get(index) ?? { tokens: [], logprobs: [] }
    if (event.type === 'tokens') {
      tokens.push(...event.tokens)
      logprobs.push(...(event.logprobs ?? []))
      this.#untold.set(index, { tokens, logprobs })
    }
    if (event.type !== 'text') return []
    this.#untold.delete(index)
    const told = logprobs.length === 0 ? {} : { completion_probabilities: logprobs.map(probabilities) }
    return [{ data: { index, content: event.text, tokens, stop: false, ...told, ...times } }]
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

/** Returns only the fields of an answer that the client chose. `a/b` means field b of a, and keeps the name `a/b`. */
function chosen(whole: object, fields: readonly string[]): object {
  const found = fields.flatMap((field) => {
    const path = field.split('/')
    const value = path.reduce<unknown>((at, key) => (isRecord(at) ? at[key] : undefined), whole)
    return value === undefined ? [] : [[field, value] as const]
  })
  return fields.length === 0 ? whole : Object.fromEntries(found)
}
