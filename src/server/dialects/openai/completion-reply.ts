/** Owns how a bare completion becomes a text completion, whole or in chunks. */
import type { TokenLogprob } from '../../../engine/engine.js'
import type { AskEvent, CompletionAnswer } from '../../ask.js'
import type { Frame } from '../../event-writer.js'
import type { StreamShape } from '../../exchange.js'
import type { Problem } from '../../problem.js'
import { kvfoldEvent } from '../kvfold-field.js'
import type { ChatHead, ChatWish } from './chat-reply.js'
import { openAiError } from './error.js'
import { textLogprobs } from './logprobs.js'
import { chatUsage, summed } from './usage.js'

export function textCompletion({ id, created }: ChatHead, answers: readonly CompletionAnswer[], wish: ChatWish): object {
  return {
    id,
    object: 'text_completion',
    created,
    model: answers[0]?.model,
    choices: answers.map(({ text, finish, logprobs }, index) => ({
      index,
      text,
      logprobs: wish.logprobs ? textLogprobs(logprobs ?? []) : null,
      finish_reason: finish === 'length' ? 'length' : 'stop',
    })),
    usage: chatUsage(summed(answers.map(({ usage }) => usage))),
    ...told(wish, answers),
  }
}

export class CompletionStream implements StreamShape<CompletionAnswer> {
  readonly #choices = new Map<number, { readonly logprobs: TokenLogprob[]; sent: number }>()
  #model = ''

  constructor(
    private readonly head: ChatHead,
    private readonly wish: ChatWish,
  ) {}

  on(event: AskEvent, index: number): readonly Frame[] {
    if (event.type === 'started') this.#model = event.model
    if (event.type === 'tokens' && this.wish.logprobs) this.#choice(index).logprobs.push(...(event.logprobs ?? []))
    if (event.type === 'text') return [this.#part(index, event.text, null)]
    const told = kvfoldEvent(this.wish.kvfold, event)
    return told === null ? [] : [this.#chunk([], { kvfold: { choice: index, event: told } })]
  }

  done({ model, finish }: CompletionAnswer, index: number): readonly Frame[] {
    this.#model = model
    return [this.#part(index, '', finish === 'length' ? 'length' : 'stop')]
  }

  end(answers: readonly CompletionAnswer[]): readonly Frame[] {
    const usage = this.wish.usage ? { usage: chatUsage(summed(answers.map((answer) => answer.usage))) } : {}
    const more = { ...usage, ...told(this.wish, answers) }
    return [...(Object.keys(more).length > 0 ? [this.#chunk([], more)] : []), { data: '[DONE]' }]
  }

  failed(problem: Problem): readonly Frame[] {
    return [{ data: openAiError(problem) }, { data: '[DONE]' }]
  }

  #part(index: number, text: string, reason: string | null): Frame {
    const choice = this.#choice(index)
    const logprobs = choice.logprobs.length === 0 ? null : textLogprobs(choice.logprobs.splice(0), choice.sent)
    choice.sent += text.length
    return this.#chunk([{ index, text, logprobs, finish_reason: reason }])
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

function told({ kvfold }: ChatWish, answers: readonly CompletionAnswer[]): object {
  if (kvfold === undefined) return {}
  const each = answers.map(({ waited, timing, ledger }) => ({
    waited_ms: waited,
    first_token_ms: timing.firstToken,
    total_ms: timing.total,
    ...(kvfold.ledger === true ? { ledger: [ledger] } : {}),
  }))
  return { kvfold: each.length === 1 ? each[0] : each }
}
