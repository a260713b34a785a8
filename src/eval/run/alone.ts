/** Owns that samples of a run share no cells: what one cost must not depend on which others ran before or beside it. */
import { EngineAround } from '../../engine/engine-around.js'
import type { Engine, EngineRequest, Generation } from '../../engine/engine.js'

/** The engine for one sample: its conversations share cells with each other and with nobody else's. */
export class Alone extends EngineAround {
  constructor(
    engine: Engine,
    private readonly tenant: string,
  ) {
    super(engine)
  }

  respond(request: EngineRequest): Generation {
    return this.engine.respond({ ...request, tenant: this.tenant })
  }

  /** The engine is others', too. */
  override dispose(): Promise<void> {
    return Promise.resolve()
  }
}
