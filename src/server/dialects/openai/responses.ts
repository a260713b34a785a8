/** Owns the route `/v1/responses`. */
import type { App, Ports } from '../../ports.js'
import { ANSWER, ERRORS } from '../documented.js'
import { nullsDownTo } from '../given.js'
import { wholeResponse } from './response-reply.js'
import { ResponseStream } from './response-stream.js'
import { responseAsk } from './responses-ask.js'
import { ResponseBody } from './responses-schema.js'

const NULLS = 3

export function addResponses(app: App, { service, sampling, exchange }: Ports): void {
  app.post(
    '/v1/responses',
    {
      schema: { summary: 'Response (OpenAI)', tags: ['openai'], body: ResponseBody, response: { 200: ANSWER, ...ERRORS } },
      preValidation: nullsDownTo(NULLS),
    },
    async (request, reply) => {
      const { body, tenant } = request
      const ask = responseAsk(body, tenant, sampling, service.threads)
      const head = { body, ask, created: Math.floor(Date.now() / 1000) }
      const begin = (signal: AbortSignal) => [service.ask({ ...ask, signal })]
      const ping = body.kvfold?.ping === undefined ? null : body.kvfold.ping * 1000
      const running = exchange(request, reply)
      if (body.stream === true) return running.stream(begin, new ResponseStream(head), ping)
      const [answer] = await running.answers(begin)
      return wholeResponse(head, answer!)
    },
  )
}
