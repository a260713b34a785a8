/** Owns how a bare completion becomes llama-server's answer, whole or in chunks, and how long any answer took by its names. */
import { isRecord } from '../../../core/json.js'
import type { NamedLogprob, TokenLogprob } from '../../../engine/engine.js'
import type { AnyAnswer, AskEvent, CompletionAnswer, CompletionAsk } from '../../ask.js'
import type { Frame } from '../../event-writer.js'
import type { Problem } from '../../problem.js'
import type { StreamShape } from '../../request-lifecycle.js'
import { openAiError } from '../openai/wire.js'

export interface LlamaWish {
  readonly body: {
    readonly stream?: boolean
    readonly return_tokens?: boolean
    readonly response_fields?: readonly string[]
  }
  readonly asks: readonly CompletionAsk[]
  /** Names of fields that are not carried out. */
  readonly ignored: readonly string[]
}

export function completion(answer: CompletionAnswer, index: number, wish: LlamaWish): object {
  const { body } = wish
  const whole = {
    content: answer.text,
    tokens: body.return_tokens === true ? answer.tokens : [],
    ...end(answer, index, wish),
    ...(answer.logprobs === undefined ? {} : { completion_probabilities: answer.logprobs.map(probabilities) }),
  }
  return body.response_fields === undefined ? whole : chosen(whole, body.response_fields)
}

/** What the last chunk says, and the whole answer. */
function end(answer: CompletionAnswer, index: number, { body, asks, ignored }: LlamaWish): object {
  const { model, text, usage, finish, stop, ledger } = answer
  const { sampling = {}, maxTokens = -1 } = asks[index]!
  return {
    index,
    id_slot: 0,
    stop: true,
    model,
    tokens_predicted: usage.completionTokens,
    tokens_evaluated: usage.promptTokens,
    generation_settings: {
      n_predict: maxTokens,
      temperature: sampling.temperature,
      top_k: sampling.topK,
      top_p: sampling.topP,
      min_p: sampling.minP,
      typical_p: sampling.typicalP,
      repeat_penalty: sampling.repeatPenalty,
      presence_penalty: sampling.presencePenalty,
      frequency_penalty: sampling.frequencyPenalty,
      seed: sampling.seed,
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
    ...(ignored.length === 0 ? {} : { kvfold: { ignored } }),
  }
}

/** How long an answer took: milliseconds, and tokens a second; the time to the first token is the prompt's. */
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
  }
}

export class LlamaStream implements StreamShape<CompletionAnswer> {
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

/** `a/b`: the field b of a, by this name. */
function chosen(whole: object, fields: readonly string[]): object {
  const found = fields.flatMap((field) => {
    const path = field.split('/')
    const value = path.reduce<unknown>((at, key) => (isRecord(at) ? at[key] : undefined), whole)
    return value === undefined ? [] : [[field, value] as const]
  })
  return fields.length === 0 ? whole : Object.fromEntries(found)
}
