/** The routes `/v1/responses` and `/v1/responses/:id`: translates requests into an `Ask`, and serves stored responses. */
import { type AskedForm, formOf, looseBy, WITH_NULLS } from './answer-form.js'
import { definedFields } from '../../../core/json.js'
import Type from 'typebox'
import { FieldError, unsupported } from '../../problem.js'
import { type App, described, type Ports } from '../../routes/route.js'
import { cacheSaltOf, nullsDownTo, templateFieldsOf, translated } from '../fields.js'
import { limitsOf, samplingOf } from '../sampling-fields.js'
import { CompactBody, LOGPROBS, messagesOfItems, ResponseBody, type ResponseRequest, withReferenced } from './response-items.js'
import { compactedResponse, compactionIn, withoutTrigger } from './response-compaction.js'
import { ResponseStream, wholeResponse } from './response-reply.js'
import { inputItems, pageOf } from './response-input-items.js'
import { placeOf, rangeOf, searchesIn } from '../../responses/place.js'
import { flatName, ResponseTools } from './response-tools.js'
import type { ChatMessage } from '../../../chat/message.js'
import { KvfoldError } from '../../../core/errors.js'
import type { Sampling } from '../../../engine/engine.js'
import type { AnswerFormat, Ask, Tenant, UnsupportedParts } from '../../ask.js'
import type { ThreadService } from '../../service.js'
import { kvfoldOf } from '../kvfold-field.js'
import { resultsInOrder } from '../results.js'
import { searchTools } from '../../threads/server-tools.js'
import { sessionOf } from '../session-headers.js'
import { allowedTools, argumentsAhead, checkChoice } from '../tools.js'

const NULLS = 3

const Params = Type.Object({ id: Type.String({ minLength: 1, maxLength: 300 }) })
const Query = Type.Object({ stream: Type.Optional(Type.String({ description: 'refused when true' })) })

const ItemsQuery = Type.Object({
  limit: Type.Optional(Type.String({ pattern: '^(?:[1-9]\\d?|100)$', description: 'how many items, 1 to 100; default: 20' })),
  order: Type.Optional(Type.Enum(['asc', 'desc'], { description: 'default desc: the last item comes first' })),
  after: Type.Optional(Type.String({ maxLength: 400, description: 'the id of the item that the page comes after' })),
})

const documented = (summary: string) => ({ ...described(summary, 'openai'), params: Params })

export function addResponses(app: App, { service, sampling, unsupportedParts, exchange }: Ports): void {
  const { responses } = service
  app.post(
    '/v1/responses',
    {
      schema: { ...described('Response (OpenAI)', 'openai'), body: ResponseBody },
      preValidation: nullsDownTo(NULLS, WITH_NULLS),
      preHandler: argumentsAhead,
    },
    async (request, reply) => {
      const { body, tenant } = request
      const tools = new ResponseTools(body.tools ?? [])
      const ask = await responseAsk(body, tools, tenant, sampling, service, unsupportedParts)
      const keep = async (id: string, response: object) => {
        const place = body.store === false ? null : placeOf(id)
        if (place !== null) await responses.keep(tenant, id, place, response)
      }
      const head = { body, ask, tools, created: Math.floor(Date.now() / 1000), keep }
      const streamed = body.stream === true
      const session = sessionOf(request.headers)
      const begin = (signal: AbortSignal) => [service.ask({ ...session, ...ask, signal, streamed })]
      const running = exchange(request, reply)
      if (streamed) return running.stream(begin, new ResponseStream(head), body.kvfold?.ping)
      const [answer] = await running.answers(begin)
      return wholeResponse(head, answer!)
    },
  )

  app.post(
    '/v1/responses/compact',
    {
      schema: {
        ...described('A conversation as its user’s messages and a summary of the rest (OpenAI)', 'openai'),
        body: CompactBody,
      },
      preValidation: nullsDownTo(NULLS, WITH_NULLS),
      preHandler: argumentsAhead,
    },
    async (request, reply) => {
      const { tenant } = request
      const body = { ...request.body, input: request.body.input ?? [] }
      const tools = new ResponseTools(body.tools ?? [])
      const asked = await responseAsk(body, tools, tenant, sampling, service, unsupportedParts)
      const compaction = { above: null, pauses: true, keepsUser: true }
      const begin = (signal: AbortSignal) => [service.ask({ ...asked, compaction, signal })]
      const [answer] = await exchange(request, reply).answers(begin)
      return compactedResponse(asked.messages, answer!)
    },
  )

  app.post(
    '/v1/responses/input_tokens',
    {
      schema: {
        ...described('Tokens of a prompt (OpenAI)', 'openai'),
        body: CompactBody,
      },
      preValidation: nullsDownTo(NULLS, WITH_NULLS),
      preHandler: argumentsAhead,
    },
    (request, reply) =>
      exchange(request, reply).wait(async (signal) => {
        const body = { ...request.body, input: request.body.input ?? [] }
        const offered = new ResponseTools(body.tools ?? [])
        const ask = await responseAsk(body, offered, request.tenant, sampling, service, unsupportedParts)
        const searches = ask.deferred === undefined ? [] : searchTools(ask.deferred).map(({ definition }) => definition)
        const { model, messages, tools, template } = ask
        const tokens = await service.count(model, messages, [...searches, ...tools], { signal, ...definedFields({ template }) })
        return { object: 'response.input_tokens', input_tokens: tokens }
      }),
  )

  app.get(
    '/v1/responses/:id/input_items',
    { schema: { ...documented('The messages that a stored response answered, as items'), querystring: ItemsQuery } },
    async ({ tenant, params: { id }, query }) => {
      const { answered } = await before(id, tenant, service, () => missing(id))
      return pageOf(inputItems(id, answered), query)
    },
  )

  app.get(
    '/v1/responses/:id',
    { schema: { ...documented('A stored response, as it was told'), querystring: Query } },
    async ({ tenant, params: { id }, query }) => {
      if (query.stream === 'true') throw unsupported('stream', 'A stored response is not streamed again; leave out stream.')
      const response = await responses.get(tenant, id)
      if (response === null) throw missing(id)
      return response
    },
  )

  app.delete(
    '/v1/responses/:id',
    {
      schema: documented(
        'Deletes a response: no request can continue from it. With the last response of a thread the thread goes, out of every tier',
      ),
    },
    async ({ tenant, params: { id } }) => {
      if (!(await responses.delete(tenant, id))) throw missing(id)
      return { id, object: 'response', deleted: true }
    },
  )
}

