/** Tests that the runtime shows the built-in model exactly its training format (golden.json, made by its recipe). */
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { sculptor, plain } from '../../../src/runtime/agents/sculptor.js'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { sizeNote } from '../../../src/runtime/context/size-note.js'
import { contextTools } from '../../../src/runtime/context/tools.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { ownWords, piSample, piScore } from '../../../src/lab/pi-llm.js'
import { openNative } from '../../../src/runtime/native/binding.js'

interface Golden {
  readonly texts: readonly { readonly text: string; readonly ids: readonly number[] }[]
  readonly prompts: readonly {
    readonly name: string
    readonly messages: readonly GoldenMessage[]
    readonly tools: readonly string[]
    readonly text: string
    readonly ids: readonly number[]
  }[]
}

interface GoldenMessage {
  readonly role: ChatMessage['role']
  readonly content: string
  readonly note?: string
  readonly tool_calls?: readonly { readonly function: { readonly name: string; readonly arguments: Record<string, unknown> } }[]
}

const folder = fileURLToPath(new URL('../../../native-models/builtin/', import.meta.url))
const golden = JSON.parse(readFileSync(`${folder}golden.json`, 'utf8')) as Golden
let engine: LlamaEngine

beforeAll(async () => {
  engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), `${folder}kvfold-tiny.gguf`, { threads: 1, batchThreads: 1 })
})

afterAll(() => engine.dispose())

const asMessage = ({ role, content, note, tool_calls: calls = [] }: GoldenMessage): ChatMessage => ({
  role,
  content,
  ...(note === undefined ? {} : { note }),
  ...(calls.length === 0
    ? {}
    : {
        toolCalls: calls.map(({ function: { name, arguments: given } }, index) => ({
          id: `call_${index + 1}`,
          name,
          arguments: given,
        })),
      }),
})

describe('the built-in model', () => {
  it('is the file its manifest describes', () => {
    const manifest = JSON.parse(readFileSync(`${folder}manifest.json`, 'utf8')) as { readonly sha256: string }
    expect(
      createHash('sha256')
        .update(readFileSync(`${folder}kvfold-tiny.gguf`))
        .digest('hex'),
    ).toBe(manifest.sha256)
  })

  it.each(golden.texts.map(({ text, ids }) => [text.slice(0, 40), text, ids] as const))(
    'tokenizes as its recipe does: %s',
    (_, text, ids) => {
      expect([...engine.model.tokenize(text, { parseSpecial: true })]).toEqual(ids)
    },
  )

  it.each(golden.prompts.map((prompt) => [prompt.name, prompt] as const))(
    'sees the format it was trained on: %s',
    (_, prompt) => {
      const tools = contextTools.map(({ definition }) => definition).filter(({ name }) => prompt.tools.includes(name))
      const messages = prompt.messages.map(asMessage)
      const rendered = engine.format.render({ messages, tools })
      expect(rendered.text).toBe(prompt.text)
      expect([...rendered.tokens]).toEqual(prompt.ids)
      // For folded messages, golden.json has the content as shown, and a note with the length of the original.
      for (const { note = '', ...bare } of messages)
        if (!bare.content.includes('[folded ')) expect(sizeNote(bare, tools)).toBe(note)
    },
  )

  it('folds a long stream by itself, and the runtime computes the fold once', async () => {
    const sample = piSample({ words: ownWords(), updates: 32, seed: 2024 })
    const session = sculptor({ engine, id: conversationId('folds'), prompt: 'pi-llm' })
    const outcome = await session.ask(sample.prompt)
    const [cut, fold, answer] = outcome.steps
    expect(outcome.steps.length).toBe(3)
    expect(cut!.calls.map(({ call }) => call.name)).toEqual(['fragment_context'])
    expect(new Set(fold!.calls.map(({ call }) => call.name))).toEqual(new Set(['fold_fragment']))
    expect(outcome.steps.flatMap(({ calls }) => calls).filter(({ failed }) => failed)).toEqual([])
    // Cutting does not change the prompt, so the second step computes only its new messages.
    expect(fold!.ledger.recomputed).toBe(0)
    expect(answer!.ledger.recomputed).toBeGreaterThan(0)
    expect(outcome.contextAfter).toBeLessThan(0.4 * outcome.contextBefore)
    expect(piScore(sample, outcome.answer).accuracy).toBeGreaterThan(0.8)
    await engine.check('full')
    session.forget()
  })

  it('answers without tools from exactly the prompt of a bare run', async () => {
    const sample = piSample({ words: ownWords(), updates: 4, seed: 2025 })
    const session = plain({ engine, id: conversationId('plain'), generation: { maxTokens: 1 } })
    const { ledger } = await session.ask(sample.prompt)
    const bare = engine.model.tokenize(`<|im_start|>user\n${sample.prompt}<|im_end|>\n<|im_start|>assistant\n`, {
      parseSpecial: true,
    })
    expect(ledger[0]!.shown).toBe(bare.length)
    expect([...engine.format.render({ messages: [{ role: 'user', content: sample.prompt }] }).tokens]).toEqual([...bare])
    session.forget()
  })
})
