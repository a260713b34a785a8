/** Owns single steps on an engine: what a step computed, how long it took, what it predicts and what the model goes on to say. */
import { LlamaEngine, type Completion } from '../../../src/runtime/engine/llama.js'
import { type ConversationId, freshConversation } from '../../../src/runtime/core/ids.js'
import type { StepContract } from '../../../src/runtime/kv/plan/parts.js'
import type { Prompt } from '../../../src/runtime/kv/prompt.js'
import type { Native } from '../../../src/runtime/native/types.js'
import { SPLICE } from './variants.js'
import { neverEnding } from '../../random-tokens.js'

/** Settings of every engine of this bench. */
export const SETTINGS = { threads: 1, batchThreads: 1, flashAttention: 'on' } as const

export interface Shot {
  readonly milliseconds: number
  /** Tokens submitted to decode. */
  readonly computed: number
}

/** What a model makes of what it is shown. */
export interface Reading {
  /** Log-probabilities of the token after the opening of an answer. */
  readonly next: Float32Array
  /** A greedy answer. */
  readonly said: Int32Array
}

/** An answer up to where the model has to know something, and what it may say there. */
export interface Said {
  readonly opening: Int32Array
  readonly value: Int32Array
}

export interface Likelihood {
  /** Natural log. */
  readonly logprob: number
  readonly likeliest: number
}

/** More than any two logits lie apart. */
const FORCED = 1e4

export class Stage {
  readonly #noEnd: readonly { readonly token: number; readonly bias: number }[]

  private constructor(readonly engine: LlamaEngine) {
    this.#noEnd = neverEnding(engine.model)
  }

  /** `chatTemplate`: of models that carry none. */
  static async open(native: Native, path: string, cells: number, chatTemplate?: string): Promise<Stage> {
    const more = chatTemplate === undefined ? {} : { chatTemplate }
    return new Stage(await LlamaEngine.load(native, path, { ...SETTINGS, cells, slots: 1, hostBytes: 0, ...more }))
  }

  /** Has this shown, by a new conversation unless said otherwise; what another one holds is shared. */
  async read(shown: Prompt, terms: StepContract, conversation = freshConversation()): Promise<ConversationId> {
    await this.show(conversation, shown, terms)
    return conversation
  }

  /** One step, timed: the cache's work and the decode, planning left out. @throws Error when it does not keep to its terms */
  async show(conversation: ConversationId, shown: Prompt, terms: StepContract): Promise<Shot> {
    const { ledger } = await this.engine.complete({ conversation, ...given(shown), terms, maxTokens: 0 })
    if (ledger.fallback !== null) throw new Error(`a step fell back: ${ledger.fallback}`)
    return { milliseconds: ledger.milliseconds.cache + ledger.milliseconds.prefill, computed: ledger.submitted }
  }

  /** What the model makes of what the conversation shows already. */
  async ask(conversation: ConversationId, shown: Prompt, opening: Int32Array, count: number): Promise<Reading> {
    const { vocabulary } = this.engine.modelInfo
    const ask = { conversation, terms: SPLICE, sampling: { logitBias: this.#noEnd } }
    const { tokens: said } = await this.engine.complete({ ...ask, ...given(shown), maxTokens: count })
    const { logprobs } = await this.engine.complete({ ...ask, ...given(shown, opening), maxTokens: 1, logprobs: vocabulary })
    const next = new Float32Array(vocabulary)
    for (const { token, logprob } of logprobs[0]?.top ?? []) next[token] = logprob
    return { next, said }
  }

  /**
   * How likely each of these tokens is after the opening and those before it, and which token is the likeliest there. What the conversation
   * shows already is not computed again, whatever it was computed under.
   */
  async follow(conversation: ConversationId, shown: Prompt, { opening, value }: Said): Promise<readonly Likelihood[]> {
    const likelihoods: Likelihood[] = []
    for (const [at, token] of value.entries()) {
      const more = Int32Array.from([...opening, ...value.subarray(0, at)])
      const { logprobs } = await this.engine.complete({
        ...{ conversation, terms: SPLICE, maxTokens: 1, logprobs: 1 },
        ...given(shown, more),
        // Log-probabilities are those before the bias.
        sampling: { logitBias: [{ token, bias: FORCED }] },
      })
      const [{ token: said, logprob, top } = this.#nothing()] = logprobs
      if (said !== token) throw new Error(`token ${token} was to be said, and ${said} was`)
      likelihoods.push({ logprob, likeliest: top[0]?.token ?? -1 })
    }
    return likelihoods
  }

  #nothing(): never {
    throw new Error(`${this.engine.info.model} said nothing`)
  }

  /** Gives the conversation's cells back; resolves when they are free. */
  async forget(conversation: ConversationId): Promise<void> {
    this.engine.forget(conversation)
    await this.engine.check('books')
  }
}

function given({ tokens, origin }: Prompt, more: Int32Array = new Int32Array()): Pick<Completion, 'tokens' | 'origin'> {
  const longer = (of: Int32Array) => Int32Array.from([...of, ...more])
  return { tokens: longer(tokens), ...(origin === undefined ? {} : { origin: { ...origin, base: longer(origin.base) } }) }
}
