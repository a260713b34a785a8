/** Owns the hand-over of a running step's events and its reply to whoever asked for them. */
import { Feed } from '../core/feed.js'
import type { EngineEvent, EngineReply, Generation } from './engine.js'

/** Where a step puts its events. */
export interface EventStream {
  push(event: EngineEvent): void
}

/** The generation of a step: what `run` pushes, ended by what it returns or throws. */
export function generationOf(run: (stream: EventStream) => Promise<EngineReply>): Generation {
  const feed = new Feed<EngineEvent, EngineReply>((push) => run({ push }))
  return { reply: feed.answer, [Symbol.asyncIterator]: () => feed[Symbol.asyncIterator]() }
}
