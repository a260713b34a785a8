import { expect, it } from 'vitest'
import type { ChatMessage, ToolDefinition } from '../../../../src/runtime/chat/message.js'
import { KvfoldError } from '../../../../src/runtime/core/errors.js'
import type { Acm } from '../../../../src/runtime/server/threads/policies.js'
import type { Ask, AskEvent } from '../../../../src/runtime/server/ask.js'
import { ThreadService } from '../../../../src/runtime/server/service.js'
import { ScriptedEngine } from '../../../support/scripted.js'

const tools: readonly ToolDefinition[] = [{ name: 'read', description: 'Reads.', parameters: { type: 'object', properties: {} } }]
const result = Array.from({ length: 60 }, (_, at) => `line ${at + 1} says ${at * 7} and more`).join('\n')

/** A dialogue with one finished turn, and the next message of the user. */
const dialogue: readonly ChatMessage[] = [
  { role: 'user', content: 'Read it.' },
  { role: 'assistant', content: '', toolCalls: [{ id: 'c', name: 'read', arguments: {} }] },
  { role: 'tool', content: result, toolCallId: 'c' },
  { role: 'assistant', content: 'I have read it.' },
  { role: 'user', content: 'What does line 7 say?' },
]

async function asked(
  acm: Acm,
  helpers: readonly string[],
  pinned: readonly string[] = [],
  context = 1400,
  messages = dialogue,
  more: Partial<Ask> = {},
) {
  let said = 0
  const engine = new ScriptedEngine(({ kind }) => ({ content: kind === 'summary' ? (helpers[said++] ?? '') : 'It says 42.' }), {
    context,
  })
  const service = await ThreadService.open({ models: [{ name: 'm', slots: 1, load: () => Promise.resolve(engine) }] })
  const running = service.ask({ tenant: 't', messages, tools, toolChoice: 'auto', acm, pinned, ...more })
  const events: AskEvent[] = []
  for await (const event of running) events.push(event)
  const { thread } = await running.answer
  const shown = engine.prompt(engine.requests.at(-1)!)
  const policy = events.flatMap((event) => (event.type === 'policy' ? [event] : []))
  return { shown, policy, service, thread, engine }
}

const notes = JSON.stringify({ summary: 'The file was read.', todo: ['Tell what line 7 says.'] })
const lines = JSON.stringify({ blocks: [{ lines: '7', summary: '', constraints: [], hint: '' }, { lines: '99' }] })

it('u-fold shows notes and chosen lines of the past, reports its folds, and everything can be restored', async () => {
  const { shown, policy, service, thread, engine } = await asked('u-fold', [notes, lines])
  expect(shown).toContain('Step 1. Tell what line 7 says.')
  expect(shown).toContain('line 7 says 42 and more')
  expect(shown).not.toContain('line 30 says')
  expect(policy).toEqual([
    expect.objectContaining({ reason: expect.stringContaining('Lines in sight: 7-7. Ranges that are no lines: 99.') as string }),
  ])
  expect(policy[0]!.saves).toBeGreaterThan(0)
  expect(engine.requests.map(({ tenant }) => tenant)).toEqual(['t', 't', 't'])
  for (const id of policy[0]!.folded) await service.threads.restore('t', thread, id)
  expect(service.threads.get('t', thread).all[2]!.shown).toBe(result)
})

it('u-fold leaves out what the client dropped, from what its helpers read and from its folds', async () => {
  const second: readonly ChatMessage[] = [
    { role: 'assistant', content: '', toolCalls: [{ id: 'd', name: 'read', arguments: {} }] },
    { role: 'tool', content: result.replaceAll('line', 'verse'), toolCallId: 'd' },
    { role: 'assistant', content: 'I have read that, too.' },
  ]
  const messages = [...dialogue.slice(0, 4), { role: 'user' as const, content: 'Read on.' }, ...second, dialogue[4]!]
  const drops = { messages: [6], repositions: false }
  const { engine, service, thread } = await asked('u-fold', [notes, lines], [], 2500, messages, { drops })
  const helpers = engine.requests.filter(({ kind }) => kind === 'summary')
  expect(helpers).toHaveLength(2)
  for (const { edits } of helpers) expect(edits).toEqual([expect.objectContaining({ message: 6, omits: { part: 'message' } })])
  expect(helpers[1]!.messages.at(-1)!.content).toContain('60| line 60 says')
  expect(helpers[1]!.messages.at(-1)!.content).not.toContain('verse')
  const { all } = service.threads.get('t', thread)
  expect(all[6]!.fragments).toEqual([])
  expect(engine.prompt(engine.requests.at(-1)!)).toContain('Step 1. Tell what line 7 says.')
})

