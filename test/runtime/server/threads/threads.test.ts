/** Tests threads behind the service, on a scripted engine: which thread a request continues, and what clients see of it. */
import { describe, expect, it, vi } from 'vitest'
import type { ChatMessage, ToolDefinition } from '../../../../src/runtime/chat/message.js'
import type { EngineRequest } from '../../../../src/runtime/engine/engine.js'
import { ScriptedEngine, type Script } from '../../../support/scripted.js'
import type { ScriptedReply } from '../../../../src/lab/taught-engine.js'
import type { Answer, Ask, AskEvent, Asked } from '../../../../src/runtime/server/ask.js'
import { ThreadService, type ServiceOptions } from '../../../../src/runtime/server/service.js'
import { KvfoldError } from '../../../../src/runtime/core/errors.js'
import { MemoryStore } from '../../../../src/runtime/server/threads/memory-store.js'
import { allIn } from '../../store/support/threads.js'

const user = (content: string): ChatMessage => ({ role: 'user', content })
const assistant = (content: string): ChatMessage => ({ role: 'assistant', content })
const system: ChatMessage = { role: 'system', content: 'Be brief.' }
const weather: ToolDefinition = {
  name: 'weather',
  description: 'Tells the weather.',
  parameters: { type: 'object', properties: {} },
}
const time: ToolDefinition = { ...weather, name: 'time' }
const result = (id: string, content: string): ChatMessage => ({ role: 'tool', content, toolCallId: id })

/** A model that numbers its answers. */
const numbered: Script = (_, step) => ({ content: `Answer ${step}.` })

async function serve(script: Script, options: Partial<ServiceOptions> & { context?: number; slots?: number } = {}) {
  const { context, slots = 4, ...rest } = options
  const engine = new ScriptedEngine(script, context === undefined ? {} : { context })
  const models = [{ name: 'm', slots, load: () => Promise.resolve(engine) }]
  const service = await ThreadService.open({ models, ...rest })
  const begin = (messages: readonly ChatMessage[], more: Partial<Ask> = {}): Asked =>
    service.ask({ tenant: 't', messages, tools: [], toolChoice: 'auto', ...more })
  const ask = (messages: readonly ChatMessage[], more: Partial<Ask> = {}): Promise<Answer> => begin(messages, more).answer
  return { engine, service, begin, ask }
}

async function eventsOf(asked: Asked): Promise<AskEvent[]> {
  const events: AskEvent[] = []
  for await (const event of asked) events.push(event)
  return events
}

/** Returns the messages of the engine's last request. */
const shown = (engine: ScriptedEngine) => engine.requests.at(-1)!.messages.map(({ role, content }) => `${role}: ${content}`)

it('a title that was given stays through restarts, until it is taken back', async () => {
  const store = new MemoryStore()
  const first = await serve(numbered, { store })
  const { thread } = await first.ask([user('How tall is the lamp?')])
  const titles = ({ service: { threads } }: typeof first) => [threads.list('t')[0]!.title, threads.get('t', thread).title]
  await first.service.threads.rename('t', thread, ' Lamps ')
  expect(titles(first)).toEqual(['Lamps', 'Lamps'])
  await expect(first.service.threads.rename('other', thread, 'Mine')).rejects.toThrow('There is no thread')
  const second = await serve(numbered, { store })
  expect(titles(second)).toEqual(['Lamps', 'Lamps'])
  await second.service.threads.rename('t', thread, null)
  expect(titles(second)).toEqual(['How tall is the lamp?', 'How tall is the lamp?'])
  expect(second.service.threads.get('t', thread).events.map(({ what, name }) => [what, name])).toEqual([
    ['named', 'Lamps'],
    ['named', null],
  ])
})

it('a refused request leaves neither its tools nor its template variables behind', async () => {
  const { ask, engine } = await serve(numbered, { context: 400 })
  const first = await ask([user('Hello.')], { tools: [weather] })
  const begun = [user('Hello.'), first.message]
  const template = [{ field: 'style', names: ['style'], value: 'long' }]
  const refused = ask([...begun, user('far too long '.repeat(200))], { tools: [weather, time], template })
  await expect(refused).rejects.toMatchObject({ code: 'context/full' })
  const next = await ask([...begun, user('And now?')], { tools: [weather] })
  expect([next.thread, next.lost]).toEqual([first.thread, null])
  const place: ToolDefinition = { ...weather, name: 'place' }
  await ask([...begun, user('And now?'), next.message, user('And then?')], { tools: [weather, place, time] })
  expect(engine.requests.at(-1)!.tools!.map(({ name }) => name)).toEqual(['weather', 'place', 'time'])
})

it('words are found in the titles and texts of the own threads, folded text too', async () => {
  const { ask, service } = await serve(numbered)
  const { threads } = service
  const long = `${'Nothing of note here. '.repeat(20_000)}The GREEN\n lamp (5.3) is here.`
  const { thread: far } = await ask([user(long)])
  const { thread: other } = await ask([
    user('A green lamp (5.3), says someone.'),
    assistant('Yes: green lamp (5.3).'),
    user('Good.'),
  ])
  await ask([user('A red lamp (5x3).')], { tenant: 'u' })
  const { thread: named } = await ask([user('Something else.')])
  await threads.rename('t', named, 'Green lamp (5.3)')
  const [cut] = await threads.fragment('t', far, { startMarker: 'Nothing', endMarker: 'is here.', numFragments: 1 })
  await threads.fold('t', far, cut!.id)
  const before = threads.get('t', far)
  const found = await threads.find('t', { query: ' green lamp (5.3)' })
  expect(found.all).toBe(true)
  expect(
    found.threads.map(({ id, messages, places }) => [id, messages, places.map(({ message, words }) => `${message} ${words}`)]),
  ).toEqual([
    [named, 0, []],
    [other, 2, ['0 green lamp (5.3)', '1 green lamp (5.3)']],
    [far, 1, ['0 GREEN\n lamp (5.3)']],
  ])
  expect(found.threads[1]!.places[0]).toMatchObject({ role: 'user', before: 'A ', after: ', says someone.' })
  expect(threads.get('t', far)).toEqual(before)
  expect(await threads.find('t', { query: 'lamp', maxThreads: 1 })).toMatchObject({ threads: [{ id: named }], all: false })
  expect(await threads.find('u', { query: 'green' })).toEqual({ threads: [], all: true })
  await expect(threads.find('t', { query: 'lamp' }, AbortSignal.abort())).rejects.toThrow('cancelled')
})

