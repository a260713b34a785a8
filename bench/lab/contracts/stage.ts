/** Runs single steps on an engine. Returns what a step computed, how long it took, which token it predicts, and how the model continues. */
import { LlamaEngine, type Completion } from '../../../src/runtime/engine/llama.js'
import { type ConversationId, freshConversation } from '../../../src/runtime/core/ids.js'
import type { StepContract } from '../../../src/runtime/kv/plan/parts.js'
import type { Prompt } from '../../../src/runtime/kv/prompt.js'
import type { Native } from '../../../src/runtime/native/types.js'
import { SPLICE } from './variants.js'
import { neverEnding } from '../../random-tokens.js'

/** The settings of every engine of this benchmark. */
export const SETTINGS = { threads: 1, batchThreads: 1, flashAttention: 'on' } as const

export interface Shot {
  readonly milliseconds: number
  /** Tokens submitted to decode. */
  readonly computed: number
}

/** How a model continues a prompt. */
export interface Reading {
  /** Log-probabilities of the token that follows the opening of an answer. */
  readonly next: Float32Array
  /** The tokens of a greedy answer. */
  readonly said: Int32Array
}

export class Stage {
  readonly #noEnd: readonly { readonly token: number; readonly bias: number }[]

  private constructor(readonly engine: LlamaEngine) {
    this.#noEnd = neverEnding(engine.model)
  }

  /** `chatTemplate`: for models without one. */
  static async open(native: Native, path: string, cells: number, chatTemplate?: string): Promise<Stage> {
    const more = chatTemplate === undefined ? {} : { chatTemplate }
    return new Stage(await LlamaEngine.load(native, path, { ...SETTINGS, cells, slots: 1, hostBytes: 0, ...more }))
  }

  /** Shows this prompt, by default in a new conversation, which may share cells with others. */
  async read(shown: Prompt, terms: StepContract, conversation = freshConversation()): Promise<ConversationId> {
    await this.show(conversation, shown, terms)
    return conversation
  }

  /** Runs one step, and times the cache's work and the decode, without planning. @throws Error if the step falls back from its terms */
  async show(conversation: ConversationId, shown: Prompt, terms: StepContract): Promise<Shot> {
    const { ledger } = await this.engine.complete({ conversation, ...given(shown), terms, maxTokens: 0 })
    if (ledger.fallback !== null) throw new Error(`a step fell back: ${ledger.fallback}`)
    return { milliseconds: ledger.milliseconds.cache + ledger.milliseconds.prefill, computed: ledger.submitted }
  }

  /** Returns how the model continues a prompt that the conversation already shows. */
  async ask(conversation: ConversationId, shown: Prompt, opening: Int32Array, count: number): Promise<Reading> {
    const { vocabulary } = this.engine.modelInfo
    const ask = { conversation, terms: SPLICE, sampling: { logitBias: this.#noEnd } }
    const { tokens: said } = await this.engine.complete({ ...ask, ...given(shown), maxTokens: count })
    const { logprobs } = await this.engine.complete({ ...ask, ...given(shown, opening), maxTokens: 1, logprobs: vocabulary })
    const next = new Float32Array(vocabulary)
    for (const { token, logprob } of logprobs[0]?.top ?? []) next[token] = logprob
    return { next, said }
  }

  /** Frees the conversation's cells. Resolves when they are free. */
  async forget(conversation: ConversationId): Promise<void> {
    this.engine.forget(conversation)
    await this.engine.check('books')
  }
}

function given({ tokens, origin }: Prompt, more: Int32Array = new Int32Array()): Pick<Completion, 'tokens' | 'origin'> {
  const longer = (of: Int32Array) => Int32Array.from([...of, ...more])
  return { tokens: longer(tokens), ...(origin === undefined ? {} : { origin: { ...origin, base: longer(origin.base) } }) }
}
