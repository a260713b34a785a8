/** Owns what an engine around another leaves to it: everything but how it responds. */
import type { ChatMessage, Edit, ToolDefinition } from '../chat/message.js'
import type { ConversationId } from '../core/ids.js'
import type { Span } from '../core/span.js'
import type { Engine, EngineInfo, EngineRequest, Generation } from './engine.js'

export abstract class EngineAround<Inner extends Engine = Engine> implements Engine {
  constructor(protected readonly engine: Inner) {}

  get info(): EngineInfo {
    return this.engine.info
  }

  abstract respond(request: EngineRequest): Generation

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
}