it('edits of people and programs are recorded between the steps, and kept', async () => {
  const store = new MemoryStore()
  const { ask, service } = await serve(numbered, { store })
  const { thread } = await ask([user(`Once. ${'All of this is out of date. '.repeat(40)}`)])
  const { threads } = service
  const cut = { startMarker: 'Once.', endMarker: 'All of this is out of date.', numFragments: 1 }
  const [{ id } = { id: '' }] = await threads.fragment('t', thread, cut)
  await threads.fold('t', thread, id, {}, 'allow')
  await threads.restore('t', thread, id)
  await expect(threads.restore('t', thread, id)).rejects.toThrow('is open')
  const noted = threads.get('t', thread).events
  expect(noted.map(({ kind, what, folded, after }) => [kind, what, folded, after])).toEqual([
    ['edit', 'cut', [id], 1],
    ['edit', 'folded', [id], 1],
    ['edit', 'restored', [id], 1],
  ])
  expect(noted[2]!.saves).toBe(-noted[1]!.saves)
  expect(store.read('t', thread)!.events).toEqual(noted)
})

describe('the length hint of a long message', () => {
  const long = user('word '.repeat(1000).trim())
  const note = '\n\n[This message has about 5 thousand characters.]'
  const prompt = (engine: ScriptedEngine) => engine.prompt(engine.requests.at(-1)!)

  it('is shown to a model with the context tools, and to no other', async () => {
    const { ask, service, engine } = await serve(numbered)
    const first = await ask([long], { acm: 'tools', toolChoice: 'auto' })
    expect(prompt(engine)).toContain(`word${note}<end>`)
    const view = service.threads.get('t', first.thread)
    expect(view.all[0]).toMatchObject({ message: long, shown: `${long.content}${note}` })

    await ask([user('Plain.'), assistant('Yes.'), long])
    expect(prompt(engine)).not.toContain('This message has about')
  })

  it('stays after the content when the content is folded', async () => {
    const { ask, service, engine } = await serve(numbered, { costlyFolds: 'allow' })
    const first = await ask([long], { acm: 'tools' })
    const [fragment] = await service.threads.fragment('t', first.thread, {
      startMarker: 'word',
      endMarker: 'word',
      numFragments: 1,
    })
    await service.threads.fold('t', first.thread, fragment!.id)
    const second = await ask([long, first.message, user('And now?')], { acm: 'tools' })
    expect(second.thread).toBe(first.thread)
    expect(prompt(engine)).toContain(note)
    expect(prompt(engine).indexOf('[folded')).toBeLessThan(prompt(engine).indexOf(note))
  })
})

