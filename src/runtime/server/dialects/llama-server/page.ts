/**
 * Routes for llama-server's web page: those for reading on in a running answer, and those of features that this server lacks. Without an
 * answer that it knows, the page reports errors or polls forever.
 */
import Type from 'typebox'
import { KvfoldError } from '../../../core/errors.js'
import { FieldError } from '../../problem.js'
import type { Replays } from '../../replays.js'
import { EventWriter } from '../../request-lifecycle.js'
import type { App } from '../../routes/route.js'

const HIDDEN = { schema: { hide: true } } as const

const Conversation = Type.String({ minLength: 1, maxLength: 2048 })
const LookupBody = Type.Object({ conversation_ids: Type.Array(Conversation, { maxItems: 10_000 }) })
const StreamQuery = Type.Object({ conv_id: Conversation, from: Type.Optional(Type.String({ pattern: '^[0-9]{1,12}$' })) })

export function addPage(app: App, replays: Replays): void {
  for (const url of ['/tools', '/cors-proxy'])
    app.route({
      ...HIDDEN,
      method: ['GET', 'POST'],
      url,
      // llama-server also answers 403 when these features are off.
      handler: () => {
        throw new KvfoldError('server/forbidden', `This server has no ${url}; tools of the server are those of --mcp-config.`)
      },
    })
  app.post('/v1/streams/lookup', { schema: { hide: true, body: LookupBody } }, ({ body, tenant }) =>
    replays.of(tenant, new Set(body.conversation_ids)).map(({ id, started, ended, size }) => ({
      conversation_id: id,
      is_done: ended !== 0,
      total_bytes: size,
      started_at: started,
      completed_at: ended,
    })),
  )
  app.get('/v1/stream', { schema: { hide: true, querystring: StreamQuery } }, async ({ query, tenant }, reply) => {
    const from = Number(query.from ?? 0)
    const replay = replays.find(tenant, query.conv_id)
    if (replay === null)
      throw new KvfoldError('server/not-found', 'There is no stream of this conversation, or it ended long ago.')
    if (from < replay.dropped) throw new FieldError('from', `The first ${replay.dropped} bytes of the stream are gone.`)
    const { raw } = reply
    const writer = EventWriter.over(reply)
    const isGone = () => raw.destroyed
    if (isGone()) return reply
    raw.once('close', replay.enter())
    writer.begin()
    for await (const chunk of replay.from(from)) {
      if (isGone()) break
      await writer.again(chunk)
    }
    await writer.end()
    return reply
  })
  app.delete('/v1/stream', { schema: { hide: true, querystring: StreamQuery } }, ({ query, tenant }, reply) => {
    replays.stop(tenant, query.conv_id)
    return reply.code(204).send()
  })
}
