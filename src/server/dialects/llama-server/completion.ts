/** Owns the routes `/completion` and `/completions`, as llama-server has them: text or tokens go on, by its own names. */
import Type from 'typebox'
import type { Sampling } from '../../../engine/engine.js'
import type { CompletionAsk, Tenant } from '../../ask.js'
import { FieldError } from '../../problem.js'
import type { App, Ports } from '../../ports.js'
import { ANSWER, ERRORS } from '../documented.js'
import { given, nullsDownTo, stopOf, StopField } from '../fields.js'
import { ignoredIn } from '../kvfold-field.js'
import { FormFields, formOf, WITH_NULLS } from '../openai/answer-form.js'
import { PromptField, promptsOf } from '../prompts.js'
import { SamplingFields, samplingOf } from '../sampling-fields.js'
import { completion, LlamaStream } from './completion-reply.js'

const NULLS = 3

const LlamaBody = Type.Object({
  model: Type.Optional(Type.String({ maxLength: 1024, description: 'default: the first' })),
  prompt: PromptField,
  n_predict: Type.Optional(Type.Integer({ minimum: -1, description: 'tokens of the answer; -1: as many as the context holds' })),
  max_tokens: Type.Optional(Type.Integer({ minimum: -1, description: 'as n_predict' })),
  ...SamplingFields,
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
        const prompts = await promptsOf(body.prompt, body.model, service)
        const asks = await asksOf(body, prompts, tenant, sampling, (text) => service.tokenize(body.model, text))
        const wish = { body, asks, ignored: ignoredIn(body, LlamaBody) }
        const begin = (signal: AbortSignal) => asks.map((ask) => service.complete({ ...ask, signal }))
        const running = exchange(request, reply)
        if (body.stream === true) return running.stream(begin, new LlamaStream(wish), null)
        const answers = (await running.answers(begin)).map((answer, index) => completion(answer, index, wish))
        return answers.length === 1 ? answers[0] : answers
      },
    )
}

type Tokenize = (text: string) => Promise<readonly number[]>

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
    ...given({
      model,
      maxTokens: most === -1 ? undefined : most,
      stop: stopOf(stop),
      format: formOf(body),
      logprobs: n_probs === 0 ? undefined : n_probs,
    }),
  }))
}

/** Pairs of a token id or a text and a number or false; a text stands for all of its tokens. @throws FieldError */
async function biasOf(bias: unknown, tokenize: Tokenize): Promise<NonNullable<Sampling['logitBias']>> {
  const pairs = Array.isArray(bias) ? (bias as readonly unknown[]) : Object.entries(bias as object)
  const all = pairs.map(async (pair) => {
    const [of, added] = Array.isArray(pair) ? (pair as readonly unknown[]) : []
    const amount = added === false ? -Infinity : added
    if (typeof amount !== 'number')
      throw new FieldError('logit_bias', 'logit_bias must be pairs of a token id or a text and a number, or false for never.')
    if (typeof of === 'number' && Number.isInteger(of) && of >= 0) return [{ token: of, bias: amount }]
    if (typeof of !== 'string') throw new FieldError('logit_bias', 'logit_bias: a pair begins with a token id or a text.')
    const tokens = /^\d{1,9}$/.test(of) ? [Number(of)] : await tokenize(of)
    return tokens.map((token) => ({ token, bias: amount }))
  })
  return (await Promise.all(all)).flat()
}
