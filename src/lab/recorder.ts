/** Records, for the log, the requests of one sample to the engine and their replies. */
import type { ChatMessage } from '../runtime/chat/message.js'
import type { ConversationId } from '../runtime/core/ids.js'
import { KvfoldError } from '../runtime/core/errors.js'
import { writeJson } from '../runtime/core/written-json.js'
import {
  EngineAround,
  type EngineReply,
  type EngineRequest,
  type EventStream,
  type Generation,
  generationOf,
} from '../runtime/engine/engine.js'
import type { LedgerEntry } from '../runtime/kv/ledger.js'
import type { SampleRecord, RecordedConversation } from './log.js'

type RecordedStep = RecordedConversation['steps'][number]
type RecordedMessage = RecordedConversation['messages'][number]

/** A requested step. `end` is set when the step is over. */
interface RecordedAsk {
  readonly place: number
  readonly request: Pick<EngineRequest, 'contract' | 'kind'>
  readonly shown: Pick<RecordedStep, 'messages' | 'edits' | 'tools'>
  readonly begun: number
  end?:
    | { readonly reply: EngineReply; readonly said: string }
    | { readonly error: unknown; readonly said: string; readonly milliseconds: number }
}

interface OpenTalk {
  readonly messages: ChatMessage[]
  readonly steps: RecordedAsk[]
}

/**
 * Wraps the engine for one sample and records every step, also failed and cancelled ones, without changing any.
 * Each message is stored once. A request whose messages do not begin with those of its conversation's current talk starts a new talk.
 * The recorder does not own the engine: disposing of the recorder leaves the engine as it is.
 */
export class Recorder extends EngineAround {
  readonly #talks: OpenTalk[] = []
  /** For each conversation, the talk that its next request may continue. */
  readonly #current = new Map<ConversationId, OpenTalk>()
  readonly #made = performance.now()
  #last = this.#made
  #steps = 0

  respond(request: EngineRequest): Generation {
    const { messages, edits = [], tools = [] } = request
    const asked: RecordedAsk = {
      place: this.#steps++,
      request,
      shown: {
        messages: messages.length,
        edits: edits.map(({ message, span: { start, end }, replacement }) => ({ message, span: { start, end }, replacement })),
        tools: tools.length > 0,
      },
      begun: performance.now(),
    }
    this.#talkOf(request).steps.push(asked)
    return generationOf((stream) => this.#respond(request, stream, asked))
  }

  /** The number of steps requested so far, which is also the index of the next one. */
  get steps(): number {
    return this.#steps
  }

  /** All talks so far, without the steps that still run. */
  get talks(): RecordedConversation[] {
    return this.#talks.map(({ messages, steps }) => ({
      messages: messages.map(recordedMessage),
      steps: steps.flatMap((asked) => (asked.end === undefined ? [] : [recordedStep(asked, asked.end, messages)])),
    }))
  }

  /**
   * Tokens in context at the end of the first step, of the step with the most, and of the last step that was no summary; 0 without steps.
   */
  get tokens(): SampleRecord['tokens'] {
    const entries = this.ledger
    const answers = entries.filter(({ kind }) => kind !== 'summary')
    return {
      before: entries[0]?.shown ?? 0,
      most: entries.reduce((most, { shown }) => Math.max(most, shown), 0),
      after: answers.at(-1)?.shown ?? 0,
    }
  }

  /** Sums over the steps that have a ledger entry; `steps` is their number. */
  get work(): SampleRecord['work'] {
    const replies = this.#replies()
    const sum = (key: 'shown' | 'reused' | 'submitted') => replies.reduce((total, { ledger }) => total + ledger[key], 0)
    const generated = replies.reduce((total, { timing }) => total + timing.generatedTokens, 0)
    return { steps: replies.length, shown: sum('shown'), reused: sum('reused'), submitted: sum('submitted'), generated }
  }

  /** Sums of the ledger entries. `total` is the wall time from the construction of the recorder to the end of the last step. */
  get milliseconds(): SampleRecord['milliseconds'] {
    const sum = (key: keyof LedgerEntry['milliseconds']) =>
      this.ledger.reduce((total, entry) => total + entry.milliseconds[key], 0)
    return { cache: sum('cache'), prefill: sum('prefill'), decode: sum('decode'), total: this.#last - this.#made }
  }

  /** The ledger entries of all steps that have one, in the order of the requests. */
  get ledger(): readonly LedgerEntry[] {
    return this.#replies().map(({ ledger }) => ledger)
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
      return reply
    } catch (error) {
      asked.end = { error, said, milliseconds: performance.now() - asked.begun }
      throw error
    } finally {
      this.#last = performance.now()
    }
  }

  #talkOf({ conversation, messages }: EngineRequest): OpenTalk {
    const current = this.#current.get(conversation)
    if (current !== undefined && goesOn(current.messages, messages)) {
      current.messages.push(...messages.slice(current.messages.length))
      return current
    }
    const talk: OpenTalk = { messages: [...messages], steps: [] }
    this.#current.set(conversation, talk)
    this.#talks.push(talk)
    return talk
  }

  #replies(): readonly EngineReply[] {
    const steps = this.#talks.flatMap((talk) => talk.steps).sort((one, other) => one.place - other.place)
    return steps.flatMap(({ end }) => (end !== undefined && 'reply' in end ? [end.reply] : []))
  }
}

/** Whether `messages` begin with all of `recorded`. */
const goesOn = (recorded: readonly ChatMessage[], messages: readonly ChatMessage[]): boolean =>
  recorded.length <= messages.length && recorded.every((message, index) => isSame(message, messages[index]))

const isSame = (message: ChatMessage, other: ChatMessage | undefined): boolean =>
  message === other || (other !== undefined && writeJson(recordedMessage(message)) === writeJson(recordedMessage(other)))

/** The message without the fields that only the engine needs, always in the same order of fields. */
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

function recordedStep(
  { place, request, shown }: RecordedAsk,
  end: NonNullable<RecordedAsk['end']>,
  messages: readonly ChatMessage[],
): RecordedStep {
  const said = end.said === '' ? {} : { said: end.said }
  if ('error' in end)
    return {
      place,
      ...shown,
      finish: 'failed',
      error: end.error instanceof KvfoldError ? end.error.code : String(end.error),
      ledger: noAccount(request),
      timing: { firstToken: 0, total: end.milliseconds, generatedTokens: 0 },
      ...said,
    }
  const { message, finish, ledger, timing } = end.reply
  const { firstToken, total, generatedTokens } = timing
  return {
    place,
    ...shown,
    finish,
    ledger: costOf(ledger),
    timing: { firstToken, total, generatedTokens },
    ...(isSame(message, messages[shown.messages]) ? {} : said),
  }
}

function costOf(entry: LedgerEntry): RecordedStep['ledger'] {
  const { kind, contract, shown, reused, recomputed, fresh, approximate, side, submitted, milliseconds, predicted } = entry
  const { recomputeReason = null } = entry
  return {
    kind,
    contract,
    shown,
    reused,
    recomputed,
    fresh,
    approximate,
    side,
    submitted,
    milliseconds: { ...milliseconds },
    predicted,
    recomputeReason,
  }
}

/** A ledger entry of zeros, for a step for which the engine gave none. */
const noAccount = ({ contract = 'exact' }: RecordedAsk['request']): RecordedStep['ledger'] => ({
  kind: 'cancelled',
  contract,
  ...{ shown: 0, reused: 0, recomputed: 0, fresh: 0, approximate: 0, side: 0, submitted: 0 },
  milliseconds: { cache: 0, prefill: 0, decode: 0 },
  predicted: null,
})
