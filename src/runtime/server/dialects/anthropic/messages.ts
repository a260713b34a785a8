/** The routes `/v1/messages` and `/v1/messages/count_tokens`. Writes answers as one message or as a stream. */
import { randomUUID } from 'node:crypto'
import { BLANK_LINE, type ChatMessage, type ToolCall } from '../../../chat/message.js'
import type { Finish } from '../../../engine/engine.js'
import type { Answer, AskEvent, ToolSearchResult, Usage } from '../../ask.js'
import { type Problem } from '../../problem.js'
import type { Frame, StreamShape } from '../../request-lifecycle.js'
import { ignoredIn, kvfoldEvent, kvfoldReply } from '../kvfold-field.js'
import { sessionOf } from '../session-headers.js'
import { argumentsAhead, inputOf, inputRest } from '../tools.js'
import { toolsLeftOut } from './client-tools.js'
import { afterBreakpoint, compactionBlock, managed, managementOf } from './context-management.js'
import { Diagnostics, type PromptRead } from './diagnostics.js'
import { CountBody, messagesAsk, MessagesBody, type MessagesRequest, promptOf, templateOf } from './messages-ask.js'
import { searchTools } from '../../threads/server-tools.js'
import { type App, described, type Ports } from '../../routes/route.js'
import { definedFields } from '../../../core/json.js'
import { nullsDownTo, translated } from '../fields.js'

const NULLS = 3

export function addMessages(app: App, { service, sampling, unsupportedParts, exchange }: Ports): void {
  const diagnostics = new Diagnostics()
  app.post(
    '/v1/messages',
    {
      schema: { ...described('Message (Anthropic)', 'anthropic'), body: MessagesBody },
      preValidation: nullsDownTo(NULLS),
      preHandler: argumentsAhead,
    },
    async (request, reply) => {
      const { body, tenant } = request
      const ask = await translated(body, messagesAsk(body, tenant, sampling, unsupportedParts))
      const id = `msg_${randomUUID().replaceAll('-', '')}`
      const streamed = body.stream === true
      const session = sessionOf(request.headers)
      const begin = (signal: AbortSignal) => [service.ask({ ...session, ...ask, signal, streamed })]
      const running = exchange(request, reply)
      const diagnosis: Diagnosis = {
        of: (model, read) => diagnosed(body, diagnostics.told(body.diagnostics, ask, model, read)),
        note: (answer) => {
          diagnostics.note(body.diagnostics, id, ask, answer)
        },
      }
      if (streamed) return running.stream(begin, new MessageStream(id, request.id, body, diagnosis), body.kvfold?.ping)
      const [answer] = await running.answers(begin)
      const told = kvfoldReply(body.kvfold, answer!, leftOut(body))
      diagnosis.note(answer!)
      return {
        ...messageReply(id, body, answer!),
        ...diagnosis.of(answer!.model, answer!.usage),
        ...(told === undefined ? {} : { kvfold: told }),
      }
    },
  )
  app.post(
    '/v1/messages/count_tokens',
    {
      schema: {
        ...described('Tokens of a prompt (Anthropic)', 'anthropic'),
        body: CountBody,
      },
      preValidation: nullsDownTo(NULLS),
      preHandler: argumentsAhead,
    },
    (request, reply) => {
      const { body } = request
      return exchange(request, reply).wait(async (signal) => {
        const { messages, tools: shown, deferred } = await translated(body, promptOf(body, unsupportedParts))
        const searches = deferred === undefined ? [] : searchTools(deferred).map(({ definition }) => definition)
        const tools = [...searches, ...shown]
        const { clear } = managementOf({ ...definedFields({ context_management: body.context_management }) })
        const { template } = templateOf(body)
        const original = await service.count(body.model, messages, tools, { template, signal })
        if (body.context_management === undefined) return { input_tokens: original }
        return {
          input_tokens:
            clear === undefined ? original : await service.count(body.model, messages, tools, { clear, template, signal }),
          context_management: { original_input_tokens: original },
        }
      })
    },
  )
}

