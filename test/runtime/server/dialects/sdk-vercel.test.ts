/** Tests Vercel's `ai` against the server, through its provider for OpenAI-compatible servers. */
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { APICallError, generateText, jsonSchema, Output, stepCountIs, streamText, tool } from 'ai'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { ScriptedEngine } from '../../../support/scripted.js'
import { endless, serving, type Serving } from '../support/serving.js'

let served: Serving

beforeAll(async () => {
  served = await serving()
})

afterAll(() => served.close())

const modelAt = ({ url }: Serving, name = 'builtin') =>
  createOpenAICompatible({ name: 'kvfold', baseURL: `${url}/v1`, includeUsage: true, supportsStructuredOutputs: true })(name)

const double = tool({
  description: 'Doubles',
  inputSchema: jsonSchema<{ n: number }>({ type: 'object', properties: { n: { type: 'integer' } }, required: ['n'] }),
  execute: ({ n }) => 2 * n,
})

describe('the ai package', () => {
  it('generates text and streams the same', async () => {
    const prompt = 'The value of red is 4. What is red?'
    const whole = await generateText({ model: modelAt(served), prompt, maxOutputTokens: 10, temperature: 0, maxRetries: 0 })
    const stream = streamText({ model: modelAt(served), prompt, maxOutputTokens: 10, temperature: 0, maxRetries: 0 })
    let text = ''
    for await (const piece of stream.textStream) text += piece
    expect(text).toBe(whole.text)
    expect(await stream.finishReason).toBe(whole.finishReason)
    const usage = await stream.usage
    expect(usage.outputTokens).toBe(whole.usage.outputTokens)
    expect(usage.inputTokenDetails.cacheReadTokens).toBeGreaterThan(0)
  })

  it('runs several tools at once and continues', async () => {
    const calls = [4, 5].map((n) => ({ id: `call_${n}`, name: 'double', arguments: { n } }))
    const scripted = await serving({
      engine: () =>
        new ScriptedEngine(({ messages }) =>
          messages.at(-1)?.role === 'user'
            ? { calls }
            : {
                content: messages
                  .filter(({ role }) => role === 'tool')
                  .map(({ content }) => content)
                  .join(' and '),
              },
        ),
    })
    try {
      const options = { model: modelAt(scripted), tools: { double }, stopWhen: stepCountIs(3), maxRetries: 0 }
      const whole = await generateText({ ...options, prompt: '4 and 5?' })
      expect(whole.text).toBe('8 and 10')
      expect(whole.steps).toHaveLength(2)
      expect(whole.steps[0]?.toolCalls).toHaveLength(2)
      const stream = streamText({ ...options, prompt: '4 and 5, please?' })
      let text = ''
      for await (const piece of stream.textStream) text += piece
      expect(text).toBe('8 and 10')
    } finally {
      await scripted.close()
    }
  })

  it('generates an object that follows a schema', async () => {
    const schema = jsonSchema<{ colour: 'red' | 'blue' }>({
      type: 'object',
      properties: { colour: { enum: ['red', 'blue'] } },
      required: ['colour'],
      additionalProperties: false,
    })
    const { output } = await generateText({
      model: modelAt(served),
      prompt: 'Red or blue?',
      output: Output.object({ schema }),
      temperature: 0,
      maxRetries: 0,
    })
    expect(['red', 'blue']).toContain(output.colour)
  })

  it('makes the required call', async () => {
    const { toolCalls } = await generateText({
      model: modelAt(served),
      prompt: 'Double it.',
      tools: {
        zone: tool({
          description: 'Zone',
          inputSchema: jsonSchema<{ zone: string }>({
            type: 'object',
            properties: { zone: { enum: ['UTC'] } },
            required: ['zone'],
          }),
        }),
      },
      toolChoice: { type: 'tool', toolName: 'zone' },
      providerOptions: { kvfold: { parallel_tool_calls: false } },
      maxOutputTokens: 200,
      maxRetries: 0,
    })
    expect(toolCalls[0]).toMatchObject({ toolName: 'zone', input: { zone: 'UTC' } })
  })

  it('gets errors it recognises, and can leave', async () => {
    const unknown = generateText({ model: modelAt(served, 'gpt-9'), prompt: 'Hi', maxRetries: 0 })
    await expect(unknown).rejects.toSatisfy(
      (error: unknown) => APICallError.isInstance(error) && error.statusCode === 404 && !error.isRetryable,
    )
    const controller = new AbortController()
    const stream = streamText({
      model: modelAt(served),
      prompt: 'Go on for ever.',
      providerOptions: { kvfold: endless },
      maxOutputTokens: 3000,
      maxRetries: 0,
      abortSignal: controller.signal,
    })
    for await (const piece of stream.textStream) if (piece !== '') controller.abort()
    await expect.poll(() => served.service.status().running, { timeout: 5000 }).toBe(0)
  })
})
