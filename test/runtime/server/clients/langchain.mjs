/** Runs LangChain's models for OpenAI (chat completions and responses) and Anthropic. */
import { ChatAnthropic } from '@langchain/anthropic'
import { HumanMessage, ToolMessage } from '@langchain/core/messages'
import { tool } from '@langchain/core/tools'
import { ChatOpenAI } from '@langchain/openai'
import { z } from 'zod'

const url = process.env.KVFOLD_URL
const make = {
  chat: (model) => new ChatOpenAI({ model, apiKey: 'none', maxRetries: 0, configuration: { baseURL: `${url}/v1` } }),
  responses: (model) =>
    new ChatOpenAI({ model, apiKey: 'none', maxRetries: 0, useResponsesApi: true, configuration: { baseURL: `${url}/v1` } }),
  anthropic: (model) => new ChatAnthropic({ model, apiKey: 'none', maxRetries: 0, maxTokens: 400, anthropicApiUrl: url }),
}[process.argv[2]]
const weather = tool(({ city }) => `sunny in ${city}`, {
  name: 'weather',
  description: 'Weather of a city',
  schema: z.object({ city: z.string() }),
})

const model = make('spoken').bindTools([weather])
const turns = []
const messages = []
for (const city of ['Oslo', 'Rome']) {
  messages.push(new HumanMessage(`Weather of ${city}?`))
  for (;;) {
    let answer
    for await (const chunk of await model.stream(messages)) answer = answer === undefined ? chunk : answer.concat(chunk)
    messages.push(answer)
    if (!answer.tool_calls?.length) {
      turns.push(answer.text)
      break
    }
    for (const call of answer.tool_calls)
      messages.push(new ToolMessage({ content: await weather.invoke(call.args), tool_call_id: call.id }))
  }
}

const schema = z.object({ city: z.enum(['Oslo']), degrees: z.number().int().min(0).max(9) })
const output = await make('plain').withStructuredOutput(schema, { name: 'weather' }).invoke('Weather of Oslo?')

const overflow = await make('plain')
  .invoke('word '.repeat(30_000))
  .then(
    () => 'answered',
    (error) => `${error.name}: ${error.message}`,
  )

const controller = new globalThis.AbortController()
let cancelled = 'ended'
try {
  for await (const chunk of await make('endless').stream('Go on.', { signal: controller.signal }))
    if (chunk.text !== '') controller.abort()
} catch {
  cancelled = 'cancelled'
}

console.log(JSON.stringify({ turns, output, overflow, cancelled }))
process.exit(0)
