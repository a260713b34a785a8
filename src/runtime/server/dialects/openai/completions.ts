/** The route `/v1/completions`: the model continues text or tokens without a chat template. */
import { definedFields } from '../../../core/json.js'
import { randomUUID } from 'node:crypto'
import Type from 'typebox'
import type { Finish, Sampling, TokenLogprob } from '../../../engine/engine.js'
import { type AskEvent, type CompletionAnswer, type CompletionAsk, nthSampling, type Tenant } from '../../ask.js'
import { type App, described, type Ports } from '../../routes/route.js'
import { FieldError, type Problem, unsupported } from '../../problem.js'
import { RunningTimings } from '../llama-server/timings.js'
import type { Frame, StreamShape } from '../../request-lifecycle.js'
import {
  CacheSaltField,
  cacheSaltOf,
  LoraField,
  NoteFields,
  nullsDownTo,
  PingField,
  pingOf,
  PromptField,
  promptsOf,
  StopField,
  stopOf,
  StreamOptions,
} from '../fields.js'
import { completionReply, ignoredIn, kvfoldBeside, kvfoldEvent, KvfoldField, refuseForConversations } from '../kvfold-field.js'
import { LimitFields, limitsOf, SamplingFields, samplingOf, SpeculateFields, speculateOf } from '../sampling-fields.js'
import { FormFields, formOf, WITH_NULLS } from './answer-form.js'
import { type ChatHead, type ChatWish, countsOf, DONE, hasLastChunk, stopReason, timingsOf } from './chat-reply.js'
import {
  chatUsage,
  openAiError,
  promptLogprobs,
  PromptLogprobsField,
  checkPromptLogprobs,
  summed,
  textLogprobs,
  TextOffsets,
  TokenFields,
} from './wire.js'

const NULLS = 3

const CompletionBody = Type.Object({
  model: Type.Optional(Type.String({ maxLength: 1024, description: 'default: the first' })),
  prompt: PromptField,
  ...SamplingFields,
  ...LimitFields,
  ...SpeculateFields,
  max_tokens: Type.Optional(
    Type.Integer({
      minimum: -1,
      description: 'default 16, as OpenAI has it; -1: as many as the context holds; 0: only the prompt is computed',
    }),
  ),
  n: Type.Optional(Type.Integer({ minimum: 1, maximum: 16 })),
  best_of: Type.Optional(Type.Integer({ minimum: 1 })),
  echo: Type.Optional(
    Type.Boolean({ description: 'whether the prompt stands before the answer, with logprobs those of its tokens, too' }),
  ),
  suffix: Type.Optional(Type.String({ description: 'text after the answer, for models with tokens of fill-in prompts' })),
  logprobs: Type.Optional(Type.Integer({ minimum: 0, maximum: 20 })),
  prompt_logprobs: PromptLogprobsField,
  ...TokenFields,
  stop: StopField,
  lora: LoraField,
  stream: Type.Optional(Type.Boolean()),
  stream_options: StreamOptions,
  sse_ping_interval: PingField,
  timings_per_token: Type.Optional(
    Type.Boolean({ description: 'as llama-server has it: whether each part of a stream tells how long it took' }),
  ),
  return_progress: Type.Optional(
    Type.Boolean({ description: 'as llama-server has it: whether a stream tells how much of the prompt is computed' }),
  ),
  cache_prompt: Type.Optional(Type.Boolean({ description: 'changes no answer: cells in the cache are always used' })),
  ...NoteFields,
  cache_salt: CacheSaltField,
  ...FormFields,
  kvfold: KvfoldField,
})

type CompletionRequest = Type.Static<typeof CompletionBody>

/** Default of `max_tokens`, as in OpenAI's API. */
const DEFAULT_TOKENS = 16

