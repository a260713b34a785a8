/** Owns the route `/v1/chat/completions`. */
import { randomUUID } from 'node:crypto'
import type { App, Ports } from '../../ports.js'
import { ANSWER, ERRORS } from '../documented.js'
import { nullsDownTo } from '../fields.js'
import { WITH_NULLS } from './answer-form.js'
import { chatAsk, ChatBody } from './chat-ask.js'
import { ignoredIn } from '../kvfold-field.js'
import { chatCompletion, ChatStream } from './chat-reply.js'

/** Messages, tools, their fields and `response_format` may carry nulls for what is not set; schemas and arguments further inside keep theirs. */
const NULLS = 5

export function addChat(app: App, { service, sampling, exchange }: Ports): void {
  app.post(
    '/v1/chat/completions',
    {
      schema: { summary: 'Chat completion (OpenAI)', tags: ['openai'], body: ChatBody, response: { 200: ANSWER, ...ERRORS } },
      preValidation: nullsDownTo(NULLS, WITH_NULLS),
    },
    async (request, reply) => {
      const { body, tenant } = request
      const ask = chatAsk(body, tenant, sampling)
      const head = { id: `chatcmpl-${randomUUID()}`, created: Math.floor(Date.now() / 1000) }
      const wish = {
        kvfold: body.kvfold,
        ignored: ignoredIn(body, ChatBody),
        logprobs: body.logprobs === true,
        timings: body.timings_per_token === true,
        usage: body.stream_options?.include_usage === true,
      }
      const begin = (signal: AbortSignal) =>
        body.n === undefined || body.n === 1 ? [service.ask({ ...ask, signal })] : service.several({ ...ask, signal }, body.n)
      const ping = body.kvfold?.ping === undefined ? null : body.kvfold.ping * 1000
      const running = exchange(request, reply)
      if (body.stream === true) return running.stream(begin, new ChatStream(head, wish), ping)
      return chatCompletion(head, await running.answers(begin), wish)
    },
  )
}
