/** Owns what the OpenAPI document says of answers; they are written by hand, so these schemas describe and filter nothing. */
import Type from 'typebox'

export const ANSWER = Type.Unsafe<unknown>({
  type: 'object',
  additionalProperties: true,
  description: 'As the dialect has it; with stream: true a text/event-stream.',
})

const ERROR = Type.Unsafe<unknown>({
  type: 'object',
  description: 'What went wrong, where, and what to do.',
  properties: {
    error: {
      type: 'object',
      properties: {
        message: { type: 'string' },
        type: { type: 'string' },
        param: { type: ['string', 'null'], description: 'the field it is about' },
        code: { type: 'string' },
      },
    },
  },
})

export const ERRORS = { '4xx': ERROR, '5xx': ERROR } as const
