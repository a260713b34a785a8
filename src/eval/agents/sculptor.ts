/** Owns the agents that are sessions of ours: `sculptor` with the six context tools, `plain` without any. */
import { z } from 'zod'
import { plain, type SystemPrompt, systemPrompts, sculptor } from '../../agents/sculptor.js'
import { MAX_CALLS, type Session } from '../../agents/session.js'
import type { ToolCall } from '../../chat/message.js'
import type { AgentSetting, Answered, CalledTool } from '../agent.js'
import { type AgentDefinition, count } from './define.js'
import type { SampleEngine } from './sample-engine.js'

// The agent that manages its own context with the six tools (Sculptor, sections 2 and 4).

const prompts = Object.keys(systemPrompts) as [SystemPrompt, ...SystemPrompt[]]

const SculptorOptions = z.strictObject({
  /** Which system prompt; `task`: the one that the task names. */
  prompt: z.enum(['task', ...prompts]).default('task'),
  /** Calls of the turn. */
  maxCalls: count(MAX_CALLS),
  /** Whether the first step has to call a tool. */
  firstStep: z.enum(['required', 'auto']).default('required'),
  /** Whether folds in an order that costs more than it need get a line of advice. */
  hints: z.boolean().default(false),
})

export const sculptorAgent: AgentDefinition<z.infer<typeof SculptorOptions>> = {
  kind: 'sculptor',
  title: 'Sculptor',
  options: SculptorOptions,
  answer: async (engine, setting, { prompt, ...turn }) => {
    const { task } = setting
    const session = sculptor({
      engine,
      id: engine.conversation('turn'),
      prompt: prompt === 'task' ? task.prompt : prompt,
      ...turn,
      generation: { ...engine.generation, maxTokens: task.maxTokens },
    })
    const outcome = await answerBy(session, engine, setting)
    const states = session.conversation.fragments.map(({ state }) => state.kind)
    const standing = (kind: (typeof states)[number]) => states.filter((state) => state === kind).length
    return {
      ...outcome,
      details: { fragments: states.length, folded: standing('folded'), summarised: standing('summarised') },
    }
  },
}

// The agent that reads all of the sample and answers in one step: no tools, no system message.

const PlainOptions = z.strictObject({})

export const plainAgent: AgentDefinition<z.infer<typeof PlainOptions>> = {
  kind: 'plain',
  title: 'Plain',
  options: PlainOptions,
  answer: (engine, setting) => {
    const generation = { ...engine.generation, maxTokens: setting.task.maxTokens }
    return answerBy(plain({ engine, id: engine.conversation('turn'), generation }), engine, setting)
  },
}

// A sample put to a session of ours: its messages, one turn, and the turn's calls as the log counts them.

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
