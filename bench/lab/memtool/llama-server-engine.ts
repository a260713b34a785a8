/**
 * An engine that lets llama-server compute a session's prompts. The answers come from elsewhere; the counts of evaluated tokens come from
 * the server.
 */
import {
  EngineAround,
  type EngineReply,
  type EngineRequest,
  type Generation,
  generationOf,
} from '../../../src/runtime/engine/engine.js'
import type { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import type { LedgerEntry } from '../../../src/runtime/kv/ledger.js'
import type { Peer } from '../../runtime/peers/peer.js'

/** The inner engine renders prompts and computes nothing. `peer` gets the same tokens. */
export class LlamaServerEngine extends EngineAround<LlamaEngine> {
  constructor(
    engine: LlamaEngine,
    private readonly peer: Peer,
  ) {
    super(engine)
  }

  respond(request: EngineRequest): Generation {
    return generationOf(() => this.#respond(request))
  }

  async #respond({ messages, tools = [], edits = [], kind = 'answer' }: EngineRequest): Promise<EngineReply> {
    const { tokens } = this.engine.format.render({ messages, tools, edits })
    const { evaluated, cached, milliseconds } = await this.peer.show(tokens)
    return {
      message: { role: 'assistant', content: '' },
      finish: 'length',
      ledger: { ...NOTHING, kind, shown: tokens.length, reused: cached, submitted: evaluated },
      timing: { firstToken: milliseconds, total: milliseconds, prefillTokens: evaluated, generatedTokens: 0 },
    }
  }
}

const NOTHING: LedgerEntry = {
  ...{ step: 0, kind: 'answer', contract: 'exact', fallback: null, messages: [] },
  ...{ shown: 0, reused: 0, recomputed: 0, fresh: 0, approximate: 0, positions: 0, side: 0, submitted: 0, pending: 0 },
  ...{ sources: { own: 0, parked: 0, shared: 0 }, tiers: { host: 0, disk: 0 }, parked: 0, evicted: 0, moved: 0 },
  ...{ milliseconds: { cache: 0, prefill: 0, decode: 0 }, predicted: null },
}
