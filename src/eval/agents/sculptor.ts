/** The agent that manages its own context with the six tools (Sculptor, sections 2 and 4). */
import { z } from 'zod'
import { systemPrompts, type SystemPrompt } from '../../agents/prompts.js'
import { sculptor } from '../../agents/sculptor.js'
import { MAX_CALLS } from '../../agents/session.js'
import { count, type AgentDefinition } from './define.js'
import { answerBy } from './session-answer.js'

const prompts = Object.keys(systemPrompts) as [SystemPrompt, ...SystemPrompt[]]

const Options = z.strictObject({
  /** Which system prompt; `task`: the one that the task names. */
  prompt: z.enum(['task', ...prompts]).default('task'),
  /** Calls of the turn. */
  maxCalls: count(MAX_CALLS),
  /** Whether the first step has to call a tool. */
  firstStep: z.enum(['required', 'auto']).default('required'),
  /** Whether folds in an order that costs more than it need get a line of advice. */
  hints: z.boolean().default(false),
})

export const sculptorAgent: AgentDefinition<z.infer<typeof Options>> = {
  kind: 'sculptor',
  title: 'Sculptor',
  options: Options,
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
