/** Owns an engine that closes the gaps in positions after every splice, before it lets the model speak (KvCache.closeGaps). */
import {
  EngineAround,
  type EngineReply,
  type EngineRequest,
  type EventStream,
  type Generation,
  generationOf,
} from '../../../src/runtime/engine/engine.js'
import type { LlamaEngine } from '../../../src/runtime/engine/llama.js'

export class GapCloser extends EngineAround<LlamaEngine> {
  /** What its steps cost on top of their replies' ledgers: tokens, and milliseconds of the cache's work and the prefill. */
  readonly spent = { tokens: 0, milliseconds: 0 }

  respond(request: EngineRequest): Generation {
    return generationOf((stream) => this.#respond(request, stream))
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
