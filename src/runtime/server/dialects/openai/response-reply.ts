/** Writes an answer as a response or as a stream of events. */
import type { ToolCall } from '../../../chat/message.js'
import type { TokenLogprob } from '../../../engine/engine.js'
import type { Answer, Ask, AskEvent, ToolSearchResult } from '../../ask.js'
import type { Problem } from '../../problem.js'
import type { Frame, StreamShape } from '../../request-lifecycle.js'
import { ignoredIn, kvfoldEvent, kvfoldReply } from '../kvfold-field.js'
import { RunningTimings } from '../llama-server/timings.js'
import { restOf } from '../tools.js'
import { timingsOf } from './chat-reply.js'
import { responseId, unstoredId } from '../../responses/place.js'
import { itemId, LOGPROBS, ResponseBody, type ResponseRequest } from './response-items.js'
import { countWithCompacted } from '../../threads/compaction.js'
import { compactionItem } from './response-compaction.js'
import type { CallItem, CallKind, ResponseTools } from './response-tools.js'
import { chatLogprobs, openAiError, responseUsage } from './wire.js'

/** Fields of the request that the response repeats, and what is needed to store it. */
interface ResponseHead {
  readonly body: ResponseRequest
  readonly ask: Ask
  readonly tools: ResponseTools
  /** Unix seconds at which the response began. */
  readonly created: number
  /** Stores the complete response, unless the request has `store: false`. @throws KvfoldError store/* */
  readonly keep: (id: string, response: object) => Promise<void>
}

interface ResponseState {
  readonly id: string
  readonly model: string
  readonly status: 'in_progress' | 'completed' | 'incomplete' | 'cancelled' | 'failed'
  readonly output: readonly object[]
  readonly answer: Answer | null
  readonly error: { readonly code: string; readonly message: string } | null
}

/** Returns the response's id; one that is not stored gets an id without a thread. */
function idIn(thread: string | null, { body, ask }: ResponseHead): string {
  if (body.store === false || thread === null) return unstoredId()
  const compacted = ask.compaction?.above === null
  const messages = countWithCompacted(ask.messages) + (compacted ? 0 : 1)
  return responseId({ thread, messages, instructed: body.instructions !== undefined, compacted })
}

function response(
  { body, ask, tools, created }: ResponseHead,
  { id, model, status, output, answer, error }: ResponseState,
): object {
  const left = (body.include ?? []).filter((each) => each !== LOGPROBS).map((each) => `include: ${each}`)
  const ignored = [...tools.ignored, ...ignoredIn(body, ResponseBody, left)]
  const early = ignored.length === 0 ? undefined : { ignored }
  const told = answer === null ? early : kvfoldReply(body.kvfold, answer, ignored)
  return {
    id,
    object: 'response',
    created_at: created,
    status,
    background: false,
    error,
    incomplete_details: status === 'incomplete' ? { reason: 'max_output_tokens' } : null,
    instructions: body.instructions ?? null,
    max_output_tokens: body.max_output_tokens ?? null,
    model,
    output,
    parallel_tool_calls: body.parallel_tool_calls ?? true,
    previous_response_id: body.previous_response_id ?? null,
    reasoning: { effort: body.reasoning?.effort ?? null, summary: null },
    store: body.store ?? true,
    temperature: (answer ?? ask).sampling?.temperature ?? null,
    top_p: (answer ?? ask).sampling?.topP ?? null,
    text: body.text ?? { format: { type: 'text' } },
    tool_choice: body.tool_choice ?? 'auto',
    tools: body.tools ?? [],
    truncation: body.truncation ?? 'disabled',
    usage: answer === null ? null : responseUsage(answer.usage),
    metadata: body.metadata ?? {},
    ...(told === undefined ? {} : { kvfold: told }),
  }
}

export async function wholeResponse(head: ResponseHead, answer: Answer): Promise<object> {
  const id = idIn(answer.thread, head)
  const whole = response(head, {
    id,
    model: answer.model,
    status: statusOf(answer),
    output: itemsOf(answer, head, id),
    answer,
    error: null,
  })
  await head.keep(id, whole)
  return whole
}

/**
 * Returns the response's status. With complete calls it is `completed` even if the token limit cut off text after them: agents treat
 * `incomplete` as a failure.
 */