export function addCompletions(app: App, { service, sampling, fingerprint, exchange }: Ports): void {
  app.post(
    '/v1/completions',
    {
      schema: {
        ...described('Completion of text or tokens', 'openai'),
        body: CompletionBody,
      },
      preValidation: nullsDownTo(NULLS, WITH_NULLS),
    },
    async (request, reply) => {
      const { body, tenant } = request
      const running = exchange(request, reply)
      const { asks, before } = await running.before(async () => {
        const prompts = promptsOf(body.prompt)
        const asks = asksOf(body, prompts, tenant, sampling)
        const before =
          body.echo === true ? await textsOf(prompts, (tokens) => service.detokenize(body.model, tokens, running.signal)) : []
        return { asks, before }
      })
      const head = { id: `cmpl-${randomUUID()}`, created: Math.floor(Date.now() / 1000), system_fingerprint: fingerprint }
      const wish = {
        logprobs: body.logprobs !== undefined,
        tokens: body.return_token_ids === true,
        asIds: body.return_tokens_as_token_ids === true,
        echoes: body.echo === true,
        promptLogprobs: body.prompt_logprobs !== undefined,
        timings: body.timings_per_token === true,
        progress: body.return_progress === true,
        each: body.n ?? 1,
        before,
        usage: body.stream_options?.include_usage === true,
        counts: body.stream_options?.continuous_usage_stats === true,
        kvfold: body.kvfold,
        ignored: ignoredIn(body, CompletionBody),
      }
      const begin = (signal: AbortSignal) =>
        service.completeAll(
          asks.map((ask) => ({ ...ask, signal })),
          wish.each,
        )
      if (body.stream === true) return running.stream(begin, new CompletionStream(head, wish), body.kvfold?.ping ?? pingOf(body))
      return textCompletion(head, await running.answers(begin), wish)
    },
  )
}

type Detokenize = (tokens: readonly number[]) => Promise<string>

const textsOf = (prompts: readonly CompletionAsk['prompt'][], detokenize: Detokenize): Promise<readonly string[]> =>
  Promise.all(prompts.map((prompt) => textOf(typeof prompt === 'string' ? [prompt] : prompt, detokenize)))

/** Returns a prompt as text. Adjacent tokens are decoded together, because one token may be only part of a character. */
async function textOf(parts: readonly (string | number)[], detokenize: Detokenize): Promise<string> {
  const runs: (string | number[])[] = []
  for (const part of parts) {
    const last = runs.at(-1)
    if (typeof part === 'string') runs.push(part)
    else if (Array.isArray(last)) last.push(part)
    else runs.push([part])
  }
  const texts: string[] = []
  for (const run of runs) texts.push(typeof run === 'string' ? run : await detokenize(run))
  return texts.join('')
}

/**
 * Returns one `CompletionAsk` per prompt and answer. A given seed is raised for each answer to a prompt. All share one object for the
 * format, which may be large.
 * @throws FieldError
 */
function asksOf(
  body: CompletionRequest,
  prompts: readonly CompletionAsk['prompt'][],
  tenant: Tenant,
  defaults: Sampling,
): readonly CompletionAsk[] {
  refuseWhatChangesTheAnswer(body)
  const { n = 1, kvfold } = body
  const chosen = samplingOf(body, defaults)
  const shared = {
    tenant,
    ...limitsOf(body),
    ...definedFields({
      maxTokens: mostTokens(body),
      speculate: speculateOf(body),
      cacheSalt: cacheSaltOf(body),
      model: body.model,
      lora: body.lora,
      stop: stopOf(body.stop),
      format: formOf(body),
      logprobs: body.logprobs,
      promptLogprobs: alternativesOf(body),
      priority: kvfold?.priority,
      timeoutMs: kvfold?.timeout === undefined ? undefined : Math.ceil(kvfold.timeout * 1000),
    }),
  }
  return prompts.flatMap((prompt) => {
    const own = { ...shared, prompt, ...fillOf(body, prompt) }
    return Array.from({ length: n }, (_, index) => ({ ...own, sampling: nthSampling(chosen, index) }))
  })
}

/** Returns the most tokens of an answer; undefined: as many as fit into the context. */
const mostTokens = ({ max_tokens: most = DEFAULT_TOKENS }: CompletionRequest): number | undefined =>
  most === -1 ? undefined : most

/**
 * Returns the gap for a request with a `suffix`: the prompt is the text before the answer, the suffix the text after it.
 * @throws FieldError
 */
function fillOf(
  { suffix = '' }: CompletionRequest,
  prompt: CompletionAsk['prompt'],
): Partial<Pick<CompletionAsk, 'prompt' | 'fill'>> {
  if (suffix === '') return {}
  if (typeof prompt !== 'string') throw new FieldError('prompt', 'prompt must be a text where a suffix is given.')
  return { prompt: '', fill: { prefix: prompt, suffix, files: [] } }
}