it('u-fold folds again after its answer was refused, though its notes are the same', async () => {
  let isRefused = false
  const helpers = [notes, lines, notes, lines]
  const engine = new ScriptedEngine(
    ({ kind }) => {
      if (kind === 'summary') return { content: helpers.shift()! }
      if (isRefused) throw new KvfoldError('context/full', 'The answer has no room.')
      return { content: 'It says 42.' }
    },
    { context: 1400 },
  )
  const service = await ThreadService.open({ models: [{ name: 'm', slots: 1, load: () => Promise.resolve(engine) }] })
  const ask = (messages: readonly ChatMessage[], acm: Acm) =>
    service.ask({ tenant: 't', messages, tools, toolChoice: 'auto', acm }).answer
  const { thread, message } = await ask(dialogue, 'off')
  const next = [...dialogue, message, { role: 'user', content: 'And line 9?' }] as const
  isRefused = true
  await expect(ask(next, 'u-fold')).rejects.toMatchObject({ code: 'context/full' })
  expect(helpers).toHaveLength(2)
  const { events, all } = service.threads.get('t', thread)
  expect([events, all[2]!.shown]).toEqual([[], result])
  isRefused = false
  expect((await ask(next, 'u-fold')).thread).toBe(thread)
  expect(engine.prompt(engine.requests.at(-1)!)).not.toContain('line 30 says')
  expect(service.threads.get('t', thread).events).toMatchObject([{ kind: 'policy' }])
})

it('u-fold shows everything and says so when its helper gives no summary; a pinned result stays', async () => {
  const bad = await asked('u-fold', ['Sorry.'])
  expect(bad.shown).toContain('line 30 says')
  expect(bad.policy[0]).toMatchObject({
    folded: [],
    reason: expect.stringContaining('the last view stays. The agent cannot use the summary') as string,
  })
  const pinned = await asked('u-fold', [notes, lines], ['c'])
  expect(pinned.shown).toContain('line 30 says')
})

it('u-fold knows the folds of the thread that a fork began with, and replaces their notes', async () => {
  const long = 'And take your time. '.repeat(230)
  const begun: readonly ChatMessage[] = [{ role: 'user', content: `Read it. ${long}` }, ...dialogue.slice(1)]
  const later = JSON.stringify({ summary: 'It was read.', todo: ['Tell what line 9 says.'] })
  const { service, engine, thread } = await asked('u-fold', [notes, lines, later, lines], [], 4000, begun)
  const goesOn = async (acm: Acm, said: string): Promise<string> => {
    const answers = ['It says 42.', 'Yes.'].map((content): ChatMessage => ({ role: 'assistant', content }))
    const messages = [...begun, answers[0]!, { role: 'user' as const, content: `${said} ${long}` }, answers[1]!]
    const turn = { tenant: 't', messages: [...messages, { role: 'user' as const, content: 'And line 9?' }], tools }
    return (await service.ask({ ...turn, toolChoice: 'auto', acm }).answer).thread
  }
  expect(await goesOn('off', 'Sure?')).toBe(thread)
  expect(await goesOn('u-fold', 'Really?')).not.toBe(thread)
  const shown = engine.prompt(engine.requests.at(-1)!)
  expect(shown).toContain('Tell what line 9 says.')
  expect(shown).not.toContain('Tell what line 7 says.')
})

it('u-fold offers the lines of new results after its client left out the first messages', async () => {
  const turn = (id: string, content: string): readonly ChatMessage[] => [
    { role: 'user', content: `Read ${id}.` },
    { role: 'assistant', content: '', toolCalls: [{ id, name: 'read', arguments: {} }] },
    { role: 'tool', content, toolCallId: id },
    { role: 'assistant', content: `I have read ${id}.` },
  ]
  const begun: readonly ChatMessage[] = [...turn('c', result), ...turn('d', result), dialogue[4]!]
  const later = JSON.stringify({ summary: 'It was read.', todo: ['Tell what verse 9 says.'] })
  const { service, engine, thread } = await asked('u-fold', [notes, lines, later, lines], [], 2000, begun)
  const more = turn('e', [result, result, result].join('\n').replaceAll('line', 'verse'))
  const answer: ChatMessage = { role: 'assistant', content: 'It says 42.' }
  const messages = [dialogue[4]!, answer, ...more, { role: 'user' as const, content: 'And verse 9?' }]
  const next = await service.ask({ tenant: 't', messages, tools, toolChoice: 'auto', acm: 'u-fold' }).answer
  expect(next.thread).toBe(thread)
  const helpers = engine.requests.filter(({ kind }) => kind === 'summary')
  expect(helpers).toHaveLength(4)
  expect(helpers[3]!.messages.at(-1)!.content).toContain('| verse 9 says')
})