/** Returns the fields and tools of the request that have no effect, for `kvfold.ignored`. */
const leftOut = (body: MessagesRequest): readonly string[] => [...toolsLeftOut(body.tools), ...ignoredIn(body, MessagesBody)]

/** Cache diagnostics of one request (`Diagnostics`). */
interface Diagnosis {
  /** Returns the answer's field `diagnostics`, if the request has that field. */
  of(model: string, read: PromptRead | null): object
  note(answer: Answer): void
}

const diagnosed = ({ diagnostics }: MessagesRequest, told: object | null): object =>
  diagnostics === undefined ? {} : { diagnostics: told }

// Writes answers as one message or as a stream.

/** Writes an answer as one message. @param body the request */
export function messageReply(id: string, body: MessagesRequest, answer: Answer): object {
  const { message, model, searched = [], compacted } = answer
  const said = ({ content, reasoning }: ChatMessage) => [
    ...(reasoning === undefined ? [] : [{ type: 'thinking', thinking: reasoning, signature: '' }]),
    ...(content === '' ? [] : [{ type: 'text', text: content }]),
  ]
  return {
    id,
    type: 'message',
    role: 'assistant',
    model,
    content: [
      ...(compacted === undefined ? [] : [compactionBlock(compacted)]),
      ...searched.flatMap((step) => [...said(step.message), ...searchBlocks(step.result)]),
      ...said(message),
      ...(message.toolCalls ?? []).map((call) => ({ type: 'tool_use', id: call.id, name: call.name, input: inputOf(call) })),
    ],
    ...endOf(answer),
    usage: usageIn(body, answer),
    ...managed(body, answer),
  }
}

const NOTHING = { promptTokens: 0, cachedTokens: 0, completionTokens: 0 }

/** Returns the usage. Tokens computed up to the last `cache_control` count as `cache_creation_input_tokens`, by the first step's ledger. */
function usageIn(body: MessagesRequest, { usage, ledger, compacted }: Answer): object {
  const after = afterBreakpoint(body)
  const messages = after === null ? [] : (ledger.find(({ kind }) => kind === 'answer')?.messages ?? [])
  // The ledger's last message is the answer itself.
  const before = messages.slice(0, Math.max(0, messages.length - 1 - (after ?? 0)))
  const created = before.reduce((sum, { recomputed, fresh }) => sum + recomputed + fresh, 0)
  // Anthropic's API counts the tokens of a compaction only under `iterations`.
  const counted = compacted?.paused === true ? NOTHING : usage
  const own = usageOf(counted, Math.min(created, counted.promptTokens - counted.cachedTokens))
  if (compacted === undefined) return own
  const iterations = [
    { type: 'compaction', ...usageOf(compacted.usage), cache_creation: null },
    ...(compacted.paused ? [] : [{ type: 'message', ...own, cache_creation: null }]),
  ]
  return { ...own, iterations }
}

/**
 * Writes token counts. The prompt's tokens are the sum of `input_tokens`, the cached ones, and `created`.
 * @param created prompt tokens computed up to the last `cache_control`
 */
function usageOf({ promptTokens, cachedTokens, completionTokens }: Omit<Usage, 'reasoningTokens'>, created = 0): object {
  return {
    input_tokens: promptTokens - cachedTokens - created,
    cache_creation_input_tokens: created,
    cache_read_input_tokens: cachedTokens,
    output_tokens: completionTokens,
  }
}

/** Writes an answer as a stream of content blocks. One block is open at a time. */
export class MessageStream implements StreamShape<Answer> {
  #model = ''
  #begun = false
  #blocks = 0
  #open: 'text' | 'thinking' | 'call' | null = null
  /** Whether text was sent since the last search. A client begins a new message after a search. */
  #said = false
  /** The call whose arguments are being streamed, and the arguments sent so far. */
  #call = { id: '', told: '' }

  constructor(
    private readonly id: string,
    private readonly requestId: string,
    private readonly body: MessagesRequest,
    private readonly diagnosis: Diagnosis = { of: () => ({}), note: () => undefined },
  ) {}

