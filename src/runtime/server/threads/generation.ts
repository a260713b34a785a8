/** Makes the engine's generation settings from a request, and lists the parts of JSON schemas that a grammar cannot enforce. */
import { anyObject } from '../../chat/grammar.js'
import { grammarOfSchema, leftOutByCalls } from '../../chat/made-grammars.js'
import type { ToolDefinition } from '../../chat/message.js'
import type { ContractChoice } from '../../core/contract.js'
import { KvfoldError } from '../../core/errors.js'
import { definedFields, weightOf } from '../../core/json.js'
import type { GenerationOptions } from '../../engine/engine.js'
import { type AnswerFormat, type Ask, MOST_OF_SCHEMA } from '../ask.js'
import type { ServedEngine } from './models.js'

/**
 * Returns the settings for generating an answer. The request's sampling overrides the model's defaults.
 * @param contract the contract of the request's edits; null: the engine's default
 */
export function generationFor(
  { samplingDefaults }: ServedEngine,
  ask: Pick<
    Ask,
    | 'sampling'
    | 'limits'
    | 'speculate'
    | 'maxTokens'
    | 'stop'
    | 'reasoningBudget'
    | 'endReasoning'
    | 'logprobs'
    | 'bareCalls'
    | 'format'
  >,
  contract: ContractChoice | null = null,
): GenerationOptions {
  const { sampling, limits, speculate, maxTokens, stop, reasoningBudget, endReasoning, logprobs, bareCalls, format } = ask
  return {
    ...definedFields({
      ...{ limits, speculate, maxTokens, stop, endReasoning, logprobs, bareCalls },
      sampling: samplingDefaults === undefined ? sampling : { ...samplingDefaults, ...sampling },
      reasoningBudget: reasoningBudget?.tokens,
      contract: contract ?? undefined,
    }),
    ...formIn(format),
  }
}

/**
 * Returns the parts of JSON schemas that the grammar leaves out, so that an answer or a call may break them. They come from a `loose`
 * format and from tools that are not strict.
 * @throws KvfoldError engine/bad-request for a schema that is too large; engine/bad-grammar when a strict schema cannot be enforced
 */
export async function leftOut(format: AnswerFormat | undefined, tools: readonly ToolDefinition[]): Promise<readonly string[]> {
  if (format?.kind === 'schema' && weightOf(format.schema, MOST_OF_SCHEMA + 1) > MOST_OF_SCHEMA)
    throw new KvfoldError(
      'engine/bad-request',
      `The JSON schema of the answer has more than ${MOST_OF_SCHEMA} characters and values; shorten it.`,
    )
  const form = format?.kind === 'schema' ? await grammarOfSchema(format.schema, format.loose === true) : { leftOut: [] }
  const calls = tools.length === 0 ? [] : await leftOutByCalls(tools)
  const all = [...form.leftOut.map((place) => `format: ${place}`), ...calls]
  const told = all.slice(0, MOST_TOLD)
  return told.length === all.length ? told : [...told, `and ${all.length - told.length} more places in schemas`]
}

/** The most parts of schemas that an answer lists by name; a last entry counts the rest. */
const MOST_TOLD = 50

function formIn(format: AnswerFormat | undefined): Pick<GenerationOptions, 'grammar' | 'afterReasoning' | 'schema' | 'loose'> {
  switch (format?.kind) {
    case undefined:
      return {}
    case 'json':
      return { grammar: anyObject, afterReasoning: true }
    case 'grammar':
      return { grammar: format.grammar, ...(format.afterReasoning === true ? { afterReasoning: true } : {}) }
    case 'schema':
      return { schema: format.schema, ...(format.loose === true ? { loose: true } : {}) }
  }
}
