/** Writes an answer as a chat completion or as a stream of chunks. */
import type { ToolCall } from '../../../chat/message.js'
import type { Finish, TokenLogprob } from '../../../engine/engine.js'
import type { Answer, AnyAnswer, AskEvent } from '../../ask.js'
import type { Frame, StreamShape } from '../../request-lifecycle.js'
import type { Problem } from '../../problem.js'
import { kvfoldBeside, kvfoldEvent, kvfoldReply, type KvfoldRequest } from '../kvfold-field.js'
import { RunningTimings, timings } from '../llama-server/timings.js'
import { argumentsOf, restOf } from '../tools.js'
import { dropUsage } from './drops.js'
import { chatLogprobs, chatUsage, openAiError, promptLogprobs, summed } from './wire.js'

/** Fields that every chunk of an answer repeats. */
export interface ChatHead {
  readonly id: string
  /** Unix seconds at which the answer began. */
  readonly created: number
  readonly system_fingerprint: string
}

/** What the request asks for in the answer. */
export interface ChatWish {
  readonly kvfold: KvfoldRequest
  /** Fields of the request without effect. */
  readonly ignored: readonly string[]
  readonly logprobs: boolean
  /** Whether the answer lists the ids of its tokens and of the prompt's tokens. Default false. */
  readonly tokens?: boolean
  /** Whether logprobs write tokens as ids. Default false. */
  readonly asIds?: boolean
  /** Whether a stream ends with a chunk that has the usage. */
  readonly usage: boolean
  /** With `usage`: whether every chunk has the token counts so far. Default false. */
  readonly counts?: boolean
  /** Whether every chunk has timings; the last one always has. Default false. */
  readonly timings?: boolean
  /** Whether a stream reports the progress of the prefill. Default false. */
  readonly progress?: boolean
}

/** Whether a stream ends with a chunk without choices. Clients that did not ask for it would fail on `choices[0]`. */
export const hasLastChunk = ({ usage, kvfold }: ChatWish): boolean => usage || kvfold !== undefined

export function chatCompletion(
  { id, created, system_fingerprint }: ChatHead,
  answers: readonly Answer[],
  wish: ChatWish,
): object {
  return {
    id,
    object: 'chat.completion',
    created,
    model: answers[0]?.model,
    system_fingerprint,
    choices: answers.map(({ message, finish, stop, logprobs, tokens }, index) => ({
      index,
      message: {
        role: 'assistant',
        // OpenAI's clients expect `content: null` in a message that has only calls.
        content: message.content === '' && message.toolCalls !== undefined ? null : message.content,
        refusal: null,
        ...(message.reasoning === undefined ? {} : { reasoning_content: message.reasoning }),
        ...(message.toolCalls === undefined ? {} : { tool_calls: message.toolCalls.map(written) }),
      },
      logprobs: wish.logprobs ? chatLogprobs(logprobs ?? [], wish.asIds) : null,
      finish_reason: reasonOf(finish),
      ...stopReason(stop),
      ...(wish.tokens === true ? { token_ids: tokens } : {}),
    })),
    ...promptTokens(answers[0], wish),
    ...(answers[0]?.promptLogprobs === undefined ? {} : { prompt_logprobs: promptLogprobs(answers[0].promptLogprobs) }),
    usage: usageOf(answers),
    ...timingsOf(answers),
    ...kvfoldBeside(wish, answers, kvfoldReply),
  }
}

/** Returns the field with the prompt's token ids, if the client wants them; null when another server has the tokens. */
const promptTokens = (answer: Answer | undefined, { tokens }: ChatWish): object =>
  tokens === true ? { prompt_token_ids: answer?.promptTokens === undefined ? null : [...answer.promptTokens] } : {}

const usageOf = (answers: readonly Answer[]): object =>
  chatUsage(summed(answers.map(({ usage }) => usage)), answers[0] === undefined ? {} : dropUsage(answers[0]))