/** Returns how many alternatives to report per prompt token; undefined when no prompt logprobs are wanted. */
function alternativesOf({ echo, logprobs, prompt_logprobs: asked }: CompletionRequest): number | undefined {
  const echoed = echo === true ? logprobs : undefined
  return asked === undefined || echoed === undefined ? (asked ?? echoed) : Math.max(asked, echoed)
}

function refuseWhatChangesTheAnswer(body: CompletionRequest): void {
  if (body.echo === true && body.logprobs !== undefined && body.stream === true)
    throw unsupported('stream', 'stream is not supported with echo and logprobs; ask for the whole answer.')
  checkPromptLogprobs(body)
  if (body.best_of !== undefined && body.best_of !== (body.n ?? 1))
    throw unsupported('best_of', 'best_of is not supported beyond n; ask for n answers and choose.')
  refuseForConversations(body.kvfold)
}

// Writes an answer, whole or in chunks.

export interface CompletionWish extends ChatWish {
  /** How many answers each prompt gets. */
  readonly each: number
  /** The text of each prompt, which its answers repeat; empty when `echo` is off. */
  readonly before: readonly string[]
  /** Whether the prompt's logprobs precede those of the answer. */
  readonly echoes: boolean
  /** Whether each answer has its prompt's logprobs in vLLM's format. */
  readonly promptLogprobs: boolean
}

const before = ({ before: texts, each }: CompletionWish, index: number): string => texts[Math.floor(index / each)] ?? ''

function textCompletion(
  { id, created, system_fingerprint }: ChatHead,
  answers: readonly CompletionAnswer[],
  wish: CompletionWish,
): object {
  return {
    id,
    object: 'text_completion',
    created,
    model: answers[0]?.model,
    system_fingerprint,
    choices: answers.map(({ text, finish, stop, logprobs, prompted, promptTokens, tokens }, index) => ({
      index,
      text: before(wish, index) + text,
      logprobs: wish.logprobs
        ? withPrompt(before(wish, index), wish.echoes ? prompted : undefined, logprobs ?? [], wish.asIds, promptTokens[0])
        : null,
      finish_reason: reasonOf(finish),
      ...stopReason(stop),
      ...(wish.promptLogprobs && prompted !== undefined ? { prompt_logprobs: promptLogprobs(prompted.logprobs) } : {}),
      ...(wish.tokens === true ? { prompt_token_ids: [...promptTokens], token_ids: tokens } : {}),
    })),
    usage: usageOf(answers, wish),
    ...timingsOf(answers),
    ...kvfoldBeside(wish, answers, completionReply),
  }
}

/**
 * Returns the logprobs of prompt and answer in one list; the first token has none. If the first token is BOS, which the prompt's text does
 * not contain, it counts no characters in `text_offset`.
 */
function withPrompt(
  prompt: string,
  prompted: CompletionAnswer['prompted'],
  logprobs: readonly TokenLogprob[],
  asIds: boolean | undefined,
  begin: number | undefined,
): object {
  if (prompted === undefined) return textLogprobs(logprobs, undefined, asIds)
  const said = textLogprobs(logprobs, new TextOffsets(prompt.length), asIds)
  const { first } = prompted
  const lengths = new TextOffsets()
  for (const one of prompted.logprobs) lengths.next(one)
  const from = prompt.length - lengths.end()
  const read = textLogprobs(prompted.logprobs, new TextOffsets(from), asIds)
  return {
    tokens: [asIds === true && begin !== undefined ? `token_id:${begin}` : first, ...read.tokens, ...said.tokens],
    token_logprobs: [null, ...read.token_logprobs, ...said.token_logprobs],
    top_logprobs: [null, ...read.top_logprobs, ...said.top_logprobs],
    text_offset: [Math.max(0, from - first.length), ...read.text_offset, ...said.text_offset],
  }
}

class CompletionStream implements StreamShape<CompletionAnswer> {
  readonly #choices = new Map<number, StreamedText>()
  #model = ''

  constructor(
    private readonly head: ChatHead,
    private readonly wish: CompletionWish,
  ) {}

