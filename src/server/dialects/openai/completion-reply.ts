/** Owns how a bare completion becomes a text completion, whole or in chunks. */
import type { Finish, TokenLogprob } from '../../../engine/engine.js'
import type { AskEvent, CompletionAnswer } from '../../ask.js'
import type { Frame } from '../../event-writer.js'
import type { StreamShape } from '../../request-lifecycle.js'
import type { Problem } from '../../problem.js'
import { completionReply, kvfoldBeside, kvfoldEvent } from '../kvfold-field.js'
import { DONE, stopReason, type ChatHead, type ChatWish } from './chat-reply.js'
import { chatUsage, openAiError, summed, textLogprobs } from './wire.js'

export interface CompletionWish extends ChatWish {
  /** Answers to each prompt. */
  readonly each: number
  /** What stands before the answers to each; empty where nothing does. */
  readonly before: readonly string[]
}

const before = ({ before: texts, each }: CompletionWish, index: number): string => texts[Math.floor(index / each)] ?? ''

export function textCompletion({ id, created }: ChatHead, answers: readonly CompletionAnswer[], wish: CompletionWish): object {
  return {
    id,
    object: 'text_completion',
    created,
    model: answers[0]?.model,
    choices: answers.map(({ text, finish, stop, logprobs, prompted }, index) => ({
      index,
      text: before(wish, index) + text,
      logprobs: wish.logprobs ? withPrompt(before(wish, index), prompted, logprobs ?? []) : null,
      finish_reason: reasonOf(finish),
      ...stopReason(stop),
    })),
    usage: usageOf(answers, wish),
    ...kvfoldBeside(wish, answers, completionReply),
  }
}

/** Of an answer behind its prompt: the first token has none, and text that the model's texts begin with and the prompt does not has no room. */
function withPrompt(prompt: string, prompted: CompletionAnswer['prompted'], logprobs: readonly TokenLogprob[]): object {
  if (prompted === undefined) return textLogprobs(logprobs)
  const { first } = prompted
  const length = prompted.logprobs.reduce((sum, { text }) => sum + text.length, 0)
  const from = prompt.length - length
  const rest = textLogprobs([...prompted.logprobs, ...logprobs], from)
  return {
    tokens: [first, ...rest.tokens],
    token_logprobs: [null, ...rest.token_logprobs],
    top_logprobs: [null, ...rest.top_logprobs],
    text_offset: [Math.max(0, from - first.length), ...rest.text_offset],
  }
}

export class CompletionStream implements StreamShape<CompletionAnswer> {
  readonly #choices = new Map<number, { readonly logprobs: TokenLogprob[]; sent: number }>()
  #model = ''

  constructor(
    private readonly head: ChatHead,
    private readonly wish: CompletionWish,
  ) {}

  on(event: AskEvent, index: number): readonly Frame[] {
    if (event.type === 'started') {
      this.#model = event.model
      const first = before(this.wish, index)
      if (first !== '') return [this.#part(index, first)]
    }
    if (event.type === 'tokens' && this.wish.logprobs) this.#choice(index).logprobs.push(...(event.logprobs ?? []))
    if (event.type === 'text') return [this.#part(index, event.text)]
    const told = kvfoldEvent(this.wish.kvfold, event)
    return told === null ? [] : [this.#chunk([], { kvfold: { choice: index, event: told } })]
  }

  done({ model, finish, stop }: CompletionAnswer, index: number): readonly Frame[] {
    this.#model = model
    return [this.#part(index, '', { finish_reason: reasonOf(finish), ...stopReason(stop) })]
  }

  end(answers: readonly CompletionAnswer[]): readonly Frame[] {
    const usage = this.wish.usage ? { usage: usageOf(answers, this.wish) } : {}
    const more = { ...usage, ...kvfoldBeside(this.wish, answers, completionReply) }
    return [...(Object.keys(more).length > 0 ? [this.#chunk([], more)] : []), DONE]
  }

  failed(problem: Problem): readonly Frame[] {
    return [{ data: openAiError(problem) }, DONE]
  }

  #part(index: number, text: string, reason: object = { finish_reason: null }): Frame {
    const choice = this.#choice(index)
    const logprobs = choice.logprobs.length === 0 ? null : textLogprobs(choice.logprobs.splice(0), choice.sent)
    choice.sent += text.length
    return this.#chunk([{ index, text, logprobs, ...reason }])
  }

  #chunk(choices: readonly object[], more: object = {}): Frame {
    const { id, created } = this.head
    return { data: { id, object: 'text_completion', created, model: this.#model, choices, ...more } }
  }

  #choice(index: number): { readonly logprobs: TokenLogprob[]; sent: number } {
    const known = this.#choices.get(index)
    if (known !== undefined) return known
    const choice = { logprobs: [], sent: 0 }
    this.#choices.set(index, choice)
    return choice
  }
}

const reasonOf = (finish: Finish): string => (finish === 'length' ? 'length' : 'stop')

/** Each prompt counts once. */
function usageOf(answers: readonly CompletionAnswer[], { each }: CompletionWish): object {
  const prompts = answers.filter((_, index) => index % each === 0).map(({ usage }) => usage)
  const sum = (key: 'promptTokens' | 'cachedTokens') => prompts.reduce((total, usage) => total + usage[key], 0)
  const all = summed(answers.map(({ usage }) => usage))
  return chatUsage({ ...all, promptTokens: sum('promptTokens'), cachedTokens: sum('cachedTokens') })
}