it('u-fold leaves shown what a person restored, and folds later text', async () => {
  const later = JSON.stringify({ summary: 'It was read.', todo: ['Tell what verse 9 says.'] })
  const twice = `${result}\n${result}`
  const begun = dialogue.map((message) => (message.role === 'tool' ? { ...message, content: twice } : message))
  const { policy, service, engine, thread } = await asked('u-fold', [notes, lines, later, lines], [], 2600, begun)
  const { fragments } = service.threads.get('t', thread).all[2]!
  expect(fragments.map(({ id }) => id)).toEqual(policy[0]!.folded)
  for (const { id } of fragments) await service.threads.restore('t', thread, id)
  const messages: readonly ChatMessage[] = [
    ...begun,
    { role: 'assistant', content: 'It says 42.' },
    { role: 'user', content: 'Read on.' },
    { role: 'assistant', content: '', toolCalls: [{ id: 'd', name: 'read', arguments: {} }] },
    { role: 'tool', content: result.replaceAll('line', 'verse'), toolCallId: 'd' },
    { role: 'assistant', content: 'I have read that, too.' },
    { role: 'user', content: 'What does verse 9 say?' },
  ]
  const next = await service.ask({ tenant: 't', messages, tools, toolChoice: 'auto', acm: 'u-fold' }).answer
  expect(next.thread).toBe(thread)
  const shown = engine.prompt(engine.requests.at(-1)!)
  expect(shown).toContain('Step 1. Tell what verse 9 says.')
  expect(shown).toContain(twice)
  expect(shown).not.toContain('verse 30 says')
})

it('resum waits for a nearly full window, and then shows only a summary', async () => {
  const early = await asked('resum', [])
  expect(early.policy).toEqual([])
})

it('resum keeps the question in sight that the model is answering', async () => {
  const script = ({ kind }: { kind?: string }) =>
    kind === 'summary' ? { content: notes } : { content: '', calls: [{ name: 'read' }] }
  const engine = new ScriptedEngine(script, { context: 2470 })
  const service = await ThreadService.open({ models: [{ name: 'm', slots: 1, load: () => Promise.resolve(engine) }] })
  const question = `Read all of it. ${'Then say what the lines have in common. '.repeat(5)}`
  const messages: ChatMessage[] = [{ role: 'user', content: question }]
  const results = [Array.from({ length: 6 }, () => result).join('\n'), 'The end.', 'That is all.']
  for (const content of results) {
    const { message } = await service.ask({ tenant: 't', messages, tools, toolChoice: 'auto', acm: 'resum' }).answer
    messages.push(message, { role: 'tool', content, toolCallId: message.toolCalls![0]!.id })
  }
  const shown = engine.prompt(engine.requests.at(-1)!)
  expect(shown).toContain('The file was read.')
  expect(shown).toContain(question)
})

it.each([2250, 2420])(
  'resum tells neither helper nor model what a person had forgotten, with a context of %i',
  async (context) => {
    const script = ({ kind }: { kind?: string }) =>
      kind === 'summary' ? { content: notes } : { content: '', calls: [{ name: 'read' }] }
    const engine = Object.assign(new ScriptedEngine(script, { context }), { forgetHidden: () => Promise.resolve() })
    const service = await ThreadService.open({ models: [{ name: 'm', slots: 1, load: () => Promise.resolve(engine) }] })
    const ask = (messages: readonly ChatMessage[]) =>
      service.ask({ tenant: 't', messages, tools, toolChoice: 'auto', acm: 'resum' }).answer
    const messages: ChatMessage[] = [{ role: 'user', content: 'Read it. The password is swordfish. Tell me all.' }]
    const first = await ask(messages)
    messages.push(first.message, {
      role: 'tool',
      content: Array.from({ length: 6 }, () => result).join('\n'),
      toolCallId: first.message.toolCalls![0]!.id,
    })
    const { thread, message } = await ask(messages)
    const cut = { startMarker: 'The', endMarker: 'swordfish.', numFragments: 1 }
    const [fragment] = await service.threads.fragment('t', thread, cut)
    await service.threads.fold('t', thread, fragment!.id, { forget: true }, 'allow')
    const before = engine.requests.length
    messages.push(message, { role: 'tool', content: 'The end.', toolCallId: message.toolCalls![0]!.id })
    const third = await ask(messages)
    expect(third.thread).toBe(thread)
    const asked = engine.requests.slice(before)
    expect(service.threads.get('t', thread).events.at(-1)).toMatchObject({ kind: 'policy', folded: [expect.any(String)] })
    for (const each of asked) expect(engine.prompt(each)).not.toContain('swordfish')
  },
)
