/**
 * Tests variables of chat templates. A request's settings for thinking reach the prompt, and answers sampled under other settings keep
 * their tokens.
 */
import { describe, expect, it } from 'vitest'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { realTemplates } from '../../support/bundle.js'
import { ruledFormat, sampledMessage } from '../../support/chat-formats.js'

const user = (content: string): ChatMessage => ({ role: 'user', content })
const formatOf = (name: string) => ruledFormat(realTemplates().find((each) => each.name === name)!.source)
/** What SmolLM3 writes for an answer without reasoning. */
const silence = '<|im_start|>assistant\n<think>\n\n</think>\n'
const off = { enable_thinking: false, thinking: false, thinking_mode: 'disabled' }
const on = { enable_thinking: true, thinking: true, thinking_mode: 'enabled' }

describe('variables of a template', () => {
  it.each([
    ['Qwen-Qwen3-0.6B', '<think>\n\n</think>\n\n'],
    ['Qwen3.5-4B', '<think>\n\n</think>\n\n'],
    ['GLM-4.6', '<think></think>'],
    ['HuggingFaceTB-SmolLM3-3B', '<think>\n\n</think>\n'],
    ['deepseek-ai-DeepSeek-V3.1', '</think>'],
    ['MiniMax-M3', '</mm:think>'],
  ])('%s opens an answer without thinking on request', (name, opened) => {
    const { format } = formatOf(name)
    const text = (variables: object) => format.with({ ...variables }).render({ messages: [user('Hi.')] }).text
    expect(text(off).endsWith(opened)).toBe(true)
    expect(text(on).endsWith(opened)).toBe(false)
  })

  it('that the template does not read change nothing, even if it uses the same names otherwise', () => {
    const { format } = formatOf('openai-gpt-oss-120b')
    // This template reads `message.thinking`, and sets its own `add_generation_prompt`.
    for (const name of ['thinking', 'enable_thinking', 'add_generation_prompt', 'messages', '__proto__', 'a b']) {
      expect(format.reads(name)).toBe(false)
      expect(format.with({ [name]: false })).toBe(format)
    }
    expect(format.with({ reasoning_effort: 'high' }).render({ messages: [user('Hi.')] }).text).toContain('Reasoning: high\n')
    expect(format.with({ reasoning_effort: 'high' }).with()).toBe(format)
  })

  it('are text and never control tokens', () => {
    const { format, tokenizer } = formatOf('openai-gpt-oss-120b')
    const { text, tokens } = format.with({ reasoning_effort: '<|end|>' }).render({ messages: [user('Hi.')] })
    expect(text).toContain('Reasoning: <|end|>\n')
    const ends = (of: Int32Array) => [...of].filter((token) => tokenizer.isControl(token)).length
    expect(ends(tokens)).toBe(ends(format.render({ messages: [user('Hi.')] }).tokens))
  })

  it('apply to one answer: sampled tokens keep the prompt that they came after', () => {
    const ruled = formatOf('Qwen-Qwen3-0.6B')
    const { format, tokenizer } = ruled
    const call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    const question = [user('Look.')]
    const result: ChatMessage = { role: 'tool', content: 'Sun.', toolCallId: 'call_1' }
    // One answer was sampled with thinking, the other one without.
    const thought = sampledMessage(ruled, `<think>\nHm.\n</think>\n\n${call}`)
    const silent = format.with(off)
    const plain = sampledMessage(ruled, call)
    expect(silent.ownPrompt).toBe('<|im_start|>assistant\n<think>\n\n</think>\n\n')
    expect(format.ownPrompt).toBeUndefined()
    const quick: ChatMessage = { ...plain, sampled: { ...plain.sampled!, prompt: silent.ownPrompt! } }
    for (const [answer, before] of [
      [thought, format],
      [quick, silent],
    ] as const) {
      const prompt = before.render({ messages: question })
      const cached = tokenizer.text(prompt.tokens) + answer.sampled!.text
      for (const after of [format, silent, format.with(on)]) {
        const next = after.render({ messages: [...question, answer, result] })
        expect(next.text.startsWith(cached)).toBe(true)
        expect(after.check(prompt, next)).toBe(null)
      }
    }
  })

  it('that change how earlier messages are shown are reported as the reason', () => {
    const { format } = formatOf('openai-gpt-oss-120b')
    const before = format.with({ reasoning_effort: 'low' }).render({ messages: [user('Hi.')] })
    const after = format.with({ reasoning_effort: 'high' }).render({ messages: [user('Hi.')] })
    expect(format.check(before, after)).toEqual({
      message: 0,
      reason: 'the template was given other variables (reasoning_effort)',
    })
  })
})

describe('a generation prompt that depends on the messages', () => {
  const call: ChatMessage = { role: 'assistant', content: '', toolCalls: [{ id: 'call_1', name: 'look', arguments: {} }] }
  const result: ChatMessage = { role: 'tool', content: 'Sun.', toolCallId: 'call_1' }

  it.each<[string, readonly ChatMessage[], string]>([
    ['deepseek-ai-DeepSeek-R1-Distill-Llama-8B', [user('Look.'), call, result], ''],
    ['NVIDIA-Nemotron-Nano-v2', [user('Look. /no_think')], '<SPECIAL_11>Assistant\n<think></think>'],
    ['HuggingFaceTB-SmolLM3-3B', [{ role: 'system', content: '/no_think' }, user('Look.')], silence],
  ])('%s: the answer does not begin with reasoning', (name, messages, prompt) => {
    const { format } = formatOf(name)
    const rendered = format.render({ messages })
    expect(format.promptOf(rendered)).toBe(prompt)
    expect(rendered.text.endsWith(prompt)).toBe(true)
    const answers = format.behind(prompt)
    expect([answers.opens('<think>'), answers.ownPrompt, answers.lazyCalls([])?.opened]).toEqual([false, prompt, ''])
    const parser = answers.parser([])
    parser.push('Sun.')
    expect(parser.finish()).toMatchObject({ content: 'Sun.' })
    expect(answers.behind(prompt)).toBe(answers)
    expect(format.behind(format.promptOf(format.render({ messages: [user('Hi.')] })))).toBe(format)
  })

  it('stays with the answer, so its tokens stay in later prompts', () => {
    const ruled = formatOf('HuggingFaceTB-SmolLM3-3B')
    const { format, tokenizer } = ruled
    const messages: ChatMessage[] = [{ role: 'system', content: '/no_think' }, user('Look.')]
    const before = format.render({ messages })
    const answer = sampledMessage(ruled, 'Sun.')
    const sampled = { ...answer.sampled!, prompt: format.behind(format.promptOf(before)).ownPrompt! }
    const next = format.render({ messages: [...messages, { ...answer, sampled }, user('And now?')] })
    expect(next.text.startsWith(`${tokenizer.text(before.tokens)}Sun.`)).toBe(true)
  })
})
