/**
 * Routes under `/kvfold/threads` for operations on threads, and `/kvfold/events` for changes. Field names are those of the TypeScript API.
 */
import { definedFields } from '../../core/json.js'
import type { FastifyReply, FastifyRequest } from 'fastify'
import Type from 'typebox'
import { scopes } from '../../context/stretch.js'
import { CONTRACT_CHOICES, type ContractChoice } from '../../core/contract.js'
import { nullsDownTo } from '../dialects/fields.js'
import type { ChangeStreams } from './changes.js'
import { type App, described, ERRORS, type Ports, whileConnected } from './route.js'
import type { ThreadMessage, ThreadView } from '../threads/thread-api.js'

const Id = Type.String({ minLength: 1, maxLength: 200 })
const ThreadParams = Type.Object({ id: Id })
const FragmentParams = Type.Object({ id: Id, fragment: Id })
const Scope = Type.Optional(Type.Enum([...scopes]))

const FragmentBody = Type.Object(
  {
    startMarker: Type.String({ minLength: 1 }),
    endMarker: Type.String({ minLength: 1 }),
    numFragments: Type.Optional(Type.Integer({ minimum: 1, maximum: 10_000 })),
    role: Scope,
  },
  { additionalProperties: false },
)
/** What happens to a fold that takes at least as many tokens as the text it hides. Default: the server's setting. */
const Costly = Type.Optional(Type.Enum(['refuse', 'allow']))
const FoldBody = Type.Object(
  {
    contract: Type.Optional(Type.Enum(['exact', 'splice', 'blend'])),
    forget: Type.Optional(
      Type.Boolean({
        description: 'the cache drops, in every tier, all cells that hold or have read the text; the contract is exact',
      }),
    ),
    costly: Costly,
  },
  { additionalProperties: false },
)
const SummarizeBody = Type.Object(
  { focus: Type.String({ minLength: 1, maxLength: 4000 }), costly: Costly },
  { additionalProperties: false },
)
const SearchBody = Type.Object(
  {
    query: Type.String({ minLength: 1 }),
    role: Scope,
    maxResults: Type.Optional(Type.Integer({ minimum: 1, maximum: 1000 })),
    contextSize: Type.Optional(Type.Integer({ minimum: 1, maximum: 100_000 })),
  },
  { additionalProperties: false },
)
const DetailQuery = Type.Object({ extendedContext: Type.Optional(Type.String({ pattern: '^[1-9][0-9]{0,5}$' })) })
const AttentionQuery = Type.Object({
  layers: Type.Optional(
    Type.String({
      pattern: '^[0-9]{1,4}(,[0-9]{1,4})*$',
      maxLength: 4000,
      description: 'layers from 0, separated by commas; default: all',
    }),
  ),
})
const ContractBody = Type.Object(
  {
    contract: Type.Unsafe<ContractChoice | null>({
      enum: [...CONTRACT_CHOICES, null],
      description: "null: the server's",
    }),
  },
  { additionalProperties: false },
)

const FindBody = Type.Object(
  {
    query: Type.String({ minLength: 1, maxLength: 1000, pattern: '\\S' }),
    maxThreads: Type.Optional(Type.Integer({ minimum: 1, maximum: 1000 })),
  },
  { additionalProperties: false },
)
const TitleBody = Type.Object(
  {
    title: Type.Unsafe<string | null>({
      type: ['string', 'null'],
      maxLength: 200,
      description: 'null: the beginning of the first user message',
    }),
  },
  { additionalProperties: false },
)

const documented = (summary: string) => described(summary, 'threads')