describe('a stateless client', () => {
  it('continues its thread when it sends everything again', async () => {
    const { ask, service } = await serve(numbered)
    const first = await ask([system, user('One?')])
    expect(first).toMatchObject({ message: assistant('Answer 0.'), finish: 'stop', lost: null, contextCalls: 0 })
    const second = await ask([system, user('One?'), first.message, user('Two?')])
    expect([second.thread, second.lost]).toEqual([first.thread, null])
    expect(second.usage.cachedTokens).toBeGreaterThan(5)
    // White space around the answer does not matter.
    const third = await ask([system, user('One?'), assistant(' Answer 0.\n'), user('Two?'), second.message, user('Three?')])
    expect(third.thread).toBe(first.thread)
    expect(service.threads.list('t')).toHaveLength(1)
    expect(first.thread).toMatch(/^thread_[0-9a-f]{32}$/)
  })

  it('continues its thread beside any number of threads with the same answers', async () => {
    const { ask, service } = await serve(() => ({ content: 'Done.' }))
    const clients = Array.from({ length: 20 }, (_, client) => ({ client, messages: [system], thread: '' }))
    for (let turn = 0; turn < 3; turn++)
      for (const each of clients) {
        each.messages = [...each.messages, user(`Task ${each.client}, part ${turn}.`)]
        const { thread, message, edits } = await ask(each.messages)
        expect([thread, edits]).toEqual([each.thread || thread, null])
        each.messages = [...each.messages, message]
        each.thread = thread
      }
    expect(new Set(clients.map(({ thread }) => thread)).size).toBe(20)
    expect(service.threads.list('t')).toHaveLength(20)
  })

  it('gets a fork when it changes a message, with the reason; the old thread stays', async () => {
    const { ask, service, engine } = await serve(numbered)
    const first = await ask([system, user('One?')])
    const second = await ask([system, user('One?'), first.message, user('Two?')])
    const forked = await ask([system, user('One?'), assistant('Answer X.'), user('Two?')])
    expect(forked.thread).not.toBe(first.thread)
    // No answer of the model was in common, so this is not reported as a loss.
    expect(forked.lost).toBeNull()
    const edited = await ask([system, user('One?'), first.message, user('Two, please?')])
    expect(edited.lost).toMatchObject({
      message: 3,
      token: edited.ledger[0]!.messages.filter(({ index }) => index < 3).reduce((sum, { shown: tokens }) => sum + tokens, 0),
      reason: `message 3 is not what it was in thread ${first.thread}: it differs from character 3 on`,
    })
    expect(service.threads.get('t', edited.thread).parent).toBe(first.thread)
    expect(shown(engine)).toEqual(['system: Be brief.', 'user: One?', 'assistant: Answer 0.', 'user: Two, please?'])
    const old = await ask([system, user('One?'), first.message, user('Two?'), second.message, user('More?')])
    expect([old.thread, old.lost]).toEqual([first.thread, null])
  })

  it('restores text in its fork, even if the parent has just given the same answer', async () => {
    const replies = [
      'The first answer. It is so long that no other thread can have given the same.',
      'Two.',
      'Done.',
      'Done.',
      'Last.',
    ]
    const { ask } = await serve(() => ({ content: replies.shift()! }))
    const [whole, cleared] = [user('A long text. '.repeat(20)), user('[cleared]')]
    const first = await ask([whole])
    const asked = (question: string, ...more: ChatMessage[]) => [first.message, user(question), ...more]
    const second = await ask([cleared, ...asked('Two?')], { clientEdits: 'splice' })
    const fork = await ask([cleared, ...asked('Three?')], { clientEdits: 'splice' })
    const four = user('Four?')
    const parent = await ask([whole, ...asked('Two?', second.message, four)], { clientEdits: 'splice' })
    expect([second.thread, parent.thread, parent.message]).toEqual([first.thread, first.thread, fork.message])
    const again = await ask([whole, ...asked('Three?', fork.message, four)], { clientEdits: 'splice' })
    expect([again.thread, again.edits?.changes]).toEqual([fork.thread, [{ kind: 'restored', message: 0, was: 1 }]])
  })

  it('gets another answer in a fork when it sends the same request again', async () => {
    const { ask, service } = await serve(numbered)
    const first = await ask([user('One?')])
    const again = await ask([user('One?')])
    expect([again.thread === first.thread, again.lost, again.message.content]).toEqual([false, null, 'Answer 1.'])
    expect(service.threads.get('t', first.thread).messages).toBe(2)
    // Each client continues with its own answer.
    expect((await ask([user('One?'), again.message, user('x')])).thread).toBe(again.thread)
    expect((await ask([user('One?'), first.message, user('x')])).thread).toBe(first.thread)
  })

  it('gets another answer in its own thread, and not in one whose first answer was the same', async () => {
    const greeting = `Hello! ${'I can help you with your plants. '.repeat(3)}`
    const { ask, service } = await serve((_, step) => ({ content: step < 2 ? greeting : `Answer ${step}.` }))
    const first = await ask([system, user('Hi.')])
    const second = await ask([system, user('Hello.')])
    const asked = [system, user('Hello.'), second.message, user('Why?')]
    await ask(asked)
    const before = service.threads.get('t', first.thread)
    const again = await ask(asked)
    expect(again.thread).not.toBe(first.thread)
    expect(service.threads.get('t', first.thread).messages).toEqual(before.messages)
  })

  it('shares no thread because of a system message alone', async () => {
    const { ask, service } = await serve(numbered)
    const first = await ask([system, user('One?')])
    const other = await ask([system, user('Else?')])
    expect([other.thread === first.thread, other.lost]).toEqual([false, null])
    expect(service.threads.get('t', other.thread).parent).toBeNull()
  })

  it('gets a new thread while another request runs on the one it would continue', async () => {
    let release = (): void => undefined
    const gate = new Promise<void>((resolve) => (release = resolve))
    const { ask, begin } = await serve(async (_, step) => {
      if (step === 1) await gate
      return { content: `Answer ${step}.` }
    })
    const first = await ask([user('One?')])
    const next = [user('One?'), first.message, user('Two?')]
    const slow = begin(next)
    for await (const event of slow) if (event.type === 'started') break
    const quick = await ask(next)
    expect([quick.thread === first.thread, quick.message.content, quick.lost]).toEqual([false, 'Answer 2.', null])
    release()
    expect((await slow.answer).thread).toBe(first.thread)
  })

  it('gets the completed steps of that request, but no call without its result', async () => {
    let release = (): void => undefined
    const gate = new Promise<void>((resolve) => (release = resolve))
    const { engine, ask, begin } = await serve(async (request) => {
      if (request.kind === 'summary') return gate.then(() => ({ content: 'News.' }))
      if (request.tools === undefined) return { content: 'Quick.' }
      if (request.messages.length === 1) return folds(request, 0)
      const [fragment] = request.messages.at(-1)!.content.match(/\bf[0-9a-f]{5}\b/u) ?? []
      if (request.messages.length > 3) return { content: 'Slow.' }
      return { calls: [{ name: 'summarize_fragment', arguments: { fragment_id: fragment, focus: 'news' } }] }
    })
    const slow = begin([user(long)], { acm: 'tools' })
    while (engine.requests.at(-1)?.kind !== 'summary') await new Promise((resolve) => setTimeout(resolve, 1))
    await ask([user(long)])
    const roles = engine.requests.at(-1)!.messages.map(({ role }) => role)
    expect(roles).toEqual(['user', 'assistant', 'tool'])
    release()
    expect((await slow.answer).message.content).toContain('Slow.')
  })

  it('gets several answers to one prompt in separate threads', async () => {
    const { service } = await serve(numbered)
    const asked = service.several(
      { tenant: 't', messages: [user('One?')], tools: [], toolChoice: 'auto', sampling: { seed: 5 } },
      3,
    )
    const answers = await Promise.all(asked.map(({ answer }) => answer))
    expect(new Set(answers.map(({ thread }) => thread)).size).toBe(3)
    expect(new Set(answers.map(({ message }) => message.content))).toEqual(new Set(['Answer 0.', 'Answer 1.', 'Answer 2.']))
  })
})

