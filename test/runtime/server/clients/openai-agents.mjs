/** Runs `@openai/agents` over responses and over chat completions. */
import { Agent, run, Runner, setDefaultOpenAIClient, setOpenAIAPI, setTracingDisabled, tool, user } from '@openai/agents'
import OpenAI from 'openai'
import { z } from 'zod'

setTracingDisabled(true)
setOpenAIAPI(process.argv[2])
setDefaultOpenAIClient(new OpenAI({ baseURL: `${process.env.KVFOLD_URL}/v1`, apiKey: 'none', maxRetries: 0 }))

const weather = tool({
  name: 'weather',
  description: 'Weather of a city',
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => `sunny in ${city}`,
})
const agent = new Agent({ name: 'helper', instructions: 'Answer.', model: 'spoken', tools: [weather] })

const turns = []
let history = []
for (const city of ['Oslo', 'Rome']) {
  const result = await run(agent, [...history, user(`Weather of ${city}?`)], { stream: true })
  await result.completed
  turns.push(result.finalOutput)
  history = result.history
}

const outputType = z.object({ city: z.enum(['Oslo']), degrees: z.number().int().min(0).max(9) })
const { finalOutput: output } = await run(new Agent({ name: 'form', model: 'plain', outputType }), 'Weather of Oslo?')

const plain = new Agent({ name: 'plain', model: 'plain' })
const overflow = await run(plain, 'word '.repeat(30_000)).then(
  () => 'answered',
  (error) => `${error.name}: ${error.message}`,
)

const controller = new globalThis.AbortController()
let cancelled = 'ended'
const endless = await new Runner().run(new Agent({ name: 'endless', model: 'endless' }), 'Go on.', {
  stream: true,
  signal: controller.signal,
})
try {
  for await (const text of endless.toTextStream()) if (text !== '') controller.abort()
  await endless.completed
  if (controller.signal.aborted) cancelled = 'cancelled'
} catch {
  cancelled = 'cancelled'
}

console.log(JSON.stringify({ turns, output, overflow, cancelled }))
process.exit(0)