  on(event: AskEvent): readonly Frame[] {
    switch (event.type) {
      case 'started':
        this.#model = event.model
        return this.#told(event)
      case 'plan':
        return [...this.#begin({ promptTokens: event.shown, cachedTokens: event.reused }), ...this.#told(event)]
      case 'text':
        return [...this.#begin(null), ...this.#text(event.text)]
      case 'reasoning': {
        const begun = this.#begin(null)
        return [...begun, ...this.#opened('thinking'), this.#delta({ type: 'thinking_delta', thinking: event.text })]
      }
      case 'arguments':
        return [...this.#begin(null), ...this.#arguments(event, event.text)]
      case 'call':
        return [...this.#begin(null), ...this.#whole(event.call)]
      case 'search':
        return [...this.#begin(null), ...this.#search(event)]
      case 'compaction': {
        const block = compactionBlock(event)
        return [
          ...this.#begin(event.usage),
          ...this.#closed(),
          frame('content_block_start', { index: this.#blocks, content_block: { ...block, content: null } }),
          this.#delta({ type: 'compaction_delta', content: event.content, encrypted_content: null }),
          frame('content_block_stop', { index: this.#blocks++ }),
          ...this.#told(event),
        ]
      }
      case 'acm':
      case 'aside':
      case 'bare-call':
      case 'policy':
      case 'progress':
      case 'queued':
      case 'rewrite':
      case 'tokens':
        return this.#told(event)
    }
  }

  done(answer: Answer): readonly Frame[] {
    const { usage } = answer
    this.diagnosis.note(answer)
    const told = kvfoldReply(this.body.kvfold, answer, leftOut(this.body))
    return [
      ...this.#begin(usage),
      ...this.#closed(),
      frame('message_delta', {
        delta: endOf(answer),
        usage: usageIn(this.body, answer),
        ...managed(this.body, answer),
        ...(told === undefined ? {} : { kvfold: told }),
      }),
      frame('message_stop', {}),
    ]
  }

  end(): readonly Frame[] {
    return []
  }

  failed(problem: Problem): readonly Frame[] {
    return [{ event: 'error', data: anthropicError(problem, this.requestId) }]
  }

  /** Sends `message_start` once. @param read null for engines that report the prompt's tokens only at the end, such as vLLM and SGLang */
  #begin(read: PromptRead | null): readonly Frame[] {
    if (this.#begun) return []
    this.#begun = true
    const { promptTokens, cachedTokens } = read ?? { promptTokens: 0, cachedTokens: 0 }
    const usage = usageOf({ promptTokens, cachedTokens, completionTokens: 0 })
    const message = { id: this.id, type: 'message', role: 'assistant', model: this.#model, content: [], usage }
    const told = this.diagnosis.of(this.#model, read)
    return [frame('message_start', { message: { ...message, stop_reason: null, stop_sequence: null, ...told } })]
  }

  /**
   * In the thread, a blank line comes between steps of an answer, and before text behind a call. A client joins its text blocks by one line
   * break. So a text block after another block loses one of its two leading line breaks, and the text stays the same.
   */
  #text(text: string): readonly Frame[] {
    const isJoint = this.#open !== 'text' && this.#said && text.startsWith(BLANK_LINE)
    this.#said = true
    return [...this.#opened('text'), this.#delta({ type: 'text_delta', text: isJoint ? text.slice(1) : text })]
  }

  #opened(kind: 'text' | 'thinking'): readonly Frame[] {
    if (this.#open === kind) return []
    const closed = this.#closed()
    this.#open = kind
    const block = kind === 'text' ? { type: kind, text: '' } : { type: kind, thinking: '', signature: '' }
    return [...closed, frame('content_block_start', { index: this.#blocks, content_block: block })]
  }

  #closed(): readonly Frame[] {
    if (this.#open === null) return []
    this.#open = null
    return [frame('content_block_stop', { index: this.#blocks++ })]
  }

  #isTold({ id }: Pick<ToolCall, 'id'>): boolean {
    return this.#open === 'call' && this.#call.id === id
  }

  #arguments({ id, name }: Pick<ToolCall, 'id' | 'name'>, text: string): readonly Frame[] {
    const frames: Frame[] = []
    if (!this.#isTold({ id })) {
      frames.push(...this.#closed())
      this.#open = 'call'
      this.#call = { id, told: '' }
      const block = { type: 'tool_use', id, name, input: {} }
      frames.push(frame('content_block_start', { index: this.#blocks, content_block: block }))
    }
    this.#call.told += text
    return text === '' ? frames : [...frames, this.#delta({ type: 'input_json_delta', partial_json: text })]
  }

  #whole(call: ToolCall): readonly Frame[] {
    const rest = inputRest(call, this.#isTold(call) ? this.#call.told : '')
    return [...this.#arguments(call, rest), ...this.#closed()]
  }

  #search(result: ToolSearchResult): readonly Frame[] {
    this.#said = false
    const [, found] = searchBlocks(result)
    const input = inputRest(result.call, '')
    return [
      ...this.#closed(),
      frame('content_block_start', { index: this.#blocks, content_block: useBlock(result.call) }),
      this.#delta({ type: 'input_json_delta', partial_json: input }),
      frame('content_block_stop', { index: this.#blocks++ }),
      frame('content_block_start', { index: this.#blocks, content_block: found }),
      frame('content_block_stop', { index: this.#blocks++ }),
    ]
  }

  #delta(delta: object): Frame {
    return frame('content_block_delta', { index: this.#blocks, delta })
  }

  #told(event: AskEvent): readonly Frame[] {
    const told = kvfoldEvent(this.body.kvfold, event)
    return told === null ? [] : [frame('kvfold', { kvfold: told })]
  }
}

const frame = (type: string, data: object): Frame => ({ event: type, data: { type, ...data } })

const endOf = ({ finish, stop, compacted }: Pick<Answer, 'finish' | 'stop' | 'compacted'>): object => ({
  stop_reason:
    compacted?.paused === true ? 'compaction' : finish === 'stop' && stop !== undefined ? 'stop_sequence' : reasonOf(finish),
  stop_sequence: stop ?? null,
})

function reasonOf(finish: Finish): string {
  switch (finish) {
    case 'tool-calls':
      return 'tool_use'
    case 'length':
      return 'max_tokens'
    case 'stop':
    case 'cancelled':
      return 'end_turn'
  }
}

// Errors in the format of Anthropic's API.

export interface AnthropicError {
  readonly type: 'error'
  /** `said`: the text so far of an answer that failed midway. */
  readonly error: { readonly type: string; readonly message: string; readonly said?: string }
  readonly request_id: string
}

const TYPES: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  503: 'overloaded_error',
  504: 'timeout_error',
}

export function anthropicError(problem: Problem, requestId: string): AnthropicError {
  const { status, code, said } = problem
  const type = TYPES[status] ?? (status < 500 ? 'invalid_request_error' : 'api_error')
  const message = code === 'context/full' ? tooLong(problem) : `${problem.message} [${code}]`
  return { type: 'error', error: { type, message, ...(said === null ? {} : { said }) }, request_id: requestId }
}

/**
 * Returns the message for a prompt that is too long. Clients look for these words, parse the two numbers, and then shorten their context.
 * The maximum leaves room for one answer token.
 */
function tooLong({ size, message }: Problem): string {
  if (size === null) return `prompt is too long: ${message}`
  return `prompt is too long: ${size.atLeast ? 'at least ' : ''}${size.tokens} tokens > ${size.context - 1} maximum`
}

/** Returns a search and its result as two content blocks. */
const searchBlocks = ({ call, found, error }: ToolSearchResult): readonly [object, object] => [
  useBlock(call, inputOf(call)),
  {
    type: 'tool_search_tool_result',
    tool_use_id: call.id,
    content:
      error === null
        ? {
            type: 'tool_search_tool_search_result',
            tool_references: found.map((name) => ({ type: 'tool_reference', tool_name: name })),
          }
        : { type: 'tool_search_tool_result_error', error_code: 'invalid_tool_input', error_message: error },
  },
]

/** Returns the content block of a search call. At the start of a stream its input is empty. */
const useBlock = ({ id, name }: ToolCall, input: object = {}): object => ({
  ...{ type: 'server_tool_use', id, name, input, caller: { type: 'direct' } },
})
