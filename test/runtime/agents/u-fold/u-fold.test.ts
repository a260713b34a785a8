import { describe, expect, it } from 'vitest'
import { PaperFold } from '../../../../src/lab/agents/u-fold-paper.js'
import { UFoldSession, type UFoldSessionOptions } from '../../../../src/runtime/agents/u-fold/session.js'
import { CellsBusy } from '../../../../src/runtime/core/errors.js'
import { conversationId } from '../../../../src/runtime/core/ids.js'
import type { EngineRequest } from '../../../../src/runtime/engine/engine.js'
import { span } from '../../../../src/runtime/core/span.js'
import { granted } from '../../../support/results.js'
import { ScriptedEngine } from '../../../support/scripted.js'
import type { ScriptedReply } from '../../../../src/lab/taught-engine.js'

const id = conversationId('desk')

/** An order with this many fields; only the second one matters. */
const order = (name: string, fields = 40) =>
  JSON.stringify({
    order: name,
    status: `${name} is pending`,
    ...Object.fromEntries(Array.from({ length: fields }, (_, at) => [`field_${at}`, `${name} ${at}`])),
  })

const clientTools = [
  {
    definition: { name: 'get_order', description: 'An order.', parameters: { type: 'object', properties: {} } },
    execute: ({ name }: Readonly<Record<string, unknown>>) => order(String(name), name === 'BIG' ? 2000 : 40),
  },
]

/** An engine that gives these answers to helpers, one after another. The agent looks an order up and answers. */
function scripted(helpers: readonly string[], context?: number): ScriptedEngine {
  let asked = 0
  return new ScriptedEngine(
    ({ messages, kind }: EngineRequest): ScriptedReply => {
      if (kind === 'summary') return { content: helpers[asked++] ?? '' }
      const last = messages.at(-1)!
      if (last.role === 'tool') return { content: `It is as you say: ${last.content.slice(0, 12)}` }
      return { calls: [{ name: 'get_order', arguments: { name: last.content } }] }
    },
    context === undefined ? {} : { context },
  )
}

const session = (engine: ScriptedEngine, more: Partial<UFoldSessionOptions> = {}) =>
  new UFoldSession({ engine, id, system: 'You keep the desk.', clientTools, fold: { foldFrom: 1 }, ...more })

const memory = (todo: string, summary = 'Orders were looked up.') => JSON.stringify({ summary, todo: [todo] })
const lines = (...ranges: string[]) =>
  JSON.stringify({ blocks: ranges.map((range) => ({ lines: range, summary: '', constraints: ['only on Monday'], hint: '' })) })

/** As the server has it: helpers get the lines of results once more, with numbers. */
const notNumbered: object = { numbered: false }