const missing = (id: string): FieldError =>
  new FieldError(
    'response_id',
    `There is no response ${JSON.stringify(id.slice(0, 80))} stored here; it was deleted, or never was.`,
    'server/not-found',
  )

// Translates a request into an `Ask`, with the messages that `previous_response_id` refers to.

/** The parts of the service through which earlier responses are read. */
type Earlier = Pick<ThreadService, 'responses' | 'threads'>

/** Translates a request to `/v1/responses` into an `Ask`. @throws FieldError */
async function responseAsk(
  body: ResponseRequest,
  offered: ResponseTools,
  tenant: Tenant,
  defaults: Sampling,
  service: Earlier,
  unsupportedParts: UnsupportedParts,
): Promise<Ask> {
  refuseWhatChangesTheAnswer(body)
  const { definitions: tools, deferred } = offered
  const cacheSalt = cacheSaltOf(body)
  const earlier =
    body.previous_response_id === undefined ? null : await before(body.previous_response_id, tenant, service, noPrevious)
  // A request with another cache salt may not continue that thread: it takes the messages and starts its own thread.
  const { threads } = service
  const isOwn = earlier !== null && (await threads.reading(() => threads.hasSalt(tenant, earlier.thread, cacheSalt)))
  const names = new Map(earlier?.messages.flatMap(({ toolCalls = [] }) => toolCalls.map(({ id, name }) => [id, name] as const)))
  const instructions = body.instructions === undefined ? [] : [{ role: 'system', content: body.instructions } as const]
  const withLogprobs = body.include?.includes(LOGPROBS) === true
  const { input, isTriggered } = withoutTrigger(body.input)
  const isEmpty = earlier !== null && Array.isArray(input) && input.length === 0
  const items = isEmpty ? [] : await withReferenced(input, tenant, service.responses)
  const steps = messagesOfItems(items, names, (list) => offered.told(list), unsupportedParts)
  const added = isEmpty ? [] : await translated(items, steps)
  const inOrder = await translated(added, resultsInOrder(added, earlier?.messages))
  return {
    tenant,
    messages: [...instructions, ...(earlier?.messages ?? []), ...inOrder],
    tools,
    toolChoice: checkChoice(choiceOf(body.tool_choice), [...tools, ...(deferred?.tools ?? []), ...(deferred?.searches ?? [])]),
    sampling: samplingOf(body, defaults),
    ...limitsOf(body),
    ...definedFields({
      deferred,
      model: body.model,
      lora: body.lora,
      cacheSalt,
      thread: isOwn ? earlier.thread : undefined,
      maxTokens: body.max_output_tokens,
      parallelCalls: body.parallel_tool_calls,
      format: formOf(body, textForm(body)),
      ...templateFieldsOf(body, { field: 'reasoning.effort', value: body.reasoning?.effort }),
      logprobs: withLogprobs ? (body.top_logprobs ?? 0) : undefined,
      compaction: compactionIn(body.context_management, isTriggered),
      overflow: body.truncation === 'auto' ? ('fold-oldest' as const) : undefined,
    }),
    ...kvfoldOf(body.kvfold),
  }
}

/**
 * Returns the messages up to and including an earlier response, as clients know them. `answered`: those before the response.
 * @throws FieldError server/not-found, also when the thread has another answer at that position
 */
