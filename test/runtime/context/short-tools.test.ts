/** Tests the context tools as models see them that were not trained on them. */
import { describe, expect, it } from 'vitest'
import { sculptor } from '../../../src/runtime/agents/sculptor.js'
import type { ToolDefinition } from '../../../src/runtime/chat/message.js'
import { Conversation } from '../../../src/runtime/context/conversation.js'
import { contextToolsFor, readToolTexts, shortContextTools } from '../../../src/runtime/context/short-tools.js'
import { contextTools } from '../../../src/runtime/context/tools.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import type { EngineRequest } from '../../../src/runtime/engine/engine.js'
import { granted } from '../../support/results.js'
import { ScriptedEngine } from '../../support/scripted.js'

const LOG = 'Log begins. The tower password is amber. Later it is copper. The end of the log. What is the password?'
const id = conversationId('short')
const cut = {
  calls: [
    { name: 'fragment_context', arguments: { start_marker: 'Log begins.', end_marker: 'end of the log.', num_fragments: 2 } },
  ],
}
const idsOf = (tools: readonly ToolDefinition[] | undefined, name: string): unknown =>
  (
    tools?.find((tool) => tool.name === name)?.parameters as
      { properties: Record<string, { enum?: readonly string[] }> } | undefined
  )?.properties['fragment_id']?.enum

describe('the tools of a model', () => {
  it('are those that it was trained on, or the short ones', () => {
    expect(contextToolsFor('kvfold-tiny')).toBe(contextTools)
    expect(contextToolsFor('Qwen2.5 Coder 0.5B Instruct')).toBe(shortContextTools)
    expect(shortContextTools.map(({ definition }) => definition.name)).toEqual(
      contextTools.map(({ definition }) => definition.name),
    )
  })

  it('show a part of the arguments; the others keep a value', () => {
    const shown = shortContextTools.map(({ definition: { name, parameters } }) => [
      name,
      Object.keys((parameters as { properties: object }).properties),
    ])
    expect(Object.fromEntries(shown)).toEqual({
      fragment_context: ['start_marker', 'end_marker', 'num_fragments'],
      fold_fragment: ['fragment_id'],
      restore_fragment: ['fragment_id'],
      summarize_fragment: ['fragment_id', 'focus'],
      search_context: ['query'],
      get_search_detail: ['search_id'],
    })
  })
})

describe('a session with a model that nobody trained', () => {
  it('allows only calls that can succeed, and says what is in each fragment', async () => {
    const fold = ({ messages }: EngineRequest) => ({
      calls: [{ name: 'fold_fragment', arguments: { fragment_id: /f[0-9a-f]{5}/.exec(messages.at(-1)!.content)![0] } }],
    })
    const script = [() => cut, fold, () => ({ content: 'copper' })]
    const engine = new ScriptedEngine((request, step) => script[step]!(request), { model: 'another' })
    const session = sculptor({ engine, id })
    const { answer, calls } = await session.ask(LOG)
    expect([answer, calls]).toEqual(['copper', 2])
    const ends = ['fragment_context', 'fold_fragment', 'search_context'].map((name) => session.toolbox.endsStep({ name }))
    expect(ends).toEqual([true, false, true])

    const [first, second, third] = engine.requests
    expect(first!.callable).toEqual(['fragment_context', 'search_context'])

    const result = second!.messages.at(-1)!.content
    const ids = result.match(/\bf[0-9a-f]{5}\b/g)!
    expect(result.split('\n')).toEqual([
      expect.stringMatching(/^f[0-9a-f]{5} \(\d+ tokens\): Log begins\. The tower/),
      expect.stringMatching(/^f[0-9a-f]{5} \(\d+ tokens\): /),
      'Now fold what you do not need, or answer.',
    ])
    const sizes = [...result.matchAll(/\((\d+) tokens\)/g)].map(([, tokens]) => Number(tokens))
    const words = LOG.slice(0, LOG.indexOf(' What')).split(' ').length
    expect(sizes[0]! + sizes[1]!).toBe(words)
    expect(idsOf(second!.unlisted, 'fold_fragment')).toEqual(ids)
    expect(second!.callable).not.toContain('restore_fragment')

    expect(idsOf(third!.unlisted, 'fold_fragment')).toEqual(ids.slice(1))
    expect(idsOf(third!.unlisted, 'restore_fragment')).toEqual(ids.slice(0, 1))
    expect(third!.callable).toContain('restore_fragment')
  })

  it('allows no call for a fragment of a message that is hidden as a whole', () => {
    const conversation = new Conversation(id)
    conversation.add({ role: 'user', content: LOG })
    const { fragments } = granted(conversation.fragment({ startMarker: 'Log', endMarker: 'copper', numFragments: 2 }))
    granted(conversation.fold(fragments[0]!.id))
    const allowed = () =>
      shortContextTools.flatMap(({ definition: { name }, narrowed }) => {
        const tool = narrowed?.(conversation)
        return tool == null ? [] : [[name, idsOf([tool], name)]]
      })
    expect(allowed().map(([name]) => name)).toEqual(['fold_fragment', 'restore_fragment', 'summarize_fragment'])
    conversation.omit([{ message: 0, omits: { part: 'message' } }])
    expect(allowed()).toEqual([])
  })

  it("pays once for a step's failures", async () => {
    const invented = ['f00001', 'f00002', 'f00003'].map((fragment_id) => ({ name: 'fold_fragment', arguments: { fragment_id } }))
    const engine = new ScriptedEngine([{ calls: invented }, cut, { content: 'copper' }], { model: 'another' })
    const { calls, refusedCalls, steps } = await sculptor({ engine, id, maxCalls: 2 }).ask(LOG)
    expect([calls, refusedCalls]).toEqual([2, 0])
    expect(steps[0]!.calls.map(({ failed }) => failed)).toEqual([true, true, true])
  })
})

describe('a file of tool texts', () => {
  const texts = { fold_fragment: { description: 'Hide it.', arguments: { fragment_id: 'Which.' } } }

  it('gives the model these words, and these tools alone', () => {
    const tools = contextToolsFor('kvfold-tiny', readToolTexts(JSON.stringify(texts), 'texts.json'))
    expect(tools.map(({ definition }) => definition)).toEqual([
      {
        name: 'fold_fragment',
        description: 'Hide it.',
        parameters: {
          type: 'object',
          properties: { fragment_id: { type: 'string', description: 'Which.' } },
          required: ['fragment_id'],
          additionalProperties: false,
        },
      },
    ])
  })

  it.each([
    ['{', /texts\.json is not a file of tool texts: it is not JSON/],
    [{ fold: texts.fold_fragment }, /there is no tool fold; the tools are fragment_context,/],
    [{ fold_fragment: { description: 'Hide it.', arguments: {} } }, /fold_fragment needs a text for fragment_id/],
    [
      { fold_fragment: { ...texts.fold_fragment, arguments: { id: 'x', fragment_id: 'y' } } },
      /has no argument id; it has fragment_id/,
    ],
    [{ fold_fragment: { arguments: { fragment_id: 'x' } } }, /description/],
  ])('that is wrong is refused: %j', (given, message) => {
    const json = typeof given === 'string' ? given : JSON.stringify(given)
    expect(() => readToolTexts(json, 'texts.json')).toThrow(message)
  })
})
