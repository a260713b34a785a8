/** Records one sample's or session's requests to the engine, with the replies. Logs, costs and trajectories are made from this record. */
import type { ChatMessage } from '../runtime/chat/message.js'
import { withoutCalls } from '../runtime/chat/parser.js'
import type { ConversationId } from '../runtime/core/ids.js'
import { KvfoldError } from '../runtime/core/errors.js'
import { definedFields } from '../runtime/core/json.js'
import { writeJson } from '../runtime/core/written-json.js'
import {
  type Engine,
  EngineAround,
  type EngineReply,
  type EngineRequest,
  type EventStream,
  type Generation,
  generationOf,
} from '../runtime/engine/engine.js'
import type { LedgerEntry } from '../runtime/kv/ledger.js'
import type { RecordedConversation, TurnRecord } from './log.js'

type RecordedStep = RecordedConversation['steps'][number]
type RecordedMessage = RecordedConversation['messages'][number]

/** A request as the agent made it. Its lists are copies, because callers append to their own lists later. */
type RecordedRequest = Required<Pick<EngineRequest, 'conversation' | 'messages' | 'edits' | 'tools' | 'unlisted' | 'kind'>> &
  Pick<EngineRequest, 'contract' | 'maxTokens'>

/** A step with a reply. */
export interface DoneStep {
  /** Index of the step among all steps of the recorder, from 0. */
  readonly place: number
  readonly request: RecordedRequest
  readonly reply: EngineReply
  /** The generated text, including the syntax of calls. */
  readonly said: string
}

/** A requested step. `end` is set when the step ends. */
interface RecordedAsk {
  readonly place: number
  readonly request: RecordedRequest
  readonly begun: number
  end?:
    | { readonly reply: EngineReply; readonly said: string }
    | { readonly error: unknown; readonly said: string; readonly milliseconds: number }
}

export interface RecorderOptions {
  /** Sampling and log-probabilities for every request, in place of the request's own. */
  readonly asks?: Pick<EngineRequest, 'sampling' | 'logprobs'>
  /** Called after each step with a reply. */
  readonly onStep?: (step: DoneStep) => void
}

/**
 * An engine for one sample that records every step, including failed and cancelled ones. It changes requests only by `asks`. It does not
 * own the wrapped engine: disposing of the recorder leaves that engine as it is.
 */
export class Recorder extends EngineAround {
  readonly #asked: RecordedAsk[] = []
  readonly #made = performance.now()
  #last = this.#made

  constructor(
    engine: Engine,
    private readonly options: RecorderOptions = {},
  ) {
    super(engine)
  }

  respond(request: EngineRequest): Generation {
    const { conversation, messages, edits = [], tools = [], unlisted = [], kind = 'answer', contract, maxTokens } = request
    const asked: RecordedAsk = {
      place: this.#asked.length,
      request: {
        ...{ conversation, messages: [...messages], edits: [...edits], tools: [...tools], unlisted: [...unlisted], kind },
        ...definedFields({ contract, maxTokens }),
      },
      begun: performance.now(),
    }
    this.#asked.push(asked)
    return generationOf((stream) => this.#respond({ ...request, ...this.options.asks }, stream, asked))
  }

  /** The steps with a reply, in the order of the requests. */
  get done(): readonly DoneStep[] {
    return this.#asked.flatMap(({ place, request, end }) =>
      end !== undefined && 'reply' in end ? [{ place, request, ...end }] : [],
    )
  }

  /**
   * Returns the recorded conversations, without steps that are still running. Each message is listed once. If a request's messages do not
   * begin with all messages that its conversation has so far, a new entry begins for it.
   */
  get talks(): RecordedConversation[] {
    const talks: { readonly messages: ChatMessage[]; readonly steps: RecordedAsk[] }[] = []
    const current = new Map<ConversationId, (typeof talks)[number]>()
    for (const asked of this.#asked) {
      const { conversation, messages } = asked.request
      let talk = current.get(conversation)
      if (talk === undefined || !goesOn(talk.messages, messages)) {
        talk = { messages: [], steps: [] }
        talks.push(talk)
        current.set(conversation, talk)
      }
      talk.messages.push(...messages.slice(talk.messages.length))
      talk.steps.push(asked)
    }
    return talks.map(({ messages, steps }) => ({
      messages: messages.map(recordedMessage),
      steps: steps.flatMap((asked) => (asked.end === undefined ? [] : [recordedStep(asked, asked.end, messages)])),
    }))
  }

  /**
   * Returns the part of an answer that counts for its score: the answer without tool calls written as text. A model that may not call any
   * more sometimes writes one. Such a call says nothing, even if the right word is among its arguments.
   */
  saidIn(answer: string): string {
    const last = this.done.findLast(({ request }) => request.kind !== 'summary')?.request
    return last === undefined ? answer : withoutCalls(answer, [...last.tools, ...last.unlisted])
  }

