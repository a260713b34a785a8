/**
 * Tests tool search in Vercel's `ai`, through its providers for Anthropic's and OpenAI's APIs. A script gives the answers, and a real
 * engine computes them.
 */
import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import { generateText, jsonSchema, stepCountIs, streamText, tool, type ToolSet } from 'ai'
import { afterAll, beforeAll, expect, it } from 'vitest'
import type { EngineRequest } from '../../../../src/runtime/engine/engine.js'
import { serving, type Serving } from '../support/serving.js'

const CITIES = ['Lisbon', 'Oslo', 'Quito', 'Hanoi', 'Dakar']

let served: Serving
let asked: EngineRequest[] = []
beforeAll(async () => {
  served = await serving({
    slots: 1,
    // The model searches for the user's text, calls the first tool found, and says its result.
    teacher: (request) => {
      asked.push(request)
      const { messages, tools = [], unlisted = [] } = request
      const last = messages.at(-1)!
      if (last.role === 'user') return { calls: [{ name: tools[0]!.name, arguments: { query: last.content } }] }
      if (/search/.test(last.name ?? '')) return { calls: [{ name: unlisted[0]!.name, arguments: { day: 'today' } }] }
      return { content: `It is ${last.content}.` }
    },
  })
})
afterAll(() => served.close())

/** Tools that the caller carries out, and that the model sees only once they are found. */
const deferred = (provider: 'anthropic' | 'openai'): ToolSet =>
  Object.fromEntries(
    CITIES.map((city) => [
      `weather_${city.toLowerCase()}`,
      tool({
        description: `The weather in ${city}.`,
        inputSchema: jsonSchema<{ day: string }>({ type: 'object', properties: { day: { type: 'string' } }, required: ['day'] }),
        execute: ({ day }) => `rain in ${city} ${day}`,
        providerOptions: { [provider]: { deferLoading: true } },
      }),
    ]),
  )

/** Widens the type, because the providers' packages bring their own copies of it. */
const searching = (search: unknown): ToolSet => ({ tool_search: search as ToolSet[string] })

const setups = {
  anthropic: () => {
    const anthropic = createAnthropic({ baseURL: `${served.url}/v1`, apiKey: 'none' })
    const search = searching(anthropic.tools.toolSearchBm25_20251119())
    return { model: anthropic('builtin'), tools: { ...search, ...deferred('anthropic') } }
  },
  openai: () => {
    const openai = createOpenAI({ baseURL: `${served.url}/v1`, apiKey: 'none' })
    return { model: openai.responses('builtin'), tools: { ...searching(openai.tools.toolSearch()), ...deferred('openai') } }
  },
}

it.each(['anthropic', 'openai'] as const)(
  '%s: the tool is searched for, found, called and answered, whole and streamed',
  async (name) => {
    const options = { ...setups[name](), stopWhen: stepCountIs(4), maxOutputTokens: 200, maxRetries: 0 }
    asked = []
    const whole = await generateText({ ...options, prompt: 'weather Oslo' })
    expect(whole.text).toBe('It is rain in Oslo today.')
    const stream = streamText({ ...options, prompt: 'weather in Dakar' })
    let text = ''
    for await (const piece of stream.textStream) text += piece
    expect(text).toBe('It is rain in Dakar today.')
    const calls = (await stream.steps).flatMap(({ toolCalls }) => toolCalls.map(({ toolName }) => toolName))
    expect(calls).toEqual([Object.keys(options.tools)[0], 'weather_dakar'])
    // The list always has the search alone.
    for (const { tools } of asked) expect(tools).toHaveLength(1)
  },
)