describe('a client that names its thread', () => {
  it('is told where its request differs, and gets a fork', async () => {
    const { ask } = await serve(numbered)
    const first = await ask([user('One?')])
    const other = await ask([user('Other?')], { thread: first.thread })
    expect(other.thread).not.toBe(first.thread)
    expect(other.lost).toMatchObject({
      message: 0,
      token: 0,
      reason: expect.stringContaining('it differs from character 1 on') as string,
    })
    const same = await ask([user('One?'), first.message, user('Two?')], { thread: first.thread })
    expect([same.thread, same.lost]).toEqual([first.thread, null])
  })

  it('can append, and then waits for the running request', async () => {
    let release = (): void => undefined
    const gate = new Promise<void>((resolve) => (release = resolve))
    const { ask, begin, engine } = await serve(async (_, step) => {
      if (step === 1) await gate
      return { content: `Answer ${step}.` }
    })
    const { thread } = await ask([user('One?')])
    const slow = begin([user('Two?')], { thread, appended: true })
    for await (const event of slow) if (event.type === 'started') break
    const after = begin([user('Three?')], { thread, appended: true })
    await new Promise((resolve) => setTimeout(resolve, 20))
    expect(engine.requests).toHaveLength(2)
    release()
    expect((await after.answer).thread).toBe(thread)
    expect(shown(engine)).toEqual(['user: One?', 'assistant: Answer 0.', 'user: Two?', 'assistant: Answer 1.', 'user: Three?'])
  })

  it('finds no thread of another tenant, however it asks', async () => {
    const { ask, service } = await serve(numbered)
    const { thread, message } = await ask([user('One?')])
    await expect(ask([user('One?')], { tenant: 'u', thread })).rejects.toMatchObject({ code: 'server/no-thread', status: 404 })
    expect(() => service.threads.get('u', thread)).toThrow(expect.objectContaining({ code: 'server/no-thread' }))
    expect(() => service.threads.export('u', thread)).toThrow(expect.objectContaining({ code: 'server/no-thread' }))
    expect(service.threads.list('u')).toEqual([])
    const theirs = await ask([user('One?'), message, user('Two?')], { tenant: 'u' })
    expect([theirs.thread === thread, theirs.lost]).toEqual([false, null])
    expect(service.threads.get('u', theirs.thread).parent).toBeNull()
  })
})

/** Plays a model that cuts the first user message, folds all pieces but the last, and answers. */
const folds = (request: EngineRequest, step: number): ScriptedReply => {
  const ids = request.messages.at(-1)?.content.match(/\bf[0-9a-f]{5}\b/gu) ?? []
  if (step === 0)
    return {
      content: 'Let me see.',
      calls: [{ name: 'fragment_context', arguments: { start_marker: 'old', end_marker: 'end', num_fragments: 4 } }],
    }
  if (step === 1) return { calls: ids.slice(0, -1).map((id) => ({ name: 'fold_fragment', arguments: { fragment_id: id } })) }
  return { content: `Answer ${step}.` }
}
const long = `${'old news. '.repeat(200)}the end. What now?`

