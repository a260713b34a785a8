/** Runs LlamaIndex.TS. */
import { OpenAI } from '@llamaindex/openai'
import { tool } from 'llamaindex'
import { z } from 'zod'

const make = (model) => new OpenAI({ model, apiKey: 'none', baseURL: `${process.env.KVFOLD_URL}/v1`, maxRetries: 0 })
const weather = tool({
  name: 'weather',
  description: 'Weather of a city',
  parameters: z.object({ city: z.string() }),
  execute: ({ city }) => `sunny in ${city}`,
})

const llm = make('spoken')
const turns = []
const messages = []
for (const city of ['Oslo', 'Rome']) {
  messages.push({ role: 'user', content: `Weather of ${city}?` })
  const { newMessages } = await llm.exec({ messages, tools: [weather] })
  messages.push(...newMessages)
  const last = await llm.exec({ messages, tools: [weather] })
  messages.push(...last.newMessages)
  turns.push(last.newMessages.at(-1).content)
}

const responseFormat = z.object({ city: z.enum(['Oslo']), degrees: z.number().int().min(0).max(9) })
const formed = await make('plain').chat({ messages: [{ role: 'user', content: 'Weather of Oslo?' }], responseFormat })
const output = JSON.parse(formed.message.content)

const overflow = await make('plain')
  .chat({ messages: [{ role: 'user', content: 'word '.repeat(30_000) }] })
  .then(
    () => 'answered',
    (error) => `${error.name}: ${error.message}`,
  )

let cancelled = 'ended'
for await (const chunk of await make('endless').chat({ messages: [{ role: 'user', content: 'Go on.' }], stream: true }))
  if (chunk.delta !== '') {
    cancelled = 'cancelled'
    break
  }

console.log(JSON.stringify({ turns, output, overflow, cancelled }))
process.exit(0)
