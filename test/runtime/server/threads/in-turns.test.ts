/** Tests that the long prompt of a thread is rendered in turns of the event loop, before operations on the thread use it. */
import { afterAll, beforeAll, beforeEach, expect, it, vi } from 'vitest'
import { Template } from '../../../../src/runtime/chat/jinja/template.js'
import type { ChatMessage } from '../../../../src/runtime/chat/message.js'
import { builtinModel } from '../../../../src/runtime/cli/builtin.js'
import { LlamaEngine } from '../../../../src/runtime/engine/llama.js'
import { openNative } from '../../../../src/runtime/native/binding.js'
import type { Ask } from '../../../../src/runtime/server/ask.js'
import { ThreadService } from '../../../../src/runtime/server/service.js'
import { TEST_GPU } from '../../../support/device.js'

let service: ThreadService
/** How often `count` and `snap` of the engine were called, and how often they ran the template. */
let seen = { calls: 0, renders: 0 }

beforeAll(async () => {
  const engine = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), {
    ...{ threads: 1, batchThreads: 1, cells: 8192, hostBytes: 0 },
  })
  const { calls } = vi.spyOn(Template.prototype, 'steps').mock
  const watched = <T>(work: () => T): T => {
    const before = calls.length
    const result = work()
    seen = { calls: seen.calls + 1, renders: seen.renders + calls.length - before }
    return result
  }
  const [count, snap] = [engine.count.bind(engine), engine.snap.bind(engine)]
  vi.spyOn(engine, 'count').mockImplementation((...asked) => watched(() => count(...asked)))
  vi.spyOn(engine, 'snap').mockImplementation((...asked) => watched(() => snap(...asked)))
  service = await ThreadService.open({ models: [{ name: 'm', slots: 1, load: () => Promise.resolve(engine) }] })
})
afterAll(async () => {
  await service.close(0)
  vi.restoreAllMocks()
})

const long = (about: string): readonly ChatMessage[] =>
  Array.from({ length: 301 }, (_, at) => ({ role: at % 2 === 0 ? 'user' : 'assistant', content: `Message ${at} of ${about}.` }))
const asking = (messages: readonly ChatMessage[], more: Partial<Ask> = {}) =>
  service.ask({ tenant: 't', messages, tools: [], toolChoice: 'auto', maxTokens: 2, ...more }).answer

beforeEach(() => {
  seen = { calls: 0, renders: 0 }
})

it('a policy counts a thread that hides text', async () => {
  const messages = long('folds')
  const { message } = await asking(messages, { drops: { messages: [3], repositions: false } })
  seen = { calls: 0, renders: 0 }
  await asking([...messages, message, { role: 'user', content: 'Go on.' }], { overflow: 'fold-oldest' })
  expect(seen.calls).toBeGreaterThan(0)
  expect(seen.renders).toBe(0)
})

it('a program cuts a thread whose last call waits for its result', async () => {
  const look = {
    name: 'look',
    description: 'Looks.',
    parameters: { type: 'object', properties: {}, additionalProperties: false },
  }
  const messages = long('cuts')
  const { message } = await asking(messages, { maxTokens: 32 })
  const more = [...messages, message, { role: 'user', content: 'Look.' } as const]
  const { message: last, thread } = await asking(more, { tools: [look], toolChoice: 'required', maxTokens: 64 })
  expect(last.toolCalls).toHaveLength(1)
  seen = { calls: 0, renders: 0 }
  const cut = { startMarker: 'sage 0 of', endMarker: 'Look', numFragments: 600, role: 'all' } as const
  await service.threads.fragment('t', thread, cut)
  expect(seen.calls).toBeGreaterThan(0)
  expect(seen.renders).toBe(0)
})
