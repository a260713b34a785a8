/** The agent that reads the text part by part and rewrites a memory of it (Sculptor, D.4, after MemAgent); the answer sees the memory alone. */
import { z } from 'zod'
import { answered, count, type AgentDefinition } from './define.js'
import { LongText, nextPart } from './long-text.js'
import { fromMemoryPrompt, memoryPrompt } from './prompts.js'
import { END_TOKENS, questionOf } from './rag.js'

const Options = z.strictObject({
  /** Longer texts lose their middle. */
  contextTokens: count(120_000),
  /** Of one part, which ends with a sentence; fewer where the window has no room. */
  chunkTokens: count(5000),
  /** Of a memory, and of the answer if the task does not set less. */
  newTokens: count(1024),
  /** Of each end of the text, where the sample has no question. */
  endTokens: count(END_TOKENS),
})

export const memAgent: AgentDefinition<z.infer<typeof Options>> = {
  kind: 'memagent',
  title: 'MemAgent',
  options: Options,
  answer: async (engine, { sample, task }, { contextTokens, chunkTokens, newTokens, endTokens }) => {
    const all = new LongText(sample.context, engine)
    const text = all.middleTrimmed(contextTokens)
    const question = questionOf(sample, all, endTokens)
    let memory = ''
    let parts = 0
    let cutOff = 0
    const next = (at: number) =>
      nextPart(engine, text, at, {
        most: chunkTokens,
        reserve: newTokens,
        promptOf: (part) => memoryPrompt(question, memory, part),
      })
    for (let part = next(0); part !== null; part = next(part.end)) {
      const { message, finish } = await engine.ask('memory', memoryPrompt(question, memory, part.text), { maxTokens: newTokens })
      memory = message.content
      parts++
      if (finish === 'length') cutOff++
    }
    const reply = await engine.ask('answer', fromMemoryPrompt(question, memory), {
      maxTokens: Math.min(newTokens, task.maxTokens),
    })
    return answered(reply, {
      contextTokens: all.tokens,
      trimmedTokens: all.tokens - text.tokens,
      parts,
      memoriesCutOff: cutOff,
      memoryTokens: engine.countText(memory),
    })
  },
}