describe('u-fold', () => {
  it('shows notes and chosen lines of the past, and keeps the dialogue whole', async () => {
    const engine = scripted([memory('tell the status of W1'), lines('3', '2-2')])
    const agent = session(engine)
    await agent.ask('W1')
    await agent.ask('W2')
    const [first, second] = agent.reports
    expect([first?.kind, second?.kind]).toEqual(['small', 'folded'])
    expect(second!.after).toBeLessThan(second!.before)
    const shown = engine.prompt(engine.requests.at(-1)!)
    expect(shown).toContain('"status":"W1 is pending"')
    expect(shown).not.toContain('W1 17')
    expect(shown).toContain('Step 1. tell the status of W1')
    expect(shown).toContain('- only on Monday')
    expect(agent.conversation.messages.filter(({ role }) => role === 'tool').map(({ content }) => content)).toEqual([
      expect.stringContaining('W1 39'),
      expect.stringContaining('W2 39'),
    ])
    for (const { id: fragment } of agent.conversation.fragments) agent.conversation.restore(fragment)
    expect(agent.conversation.edits()).toEqual([])
    // Helpers are on the same ledger.
    expect(agent.ledger.filter(({ kind }) => kind === 'summary')).toHaveLength(2)
  })

  it('folds around the fragments of others, and its helpers never read forgotten text', async () => {
    const engine = scripted([memory('tell the status of W1'), lines('3')])
    const agent = session(engine, { fold: { foldFrom: 1, ...notNumbered } })
    await agent.ask('W1')
    const { conversation } = agent
    const message = conversation.messages.findIndex(({ role }) => role === 'tool')
    const cut = (text: string) => {
      const start = conversation.messages[message]!.content.indexOf(text)
      return granted(conversation.cut([{ message, span: span(start, start + text.length) }], 1)).fragments[0]!.id
    }
    granted(conversation.fold(cut('"field_5":"W1 5"'), { forget: true }))
    cut('"field_30":"W1 30"')
    await agent.ask('W2')
    expect(agent.reports.at(-1)?.kind).toBe('folded')
    for (const request of engine.requests.filter(({ kind }) => kind === 'summary'))
      expect(engine.prompt(request)).not.toContain('W1 5"')
    const shown = engine.prompt(engine.requests.at(-1)!)
    expect(shown).toContain('Step 1. tell the status of W1')
    expect(shown).toContain('"field_30":"W1 30"')
    for (const field of ['W1 5"', 'W1 20"', 'W1 35"']) expect(shown).not.toContain(field)
    const spans = conversation.edits().filter((edit) => edit.message === message)
    spans.slice(1).forEach((edit, at) => {
      expect(edit.span.start).toBeGreaterThanOrEqual(spans[at]!.span.end)
    })
  })

  it('asks no helper below the threshold, and only one if the to-do list stays the same', async () => {
    const small = session(scripted([]), { fold: { foldFrom: 100_000 } })
    await small.ask('W1')
    await small.ask('W2')
    expect(small.reports.map(({ kind }) => kind)).toEqual(['small', 'small'])

    const plan = memory('tell the status')
    const replies = [plan, lines('2-3'), plan]
    const agent = session(scripted(replies))
    for (const name of ['W1', 'W2', 'W3']) await agent.ask(name)
    expect(agent.reports.map(({ kind }) => kind)).toEqual(['small', 'folded', 'same'])
    expect(agent.reports[2]!.ledger).toHaveLength(1)

    const always = session(scripted([...replies, lines('2-3')]), { fold: { foldFrom: 1, when: 'every-turn' } })
    for (const name of ['W1', 'W2', 'W3']) await always.ask(name)
    expect(always.reports.map(({ kind }) => kind)).toEqual(['small', 'folded', 'folded'])
  })

  it.each([
    ['no JSON', ['I would rather not.'], 'The agent cannot use the summary: the answer of the helper has no JSON object.'],
    ['nothing', [''], 'The agent cannot use the summary: the helper answered nothing.'],
    [
      'no JSON of the extractor',
      [memory('b'), 'lines 1 to 4'],
      'The agent cannot use the choice of lines: the answer of the helper has no JSON',
    ],
    ['a summary longer than what it hides', [memory('b', 'and so on '.repeat(400)), lines('2')], 'The view would not be shorter'],
  ])('continues with the last good view after %s', async (_, bad, why) => {
    const engine = scripted([memory('a'), lines('2-3'), ...bad])
    const agent = session(engine)
    for (const name of ['W1', 'W2']) await agent.ask(name)
    const good = agent.conversation.edits()
    expect(good).not.toEqual([])
    const outcome = await agent.ask('W3')
    expect(outcome.end).toBe('stop')
    expect(agent.reports.at(-1)).toMatchObject({ kind: 'kept', why: expect.stringContaining(why) as string })
    expect(agent.conversation.edits()).toEqual(good)
  })

  it('asks again after a view that did not pay only once the context has grown by a quarter of the threshold', async () => {
    const names = Array.from({ length: 8 }, (_, at) => `W${at + 1}`)
    const kinds = async (agent: UFoldSession) => {
      for (const name of names) await agent.ask(name)
      return agent.reports.map(({ kind }) => kind)
    }
    const appending = session(scripted([]), { fold: { foldFrom: 100_000 } })
    await kinds(appending)
    const sizes = appending.reports.map(({ before }) => before)
    const foldFrom = sizes[5]!
    expect(sizes[6]).toBeLessThan(1.25 * foldFrom)
    expect(sizes[7]).toBeGreaterThan(1.25 * foldFrom)
    const long = memory('b', 'and so on '.repeat(800))
    const looks = await kinds(session(scripted([long, lines('2'), memory('c'), lines('2')]), { fold: { foldFrom } }))
    expect(looks).toEqual([...Array<string>(5).fill('small'), 'kept', 'small', 'folded'])
  })

  it('continues after a result larger than the window: it is hidden without a choice, and can be restored', async () => {
    const agent = session(scripted([], 1500), { fold: { foldFrom: 1000 } })
    await agent.ask('W1')
    await expect(agent.ask('BIG')).rejects.toMatchObject({ code: 'context/full' })
    expect((await agent.ask('W3')).end).toBe('stop')
    const report = agent.reports.at(-1)!
    expect(report).toMatchObject({ kind: 'folded', why: expect.stringContaining('no room') as string })
    expect(report.after).toBeLessThan(1000)
    expect(agent.conversation.messages.some(({ content }) => content.includes('BIG 1999'))).toBe(true)
  })

  it('hides nothing where other conversations hold the cells that a helper needs', async () => {
    const engine = new ScriptedEngine(({ messages, kind }: EngineRequest): ScriptedReply => {
      if (kind === 'summary') throw new CellsBusy('The steps of others hold 90 of 100 cells.')
      const last = messages.at(-1)!
      return last.role === 'tool'
        ? { content: 'So it is.' }
        : { calls: [{ name: 'get_order', arguments: { name: last.content } }] }
    })
    const agent = session(engine)
    for (const name of ['W1', 'W2']) expect((await agent.ask(name)).end).toBe('stop')
    expect(agent.reports.at(-1)).toMatchObject({ kind: 'kept', why: expect.stringContaining('Other conversations') as string })
    expect(agent.conversation.edits()).toEqual([])
  })

  it('refuses and counts ranges that are not lines, and uses the others', async () => {
    const agent = session(scripted([memory('a'), lines('3-2', '9000-9001', 'all', '2-3')]))
    for (const name of ['W1', 'W2']) await agent.ask(name)
    expect(agent.reports.at(-1)).toMatchObject({ kind: 'folded', refused: ['3-2', '9000-9001', 'all'] })
    expect(agent.folding.state.refused).toBe(3)
    expect(agent.folding.selected).toEqual([{ first: 2, last: 3 }])
  })

  it('may have another model keep the notes, with a separate ledger', async () => {
    const engine = scripted([])
    const folder = scripted([memory('a'), lines('2-3')])
    const agent = session(engine, { folder })
    for (const name of ['W1', 'W2']) await agent.ask(name)
    const report = agent.reports.at(-1)!
    expect([report.kind, report.ledger.length, report.folder.length]).toEqual(['folded', 0, 2])
    expect(agent.ledger.every(({ kind }) => kind === 'answer')).toBe(true)
    expect(engine.requests.every(({ kind }) => kind !== 'summary')).toBe(true)
  })

  it('continues from a state like the session that left it', async () => {
    const agent = session(scripted([memory('a'), lines('2-3')]))
    for (const name of ['W1', 'W2']) await agent.ask(name)
    const again = new UFoldSession(
      { engine: scripted([memory('b'), lines('2-3')]), id, clientTools, fold: { foldFrom: 1 } },
      agent.folding.state,
    )
    expect(again.folding.state).toEqual(agent.folding.state)
    expect(again.folding.notes).toBe(agent.folding.notes)
  })
})

describe('U-Fold as published', () => {
  it.each(['printed', 'stable'] as const)("shows the agent notes, chosen lines and the user's messages (%s)", async (form) => {
    const engine = scripted([memory('tell the status of W1'), lines('3', '77-78'), 'no JSON'])
    const agent = new PaperFold({ engine, id, system: 'You keep the desk.', clientTools, order: form })
    for (const name of ['W1', 'W2']) await agent.ask(name)
    const shown = engine.prompt(engine.requests.at(-1)!)
    expect(shown).toContain('"status":"W1 is pending"')
    expect(shown).not.toContain('W1 17')
    expect(shown.indexOf('Step 1. tell') < shown.indexOf('You keep the desk.')).toBe(form === 'printed')
    await agent.ask('W3')
    expect(agent.state.bad).toEqual({ outputs: 1, ranges: 1 })
    expect(agent.messages.filter(({ role }) => role === 'user').map(({ content }) => content)).toEqual(['W1', 'W2', 'W3'])
  })
})
