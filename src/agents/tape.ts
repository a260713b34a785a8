/** Owns a recording of what an engine was asked and said, step by step, so that a model can learn from it. */
import { EngineAround, type EngineReply, type EngineRequest, type Generation } from '../engine/engine.js'
import type { TurnOutcome } from './events.js'
import type { TrajectoryStep } from './snapshots.js'

type Taped = Omit<TrajectoryStep, 'modifies'> & { readonly kind: 'answer' | 'summary' }

/** An engine around another that keeps every step that came to its end, in the order of the requests. */
export class Tape extends EngineAround {
  readonly #steps: (Taped | null)[] = []

  respond(request: EngineRequest): Generation {
    const generation = this.engine.respond(request)
    const { messages, edits = [], tools = [], kind = 'answer' } = request
    const at = this.#steps.push(null) - 1
    // What is shown is as it is now: the caller goes on to add to its messages.
    const shown = { messages: [...messages], edits: [...edits], tools: [...tools], kind }
    const reply = generation.reply.then((done: EngineReply) => {
      this.#steps[at] = { ...shown, completion: done.message, finish: done.finish }
      return done
    })
    reply.catch(() => undefined)
    return { reply, [Symbol.asyncIterator]: () => generation[Symbol.asyncIterator]() }
  }

  /** The steps of the one turn that was taped, summaries among them. */
  trajectory({ steps }: Pick<TurnOutcome, 'steps'>): TrajectoryStep[] {
    let answers = 0
    return this.#steps.flatMap((taped) => {
      if (taped === null) return []
      const { kind, ...step } = taped
      const modifies = kind === 'answer' && (steps[answers++]?.calls.some((call) => call.modifies) ?? false)
      return [{ ...step, modifies }]
    })
  }
}
