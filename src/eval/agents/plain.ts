/** The agent that reads all of the sample and answers in one step: no tools, no system message. */
import { z } from 'zod'
import { plain } from '../../agents/plain.js'
import type { AgentDefinition } from './define.js'
import { answerBy } from './session-answer.js'

const Options = z.strictObject({})

export const plainAgent: AgentDefinition<z.infer<typeof Options>> = {
  kind: 'plain',
  title: 'Plain',
  options: Options,
  answer: (engine, setting) => {
    const generation = { ...engine.generation, maxTokens: setting.task.maxTokens }
    return answerBy(plain({ engine, id: engine.conversation('turn'), generation }), engine, setting)
  },
}