describe('the context tools over the service', () => {
  it('run inside; the client sees the answer, and may send everything again', async () => {
    const { ask, begin, engine, service } = await serve(folds)
    const asked = begin([user(long)], { acm: 'tools' })
    const events = await eventsOf(asked)
    const first = await asked.answer
    expect(first).toMatchObject({ message: assistant('Let me see.\n\nAnswer 2.'), finish: 'stop', contextCalls: 4 })
    expect(events.filter(({ type }) => type === 'call')).toEqual([])
    expect(events.flatMap((event) => (event.type === 'acm' ? [event.call.name] : []))).toEqual([
      'fragment_context',
      ...Array<string>(3).fill('fold_fragment'),
    ])
    expect(events.flatMap((event) => (event.type === 'text' ? [event.text] : [])).join('')).toBe(first.message.content)
    expect(service.threads.get('t', first.thread).fragments).toEqual({ open: 1, folded: 3, summarised: 0 })

    const second = await ask([user(long), first.message, user('And?')], { acm: 'tools' })
    expect(second.thread).toBe(first.thread)
    // The folds stay in force though the client resent the text, and the inner steps are still there.
    const request = engine.requests.at(-1)!
    expect(request.edits).toHaveLength(3)
    expect(request.messages.map(({ role }) => role)).toEqual([
      ...['user', 'assistant', 'tool', 'assistant', 'tool', 'tool', 'tool', 'assistant'],
      'user',
    ])
    expect(second.usage.promptTokens).toBeLessThan(first.ledger[0]!.shown)
  })

  it('keep folds before the divergence in a fork, and drop the others', async () => {
    const { ask, engine, service } = await serve(folds, { costlyFolds: 'allow' })
    const first = await ask([user(long)], { acm: 'tools' })
    const second = await ask([user(long), first.message, user('old things at the end?')], { acm: 'tools' })
    await service.threads.fragment('t', first.thread, { startMarker: 'old things', endMarker: 'end', numFragments: 1 })
    const late = service.threads.get('t', first.thread).all.at(-2)!.fragments
    // The first message with both markers is already cut, so the markers are found in the late message.
    expect(late).toHaveLength(1)
    await service.threads.fold('t', first.thread, late[0]!.id)
    const forked = await ask([user(long), first.message, user('Something else?')], { acm: 'tools' })
    expect(forked.lost?.message).toBe(2)
    expect(engine.requests.at(-1)!.edits).toHaveLength(3)
    expect(service.threads.get('t', forked.thread).fragments.folded).toBe(3)
    expect(service.threads.get('t', second.thread).fragments.folded).toBe(4)
    const folded = (id: string) => service.threads.get('t', id).all.flatMap(({ fragments }) => fragments.map((one) => one.id))
    expect(folded(forked.thread)).toEqual(folded(first.thread).slice(0, 4))
    // A change of the first message leaves no folds.
    const fresh = await ask([user(`${long}!`)], { thread: first.thread })
    expect([fresh.lost?.message, service.threads.get('t', fresh.thread).fragments.folded]).toEqual([0, 0])
  })

  it("end the step at the client's calls, keep the order of results, and hide inner calls", async () => {
    const script: Script = (request, step) => {
      if (step === 0)
        return {
          content: 'Looking.',
          calls: [
            { name: 'search_context', arguments: { query: 'Rome' } },
            { name: 'weather', arguments: { place: 'Rome' } },
            { name: 'search_context', arguments: { query: 'Oslo' } },
            { name: 'time', arguments: {} },
          ],
        }
      return {
        content: request.messages
          .filter(({ role }) => role === 'tool')
          .map(({ content }) => content.slice(0, 8))
          .join('|'),
      }
    }
    const { ask, begin, engine } = await serve(script)
    const tools = [weather, time]
    const asked = begin([user('Rome or Oslo?')], { acm: 'tools', tools })
    const events = await eventsOf(asked)
    const first = await asked.answer
    expect(first.finish).toBe('tool-calls')
    const calls = first.message.toolCalls!
    expect(calls.map(({ name }) => name)).toEqual(['weather', 'time'])
    expect(events.flatMap((event) => (event.type === 'call' ? [event.call] : []))).toEqual(calls)
    expect(new Set(calls.map(({ id }) => id)).size).toBe(2)
    for (const { id } of calls) expect(id).toMatch(/^call_[0-9a-f]{24}$/)
    expect(first.contextCalls).toBe(2)

    const second = await ask(
      [user('Rome or Oslo?'), first.message, result(calls[0]!.id, 'sunny'), result(calls[1]!.id, 'noon')],
      { acm: 'tools', tools },
    )
    expect([second.thread, second.lost]).toEqual([first.thread, null])
    expect(second.message.content).toBe('1 match |sunny|1 match |noon')
    // The next request continues, too: the view has only the client's results.
    const third = await ask(
      [
        ...[user('Rome or Oslo?'), first.message, result(calls[0]!.id, 'sunny'), result(calls[1]!.id, 'noon')],
        ...[second.message, user('Thanks.')],
      ],
      { acm: 'tools', tools },
    )
    expect(third.thread).toBe(first.thread)
    // A fork between the results keeps the inner calls in their place.
    const forked = await ask([user('Rome or Oslo?'), first.message, result(calls[0]!.id, 'rain'), result(calls[1]!.id, 'noon')], {
      acm: 'tools',
      tools,
    })
    expect([forked.lost?.message, forked.message.content]).toEqual([2, '1 match |rain|1 match |noon'])
    expect(engine.requests.at(-1)!.messages.map(({ role }) => role)).toEqual([
      'user',
      'assistant',
      ...Array<string>(4).fill('tool'),
    ])
  })

  it('keep held results for two requests that bring the missing ones at once', async () => {
    const script: Script = (request, step) =>
      step === 0
        ? { calls: [{ name: 'weather' }, { name: 'search_context', arguments: { query: 'Rome' } }] }
        : { content: request.messages.map(({ role }) => role).join() }
    const { ask, engine } = await serve(script)
    const more = { acm: 'tools', tools: [weather] } as const
    const first = await ask([user('Rome?')], more)
    const next = [user('Rome?'), first.message, result(first.message.toolCalls![0]!.id, 'sunny')]
    const both = await Promise.all([ask(next, more), ask(next, more)])
    expect(new Set(both.map(({ thread }) => thread)).size).toBe(2)
    for (const { message } of both) expect(message.content).toBe('user,assistant,tool,tool')
    for (const { messages } of engine.requests.slice(1)) expect(messages[2]!.content).toBe('sunny')
  })

  it('are limited to 20 calls; then the model must answer', async () => {
    const script: Script = (request) =>
      request.toolChoice === 'none' ? { content: 'Enough.' } : { calls: [{ name: 'search_context', arguments: { query: 'x' } }] }
    const { ask } = await serve(script)
    expect(await ask([user('x?')], { acm: 'tools' })).toMatchObject({ message: assistant('Enough.'), contextCalls: 20 })
  })

  it("refuse a client's tool with the name of a context tool", async () => {
    const { ask, service } = await serve(numbered)
    const tools = [{ ...weather, name: 'fold_fragment' }]
    await expect(ask([user('x')], { acm: 'tools', tools })).rejects.toMatchObject({ code: 'engine/bad-request' })
    expect((await ask([user('x')], { acm: 'off', tools })).message.content).toBe('Answer 0.')
    expect(service.status().running).toBe(0)
  })
})

