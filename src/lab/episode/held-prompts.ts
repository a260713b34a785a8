/** Tracks which prompts of an episode the cache holds, so that a resumed episode can fill its cache again. */
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

/** What a conversation showed at the end of its last step, including the answer. Plain JSON except for sampled tokens (Int32Array). */
export type HeldPrompt = Pick<
  EngineRequest,
  'conversation' | 'messages' | 'edits' | 'tools' | 'variables' | 'lora' | 'continues' | 'contract' | 'blend'
>

/**
 * The engine of one episode. `before`: the prompts whose cells were in the cache when the episode stopped. The engine computes them before
 * the first step, so this step costs what it would have cost without the stop. Cells that the cache held beyond these prompts are not
 * computed again. So a step after folds may cost a few tokens more or less, under `blend` up to a quarter.
 */
export class HoldingEngine extends EngineAround {
  /** The prompt of each conversation, least recently used first. */
  readonly #held: Map<ConversationId, HeldPrompt>
  #warmed: Promise<void> | null

  constructor(engine: Engine, before: readonly HeldPrompt[] = []) {
    super(engine)
    this.#held = new Map(before.map((prompt) => [prompt.conversation, prompt]))
    // A remote engine's cache outlives this process, and it may refuse a request for 0 tokens. So it is not filled.
    this.#warmed = before.length > 0 && engine.estimates !== true ? null : Promise.resolve()
  }

  /** The prompts whose cells the cache holds. */
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
          // There may be no room for the prompt without folds, or for the prompt of an answer that had filled the context.
          if (!isContextFull(error)) throw error
        }
  }
}

/**
 * Returns the prompts to compute. Under the approximate contracts the cache also holds the hidden text, which helpers are shown again, so
 * the unfolded prompt comes first.
 */
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
  // Templates show a call only together with its result, so the cells of an answer with calls are computed again.
  if (toolCalls !== undefined) return { messages: [...before], ...same }
  const isText = content !== '' && reasoning === undefined
  return { messages: [...before, message], ...same, ...(isText ? { continues: true } : {}) }
}
