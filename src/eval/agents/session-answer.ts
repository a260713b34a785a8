/** Owns a sample put to a session of ours: its messages, one turn, and the turn's calls as the log counts them. */
import type { Session } from '../../agents/session.js'
import type { ToolCall } from '../../chat/message.js'
import type { AgentSetting, Answered, CalledTool } from '../agent.js'
import type { SampleEngine } from './sample-engine.js'

/** `session` is on `engine`. @throws KvfoldError what the engine throws */
export async function answerBy(session: Session, engine: SampleEngine, { sample, signal }: AgentSetting): Promise<Answered> {
  for (const message of sample.messages) session.conversation.add(message)
  const calls: CalledTool[] = []
  const carriedOut = new Set<ToolCall>()
  let step = 0
  const outcome = await session.resume({
    ...(signal === undefined ? {} : { signal }),
    onEvent: (event) => {
      if (event.type === 'step') step = engine.steps
      if (event.type === 'call') carriedOut.add(event.call)
      if (event.type !== 'result' || !carriedOut.has(event.call)) return
      calls.push({ step, name: event.call.name, failed: event.failed, modifies: event.modifies })
    },
  })
  return {
    answer: outcome.answer,
    // Nobody else's tools: an answer never ends with calls that are left to others.
    end: outcome.end === 'tool-calls' ? 'stop' : outcome.end,
    calls,
    refusedCalls: outcome.refusedCalls,
    details: {},
  }
}