describe('tool choice', () => {
  it("forces one of the client's tools, by name if requested, while the model sees all", async () => {
    const { ask, engine } = await serve((request) => ({ calls: [{ name: request.callable?.[0] ?? 'none' }] }))
    const named = await ask([user('x')], { tools: [time, weather], toolChoice: { name: 'weather' }, acm: 'tools' })
    expect(named.message.toolCalls?.map(({ name }) => name)).toEqual(['weather'])
    expect(engine.requests[0]).toMatchObject({ toolChoice: 'required', callable: ['weather'] })
    expect(engine.requests[0]!.tools).toHaveLength(8)
    await ask([user('y')], { tools: [time, weather], toolChoice: 'required' })
    expect(engine.requests[1]).toMatchObject({ toolChoice: 'required', callable: ['time', 'weather'] })
    await expect(ask([user('z')], { toolChoice: { name: 'nope' }, tools: [time] })).rejects.toMatchObject({
      code: 'engine/bad-request',
    })
  })

  it('some tools: calls of others are dropped, if the engine does not prevent them', async () => {
    const { ask, begin } = await serve((_, step) => ({
      content: 'Hm.',
      calls: step === 1 ? [{ name: 'time' }, { name: 'weather' }] : [{ name: 'time' }],
    }))
    const more: Partial<Ask> = { tools: [time, weather], toolChoice: { mode: 'auto', names: ['weather'] } }
    const asked = begin([user('x')], more)
    expect((await eventsOf(asked)).filter(({ type }) => type === 'call' || type === 'arguments')).toEqual([])
    expect(await asked.answer).toMatchObject({ message: assistant('Hm.'), finish: 'stop' })
    const both = await ask([user('y')], { ...more, parallelCalls: false })
    expect(both.message.toolCalls?.map(({ name }) => name)).toEqual(['weather'])
  })

  it('none: calls are neither carried out nor shown', async () => {
    const { ask, begin } = await serve((request, step) =>
      step === 0
        ? { content: 'Hm.', calls: [{ name: 'weather' }], finish: 'stop' }
        : { content: request.messages.at(-1)!.content },
    )
    const asked = begin([user('x')], { tools: [weather], toolChoice: 'none' })
    const events = await eventsOf(asked)
    expect(events.some(({ type }) => type === 'call')).toBe(false)
    expect((await asked.answer).message).toEqual(assistant('Hm.'))
    const told = await ask([user('y')], { tools: [weather], toolChoice: 'none', acm: 'tools' })
    expect(told.message.content).toBe('y')
  })

  it('parallel calls: only the first is kept when the client takes one at a time', async () => {
    const { begin } = await serve([{ calls: [{ name: 'weather' }, { name: 'time' }] }])
    const asked = begin([user('x')], { tools: [weather, time], parallelCalls: false })
    const events = await eventsOf(asked)
    const { message, finish } = await asked.answer
    expect([message.toolCalls?.map(({ name }) => name), finish]).toEqual([['weather'], 'tool-calls'])
    expect(events.filter(({ type }) => type === 'call')).toHaveLength(1)
  })
})

describe('a call that is not JSON', () => {
  const broken = { name: 'weather', malformed: '{"where": "sk' }

  it.each(['off', 'tools'] as const)('is dropped if the limit cut it off, and earlier calls are kept (acm: %s)', async (acm) => {
    const { begin, engine, service } = await serve([
      { content: 'So.', calls: [{ name: 'time', id: 'a' }, broken], finish: 'length' },
      { content: 'Well.', calls: [acm === 'off' ? broken : { ...broken, name: 'search_context' }], finish: 'length' },
    ])
    const more: Partial<Ask> = { tools: [weather, time], acm }
    const first = begin([user('x')], more)
    const events = await eventsOf(first)
    expect(events.filter(({ type }) => type === 'call')).toMatchObject([{ call: { name: 'time' } }])
    const { message, finish, thread } = await first.answer
    expect([message.toolCalls?.map(({ name }) => name), finish]).toEqual([['time'], 'length'])
    const second = begin([user('x'), message, result('a', 'Noon.'), user('And?')], more)
    expect((await eventsOf(second)).some(({ type }) => type === 'call' || type === 'acm')).toBe(false)
    expect(await second.answer).toMatchObject({ thread, finish: 'length', message: assistant('Well.'), contextCalls: 0 })
    expect(service.threads.view('t', thread).at(-1)).toEqual(assistant('Well.'))
    expect(engine.requests).toHaveLength(2)
  })

  it('is passed to the client if the model ended it itself', async () => {
    const { begin } = await serve([{ calls: [broken, { name: 'time' }] }, { calls: [broken] }])
    for (const names of [['weather', 'time'], ['weather']]) {
      const asked = begin([user('x')], { tools: [weather, time] })
      const told = (await eventsOf(asked)).flatMap((event) => (event.type === 'call' ? [event.call] : []))
      const { message, finish } = await asked.answer
      expect([told.map(({ name }) => name), finish]).toEqual([names, 'tool-calls'])
      expect(message.toolCalls).toEqual(told)
      expect(told[0]?.malformed).toBe(broken.malformed)
    }
  })
})