const statusOf = ({ finish, message: { toolCalls = [] } }: Answer): 'completed' | 'incomplete' =>
  finish === 'length' && toolCalls.length === 0 ? 'incomplete' : 'completed'

function itemsOf(
  { message, searched = [], textLogprobs, compacted }: Answer,
  { tools }: ResponseHead,
  response: string,
): readonly object[] {
  const { content, reasoning, toolCalls = [] } = message
  const said = (id: string) => messageItem(id, [textPart(content, textLogprobs)], 'completed')
  const before = searched.flatMap(({ message: { content: text, reasoning: thought }, result }) => [
    ...(thought === undefined ? [] : [(index: number) => reasoningItem(itemId('rs', response, index), thought, 'completed')]),
    ...(text === '' ? [] : [(index: number) => messageItem(itemId('msg', response, index), [textPart(text)], 'completed')]),
    (index: number) => tools.searchItems(result, (kind) => itemId(kind, response, index))[0],
    (index: number) => tools.searchItems(result, (kind) => itemId(kind, response, index))[1],
  ])
  if (compacted?.paused === true) return [compactionItem(compacted, itemId('cmp', response, 0), true)]
  const items: ((index: number) => object)[] = [
    ...(compacted === undefined ? [] : [(index: number) => compactionItem(compacted, itemId('cmp', response, index), true)]),
    ...before,
    ...(reasoning === undefined ? [] : [(index: number) => reasoningItem(itemId('rs', response, index), reasoning, 'completed')]),
    ...(content === '' && toolCalls.length > 0 ? [] : [(index: number) => said(itemId('msg', response, index))]),
    ...toolCalls.map((call) => (index: number) => tools.item(call, (kind) => itemId(kind, response, index), 'completed')),
  ]
  return items.map((item, index) => item(index))
}

type ItemStatus = 'in_progress' | 'completed'

const textPart = (text: string, logprobs: readonly TokenLogprob[] = []): object => ({
  type: 'output_text',
  text,
  annotations: [],
  logprobs: chatLogprobs(logprobs).content,
})

const messageItem = (id: string, content: readonly object[], status: ItemStatus): object => ({
  id,
  type: 'message',
  role: 'assistant',
  status,
  content,
})

const reasoningItem = (id: string, text: string | null, status: ItemStatus): object => ({
  id,
  type: 'reasoning',
  status,
  summary: [],
  content: text === null ? [] : [{ type: 'reasoning_text', text }],
})

// Streams events. Events are numbered; each item is added, filled and done.

/** The item being streamed. */
interface OpenItem {
  readonly kind: 'text' | 'reasoning'
  readonly id: string
  text: string
  readonly logprobs: TokenLogprob[]
}

type ArgumentsEvent = Extract<AskEvent, { type: 'arguments' }>

export class ResponseStream implements StreamShape<Answer> {
  readonly #output: object[] = []
  #sequence = 0
  #state: ResponseState = { id: '', model: '', status: 'in_progress', output: [], answer: null, error: null }
  #begun = false
  #open: OpenItem | null = null
  readonly #timings = new RunningTimings()
  /** The call whose arguments are being streamed, and the arguments sent so far. */
  #telling: { readonly id: string; readonly told: string } | null = null

  constructor(private readonly head: ResponseHead) {}