export function addThreads(app: App, { service: { threads }, exchange }: Ports): void {
  /**
   * Runs an operation that changes a thread. Searching in a thread counts, because hits get ids. Refused while the server closes; the
   * server waits for running ones. When the client leaves, the wait for a model ends.
   */
  const changing = <T>(request: FastifyRequest, reply: FastifyReply, work: (signal: AbortSignal) => Promise<T>): Promise<T> =>
    exchange(request, reply).wait(work)

  app.get('/kvfold/threads', { schema: documented('List the live conversations of this key') }, ({ tenant }) =>
    threads.reading(() => ({
      threads: threads.list(tenant),
      damaged: threads.damage(tenant).map(({ id, kind, what }) => ({ id, kind, what })),
    })),
  )

  app.post(
    '/kvfold/threads/search',
    {
      schema: { ...documented('Search the titles and texts of all threads of this key'), body: FindBody },
      preValidation: nullsDownTo(1),
    },
    (request, reply) => {
      const { query, maxThreads } = request.body
      return exchange(request, reply).wait((signal) =>
        threads.find(request.tenant, { query, ...definedFields({ maxThreads }) }, signal),
      )
    },
  )

  app.get(
    '/kvfold/threads/:id',
    {
      schema: {
        ...documented('Get the messages with their fragments, and the cells that the cache has of them'),
        params: ThreadParams,
        response: { 200: THREAD, ...ERRORS },
      },
    },
    ({ tenant, params: { id } }) => threads.reading(() => written(threads.get(tenant, id))),
  )

  app.delete(
    '/kvfold/threads/:id',
    { schema: { ...documented('Delete the thread in every tier and in the store'), params: ThreadParams } },
    async (request, reply) => {
      const { tenant, params } = request
      await changing(request, reply, () => threads.delete(tenant, params.id))
      return { id: params.id, deleted: true }
    },
  )

  app.get(
    '/kvfold/threads/:id/export',
    { schema: { ...documented('Export the whole thread as JSON'), params: ThreadParams } },
    ({ tenant, params: { id } }) => threads.reading(() => threads.export(tenant, id)),
  )

  app.post(
    '/kvfold/threads/:id/fragments',
    {
      schema: { ...documented('Cut a text into fragments'), params: ThreadParams, body: FragmentBody },
      preValidation: nullsDownTo(1),
    },
    async (request, reply) => {
      const { tenant, params, body } = request
      const { startMarker, endMarker, numFragments, role } = body
      const options = { startMarker, endMarker, ...definedFields({ numFragments, role }) }
      return { fragments: await changing(request, reply, (signal) => threads.fragment(tenant, params.id, options, signal)) }
    },
  )

  app.post(
    '/kvfold/threads/:id/fragments/:fragment/fold',
    {
      schema: { ...documented('Fold a fragment: show a marker in its place'), params: FragmentParams, body: FoldBody },
      preValidation: emptyIsAnObject,
    },
    async (request, reply) => {
      const { tenant, params, body } = request
      const how = definedFields({ contract: body.contract, forget: body.forget })
      const fragment = await changing(request, reply, (signal) =>
        threads.fold(tenant, params.id, params.fragment, how, body.costly, signal),
      )
      if (body.forget !== true) return { fragment }
      const left = await threads.unforgotten(tenant, params.id)
      return { fragment, forgotten: left.length === 0, ...(left.length === 0 ? {} : { unforgotten: left }) }
    },
  )

  app.post(
    '/kvfold/threads/:id/fragments/:fragment/restore',
    { schema: { ...documented('Restore a fragment: show the original again'), params: FragmentParams } },
    async (request, reply) => {
      const { tenant, params } = request
      return { fragment: await changing(request, reply, (signal) => threads.restore(tenant, params.id, params.fragment, signal)) }
    },
  )

  app.post(
    '/kvfold/threads/:id/fragments/:fragment/summarize',
    {
      schema: { ...documented('Summarise a fragment: show a summary in its place'), params: FragmentParams, body: SummarizeBody },
    },
    (request, reply) => {
      const { tenant, params, body } = request
      return exchange(request, reply).wait((signal, onSpent) =>
        threads.summarize(tenant, params.id, params.fragment, body.focus, { signal, onSpent }, body.costly),
      )
    },
  )

  app.post(
    '/kvfold/threads/:id/search',
    {
      schema: { ...documented('Search for exact words, hidden parts included'), params: ThreadParams, body: SearchBody },
      preValidation: nullsDownTo(1),
    },
    (request, reply) => {
      const { tenant, params, body } = request
      const { query, role, maxResults, contextSize } = body
      const options = { query, ...definedFields({ role, maxResults, contextSize }) }
      return changing(request, reply, (signal) => threads.search(tenant, params.id, options, signal))
    },
  )

  app.get(
    '/kvfold/threads/:id/search/:hit',
    {
      schema: {
        ...documented('Get more text around an earlier hit'),
        params: Type.Object({ id: Id, hit: Id }),
        querystring: DetailQuery,
      },
    },
    ({ tenant, params: { id, hit }, query: { extendedContext } }, reply) => {
      const context = extendedContext === undefined ? undefined : Number(extendedContext)
      return threads.detail(tenant, id, hit, context, whileConnected(reply))
    },
  )

  app.put(
    '/kvfold/threads/:id/contract',
    { schema: { ...documented('Set the contract of later steps'), params: ThreadParams, body: ContractBody } },
    async (request, reply) => {
      const { tenant, params, body } = request
      await changing(request, reply, () => threads.contract(tenant, params.id, body.contract))
      return { id: params.id, contract: body.contract }
    },
  )

  app.put(
    '/kvfold/threads/:id/title',
    { schema: { ...documented('Rename the thread'), params: ThreadParams, body: TitleBody } },
    async (request, reply) => {
      const { tenant, params, body } = request
      await changing(request, reply, () => threads.rename(tenant, params.id, body.title))
      return { id: params.id, title: body.title }
    },
  )

  app.post(
    '/kvfold/threads/:id/refresh',
    { schema: { ...documented('Make a spliced conversation exact'), params: ThreadParams } },
    (request, reply) =>
      exchange(request, reply).wait((signal, onSpent) => threads.refresh(request.tenant, request.params.id, { signal, onSpent })),
  )

  app.get(
    '/kvfold/threads/:id/attention',
    {
      schema: {
        ...documented('Replay the last answer, and measure where its tokens looked'),
        params: ThreadParams,
        querystring: AttentionQuery,
      },
    },
    (request, reply) => {
      const { tenant, params, query } = request
      const layers = query.layers?.split(',').map(Number)
      return exchange(request, reply).wait((signal, onSpent) =>
        threads.attention(tenant, params.id, { signal, onSpent, ...definedFields({ layers }) }),
      )
    },
  )
}