describe('the store', () => {
  it('has everything that was acknowledged, and a new service continues from it', async () => {
    const store = new MemoryStore()
    const one = await serve(folds, { store })
    const first = await one.ask([user(long)], { acm: 'tools' })
    const exported = one.service.threads.export('t', first.thread)
    await one.service.close()

    const two = await serve((_, step) => ({ content: `Again ${step}.` }), { store })
    expect(two.service.threads.export('t', first.thread)).toEqual(exported)
    expect(JSON.parse(JSON.stringify(exported))).toEqual(exported)
    const second = await two.ask([user(long), first.message, user('And?')], { acm: 'tools' })
    expect(second.thread).toBe(first.thread)
    expect(two.engine.requests[0]!.edits).toHaveLength(3)
    // New ids continue the old ones.
    await two.service.threads.fragment('t', first.thread, { startMarker: 'And', endMarker: '?', numFragments: 1 })
    const ids = two.service.threads.get('t', first.thread).all.flatMap(({ fragments }) => fragments.map(({ id }) => id))
    expect(new Set(ids).size).toBe(5)
    await two.service.threads.delete('t', first.thread)
    expect(await allIn(store)).toEqual([])
    await expect(two.ask([user('x')], { thread: first.thread })).rejects.toMatchObject({ code: 'server/no-thread' })
  })

  it('has the steps of a failed turn, and the turn continues from them', async () => {
    const store = new MemoryStore()
    const { ask, engine, service } = await serve(
      (request, step) => {
        if (step === 2) throw new Error('The power went.')
        return folds(request, step)
      },
      { store },
    )
    await expect(ask([user(long)], { acm: 'tools' })).rejects.toThrow('The power went.')
    const [record] = await allIn(store)
    expect(record!.messages.map(({ message, seen }) => `${message.role} ${typeof seen === 'string' ? seen : 'other'}`)).toEqual([
      'user same',
      'assistant nothing',
      'tool nothing',
      'assistant nothing',
      'tool nothing',
      'tool nothing',
      'tool nothing',
    ])
    const again = await ask([user(long)], { acm: 'tools' })
    expect([again.thread, again.message.content]).toEqual([record!.id, 'Answer 3.'])
    expect(engine.requests.at(-1)!.edits).toHaveLength(3)
    expect(service.status().asks).toEqual({ done: 1, failed: 1, cancelled: 0, refused: 0 })
  })

  it('has the steps of a turn whose later step was refused, and on a thread that was there before, too', async () => {
    const { ask, service } = await serve((request, step) => {
      if (step === 3) throw new KvfoldError('context/full', 'It does not fit.')
      return step === 0 ? { content: 'Yes.' } : folds(request, step - 1)
    })
    const first = await ask([user('Well?')])
    const second = [user('Well?'), first.message, user(long)]
    await expect(ask(second, { acm: 'tools' })).rejects.toThrow('It does not fit.')
    const { all } = service.threads.get('t', first.thread)
    expect(all.map(({ message }) => message.role)).toEqual([
      ...['user', 'assistant', 'user', 'assistant', 'tool', 'assistant', 'tool', 'tool', 'tool'],
    ])
    expect(all.flatMap(({ fragments }) => fragments).filter(({ state }) => state.kind === 'folded')).toHaveLength(3)
  })

  it('ends an answer whose thread is deleted between its steps, and keeps nothing of it', async () => {
    let service: ThreadService | null = null
    const erased: string[] = []
    const engine = new ScriptedEngine((request, step) => folds(request, step))
    const models = [
      {
        name: 'm',
        slots: 1,
        load: () =>
          Promise.resolve(
            Object.assign(engine, {
              erase: (id: string) => {
                erased.push(id)
                return Promise.resolve()
              },
            }),
          ),
      },
    ]
    service = await ThreadService.open({ models })
    const asked = service.ask({ tenant: 't', messages: [user(long)], tools: [], toolChoice: 'auto', acm: 'tools' })
    const deleting = (async () => {
      for await (const event of asked)
        if (event.type === 'acm') {
          await service.threads.delete('t', service.threads.list('t')[0]!.id)
          return
        }
    })()
    await expect(asked.answer).rejects.toMatchObject({ code: 'server/no-thread' })
    await deleting
    expect(service.threads.list('t')).toEqual([])
    expect(engine.requests.length).toBeLessThan(3)
    // Once when the thread was deleted, and once for what a step had computed by then.
    expect(erased).toHaveLength(2)
    await service.close()
  })

  it('does not wait for a summary of the thread beyond its time limit', async () => {
    let release = () => {}
    const held = new Promise<void>((resolve) => (release = resolve))
    const { ask, service } = await serve(async (request) => {
      const { content } = request.messages.at(-1)!
      if (content !== long && content !== 'And now?') await held
      return { content: 'Yes.' }
    })
    const first = await ask([user(long)])
    const [fragment] = await service.threads.fragment('t', first.thread, {
      startMarker: long.slice(0, 9),
      endMarker: long.slice(-9),
    })
    const summing = service.threads.summarize('t', first.thread, fragment!.id, 'all', undefined, 'allow')
    const asked = ask([user(long), first.message, user('And now?')], { timeoutMs: 30, thread: first.thread })
    await expect(asked).rejects.toMatchObject({ code: 'server/timeout' })
    expect(service.threads.get('t', first.thread).running).toBe(false)
    release()
    await summing
    expect(service.threads.view('t', first.thread)).toHaveLength(2)
  })

  it('keeps no thread of a request that ended while the store began it', async () => {
    const store = new MemoryStore()
    let release = () => {}
    const held = new Promise<void>((resolve) => (release = resolve))
    const create = store.create.bind(store)
    const begun = vi.spyOn(store, 'create').mockImplementationOnce((...made) => held.then(() => create(...made)))
    const { ask, service } = await serve(numbered, { store })
    const client = new AbortController()
    const asked = ask([user('One?')], { signal: client.signal })
    await vi.waitFor(() => {
      expect(begun).toHaveBeenCalled()
    })
    client.abort()
    await expect(asked).rejects.toThrow()
    release()
    await expect.poll(() => service.threads.list('t')).toEqual([])
    await expect.poll(() => allIn(store)).toEqual([])
    expect((await ask([user('One?')])).message.content).toBe('Answer 0.')
  })

  it('deletes old threads as far as it can, and serves the request even where it cannot', async () => {
    const store = new MemoryStore()
    const told: string[] = []
    const { ask, service } = await serve(numbered, { store, perTenant: 1, tell: (sentence) => told.push(sentence) })
    const first = await ask([user('One?')])
    const kept = store.delete.bind(store)
    store.delete = () => Promise.reject(new Error('The disk is full.'))
    const second = await ask([user('Two?')])
    expect(told).toEqual([expect.stringMatching(/^Could not delete thread .*The disk is full[.]$/u)])
    expect(service.threads.get('t', second.thread).running).toBe(false)
    store.delete = kept
    const third = await ask([user('Three?')])
    expect(service.threads.list('t').map(({ id }) => id)).toEqual([third.thread])
    expect(first.thread).not.toBe(third.thread)
    await service.close()
  })

  it('keeps a thread that is continued while an older one is deleted', async () => {
    const store = new MemoryStore()
    const many = await serve(numbered, { store })
    const answers: Answer[] = []
    for (let at = 0; at < 4; at++) answers.push(await many.ask([user(`Question ${at}?`)]))
    await many.service.close()
    const { ask, service } = await serve(numbered, { store, perTenant: 3 })
    const kept = store.delete.bind(store)
    store.delete = async (tenant, id) => {
      store.delete = kept
      await ask([user('Question 1?'), answers[1]!.message, user('And now?')])
      return kept(tenant, id)
    }
    await ask([user('Question 4?')])
    const left = service.threads.list('t').map(({ id }) => id)
    // The continued thread is the newest but one, so the next older one went in its place.
    expect(answers.map(({ thread }) => left.includes(thread))).toEqual([false, true, false, true])
    await service.close()
  })

  it('keeps the cells of as many threads as its tokens allow, and of the last few however long they are', async () => {
    const forgotten = async (more: Parameters<typeof serve>[1], first = 'Question 0?') => {
      const { ask, service, engine } = await serve(numbered, more)
      const dropped = vi.spyOn(engine, 'forget')
      const threads: string[] = []
      for (let at = 0; at < 5; at++) threads.push((await ask([user(at === 0 ? first : `Question ${at}?`)])).thread)
      await service.close()
      return dropped.mock.calls.map(([id]) => threads.indexOf(id))
    }
    // A short thread counts as 2,048 tokens.
    expect(await forgotten({ warmPerTenant: 1, warmTokensPerTenant: 4096 })).toEqual([0, 1, 2])
    expect(await forgotten({ warmPerTenant: 4, warmTokensPerTenant: 4096 })).toEqual([0])
    expect(await forgotten({ warmPerTenant: 1 })).toEqual([])
    expect(await forgotten({ warmPerTenant: 1, warmTokensPerTenant: 16_000 }, 'word '.repeat(9000))).toEqual([0])
  })

  it('keeps the most recently used threads up to the limit of a tenant', async () => {
    const store = new MemoryStore()
    const told: string[] = []
    const tell = (sentence: string) => told.push(sentence)
    const { ask, service } = await serve(numbered, { store, perTenant: 3, warmPerTenant: 1, warmTokensPerTenant: 0, tell })
    const threads: string[] = []
    for (let at = 0; at < 5; at++) threads.push((await ask([user(`Question ${at}?`)])).thread)
    expect(service.threads.list('t').map(({ id }) => id)).toEqual(threads.slice(2).reverse())
    expect((await allIn(store)).map(({ id }) => id).sort()).toEqual(threads.slice(2).sort())
    await ask([user('Theirs?')], { tenant: 'u' })
    expect(service.threads.list('t')).toHaveLength(3)
    expect(
      told.map((sentence) => /^Deleted thread (\w+) of t, last used \S+: t may have 3 threads\.$/.exec(sentence)?.[1]),
    ).toEqual(threads.slice(0, 2))
  })
})

