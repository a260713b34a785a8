/**
 * Owns what a model can learn from: a tape of what an engine was asked and said, and the snapshots of a trajectory whose context was edited on the
 * way.
 */
import type { ChatFormat } from '../../runtime/chat/format.js'
import type { ChatMessage, Edit, ToolDefinition } from '../../runtime/chat/message.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import { span, type Span } from '../../runtime/core/span.js'
import { writeJson } from '../../runtime/core/written-json.js'
import {
  type Engine,
  EngineAround,
  type EngineReply,
  type EngineRequest,
  type Finish,
  type Generation,
  type ShownTokens,
} from '../../runtime/engine/engine.js'
import { contentOf, editsByMessage } from '../../fleet/engines/wire.js'
import { commonPrefix } from '../../runtime/kv/prompt.js'
import type { CallReport } from '../../runtime/agents/tool-loop.js'

/** One completion, and what the model was shown before it. */
export interface TrajectoryStep {
  readonly messages: readonly ChatMessage[]
  readonly edits: readonly Edit[]
  readonly tools: readonly ToolDefinition[]
  /** What was said. */
  readonly completion: ChatMessage
  readonly finish: Finish
  /** Its calls and what came of each. */
  readonly calls: readonly TakenCall[]
  /** Natural-log probabilities of its tokens, the end of turn included, where the engine was asked for them (`logprobs`) and has that one. */
  readonly logprobs?: readonly number[]
  /** The token that ended it, as the engine drew it beside these; a template may show another one. */
  readonly end?: number
  /** The texts of these tokens, but for the end of turn's. */
  readonly pieces?: readonly string[]
  /** As the engine says them. */
  readonly tokens?: ShownTokens
}

/** What became of a call. */
export type TakenCall = Pick<CallReport, 'call' | 'failed' | 'modifies'>

/** What the model saw at one of its steps and said there, in tokens (or what else is counted in: `Units`). */
export interface Snapshot {
  /** The prompt of its last step, then that step's completion. What comes after teaches nothing and is left out. */
  readonly tokens: Int32Array
  /** The completions to be learned from it, in tokens with the end of turn that was sampled; all others have no loss. */
  readonly learned: readonly Learned[]
}

interface Learned {
  readonly step: number
  readonly span: Span
  /** Of each token of the span, as the model that acted had it: before temperature, filters and grammar. Left out where the engine did not say. */
  readonly logprobs?: readonly number[]
}

/** How steps become tokens; a loaded model has both. */
export interface StepWording {
  readonly format: Pick<ChatFormat, 'render'>
  readonly isEndOfGeneration: (token: number) => boolean
}

interface Worded {
  readonly prompt: Int32Array
  readonly completion: Int32Array
}

/** What snapshots are counted in: equal numbers stand for equal things. `index`: of the step, for errors. */
export type Units = (step: TrajectoryStep, index: number) => Worded

/**
 * Conditional trajectory collection with incremental loss (Sculptor, algorithm 1): a snapshot at every step that changed the context and at the
 * last one, and also wherever the next prompt does not go on from this one for another reason (a template that drops old reasoning, a
 * summary written aside). Every completion is learned once, after exactly the tokens that it was sampled after.
 *
 * @throws KvfoldError chat/template-failed where the template shows a completion in a way from which its tokens cannot be told
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
      // An end of turn that nobody sampled, as behind a stop string, has no probability; nor have the tokens of another vocabulary.
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

/** Whether a completion is in the tokens of whoever said it. */
const isOwn = ({ completion: { sampled }, tokens }: TrajectoryStep, completion: Int32Array): boolean =>
  sampled !== undefined || (tokens !== undefined && beginsWith(completion, tokens.completion))

/** Tokens of a model that is loaded here, by its chat template and, where it acted itself, as it sampled them. */
export const modelTokens =
  (wording: StepWording): Units =>
  (step, index) =>
    wordsOf(step, index, wording)