async function before(
  id: string,
  tenant: Tenant,
  { responses, threads }: Earlier,
  missing: () => FieldError,
): Promise<{ thread: string; messages: readonly ChatMessage[]; answered: readonly ChatMessage[] }> {
  const place = placeOf(id)
  const kept = place === null ? null : await responses.get(tenant, id)
  if (place === null || kept === null) throw missing()
  const { thread } = place
  const view = await viewOf(threads, tenant, thread, missing)
  const range = rangeOf(view, place, searchesIn(kept))
  if (range === null) throw missing()
  const { from, answer, end } = range
  if (!place.compacted && !isAnswer(view.slice(answer, end), kept)) throw missing()
  // Leave out sampled tokens: the thread has its own.
  const messages = view.slice(from, end).map(({ sampled: _, ...message }) => message)
  return { thread, messages, answered: view.slice(from, answer) }
}

/** Whether these messages have the text and calls of the stored response. Messages with a summary always do. */
function isAnswer(messages: readonly ChatMessage[], response: object): boolean {
  if (messages.some(({ stands }) => stands !== undefined)) return true
  const { output } = response as ToldAnswer
  const sent = output.flatMap(({ type, content = [] }) => (type === 'message' ? content.map(({ text }) => text) : []))
  const said = messages.flatMap(({ role, content }) => (role === 'assistant' ? [content] : []))
  // Several text items of one response may be one message here, with other white space.
  const [a, b] = [sent, said].map((texts) => texts.join('').replaceAll(/\s+/g, ''))
  const calls = new Set(messages.flatMap(({ toolCalls = [] }) => toolCalls.map(({ id }) => id)))
  return a === b && output.every(({ type, call_id: id = '' }) => !CALLS.includes(type) || calls.has(id))
}

/** Item types of calls of the client's tools. */
const CALLS: readonly string[] = ['function_call', 'custom_tool_call', 'local_shell_call']

/** Fields of a stored response by which its answer is recognised. */
interface ToldAnswer {
  readonly output: readonly {
    readonly type: string
    readonly call_id?: string
    readonly content?: readonly { readonly text: string }[]
  }[]
}

const noPrevious = (): FieldError =>
  new FieldError(
    'previous_response_id',
    'previous_response_id names no response that is stored here; send the whole input instead.',
    'server/not-found',
  )

async function viewOf(
  threads: ThreadService['threads'],
  tenant: Tenant,
  thread: string,
  missing: () => FieldError,
): Promise<readonly ChatMessage[]> {
  try {
    return await threads.reading(() => threads.view(tenant, thread))
  } catch (error) {
    throw error instanceof KvfoldError && error.code === 'store/unreachable' ? error : missing()
  }
}

function refuseWhatChangesTheAnswer(body: ResponseRequest): void {
  if (body.background === true) throw unsupported('background', 'background is not supported; stream the response instead.')
  if (body.conversation !== undefined)
    throw unsupported('conversation', 'conversation is not supported; send previous_response_id or kvfold.thread.')
  if (body.prompt !== undefined) throw unsupported('prompt', 'prompt is not supported; send input.')
  if (body.max_tool_calls !== undefined) throw unsupported('max_tool_calls', 'max_tool_calls is not supported.')
  if (body.previous_response_id !== undefined && body.kvfold?.thread !== undefined)
    throw new FieldError('kvfold.thread', 'Give previous_response_id or kvfold.thread, not both.')
  if (body.top_logprobs !== undefined && body.include?.includes(LOGPROBS) !== true)
    throw new FieldError('top_logprobs', `top_logprobs means nothing without include: ["${LOGPROBS}"].`)
}

function choiceOf(choice: ResponseRequest['tool_choice']): Ask['toolChoice'] {
  if (choice === undefined) return 'auto'
  if (choice === 'auto' || choice === 'none' || choice === 'required') return choice
  if (typeof choice === 'string')
    throw new FieldError('tool_choice', 'tool_choice must be auto, none, required, or name a function.')
  const { type, name, namespace } = choice
  if (type === 'allowed_tools') return allowedTools(choice, 'tool_choice', (tool) => tool)
  if (type === 'local_shell') return { name: type }
  if (type !== 'function' && type !== 'custom')
    throw unsupported('tool_choice.type', 'tool_choice.type must be "function", "custom", "local_shell" or "allowed_tools".')
  if (typeof name !== 'string') throw new FieldError('tool_choice.name', 'tool_choice.name must be a string.')
  return { name: flatName(name, namespace) }
}

function textForm({ text }: ResponseRequest): readonly AskedForm[] {
  const format = text?.format
  const form = format === undefined ? undefined : formatOf(format)
  return form === undefined ? [] : [{ param: 'text.format', form }]
}

function formatOf({
  type,
  schema,
  strict,
}: NonNullable<NonNullable<ResponseRequest['text']>['format']>): AnswerFormat | undefined {
  if (type === 'text') return undefined
  if (type === 'json_object') return { kind: 'json' }
  if (type !== 'json_schema') throw unsupported('text.format.type', 'text.format.type must be text, json_object or json_schema.')
  if (schema === undefined) throw new FieldError('text.format.schema', 'text.format.schema is missing.')
  return { kind: 'schema', schema, ...looseBy(strict) }
}