/** Without a body, a fold uses the default options. */
function emptyIsAnObject(request: { body: unknown }, _reply: unknown, done: () => void): void {
  request.body ??= {}
  done()
}

/** Returns a thread as JSON for clients. Leaves out sampled tokens, which only the engine needs. */
function written({ all, ...rest }: ThreadView): object {
  return { ...rest, messages: all.map(withoutTokens), count: rest.messages }
}

function withoutTokens({ message: { sampled: _, ...message }, ...rest }: ThreadMessage): object {
  return { ...rest, message }
}

// Describes a thread in the OpenAPI document, where field names alone do not say enough. These schemas filter nothing.

const tokens = (description: string) => ({ type: 'integer', description })

/** The answer of `GET /kvfold/threads/:id`. */
const THREAD = Type.Unsafe<unknown>({
  type: 'object',
  additionalProperties: true,
  properties: {
    messages: {
      type: 'array',
      items: {
        type: 'object',
        additionalProperties: true,
        properties: {
          generated: tokens('sampled for the message; missing where they are not known'),
          fragments: {
            type: 'array',
            items: {
              type: 'object',
              additionalProperties: true,
              properties: {
                price: {
                  type: 'object',
                  description:
                    'For a folded or summarised fragment: tokens of the whole conversation at the fold. The fold pays where `hidden` is less.',
                  properties: {
                    open: tokens('with the text of the fragment'),
                    hidden: tokens('with the marker or the summary'),
                    about: {
                      type: 'boolean',
                      description: 'true: an estimate, because another server has the vocabulary (--engine)',
                    },
                  },
                },
                cells: {
                  type: 'object',
                  description:
                    'For a folded or summarised fragment: where the cells of its text are, and so what a restore would find. Missing while the model is not loaded.',
                  properties: {
                    tokens: tokens('all tokens of the text: the sum of the other fields'),
                    live: tokens('still shown, until the next step carries out the fold'),
                    parked: tokens('parked on the device'),
                    host: tokens('in host memory'),
                    disk: tokens('on disk'),
                    gone: tokens('in no tier: a restore computes them again'),
                  },
                },
              },
            },
          },
        },
      },
    },
    events: {
      type: 'array',
      description:
        "Folds by the server's policies, the client's changes of earlier messages, and edits by people and programs through these routes; oldest first.",
      items: {
        type: 'object',
        properties: {
          kind: {
            type: 'string',
            enum: ['policy', 'client', 'edit'],
            description:
              'policy: the server; client: the client, by other messages than before; edit: a person or a program, through these routes',
          },
          at: { type: 'integer', description: 'Unix milliseconds' },
          after: { type: 'integer', description: 'entries of `ledger` before this event' },
          folded: {
            type: 'array',
            items: { type: 'string' },
            description: 'the folded fragments; for an edit, the fragments that it changed',
          },
          what: {
            type: 'string',
            enum: ['cut', 'folded', 'restored', 'summarised', 'named'],
            description: 'the kind of an edit; named: the thread got another title',
          },
          name: { type: ['string', 'null'], description: 'the title that an edit gave; null: that of the first user message' },
          saves: tokens('by how many fewer tokens are shown; negative: more'),
          reason: { type: 'string' },
        },
      },
    },
  },
})

export function addChanges(app: App, { service }: Ports, streams: ChangeStreams): void {
  app.get(
    '/kvfold/events',
    {
      schema: {
        ...described('Stream the changes in the threads of this key as server-sent events', 'threads'),
      },
    },
    (request, reply) => {
      streams.open(request, reply, (send) =>
        service.threads.watch(request.tenant, ({ thread, kind }) => {
          send({ event: kind, data: { thread, kind } })
        }),
      )
    },
  )
}