/** Tokens as the engine says them. Units throw engine/bad-request for a step of which it says none. */
export const engineTokens: Units = ({ tokens }, index) => {
  if (tokens === undefined)
    throw new KvfoldError(
      'engine/bad-request',
      `The engine does not say which tokens step ${index + 1} was; let another model's file say them, or collect messages.`,
    )
  return tokens
}

/** Messages, where nobody says tokens: a prompt is its tools and its messages as shown, a completion is one. */
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

/** A message as it is shown, in the form of OpenAI's chat API; arguments are text, as they were written where they are no JSON object. */
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

/** JSON as templates write it, with a space behind every comma and colon: so a template that takes arguments as text shows the same. */
const spaced = (value: unknown): string =>
  writeJson(value, 1)
    .replace(/,\n\s*/gu, ', ')
    .replace(/\n\s*/gu, '')

function wordsOf(
  { messages, edits, tools, completion, finish, end: drawn }: TrajectoryStep,
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
      `The template shows the completion of step ${index + 1} in a way from which its tokens cannot be told; collect from a model that samples it.`,
    )
  const words = sampled ?? said!.subarray(0, end)
  const ended = finish === 'stop' || finish === 'tool-calls'
  if (ended && sampled !== undefined && drawn !== undefined) return { prompt, completion: joined(words, Int32Array.of(drawn)) }
  return { prompt, completion: ended && end >= 0 ? joined(words, said!.subarray(end, end + 1)) : words }
}

function joined(first: Int32Array, second: Int32Array): Int32Array {
  const both = new Int32Array(first.length + second.length)
  both.set(first)
  both.set(second, first.length)
  return both
}

const beginsWith = (tokens: Int32Array, start: Int32Array): boolean => commonPrefix(tokens, start) === start.length

// A recording of what an engine was asked and said, step by step, so that a model can learn from it.

type Taped = Omit<TrajectoryStep, 'calls'> & { readonly kind: 'answer' | 'summary' }

/** An engine around another that keeps every step that came to its end, in the order of the requests. */
export class TrajectoryRecorder extends EngineAround {
  readonly #steps: (Taped | null)[] = []

  /** @param asks added to every request, or in place of what it says: how to sample, what to report */
  constructor(
    engine: Engine,
    private readonly asks: Pick<EngineRequest, 'sampling' | 'logprobs'> = {},
  ) {
    super(engine)
  }

  respond(request: EngineRequest): Generation {
    const generation = this.engine.respond({ ...request, ...this.asks })
    const { messages, edits = [], tools = [], kind = 'answer' } = request
    const at = this.#steps.push(null) - 1
    // What is shown is as it is now: the caller goes on to add to its messages.
    const shown = { messages: [...messages], edits: [...edits], tools: [...tools], kind }
    const reply = generation.reply.then((done: EngineReply) => {
      const { message, finish, tokens } = done
      this.#steps[at] = {
        ...shown,
        completion: message,
        finish,
        ...logprobsOf(done),
        ...(tokens === undefined ? {} : { tokens }),
      }
      return done
    })
    reply.catch(() => undefined)
    return { reply, [Symbol.asyncIterator]: () => generation[Symbol.asyncIterator]() }
  }

  /** The steps that were taped, summaries among them. `taken`: of each answer's calls what became of them, in order. */
  trajectory(taken: readonly (readonly TakenCall[])[]): TrajectoryStep[] {
    let answers = 0
    return this.#steps.flatMap((taped) => {
      if (taped === null) return []
      const { kind, ...step } = taped
      return [{ ...step, calls: kind === 'answer' ? (taken[answers++] ?? []) : [] }]
    })
  }

  /** Of each step that was taped. */
  get kinds(): readonly Taped['kind'][] {
    return this.#steps.flatMap((taped) => (taped === null ? [] : [taped.kind]))
  }

  /** The calls of each answer, as they were said. */
  get said(): readonly (readonly TakenCall['call'][])[] {
    return this.#steps.flatMap((taped) => (taped?.kind === 'answer' ? [taped.completion.toolCalls ?? []] : []))
  }
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
