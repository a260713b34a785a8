/** Divides a recorded trajectory, whose context was edited between steps, into snapshots for training. */
import type { ChatFormat } from '../../runtime/chat/format.js'
import type { ChatMessage, Edit, ToolDefinition } from '../../runtime/chat/message.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import { span, type Span } from '../../runtime/core/span.js'
import { writeJson } from '../../runtime/core/written-json.js'
import type { EngineReply, Finish, ShownTokens } from '../../runtime/engine/engine.js'
import { contentOf, editsByMessage } from '../../fleet/engines/wire.js'
import { commonPrefix } from '../../runtime/kv/prompt.js'
import type { CallReport } from '../../runtime/agents/tool-loop.js'
import type { DoneStep } from '../recorder.js'

/** One step of a trajectory: the prompt, and the completion that the model wrote. */
export interface TrajectoryStep {
  readonly messages: readonly ChatMessage[]
  readonly edits: readonly Edit[]
  readonly tools: readonly ToolDefinition[]
  /** The message that the model wrote. */
  readonly completion: ChatMessage
  readonly finish: Finish
  /** The tool calls in the completion, with their outcomes. */
  readonly calls: readonly TakenCall[]
  /**
   * Natural logarithm of the probability of each token of the completion. Present if the request asked for `logprobs`. The end-of-turn
   * token comes last, if the engine reports it.
   */
  readonly logprobs?: readonly number[]
  /** The end-of-turn token that the engine sampled. The chat template may render a different one. */
  readonly end?: number
  /** The text of each token of the completion, without the end-of-turn token. */
  readonly pieces?: readonly string[]
  /** The token ids of prompt and completion, if the engine reports them. */
  readonly tokens?: ShownTokens
}

/** A tool call and its outcome. */
export type TakenCall = Pick<CallReport, 'call' | 'failed' | 'modifies'>

/** One training example: a prompt and its completion, as tokens or as other units (see `Units`). */
export interface Snapshot {
  /** The prompt of the last step in the snapshot, followed by that step's completion. */
  readonly tokens: Int32Array
  /** The completions that are trained on (with loss), including a sampled end of turn. All other tokens have no loss. */
  readonly learned: readonly Learned[]
}

interface Learned {
  readonly step: number
  readonly span: Span
  /**
   * Natural logarithm of each token's probability under the model that acted, before temperature, filters and grammar. Absent if the engine
   * did not report it.
   */
  readonly logprobs?: readonly number[]
}

/** Tokenizes messages, and recognises end-of-turn tokens. A loaded model provides both. */
export interface StepWording {
  readonly format: Pick<ChatFormat, 'render'>
  readonly isEndOfGeneration: (token: number) => boolean
}

interface Worded {
  readonly prompt: Int32Array
  readonly completion: Int32Array
}

/**
 * Maps a step's prompt and completion to integers, one per unit (token or message). Equal units get equal integers. `index`: the step's
 * index, for errors.
 */
export type Units = (step: TrajectoryStep, index: number) => Worded

/**
 * Makes the snapshots of a trajectory (Sculptor, algorithm 1: conditional trajectory collection with incremental loss).
 * Takes a snapshot after every step that changed the context, and after the last step. Also takes one if the next prompt does not begin
 * with this prompt and completion, for example because the chat template drops old reasoning.
 * Each completion has loss in exactly one snapshot, behind exactly the tokens that preceded its sampling.
 *
 * @throws KvfoldError chat/template-failed when the tokens of a completion cannot be found in the rendered template
 */
export function snapshots(steps: readonly TrajectoryStep[], units: Units): Snapshot[] {
  const made: Snapshot[] = []
  let learned: Learned[] = []
  const worded = steps.map((step, index) => units(step, index))
  worded.forEach(({ prompt, completion }, index) => {
    const { logprobs } = steps[index]!
    learned.push({
      step: index,
      span: span(prompt.length, prompt.length + completion.length),
      // Log-probabilities of other tokens are left out, e.g. if another model's tokenizer made `completion`.
      ...(logprobs?.length === completion.length && isOwn(steps[index]!, completion) ? { logprobs } : {}),
    })
    const tokens = joined(prompt, completion)
    const next = worded[index + 1]
    const modifies = steps[index]?.calls.some((call) => call.modifies) ?? false
    if (next !== undefined && !modifies && beginsWith(next.prompt, tokens)) return
    made.push({ tokens, learned })
    learned = []
  })
  return made
}

/** Returns whether `completion` holds the tokens that the acting model sampled, and not another tokenizer's tokens of the same text. */
const isOwn = ({ completion: { sampled }, tokens }: TrajectoryStep, completion: Int32Array): boolean =>
  sampled !== undefined || (tokens !== undefined && beginsWith(completion, tokens.completion))

/** Units are tokens of a model loaded in this process, by its chat template. If that model acted, its sampled tokens are used. */
export const modelTokens =
  (wording: StepWording): Units =>
  (step, index) =>
    wordsOf(step, index, wording)

