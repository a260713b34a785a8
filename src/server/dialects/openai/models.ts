/** Owns the routes `/v1/models` and `/v1/models/:id`. */
import Type from 'typebox'
import { FieldError } from '../../field-error.js'
import type { App, Ports } from '../../ports.js'
import type { ModelStatus } from '../../threads/status.js'
import { ANSWER, ERRORS } from '../documented.js'

export function addModels(app: App, { service }: Ports): void {
  app.get('/v1/models', { schema: { summary: 'Models', tags: ['openai'], response: { 200: ANSWER, ...ERRORS } } }, () => {
    const data = service.models().map(described)
    // `has_more` and its like are what Anthropic's client pages by.
    return { object: 'list', data, has_more: false, first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null }
  })
  app.get(
    '/v1/models/*',
    {
      schema: {
        summary: 'One model',
        tags: ['openai'],
        params: Type.Object({ '*': Type.String() }),
        response: { 200: ANSWER, ...ERRORS },
      },
    },
    (request) => {
      const name = request.params['*']
      const model = service.models().find((one) => one.name === name)
      if (model !== undefined) return described(model)
      throw new FieldError(
        'model',
        `There is no model ${JSON.stringify(name.slice(0, 80))}; /v1/models lists those there are.`,
        'model/not-found',
      )
    },
  )
}

function described({ name, since, state, loaded }: ModelStatus): Readonly<Record<string, unknown>> & { readonly id: string } {
  return {
    id: name,
    object: 'model',
    created: since,
    owned_by: 'kvfold',
    type: 'model',
    display_name: loaded?.title ?? name,
    created_at: new Date(since * 1000).toISOString(),
    kvfold: { state, ...(loaded === null ? {} : { context: loaded.context, engine: loaded.engine, release: loaded.release }) },
  }
}
