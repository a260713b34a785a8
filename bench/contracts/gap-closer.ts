/** Owns an engine that closes the gaps in positions after every splice, before it lets the model speak (KvCache.closeGaps). */
import type { Edit, ChatMessage, ToolDefinition } from '../../src/chat/message.js'
import type { ConversationId } from '../../src/core/ids.js'
import type { Span } from '../../src/core/span.js'
import type { Engine, EngineInfo, EngineReply, EngineRequest, Generation } from '../../src/engine/engine.js'
import { EventStream } from '../../src/engine/event-stream.js'
import type { LlamaEngine } from '../../src/engine/llama.js'

export class GapCloser implements Engine {
  /** What its steps cost on top of their replies' ledgers: tokens, and milliseconds of the cache's work and the prefill. */
  readonly spent = { tokens: 0, milliseconds: 0 }

  constructor(private readonly engine: LlamaEngine) {}

  get info(): EngineInfo {
    return this.engine.info
  }

  respond(request: EngineRequest): Generation {
    return EventStream.of((stream) => this.#respond(request, stream))
  }

  snap(messages: readonly ChatMessage[], tools: readonly ToolDefinition[], message: number, chars: Span): Span {
    return this.engine.snap(messages, tools, message, chars)
  }

  count(messages: readonly ChatMessage[], tools: readonly ToolDefinition[], edits?: readonly Edit[]): number {
    return this.engine.count(messages, tools, edits)
  }

  forget(conversation: ConversationId): void {
    this.engine.forget(conversation)
  }

  dispose(): Promise<void> {
    return this.engine.dispose()
  }

  async #respond(request: EngineRequest, stream: EventStream): Promise<EngineReply> {
    if ((request.edits ?? []).length > 0) await this.#close(request)
    const generation = this.engine.respond(request)
    for await (const event of generation) stream.push(event)
    return generation.reply
  }

  /** Computes the prompt and moves what comes after a gap. */
  async #close(request: EngineRequest): Promise<void> {
    const { ledger, timing } = await this.engine.respond({ ...request, maxTokens: 0 }).reply
    const begun = performance.now()
    await this.engine.closeGaps(request.conversation)
    this.spent.tokens += timing.prefillTokens
    this.spent.milliseconds += ledger.milliseconds.cache + ledger.milliseconds.prefill + performance.now() - begun
  }
}