  /**
   * Returns the cost of the steps in `done` from index `from` on. `milliseconds.total` is the wall time from the recorder's construction to
   * the end of the last step.
   */
  cost(from = 0): Pick<TurnRecord, 'tokens' | 'work' | 'milliseconds'> {
    const done = this.done.slice(from)
    const { tokens, work, milliseconds } = costOf(done.map(({ reply }) => reply.ledger))
    const generated = done.reduce((sum, { reply }) => sum + reply.timing.generatedTokens, 0)
    return { tokens, work: { ...work, generated }, milliseconds: { ...milliseconds, total: this.#last - this.#made } }
  }

  async #respond(request: EngineRequest, stream: EventStream, asked: RecordedAsk): Promise<EngineReply> {
    let said = ''
    try {
      const running = this.engine.respond(request)
      for await (const event of running) {
        if (event.type === 'tokens') said += event.text
        stream.push(event)
      }
      const reply = await running.reply
      asked.end = { reply, said: said === '' ? reply.message.content : said }
      this.options.onStep?.({ place: asked.place, request: asked.request, ...asked.end })
      return reply
    } catch (error) {
      asked.end ??= { error, said, milliseconds: performance.now() - asked.begun }
      throw error
    } finally {
      this.#last = performance.now()
    }
  }
}

/** The summed costs of several steps. */
export interface StepsCost extends Pick<TurnRecord, 'tokens'> {
  readonly work: Omit<TurnRecord['work'], 'generated'>
  readonly milliseconds: LedgerEntry['milliseconds']
}

/** Sums the costs of steps from their ledger entries. All code of the laboratory takes its sums from here. */
export function costOf(entries: readonly LedgerEntry[]): StepsCost {
  const total = (of: (entry: LedgerEntry) => number): number => entries.reduce((sum, entry) => sum + of(entry), 0)
  return {
    tokens: {
      before: entries[0]?.shown ?? 0,
      most: entries.reduce((most, { shown }) => Math.max(most, shown), 0),
      after: entries.findLast(({ kind }) => kind !== 'summary')?.shown ?? 0,
    },
    work: {
      steps: entries.length,
      shown: total(({ shown }) => shown),
      reused: total(({ reused }) => reused),
      recomputed: total(({ recomputed }) => recomputed),
      fresh: total(({ fresh }) => fresh),
      approximate: total(({ approximate }) => approximate),
      submitted: total(({ submitted }) => submitted),
    },
    milliseconds: {
      cache: total(({ milliseconds }) => milliseconds.cache),
      prefill: total(({ milliseconds }) => milliseconds.prefill),
      decode: total(({ milliseconds }) => milliseconds.decode),
    },
  }
}

/** Returns whether `messages` begins with all messages of `recorded`. */
const goesOn = (recorded: readonly ChatMessage[], messages: readonly ChatMessage[]): boolean =>
  recorded.length <= messages.length && recorded.every((message, index) => isSame(message, messages[index]))

const isSame = (message: ChatMessage, other: ChatMessage | undefined): boolean =>
  message === other || (other !== undefined && writeJson(recordedMessage(message)) === writeJson(recordedMessage(other)))

/** Returns the message for the log: without fields that only the engine needs, and with its fields in a fixed order. */
function recordedMessage({ role, content, reasoning, toolCalls, toolCallId, name }: ChatMessage): RecordedMessage {
  return {
    role,
    content,
    ...(reasoning === undefined ? {} : { reasoning }),
    ...(toolCalls === undefined
      ? {}
      : {
          toolCalls: toolCalls.map((call) => ({
            id: call.id,
            name: call.name,
            arguments: { ...call.arguments },
            ...(call.malformed === undefined ? {} : { malformed: call.malformed }),
          })),
        }),
    ...(toolCallId === undefined ? {} : { toolCallId }),
    ...(name === undefined ? {} : { name }),
  }
}

function recordedStep(asked: RecordedAsk, end: NonNullable<RecordedAsk['end']>, messages: readonly ChatMessage[]): RecordedStep {
  const { place, request } = asked
  if ('reply' in end) {
    const { said, ...step } = stepOf({ place, request, ...end })
    const isShown = isSame(end.reply.message, messages[step.messages])
    return said === undefined || isShown ? step : { ...step, said }
  }
  const { contract = 'exact' } = request
  return {
    ...shownBy(place, request),
    finish: 'failed',
    error: end.error instanceof KvfoldError ? end.error.code : String(end.error),
    ledger: { ...NO_LEDGER, contract, milliseconds: { ...NO_LEDGER.milliseconds } },
    timing: { firstToken: 0, total: end.milliseconds, generatedTokens: 0 },
    ...(end.said === '' ? {} : { said: end.said }),
  }
}

/** Returns the record of one step by itself, with all its generated text. */
export function stepOf({ place, request, reply, said }: DoneStep): RecordedStep {
  const { firstToken, total, generatedTokens } = reply.timing
  return {
    ...shownBy(place, request),
    finish: reply.finish,
    ledger: costsIn(reply.ledger),
    timing: { firstToken, total, generatedTokens },
    ...(said === '' ? {} : { said }),
  }
}

const shownBy = (place: number, { messages, edits, tools }: RecordedRequest) => ({
  ...{ place, messages: messages.length },
  edits: edits.map(({ message, span: { start, end }, replacement }) => ({ message, span: { start, end }, replacement })),
  tools: tools.length > 0,
})

function costsIn(entry: LedgerEntry): RecordedStep['ledger'] {
  const { kind, contract, shown, reused, recomputed, fresh, approximate, side, submitted, milliseconds, predicted } = entry
  const { recomputeReason = null } = entry
  return {
    ...{ kind, contract, shown, reused, recomputed, fresh, approximate, side, submitted },
    ...{ milliseconds: { ...milliseconds }, predicted, recomputeReason },
  }
}

/** Stands for the ledger entry of a step that failed before the engine returned one. */
const NO_LEDGER = {
  kind: 'cancelled',
  ...{ shown: 0, reused: 0, recomputed: 0, fresh: 0, approximate: 0, side: 0, submitted: 0 },
  milliseconds: { cache: 0, prefill: 0, decode: 0 },
  predicted: null,
} as const
