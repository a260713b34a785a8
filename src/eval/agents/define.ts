/** Owns what all agents have in common: options that are checked, an engine of the sample's own, and what a cancelled sample comes to. */
import { z } from 'zod'
import { KvfoldError } from '../../core/errors.js'
import type { EngineReply } from '../../engine/engine.js'
import type { AgentKind, AgentSetting, Answered, EvalAgent } from '../agent.js'
import { SampleEngine } from './sample-engine.js'

export interface AgentDefinition<Options extends Readonly<Record<string, unknown>>> {
  readonly kind: AgentKind
  readonly title: string
  /** Strict, with a default for every option. */
  readonly options: z.ZodType<Options>
  /** Asks nothing but `engine`, which is the setting's within its window. @throws KvfoldError */
  answer(engine: SampleEngine, setting: AgentSetting, options: Options): Promise<Answered>
}

/** A number of tokens or things, with the default of the paper. */
export const count = (standard: number): z.ZodDefault<z.ZodNumber> => z.number().int().min(1).default(standard)

/** @throws KvfoldError eval/bad-agent naming the option */
export function makeAgent<Options extends Readonly<Record<string, unknown>>>(
  definition: AgentDefinition<Options>,
  given: unknown,
): EvalAgent {
  const { kind, title } = definition
  const parsed = definition.options.safeParse(given)
  if (!parsed.success)
    throw new KvfoldError('eval/bad-agent', `The options of agent ${kind} cannot be used: ${z.prettifyError(parsed.error)}`)
  const options = parsed.data
  return { kind, title, options: { ...options }, answer: (setting) => answer(definition, setting, options) }
}

/** What an agent without tools makes of its last step. */
export const answered = ({ message, finish }: EngineReply, details: Answered['details']): Answered => ({
  answer: message.content,
  end: finish === 'length' ? 'length' : 'stop',
  calls: [],
  refusedCalls: 0,
  details,
})

async function answer<Options extends Readonly<Record<string, unknown>>>(
  definition: AgentDefinition<Options>,
  setting: AgentSetting,
  options: Options,
): Promise<Answered> {
  const engine = new SampleEngine(setting)
  try {
    engine.refuseCancelled()
    const outcome = await definition.answer(engine, setting, options)
    if (outcome.end === 'cancelled') engine.refuseCancelled()
    else return outcome
    throw new KvfoldError('engine/cancelled', 'A step of the sample was cancelled by somebody else; run the sample again.')
  } catch (error) {
    // Wherever the caller's signal found the agent, it comes to the same.
    if (setting.signal?.aborted === true && error instanceof KvfoldError && error.code === 'engine/cancelled')
      return { answer: '', end: 'cancelled', calls: [], refusedCalls: 0, details: {} }
    throw error
  } finally {
    engine.forgetAll()
  }
}
