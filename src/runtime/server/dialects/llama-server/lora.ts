/** llama-server's route `/lora-adapters`: a model's adapters, and their scales for requests that name none. */
import Type from 'typebox'
import { KvfoldError } from '../../../core/errors.js'
import { ADMIN, type App, described, type Ports } from '../../routes/route.js'
import { AdapterScales } from '../fields.js'

const Query = Type.Object({ model: Type.Optional(Type.String({ maxLength: 1024, description: 'default: the first' })) })

export function addLora(app: App, { service, locked }: Pick<Ports, 'service'> & { readonly locked: boolean }): void {
  app.get(
    '/lora-adapters',
    { schema: { ...described('LoRA adapters and their scales', 'llama-server'), querystring: Query } },
    ({ query }) => service.adapters(query.model).map(({ id, name, path, scale }) => ({ id, name, path, scale })),
  )
  app.post(
    '/lora-adapters',
    {
      schema: {
        ...described('Scales of the adapters, for requests that name none', 'llama-server'),
        querystring: Query,
        body: AdapterScales,
      },
    },
    ({ query, body, tenant }) => {
      if (locked && tenant !== ADMIN)
        throw new KvfoldError(
          'server/forbidden',
          `These scales apply to the requests of all keys; only the key named ${ADMIN} may set them. Send lora with a request instead.`,
        )
      service.scaleAdapters(query.model, body)
      return { success: true }
    },
  )
}
