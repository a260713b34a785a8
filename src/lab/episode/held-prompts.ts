/** Knows what the cache holds of an episode's conversations, so that a resumed episode finds a cache as it was. */
import type { ConversationId } from '../../runtime/core/ids.js'
import { isContextFull } from '../../runtime/core/errors.js'
import { definedFields } from '../../runtime/core/json.js'
import {
  type Engine,
  EngineAround,
  type EngineReply,
  type EngineRequest,
  type Generation,
  generationOf,
} from '../../runtime/engine/engine.js'

/** What a conversation showed at the end of its last step, the answer included. Plain JSON except for sampled tokens (Int32Array). */
export type HeldPrompt = Pick<
  EngineRequest,
  'conversation' | 'messages' | 'edits' | 'tools' | 'variables' | 'lora' | 'continues' | 'contract' | 'blend'
>

/**
 * The engine of one episode. A resumed episode has `before`: the prompts that the cache held when it stopped. The engine computes them
 * before the first step, so this step costs what it would have cost then. What the cache kept beside them is not computed again. So a step
 * after folds may cost a few tokens more or less, under `blend` up to a quarter.
 */
export class HoldingEngine extends EngineAround {
  /** By conversation, the one that was used last at the end. */
  readonly #held: Map<ConversationId, HeldPrompt>
  #warmed: Promise<void> | null

  constructor(engine: Engine, before: readonly HeldPrompt[] = []) {
    super(engine)
    this.#held = new Map(before.map((prompt) => [prompt.conversation, prompt]))
    // A remote engine has a cache that outlives this process, and may not take a request for no token.
    this.#warmed = before.length > 0 && engine.estimates !== true ? null : Promise.resolve()
  }

  /** What the cache holds now. */
  get held(): readonly HeldPrompt[] {
    return [...this.#held.values()]
  }

  respond(request: EngineRequest): Generation {
    return generationOf(async (stream) => {
      await (this.#warmed ??= this.#warm(request.signal))
      const generation = this.engine.respond(request)
      const reply = await generation.each((event) => {
        stream.push(event)
      })
      this.#held.delete(request.conversation)
      this.#held.set(request.conversation, heldAfter(request, reply))
      return reply
    })
  }

  override forget(conversation: ConversationId): void {
    this.#held.delete(conversation)
    super.forget(conversation)
  }

  async #warm(signal?: AbortSignal): Promise<void> {
    for (const prompt of this.#held.values())
      for (const shown of versionsOf(prompt))
        try {
          await this.engine.respond({ ...shown, toolChoice: 'none', maxTokens: 0, ...definedFields({ signal }) }).reply
        } catch (error) {
          // The whole text, or the prompt of an answer that the full context ended, may have no room.
          if (!isContextFull(error)) throw error
        }
  }
}

/** Under the approximate contracts the cache also holds the hidden text, which shows up again in the questions to helpers. */
function versionsOf(prompt: HeldPrompt): readonly HeldPrompt[] {
  const { contract = 'exact', edits = [] } = prompt
  const forgotten = edits.filter(({ forget }) => forget)
  return contract === 'exact' || forgotten.length === edits.length ? [prompt] : [{ ...prompt, edits: forgotten }, prompt]
}

function heldAfter(request: EngineRequest, { message, timing }: EngineReply): HeldPrompt {
  const { conversation, messages, edits, tools, variables, lora, continues, contract, blend } = request
  const same = { conversation, ...definedFields({ edits, tools, variables, lora, contract, blend }) }
  if (timing.generatedTokens === 0) return { messages: [...messages], ...same, ...definedFields({ continues }) }
  const before = continues === true ? messages.slice(0, -1) : messages
  const { content, toolCalls, reasoning } = message
  // Templates show calls only with their results. The cells of such an answer are computed again.
  if (toolCalls !== undefined) return { messages: [...before], ...same }
  const isText = content !== '' && reasoning === undefined
  return { messages: [...before, message], ...same, ...(isText ? { continues: true } : {}) }
}