describe('operations', () => {
  it('show, change and report, and wait while a request runs', async () => {
    let release = (): void => undefined
    const gate = new Promise<void>((resolve) => (release = resolve))
    const { ask, begin, service, engine } = await serve(async (_, step) => {
      if (step === 1) await gate
      return { content: `Answer ${step}.` }
    })
    const { threads } = service
    const { thread, message } = await ask([user(long)])
    const changes: string[] = []
    const stop = threads.watch('t', ({ kind }) => changes.push(kind))
    const others: string[] = []
    threads.watch('u', ({ kind }) => others.push(kind))
    const fragments = await threads.fragment('t', thread, { startMarker: 'old', endMarker: 'end', numFragments: 2 })
    expect(fragments).toHaveLength(2)
    const slow = begin([user(long), message, user('Two?')])
    for await (const event of slow) if (event.type === 'started') break
    let folded = false
    const fold = threads.fold('t', thread, fragments[0]!.id, { contract: 'exact' }).then((fragment) => {
      folded = true
      return fragment
    })
    await new Promise((resolve) => setTimeout(resolve, 20))
    expect([folded, threads.get('t', thread).running]).toEqual([false, true])
    release()
    await slow.answer
    expect((await fold).state).toEqual({ kind: 'folded' })
    expect(threads.get('t', thread).all[0]!.shown).toMatch(/^\[folded f[0-9a-f]{5}: /)
    expect(changes).toEqual(['fragments', 'message', 'running', 'message', 'message', 'idle', 'fragments'])
    const { hits } = await threads.search('t', thread, { query: 'the end' })
    expect((await threads.detail('t', thread, hits[0]!.id)).text).toContain('the end. What now?')
    await threads.restore('t', thread, fragments[0]!.id)
    await threads.contract('t', thread, 'splice')
    await ask([user(long), message, user('Two?'), assistant('Answer 1.'), user('Three?')])
    expect(engine.requests.at(-1)).toMatchObject({ contract: 'splice', tenant: 't' })
    expect(await threads.refresh('t', thread)).toEqual({ exact: true, ledger: [] })
    await expect(threads.fold('t', thread, 'f00000')).rejects.toMatchObject({ code: 'tool/unknown-id' })
    await expect(threads.restore('t', thread, fragments[0]!.id)).rejects.toMatchObject({ code: 'tool/refused' })
    stop()
    await threads.delete('t', thread)
    expect(changes).not.toContain('deleted')
    expect(others).toEqual([])
  })
})