  on(event: AskEvent): readonly Frame[] {
    const told = kvfoldEvent(this.head.body.kvfold, event)
    this.#timings.on(event)
    return [
      ...this.#written(event),
      ...this.#progress(event),
      ...(told === null ? [] : [this.#frame('kvfold.event', { kvfold: told })]),
    ]
  }

  async done(answer: Answer): Promise<readonly Frame[]> {
    const frames = [...this.#begin(), ...this.#closed()]
    // An answer without text and calls still gets an empty message item, unless a call that was cut off already has an item.
    const { message, compacted } = answer
    const isSilent = message.content === '' && message.toolCalls === undefined && compacted?.paused !== true
    if (isSilent && this.#telling === null) frames.push(...this.#opened('text'), ...this.#closed())
    const status = statusOf(answer)
    this.#state = { ...this.#state, status, output: this.#output, answer }
    const whole = response(this.head, this.#state)
    await this.head.keep(this.#state.id, whole)
    return [...frames, this.#frame(`response.${status}`, { response: whole, ...timingsOf([answer]) })]
  }

  /** Stores a cancelled answer with its text so far, so that clients can fetch and continue it. */
  async cut(answer: Answer): Promise<void> {
    if (answer.message.cut !== true) return
    this.#closed()
    await this.head.keep(
      this.#state.id,
      response(this.head, { ...this.#state, status: 'cancelled', output: this.#output, answer }),
    )
  }

  end(): readonly Frame[] {
    return []
  }

  failed(problem: Problem): readonly Frame[] {
    const { error } = openAiError(problem)
    this.#state = { ...this.#state, status: 'failed', output: this.#output, error: { code: error.code, message: error.message } }
    const failed = this.#begun ? [this.#frame('response.failed', { response: response(this.head, this.#state) })] : []
    return [...failed, this.#frame('error', { error, code: error.code, message: error.message, param: error.param })]
  }

  /**
   * Returns stream frames for a full context, as OpenAI sends them: Codex recognises it only by `response.failed`. Null for other errors.
   */
  refused(problem: Problem): readonly Frame[] | null {
    return problem.code === 'context/full' && this.#state.id !== '' ? [...this.#begin(), ...this.failed(problem)] : null
  }

  #written(event: AskEvent): readonly Frame[] {
    switch (event.type) {
      case 'started':
        this.#state = { ...this.#state, id: idIn(event.thread, this.head), model: event.model }
        return []
      case 'plan':
        return this.#begin()
      // Engines without a plan event, such as vLLM, begin with the answer itself.
      case 'text':
        return [...this.#begin(), ...this.#text(event.text, event.logprobs)]
      case 'reasoning':
        return [...this.#begin(), ...this.#opened('reasoning'), this.#delta('response.reasoning_text.delta', event.text)]
      case 'call':
        return [...this.#begin(), ...this.#closed(), ...this.#call(event.call)]
      case 'search':
        return [...this.#begin(), ...this.#closed(), ...this.#search(event)]
      case 'arguments':
        return [...this.#begin(), ...this.#arguments(event)]
      case 'compaction': {
        const item = compactionItem(event, this.#itemId('cmp'), true)
        const place = { output_index: this.#output.length, item }
        return [...this.#begin(), this.#frame('response.output_item.added', place), this.#finished(item)]
      }
      case 'acm':
      case 'aside':
      case 'bare-call':
      case 'policy':
      case 'progress':
      case 'queued':
      case 'rewrite':
      case 'tokens':
        return []
    }
  }

  #progress({ type }: AskEvent): readonly Frame[] {
    if (this.head.body.return_progress !== true || (type !== 'plan' && type !== 'progress')) return []
    const told = { response: response(this.head, this.#state), prompt_progress: this.#timings.progress }
    return [this.#frame('response.in_progress', told)]
  }

  #begin(): readonly Frame[] {
    if (this.#begun) return []
    this.#begun = true
    const data = { response: response(this.head, this.#state) }
    return [this.#frame('response.created', data), this.#frame('response.in_progress', data)]
  }

  #text(text: string, logprobs: readonly TokenLogprob[] = []): readonly Frame[] {
    const opened = this.#opened('text')
    this.#open?.logprobs.push(...logprobs)
    return [...opened, this.#delta('response.output_text.delta', text, { logprobs: chatLogprobs(logprobs).content })]
  }

  #opened(kind: OpenItem['kind']): readonly Frame[] {
    if (this.#open?.kind === kind) return []
    const closed = this.#closed()
    const id = this.#itemId(kind === 'text' ? 'msg' : 'rs')
    this.#open = { kind, id, text: '', logprobs: [] }
    const item = kind === 'text' ? messageItem(id, [], 'in_progress') : reasoningItem(id, null, 'in_progress')
    const part = kind === 'text' ? textPart('') : { type: 'reasoning_text', text: '' }
    return [
      ...closed,
      this.#frame('response.output_item.added', { output_index: this.#output.length, item }),
      this.#frame('response.content_part.added', { ...this.#place(id), part }),
    ]
  }

  #delta(type: string, delta: string, more: object = {}): Frame {
    const open = this.#open!
    open.text += delta
    const told = this.head.body.timings_per_token === true ? { timings: this.#timings.timings } : {}
    return this.#frame(type, { ...this.#place(open.id), delta, ...more, ...told })
  }

  #closed(): readonly Frame[] {
    const open = this.#open
    if (open === null) return []
    this.#open = null
    const { kind, id, text, logprobs } = open
    const place = this.#place(id)
    const part = kind === 'text' ? textPart(text, logprobs) : { type: 'reasoning_text', text }
    const item = kind === 'text' ? messageItem(id, [part], 'completed') : reasoningItem(id, text, 'completed')
    const last =
      kind === 'text'
        ? this.#frame('response.output_text.done', { ...place, text, logprobs: chatLogprobs(logprobs).content })
        : this.#frame('response.reasoning_text.done', { ...place, text })
    return [last, this.#frame('response.content_part.done', { ...place, part }), this.#finished(item)]
  }

  /**
   * Returns the events for a piece of a call's arguments. Functions stream their arguments; other tools send them when the call is
   * complete. A call that is cut off gets no `done` event, and is missing from the stored response.
   */
  #arguments({ id, name, text }: ArgumentsEvent): readonly Frame[] {
    const isTold = this.#telling?.id === id
    // The id of the item contains its index, which is known once the previous item is closed.
    const closed = isTold ? [] : this.#closed()
    const item = this.#item({ id, name, arguments: {} }, 'in_progress')
    if (item.type !== 'function_call') return closed
    const begun = isTold ? [] : [...closed, this.#added(item)]
    const telling = isTold ? this.#telling! : { id, told: '' }
    this.#telling = { id, told: telling.told + text }
    return text === '' ? begun : [...begun, this.#argumentsDelta(item.id, text)]
  }

  #call(call: ToolCall): readonly Frame[] {
    const told = this.#telling?.id === call.id ? this.#telling.told : null
    this.#telling = null
    const item = this.#item(call, 'completed')
    const begun = told === null ? [this.#added(this.#item(call, 'in_progress'))] : []
    return [...begun, ...this.#filled(item, restOf(call, told ?? '')), this.#finished(item)]
  }

  #item(call: ToolCall, status: 'in_progress' | 'completed'): CallItem {
    return this.head.tools.item(call, (kind: CallKind) => this.#itemId(kind), status)
  }

  #added(item: CallItem): Frame {
    return this.#frame('response.output_item.added', { output_index: this.#output.length, item })
  }

  #argumentsDelta(id: string, delta: string): Frame {
    return this.#frame('response.function_call_arguments.delta', { item_id: id, output_index: this.#output.length, delta })
  }

  #search(result: ToolSearchResult): readonly Frame[] {
    const from = this.#output.length
    const items = this.head.tools.searchItems(result, (kind, at) => itemId(kind, this.#state.id, from + at))
    return items.flatMap((item) => {
      const added = this.#frame('response.output_item.added', { output_index: this.#output.length, item })
      return [added, this.#finished(item)]
    })
  }

  /** Returns the events that complete a call's item. @param rest the part of a function's arguments not sent yet */
  #filled(item: CallItem, rest: string): readonly Frame[] {
    const place = { item_id: item.id, output_index: this.#output.length }
    switch (item.type) {
      case 'function_call':
        return [
          ...(rest === '' ? [] : [this.#argumentsDelta(item.id, rest)]),
          this.#frame('response.function_call_arguments.done', { ...place, name: item.name, arguments: item.arguments }),
        ]
      case 'custom_tool_call':
        return [
          this.#frame('response.custom_tool_call_input.delta', { ...place, delta: item.input }),
          this.#frame('response.custom_tool_call_input.done', { ...place, input: item.input }),
        ]
      case 'local_shell_call':
      case 'tool_search_call':
        return []
    }
  }

  #itemId(kind: Parameters<typeof itemId>[0]): string {
    return itemId(kind, this.#state.id, this.#output.length)
  }

  #finished(item: object): Frame {
    return this.#frame('response.output_item.done', { output_index: this.#output.push(item) - 1, item })
  }

  #place(id: string): object {
    return { item_id: id, output_index: this.#output.length, content_index: 0 }
  }

  #frame(type: string, data: object): Frame {
    return { event: type, data: { type, sequence_number: this.#sequence++, ...data } }
  }
}