/** Units are the tokens that the engine reports. @throws KvfoldError engine/bad-request for a step without reported tokens */
export const engineTokens: Units = ({ tokens }, index) => {
  if (tokens === undefined)
    throw new KvfoldError(
      'engine/bad-request',
      `The engine does not report the tokens of step ${index + 1}; name a model for them with --tokenizer, or collect messages.`,
    )
  return tokens
}

/** Units are messages, for engines that report no tokens. The first unit of each prompt is its list of tools. */
export function messageUnits(): Units {
  const known = new Map<string, number>()
  const unit = (of: unknown): number => {
    const text = writeJson(of)
    const number = known.get(text) ?? known.size
    known.set(text, number)
    return number
  }
  return ({ messages, edits, tools, completion }) => ({
    prompt: Int32Array.from([unit(tools), ...shownMessages(messages, edits).map(unit)]),
    completion: Int32Array.of(...shownMessages([completion], []).map(unit)),
  })
}

/**
 * A message with its edits applied, in OpenAI's chat format. A call's arguments are a string; malformed ones stay as the model wrote them.
 */
export interface ShownMessage {
  readonly role: string
  readonly content: string
  readonly reasoning_content?: string
  readonly tool_calls?: readonly {
    readonly id: string
    readonly type: 'function'
    readonly function: { readonly name: string; readonly arguments: string }
  }[]
  readonly tool_call_id?: string
  readonly name?: string
}

export function shownMessages(messages: readonly ChatMessage[], edits: readonly Edit[]): ShownMessage[] {
  const changes = editsByMessage(edits)
  return messages.map((message, index): ShownMessage => ({
    role: message.role,
    content: contentOf(message, changes.get(index) ?? []),
    ...(message.reasoning === undefined ? {} : { reasoning_content: message.reasoning }),
    ...(message.toolCalls === undefined
      ? {}
      : {
          tool_calls: message.toolCalls.map(({ id, name, arguments: given, malformed, text }) => ({
            id,
            type: 'function',
            function: { name, arguments: malformed ?? text ?? spaced(given) },
          })),
        }),
    ...(message.toolCallId === undefined ? {} : { tool_call_id: message.toolCallId }),
    ...(message.name === undefined ? {} : { name: message.name }),
  }))
}

/**
 * Returns JSON with a space after every comma and colon, as chat templates write it. A template that takes arguments as text then renders
 * the same as one that takes an object.
 */
const spaced = (value: unknown): string =>
  writeJson(value, 1)
    .replace(/,\n\s*/gu, ', ')
    .replace(/\n\s*/gu, '')

function wordsOf(
  { messages, edits, tools, completion, finish, logprobs, end: drawn }: TrajectoryStep,
  index: number,
  { format, isEndOfGeneration }: StepWording,
): Worded {
  const prompt = format.render({ messages, edits, tools }).tokens
  const shown = format.render({ messages: [...messages, completion], edits, tools, generationPrompt: false }).tokens
  const said = beginsWith(shown, prompt) ? shown.subarray(prompt.length) : null
  const end = said?.findIndex((token) => isEndOfGeneration(token)) ?? -1
  const sampled = completion.sampled?.tokens
  if (sampled === undefined && (said === null || end === -1))
    throw new KvfoldError(
      'chat/template-failed',
      `The template changes the completion of step ${index + 1}, so its tokens cannot be found; collect from a model that samples it.`,
    )
  const words = sampled ?? said!.subarray(0, end)
  if (finish !== 'stop' && finish !== 'tool-calls') return { prompt, completion: words }
  // If the runtime ended the step after a tool call or at a stop string, the model sampled no end-of-turn token.
  if (sampled !== undefined && logprobs !== undefined)
    return { prompt, completion: drawn === undefined ? words : joined(words, Int32Array.of(drawn)) }
  return { prompt, completion: end >= 0 ? joined(words, said!.subarray(end, end + 1)) : words }
}

function joined(first: Int32Array, second: Int32Array): Int32Array {
  const both = new Int32Array(first.length + second.length)
  both.set(first)
  both.set(second, first.length)
  return both
}

const beginsWith = (tokens: Int32Array, start: Int32Array): boolean => commonPrefix(tokens, start) === start.length

/** Turns recorded steps, including summaries, into steps of a trajectory. `taken`: for each answer, its calls with their outcomes. */
export function trajectoryOf(done: readonly DoneStep[], taken: readonly (readonly TakenCall[])[]): TrajectoryStep[] {
  let answers = 0
  return done.map(({ request: { messages, edits, tools, kind }, reply }) => ({
    ...{ messages, edits, tools },
    completion: reply.message,
    finish: reply.finish,
    calls: kind === 'answer' ? (taken[answers++] ?? []) : [],
    ...logprobsOf(reply),
    ...(reply.tokens === undefined ? {} : { tokens: reply.tokens }),
  }))
}

function logprobsOf({ logprobs, endLogprob }: EngineReply): Pick<TrajectoryStep, 'logprobs' | 'pieces' | 'end'> {
  if (logprobs === undefined) return {}
  const end = endLogprob === undefined ? [] : [endLogprob]
  return {
    logprobs: [...logprobs, ...end].map(({ logprob }) => logprob),
    pieces: logprobs.map(({ text }) => text),
    ...(endLogprob === undefined ? {} : { end: endLogprob.token }),
  }
}