  on(event: AskEvent, index: number): readonly Frame[] {
    const { timings: running } = this.#choice(index)
    running.on(event)
    if (event.type === 'started') {
      this.#model = event.model
      const first = before(this.wish, index)
      if (first !== '') return [this.#part(index, first)]
    }
    if (event.type === 'tokens' && this.wish.logprobs) this.#choice(index).logprobs.push(...(event.logprobs ?? []))
    if (event.type === 'tokens' && this.wish.tokens === true) this.#choice(index).tokens.push(...event.tokens)
    if (event.type === 'text') return [this.#part(index, event.text)]
    const isProgress = this.wish.progress === true && (event.type === 'plan' || event.type === 'progress')
    const told = kvfoldEvent(this.wish.kvfold, event)
    return [
      ...(isProgress ? [this.#chunk([], { prompt_progress: running.progress })] : []),
      ...(told === null ? [] : [this.#chunk([], { kvfold: { choice: index, event: told } })]),
    ]
  }

  done(answer: CompletionAnswer, index: number): readonly Frame[] {
    const { model, finish, stop, promptTokens } = answer
    this.#model = model
    const tokens = this.wish.tokens === true ? { prompt_token_ids: [...promptTokens] } : {}
    const told = hasLastChunk(this.wish) ? {} : kvfoldBeside(this.wish, [answer], completionReply)
    const reason = { finish_reason: reasonOf(finish), ...stopReason(stop), ...tokens }
    return [this.#part(index, '', reason, { ...timingsOf([answer]), ...told })]
  }

  end(answers: readonly CompletionAnswer[]): readonly Frame[] {
    if (!hasLastChunk(this.wish)) return [DONE]
    const usage = this.wish.usage ? { usage: usageOf(answers, this.wish) } : {}
    const told = kvfoldBeside(this.wish, answers, completionReply)
    return [this.#chunk([], { ...usage, ...told, ...timingsOf(answers) }), DONE]
  }

  failed(problem: Problem): readonly Frame[] {
    return [{ data: openAiError(problem) }, DONE]
  }

  #part(index: number, text: string, reason: object = { finish_reason: null }, told?: object): Frame {
    const choice = this.#choice(index)
    const more = told ?? (this.wish.timings === true ? { timings: choice.timings.timings } : {})
    const logprobs =
      choice.logprobs.length === 0 ? null : textLogprobs(choice.logprobs.splice(0), choice.offsets, this.wish.asIds)
    const tokens = this.wish.tokens === true ? { token_ids: choice.tokens.splice(0) } : {}
    return this.#chunk([{ index, text, logprobs, ...tokens, ...reason }], more)
  }

  #chunk(choices: readonly object[], more: object = {}): Frame {
    const { id, created, system_fingerprint } = this.head
    const counts = this.wish.usage && this.wish.counts === true ? { usage: this.#counts } : {}
    return {
      data: { id, object: 'text_completion', created, model: this.#model, system_fingerprint, choices, ...counts, ...more },
    }
  }

  /** Token counts so far. Each prompt counts once for all its answers. */
  get #counts(): object {
    const { each } = this.wish
    const groups = new Map<number, RunningTimings[]>()
    for (const [index, { timings: running }] of this.#choices) {
      const group = Math.floor(index / each)
      groups.set(group, [...(groups.get(group) ?? []), running])
    }
    return countsOf([...groups.values()])
  }

  #choice(index: number): StreamedText {
    const known = this.#choices.get(index)
    if (known !== undefined) return known
    const choice = { logprobs: [], tokens: [], offsets: new TextOffsets(), timings: new RunningTimings() }
    this.#choices.set(index, choice)
    return choice
  }
}

interface StreamedText {
  readonly logprobs: TokenLogprob[]
  /** Tokens sampled since the last chunk. */
  readonly tokens: number[]
  readonly offsets: TextOffsets
  readonly timings: RunningTimings
}

const reasonOf = (finish: Finish): string => (finish === 'length' ? 'length' : 'stop')

/** Returns the token counts of all answers. Each prompt counts once for all its answers. */
function usageOf(answers: readonly CompletionAnswer[], { each }: CompletionWish): object {
  const prompts = answers.filter((_, index) => index % each === 0).map(({ usage }) => usage)
  const sum = (key: 'promptTokens' | 'cachedTokens') => prompts.reduce((total, usage) => total + usage[key], 0)
  const all = summed(answers.map(({ usage }) => usage))
  return chatUsage({ ...all, promptTokens: sum('promptTokens'), cachedTokens: sum('cachedTokens') })
}
