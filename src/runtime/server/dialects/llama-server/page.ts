/**
 * Routes that llama-server's web page asks for and that do nothing here. Without an answer that it knows, the page reports errors or asks
 * again and again.
 */
import { KvfoldError } from '../../../core/errors.js'
import type { App } from '../../routes/route.js'

const HIDDEN = { schema: { hide: true } } as const

export function addPage(app: App): void {
  for (const url of ['/tools', '/cors-proxy'])
    app.route({
      ...HIDDEN,
      method: ['GET', 'POST'],
      url,
      // llama-server answers 403, too, when these are off.
      handler: () => {
        throw new KvfoldError('server/forbidden', `This server has no ${url}; tools of the server are those of --mcp-config.`)
      },
    })
  // The page's button that ends the reasoning of a running answer.
  app.post('/v1/chat/completions/control', HIDDEN, () => {
    throw new KvfoldError(
      'native/unsupported',
      'The reasoning of a running answer cannot be ended here; reasoning_budget_tokens limits it from the start.',
    )
  })
  // An answer ends with its connection here. So no stream of an earlier connection can be found, or is left to be stopped.
  app.post('/v1/streams/lookup', HIDDEN, () => [])
  app.delete('/v1/stream', HIDDEN, (_, reply) => reply.code(204).send())
}
