/** Runs AI SDK with its providers for OpenAI's responses and chat, for Anthropic, and for any compatible server. */
import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateText, Output, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'

const url = process.env.KVFOLD_URL
const given = { baseURL: `${url}/v1`, apiKey: 'none' }
const openai = createOpenAI(given)
const providers = {
  responses: (model) => openai(model),
  chat: (model) => openai.chat(model),
  anthropic: createAnthropic(given),
  compatible: createOpenAICompatible({ name: 'kvfold', ...given, supportsStructuredOutputs: true }),
}
const model = providers[process.argv[2]]
const weather = tool({
  description: 'Weather of a city',
  inputSchema: z.object({ city: z.string() }),
  execute: ({ city }) => `sunny in ${city}`,
})

const turns = []
let messages = []
for (const city of ['Oslo', 'Rome']) {
  messages = [...messages, { role: 'user', content: `Weather of ${city}?` }]
  const running = streamText({ model: model('spoken'), messages, tools: { weather }, stopWhen: stepCountIs(4), maxRetries: 0 })
  turns.push(await running.text)
  messages = [...messages, ...(await running.response).messages]
}

const { output } = await generateText({
  model: model('plain'),
  output: Output.object({ schema: z.object({ city: z.enum(['Oslo']), degrees: z.number().int().min(0).max(9) }) }),
  prompt: 'Weather of Oslo?',
  maxRetries: 0,
})

const overflow = await generateText({ model: model('plain'), prompt: 'word '.repeat(30_000), maxRetries: 0 }).then(
  () => 'answered',
  (error) => `${error.name}: ${error.message}`,
)

const controller = new globalThis.AbortController()
let cancelled = 'ended'
const endless = streamText({
  model: model('endless'),
  prompt: 'Go on.',
  abortSignal: controller.signal,
  maxRetries: 0,
  onAbort: () => (cancelled = 'cancelled'),
})
for await (const text of endless.textStream) if (text !== '') controller.abort()

console.log(JSON.stringify({ turns, output, overflow, cancelled }))
