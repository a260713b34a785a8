/** Owns the sampling fields that OpenAI-compatible requests carry, those of vLLM and llama-server among them, and what they mean here. */
import Type from 'typebox'
import type { Sampling } from '../../engine/engine.js'
import { FieldError } from '../problem.js'
import { given } from './fields.js'

export const SamplingFields = {
  temperature: Type.Optional(Type.Number({ minimum: 0, maximum: 100, description: '0 always takes the likeliest token' })),
  top_p: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
  top_k: Type.Optional(Type.Integer({ minimum: -1, maximum: 1_000_000, description: '0 or -1: all' })),
  min_p: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
  typical_p: Type.Optional(Type.Number({ minimum: 0, maximum: 1 })),
  repetition_penalty: Type.Optional(Type.Number({ exclusiveMinimum: 0, maximum: 100 })),
  repeat_penalty: Type.Optional(Type.Number({ exclusiveMinimum: 0, maximum: 100, description: 'as repetition_penalty' })),
  frequency_penalty: Type.Optional(Type.Number({ minimum: -2, maximum: 2 })),
  presence_penalty: Type.Optional(Type.Number({ minimum: -2, maximum: 2 })),
  seed: Type.Optional(Type.Integer({ description: 'the same seed, prompt and options give the same answer' })),
  logit_bias: Type.Optional(
    Type.Record(Type.String(), Type.Number({ minimum: -100, maximum: 100 }), {
      description: 'token id to what is added to its logit; -100 bans it',
    }),
  ),
}

type SamplingRequest = Type.Static<ReturnType<typeof Type.Object<typeof SamplingFields>>>

/** Seeds the sampler takes: below 2^32 - 1, which stands for a seed of its own choice. */
const SEEDS = 2 ** 32 - 1

/** @throws FieldError server/bad-request */
export function samplingOf(request: SamplingRequest, defaults: Sampling): Sampling {
  const topK = request.top_k === undefined ? undefined : Math.max(0, request.top_k)
  return {
    ...defaults,
    ...given({
      temperature: request.temperature,
      topP: request.top_p,
      topK,
      minP: request.min_p,
      typicalP: request.typical_p,
      repeatPenalty: request.repetition_penalty ?? request.repeat_penalty,
      frequencyPenalty: request.frequency_penalty,
      presencePenalty: request.presence_penalty,
      seed: request.seed === undefined ? undefined : seedOf(request.seed),
      logitBias: request.logit_bias === undefined ? undefined : biasOf(request.logit_bias),
    }),
  }
}

/** Clients send any whole number, negative ones and such beyond 32 bits too. */
function seedOf(seed: number): number {
  if (!Number.isSafeInteger(seed)) throw new FieldError('seed', 'seed must be a whole number below 2^53.')
  return ((seed % SEEDS) + SEEDS) % SEEDS
}

const BAN = -100

function biasOf(bias: Readonly<Record<string, number>>): NonNullable<Sampling['logitBias']> {
  return Object.entries(bias).map(([token, added]) => {
    if (!/^\d{1,9}$/.test(token))
      throw new FieldError('logit_bias', `logit_bias: the key ${JSON.stringify(token.slice(0, 20))} is not a token id.`)
    return { token: Number(token), bias: added <= BAN ? -Infinity : added }
  })
}
