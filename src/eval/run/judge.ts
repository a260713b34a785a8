/** Owns having an answer judged by a model, for tasks whose authors do so. */
import { conversationId } from '../../core/ids.js'
import type { Engine } from '../../engine/engine.js'
import type { SampleRecord } from '../log.js'
import type { Task, TaskSample } from '../task.js'

export interface Judge {
  /** What the log calls it. */
  readonly name: string
  readonly engine: Engine
}

/** A verdict is a word; some reason first. */
const LONGEST = 512

/** Greedy. @throws KvfoldError what the judge's engine throws */
export async function judged(
  judging: NonNullable<Task['judging']>,
  sample: TaskSample,
  answer: string,
  { engine }: Judge,
  name: string,
  signal: AbortSignal,
): Promise<NonNullable<SampleRecord['judgement']>> {
  const { prompt, verdict } = judging(sample, answer)
  const conversation = conversationId(`${name}.judge`)
  try {
    const { reply } = engine.respond({
      conversation,
      tenant: conversation,
      messages: [{ role: 'user', content: prompt }],
      sampling: { temperature: 0 },
      maxTokens: LONGEST,
      signal,
    })
    const { content } = (await reply).message
    return { said: content, verdict: verdict(content) }
  } finally {
    engine.forget(conversation)
  }
}
