/** Owns the routes `/tokenize` and `/detokenize`, as llama-server and vLLM have them. */
import Type from 'typebox'
import { FieldError } from '../problem.js'
import type { App, Ports } from '../ports.js'
import { ANSWER, ERRORS } from './documented.js'
import { LARGEST_TOKEN, nullsDownTo } from './fields.js'

const TokenizeBody = Type.Object({
  model: Type.Optional(Type.String({ maxLength: 1024 })),
  content: Type.Optional(Type.String()),
  prompt: Type.Optional(Type.String({ description: 'as content' })),
  parse_special: Type.Optional(Type.Boolean({ description: 'whether control tokens written in the text count; default false' })),
})

const DetokenizeBody = Type.Object({
  model: Type.Optional(Type.String({ maxLength: 1024 })),
  tokens: Type.Array(Type.Integer({ minimum: 0, maximum: LARGEST_TOKEN }), { maxItems: 1_000_000 }),
})

export function addTokens(app: App, { service }: Ports): void {
  app.post(
    '/tokenize',
    {
      schema: { summary: 'Text to tokens', tags: ['tokens'], body: TokenizeBody, response: { 200: ANSWER, ...ERRORS } },
      preValidation: nullsDownTo(1),
    },
    async ({ body }) => {
      const text = body.content ?? body.prompt
      if (text === undefined) throw new FieldError('content', 'content is missing.')
      const tokens = await service.tokenize(body.model, text, { special: body.parse_special === true })
      return { tokens, count: tokens.length }
    },
  )
  app.post(
    '/detokenize',
    {
      schema: { summary: 'Tokens to text', tags: ['tokens'], body: DetokenizeBody, response: { 200: ANSWER, ...ERRORS } },
      preValidation: nullsDownTo(1),
    },
    async ({ body }) => {
      const content = await service.detokenize(body.model, body.tokens)
      return { content, prompt: content }
    },
  )
}
