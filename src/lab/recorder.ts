/** Owns the record of what an engine was asked in one sample and what came of it, for the log. */
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

/** A step that was asked for; `end` is set when it is over. */
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
 * One for each sample. Sees to it that every step is recorded as it is asked for, those that fail or are cancelled included, and changes
 * nothing. Messages are kept once: a request whose messages do not begin with those of its conversation's talk so far begins another talk.
 * The engine is not the recorder's: disposing of it leaves the engine as it is.
 */
export class Recorder extends EngineAround {
  readonly #talks: OpenTalk[] = []
  /** The talk of each conversation that its next request may go on with. */
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

  /** Steps asked for so far; the next one's place. */
  get steps(): number {
    return this.#steps
  }

  /** What was said so far, without steps that still run. */
  get talks(): RecordedConversation[] {
    return this.#talks.map(({ messages, steps }) => ({
      messages: messages.map(recordedMessage),
      steps: steps.flatMap((asked) => (asked.end === undefined ? [] : [recordedStep(asked, asked.end, messages)])),
    }))
  }

  /** Tokens shown at the end of the first step, at most, and at the end of the last that was no summary; 0 without steps. */
  get tokens(): SampleRecord['tokens'] {
    const entries = this.ledger
    const answers = entries.filter(({ kind }) => kind !== 'summary')
    return {
      before: entries[0]?.shown ?? 0,
      most: entries.reduce((most, { shown }) => Math.max(most, shown), 0),
      after: answers.at(-1)?.shown ?? 0,
    }
  }

  /** Sums over all steps that have an account; `steps` are those. */
  get work(): SampleRecord['work'] {
    const replies = this.#replies()
    const sum = (key: 'shown' | 'reused' | 'submitted') => replies.reduce((total, { ledger }) => total + ledger[key], 0)
    const generated = replies.reduce((total, { timing }) => total + timing.generatedTokens, 0)
    return { steps: replies.length, shown: sum('shown'), reused: sum('reused'), submitted: sum('submitted'), generated }
  }

  /** By the ledger; `total` is wall time from when the recorder was made to the end of the last step. */
  get milliseconds(): SampleRecord['milliseconds'] {
    const sum = (key: keyof LedgerEntry['milliseconds']) =>
      this.ledger.reduce((total, entry) => total + entry.milliseconds[key], 0)
    return { cache: sum('cache'), prefill: sum('prefill'), decode: sum('decode'), total: this.#last - this.#made }
  }

  /** Entries of all steps that have one, in the order in which the steps were asked for. */
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

/** A message without what only the engine needs, its fields in one order. */
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

/** Of a step whose engine gave none. */
const noAccount = ({ contract = 'exact' }: RecordedAsk['request']): RecordedStep['ledger'] => ({
  kind: 'cancelled',
  contract,
  ...{ shown: 0, reused: 0, recomputed: 0, fresh: 0, approximate: 0, side: 0, submitted: 0 },
  milliseconds: { cache: 0, prefill: 0, decode: 0 },
  predicted: null,
})
