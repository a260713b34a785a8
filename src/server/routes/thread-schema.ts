/** Owns what the OpenAPI document says of a thread, as far as names do not say it; it filters nothing. */
import Type from 'typebox'

const tokens = (description: string) => ({ type: 'integer', description })

/** `GET /kvfold/threads/:id`. */
export const THREAD = Type.Unsafe<unknown>({
  type: 'object',
  additionalProperties: true,
  properties: {
    messages: {
      type: 'array',
      items: {
        type: 'object',
        additionalProperties: true,
        properties: {
          fragments: {
            type: 'array',
            items: {
              type: 'object',
              additionalProperties: true,
              properties: {
                price: {
                  type: 'object',
                  description:
                    'Of a folded or summarised fragment: what the whole conversation took when it was hidden. Hiding pays where `hidden` is less.',
                  properties: { open: tokens('with its text'), hidden: tokens('with the marker or the summary') },
                },
                cells: {
                  type: 'object',
                  description:
                    'Of a folded or summarised fragment: where the cells of its text are, which is what restoring it would find. Left out while the model is not loaded.',
                  properties: {
                    tokens: tokens('all; the sum of the others'),
                    live: tokens('still shown: the next step carries the fold out'),
                    parked: tokens('in the cache'),
                    host: tokens('in memory'),
                    disk: tokens('on disk'),
                    gone: tokens('nowhere: they would be computed again'),
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
      description: 'What the server folded by its own policies, oldest first.',
      items: {
        type: 'object',
        properties: {
          kind: { type: 'string', enum: ['policy'] },
          at: { type: 'integer', description: 'Unix milliseconds' },
          after: { type: 'integer', description: 'entries of `ledger` that there were: it counts from the next one on' },
          folded: { type: 'array', items: { type: 'string' }, description: 'fragments' },
          saves: tokens('that are shown less'),
          reason: { type: 'string' },
        },
      },
    },
  },
})