/** Streams the choices of one chat completion, interleaved. */
export class ChatStream implements StreamShape<Answer> {
  readonly #choices = new Map<number, StreamedChoice>()
  #model = ''

  constructor(
    private readonly head: ChatHead,
    private readonly wish: ChatWish,
  ) {}

  /** The model's name; empty until the answer begins. */
  get model(): string {
    return this.#model
  }

  on(event: AskEvent, index: number): readonly Frame[] {
    if (event.type === 'started') this.#model = event.model
    const choice = this.#choice(index)
    choice.timings.on(event)
    const frames = [...this.#first(event, index, choice), ...this.#progress(event, choice), ...this.#delta(event, index, choice)]
    const told = kvfoldEvent(this.wish.kvfold, event)
    return told === null ? frames : [...frames, this.#chunk([], { kvfold: { choice: index, event: told } })]
  }

  done(answer: Answer, index: number): readonly Frame[] {
    const { model, finish, stop } = answer
    this.#model = model
    const { logprobs, begun } = this.#choice(index)
    const delta = begun ? {} : ROLE
    const reason = { finish_reason: reasonOf(finish), ...stopReason(stop) }
    const choice = { index, delta, logprobs: this.#take(logprobs), ...reason, ...this.#tokens(index) }
    const told = hasLastChunk(this.wish) ? {} : kvfoldBeside(this.wish, [answer], kvfoldReply)
    return [this.#chunk([choice], { ...timingsOf([answer]), ...promptTokens(answer, this.wish), ...told })]
  }

  end(answers: readonly Answer[]): readonly Frame[] {
    if (!hasLastChunk(this.wish)) return [DONE]
    const usage = this.wish.usage ? { usage: usageOf(answers) } : {}
    return [this.#chunk([], { ...usage, ...timingsOf(answers), ...kvfoldBeside(this.wish, answers, kvfoldReply) }), DONE]
  }

  failed(problem: Problem): readonly Frame[] {
    return [{ data: openAiError(problem) }, DONE]
  }

  /** Returns the first chunk of a choice, which has only the role. Empty when it was sent already, or the answer has not begun. */
  #first(event: AskEvent, index: number, choice: StreamedChoice): readonly Frame[] {
    if (choice.begun || event.type === 'queued' || event.type === 'started') return []
    choice.begun = true
    return [this.#chunk([{ index, delta: { ...ROLE, content: '' }, logprobs: null, finish_reason: null }])]
  }

  #progress(event: AskEvent, { timings: running }: StreamedChoice): readonly Frame[] {
    if (this.wish.progress !== true || (event.type !== 'plan' && event.type !== 'progress')) return []
    return [this.#chunk([], { prompt_progress: running.progress })]
  }

  #delta(event: AskEvent, index: number, choice: StreamedChoice): readonly Frame[] {
    switch (event.type) {
      case 'text':
        return [this.#part(index, { content: event.text }, choice)]
      case 'reasoning':
        return [this.#part(index, { reasoning_content: event.text }, choice)]
      case 'arguments':
        return this.#arguments(index, event, event.text, choice)
      case 'call': {
        const told = choice.call?.id === event.call.id ? choice.call.told : ''
        const frames = this.#arguments(index, event.call, restOf(event.call, told), choice)
        choice.call = null
        return frames
      }
      case 'tokens':
        if (this.wish.logprobs) choice.logprobs.push(...(event.logprobs ?? []))
        if (this.wish.tokens === true) choice.tokens.push(...event.tokens)
        return []
      case 'plan':
        // Clients do not see this step, so its tokens and logprobs are dropped.
        choice.logprobs.length = choice.tokens.length = 0
        return []
      case 'acm':
      case 'aside':
      case 'bare-call':
      case 'compaction':
      case 'policy':
      case 'progress':
      case 'queued':
      case 'rewrite':
      case 'search':
      case 'started':
        return []
    }
  }

  /** Returns chunks for a piece of a call's arguments. A call's first chunk has its name, later ones only arguments. */
  #arguments(index: number, { id, name }: Pick<ToolCall, 'id' | 'name'>, text: string, choice: StreamedChoice): readonly Frame[] {
    const part = (delta: object) => this.#part(index, { tool_calls: [{ index: choice.calls - 1, ...delta }] }, choice)
    const frames: Frame[] = []
    if (choice.call?.id !== id) {
      choice.calls++
      choice.call = { id, told: '' }
      frames.push(part({ id, type: 'function', function: { name, arguments: '' } }))
    }
    choice.call.told += text
    return text === '' ? frames : [...frames, part({ function: { arguments: text } })]
  }

  #part(index: number, delta: object, { logprobs, timings: running }: StreamedChoice): Frame {
    const told = this.wish.timings === true ? { timings: running.timings } : {}
    const choice = { index, delta, logprobs: this.#take(logprobs), finish_reason: null, ...this.#tokens(index) }
    return this.#chunk([choice], told)
  }

  /** Returns the field with the tokens since the last chunk, if the client wants it. */
  #tokens(index: number): object {
    return this.wish.tokens === true ? { token_ids: this.#choice(index).tokens.splice(0) } : {}
  }

  /** Returns the logprobs since the last chunk, and removes them; null when there are none. */
  #take(logprobs: TokenLogprob[]): object | null {
    return logprobs.length === 0 ? null : chatLogprobs(logprobs.splice(0), this.wish.asIds)
  }

  #chunk(choices: readonly object[], more: object = {}): Frame {
    const { id, created, system_fingerprint } = this.head
    const usage = this.wish.usage ? { usage: this.wish.counts === true ? this.#counts : null } : {}
    return {
      data: { id, object: 'chat.completion.chunk', created, model: this.#model, system_fingerprint, choices, ...usage, ...more },
    }
  }

  /** Token counts so far: the prompt's, and those of all answers. */
  get #counts(): object {
    return countsOf([[...this.#choices.values()].map(({ timings: running }) => running)])
  }

  #choice(index: number): StreamedChoice {
    const known = this.#choices.get(index)
    if (known !== undefined) return known
    const choice = { begun: false, calls: 0, call: null, logprobs: [], tokens: [], timings: new RunningTimings() }
    this.#choices.set(index, choice)
    return choice
  }
}

interface StreamedChoice {
  begun: boolean
  calls: number
  /** The call whose arguments are being streamed, and the arguments sent so far. */
  call: { readonly id: string; told: string } | null
  readonly logprobs: TokenLogprob[]
  /** Tokens sampled since the last chunk. */
  readonly tokens: number[]
  readonly timings: RunningTimings
}

/**
 * Returns the token counts so far. Each prompt counts once for all its answers.
 * @param prompts for each prompt, the timings of its answers
 */
export function countsOf(prompts: readonly (readonly RunningTimings[])[]): object {
  const prompt = prompts.reduce((sum, answers) => sum + Math.max(0, ...answers.map(({ prompted }) => prompted)), 0)
  const completion = prompts.flat().reduce((sum, { predicted }) => sum + predicted, 0)
  return { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion }
}

/** Returns the field `timings` with those of the first answer, because all answers share one prompt. */
export const timingsOf = ([first]: readonly AnyAnswer[]): object => (first === undefined ? {} : { timings: timings(first) })

const ROLE = { role: 'assistant' } as const
/** The last frame of a stream. */
export const DONE: Frame = { data: '[DONE]' }

const written = (call: ToolCall): object => ({
  id: call.id,
  type: 'function',
  function: { name: call.name, arguments: argumentsOf(call) },
})

/** Returns the field with the stop string or stop token that ended the answer, under vLLM's name. */
export const stopReason = (stop: string | number | undefined): object => (stop === undefined ? {} : { stop_reason: stop })

function reasonOf(finish: Finish): string {
  switch (finish) {
    case 'tool-calls':
      return 'tool_calls'
    case 'stop':
    case 'length':
      return finish
    case 'cancelled':
      return 'stop'
  }
}
