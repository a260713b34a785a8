/** An endpoint in OpenAI's form with one model, which gives every request the same answer. */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'

/** @param model the model's name at the time of a request */
export async function endpointSaying(answer: string, model: () => string = () => 'far') {
  const chunk = { choices: [{ index: 0, delta: { role: 'assistant', content: answer }, finish_reason: 'stop' }] }
  const server = createServer((request, response) => {
    if (request.url === '/v1/models') response.end(JSON.stringify({ data: [{ id: model() }] }))
    else if (request.url !== '/v1/chat/completions') response.writeHead(404).end()
    else
      response.writeHead(200, { 'content-type': 'text/event-stream' }).end(`data: ${JSON.stringify(chunk)}\n\ndata: [DONE]\n\n`)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, close: () => server.close() }
}
