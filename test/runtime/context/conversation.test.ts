import { beforeEach, describe, expect, it } from 'vitest'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { Conversation } from '../../../src/runtime/context/conversation.js'
import { portsOf } from '../../../src/runtime/context/ports.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { span, type Span } from '../../../src/runtime/core/span.js'
import { ScriptedEngine } from '../../support/scripted.js'
import { granted, refused } from '../../support/results.js'

const id = conversationId('test')

describe('Conversation', () => {
  let conversation: Conversation

  beforeEach(() => {
    conversation = new Conversation(id)
    const messages: ChatMessage[] = [
      { role: 'system', content: 'Be brief. START of the system message END' },
      { role: 'user', content: 'Before. START one two three four END after.' },
      { role: 'assistant', content: 'Answer with START and nothing else' },
      { role: 'tool', content: 'A result END and END again', name: 'lookup' },
      { role: 'user', content: 'The last word: END.' },
    ]
    for (const message of messages) conversation.add(message)
  })

  const mark = (startMarker: string, endMarker: string, numFragments = 2, role: 'user' | 'assistant' | 'all' = 'user') =>
    conversation.fragment({ startMarker, endMarker, numFragments, role })
  const texts = () => conversation.fragments.map((fragment) => conversation.text(fragment))

  it('a fold that forgets stays, whatever its owner and its summary do meanwhile', async () => {
    let forgetNow = () => {}
    conversation = new Conversation(id, {
      summarize: () => {
        forgetNow()
        return Promise.resolve({ ok: true, summary: 'Numbers.', ledger: [] })
      },
    })
    conversation.add({ role: 'user', content: 'Before. START one two three four END after.' })
    const [first, second] = conversation.rearrange(
      [],
      [
        { message: 0, span: span(8, 13) },
        { message: 0, span: span(14, 17) },
      ],
    )
    granted(conversation.fold(first!.id, { forget: true }))
    const own = conversation.fragments.map((fragment) => fragment.id)
    conversation.rearrange(own, [{ message: 0, span: span(8, 13) }])
    expect(conversation.fragments.map((fragment) => [fragment.id, fragment.state])).toEqual([
      [first!.id, { kind: 'folded', forget: true }],
    ])
    expect(second!.id).not.toBe(first!.id)

    const { fragments } = granted(mark('one', 'four', 1))
    const { id: open } = fragments[0]!
    forgetNow = () => granted(conversation.fold(open, { forget: true }))
    expect(refused(await conversation.summarize(open, 'numbers'))).toBe(`${open} was forgotten while the summary was written.`)
    expect(conversation.fragments.find((fragment) => fragment.id === open)!.state).toEqual({ kind: 'folded', forget: true })
  })

  it('shows forgotten text neither beside a hit nor to the model that summarises', async () => {
    const asked: string[] = []
    conversation = new Conversation(id, {
      summarize: (text) => {
        asked.push(text)
        return Promise.resolve({ ok: true, summary: 'Numbers.', ledger: [] })
      },
    })
    conversation.add({ role: 'user', content: 'The password is amber today. It was copper before.' })
    const [fragment] = granted(mark('amber', 'today', 1)).fragments
    const hit = granted(conversation.search({ query: 'amber today' })).hits[0]!
    granted(conversation.fold(fragment!.id, { forget: true }))
    const around = ({ excerpt: { start, end } }: typeof hit) => conversation.messages[0]!.content.slice(start, end)
    const found = (query: string) => around(granted(conversation.search({ query })).hits[0]!)
    expect(found('password')).toBe('The password is ')
    expect(found('copper')).toBe('. It was copper before.')
    expect(found('is amber')).toBe('The password is ')
    expect(around(granted(conversation.detail(hit.id)).hit)).toBe('The password is ')
    expect(refused(await conversation.summarize(fragment!.id, 'numbers'))).toContain('was forgotten, so no model reads it')
    expect(asked).toEqual([])
  })

  describe('with a message that is hidden as a whole', () => {
    beforeEach(() => {
      conversation = new Conversation(id)
      for (const at of [0, 1, 2]) conversation.add({ role: 'user', content: at === 1 ? 'Again.' : 'Log: one two three. End.' })
    })
    const hide = () => conversation.omit([{ message: 0, omits: { part: 'message' } }])[0]!

    it('cuts the text that is shown, though the hidden message has it, too', () => {
      hide()
      const [fragment] = granted(mark('one', 'three', 1)).fragments
      expect(fragment!.message).toBe(2)
      granted(conversation.fold(fragment!.id))
      expect(conversation.shown(2)).toContain('[folded')
    })

    it('leaves it out of a cut across messages, and says when markers are there alone', () => {
      conversation.omit([{ message: 1, omits: { part: 'message' } }])
      granted(mark('one', 'Log:', 2))
      expect(conversation.fragments.map(({ message }) => message)).toEqual([0, 2])
      expect(refused(mark('Again', 'Again'))).toBe(
        'start_marker "Again" is not in the user messages. It is in a message that is hidden as a whole: search_context and get_search_detail show its text.',
      )
    })

    it('says of a hit in it that it is hidden', () => {
      const [fragment] = granted(mark('one', 'two', 1)).fragments
      granted(conversation.fold(fragment!.id))
      const omission = hide()
      for (const query of ['two', 'three']) {
        const { hits } = granted(conversation.search({ query }))
        expect(hits.map(({ standing }) => standing)).toEqual([{ kind: 'omitted', fragment: omission.id }, { kind: 'shown' }])
      }
    })

    it('restores no fragment in it before the message is shown again', () => {
      const fragments = granted(mark('one', 'three', 2)).fragments
      granted(conversation.fold(fragments[0]!.id))
      const omission = hide()
      for (const { id: each } of fragments)
        expect(refused(conversation.restore(each))).toBe(
          `${each} is in message 1, which is hidden as a whole (${omission.id}). search_context and get_search_detail show its text.`,
        )
      conversation.readmit(omission.id)
      granted(conversation.restore(fragments[0]!.id))
      expect(conversation.shown(0)).toBe('Log: one two three. End.')
    })
  })

  it('shows all messages as it shows each', () => {
    const [, second] = granted(mark('START', 'END', 3)).fragments
    granted(conversation.fold(second!.id))
    expect(conversation.shownAll()).toEqual(conversation.messages.map((_, at) => conversation.shown(at)))
    expect(conversation.shownAll()[1]).toContain(`[folded ${second!.id}`)
  })

  it('cuts from the first character of one marker to the last of the other, and shows the same text', () => {
    const { fragments } = granted(mark('START', 'END'))
    expect(texts()).toEqual(['START one two', ' three four END'])
    expect(fragments.map(({ message, state }) => [message, state.kind])).toEqual([
      [1, 'open'],
      [1, 'open'],
    ])
    for (const { id: name } of fragments) expect(name).toMatch(/^f[0-9a-f]{5}$/u)
    expect(conversation.edits()).toEqual([])
    expect(conversation.shown(1)).toBe(conversation.messages[1]?.content)
  })

  it('takes the end marker after the start marker, even if they are equal or overlap', () => {
    conversation.add({ role: 'user', content: 'x aba ba aba y' })
    granted(mark('aba', 'ba', 1))
    expect(texts()).toEqual(['aba ba'])
  })

  it('spans messages of the requested role, and leaves out other roles', () => {
    granted(mark('two', 'The last', 3))
    expect(texts()).toEqual(['two three four', ' END after.', 'The last'])
    expect(conversation.fragments.map(({ message }) => message)).toEqual([1, 1, 4])
  })

  it('includes tool results under role all, and never the system message', () => {
    granted(mark('and nothing', 'result', 1, 'all'))
    expect(texts()).toEqual(['and nothing else', 'A result'])
    expect(refused(mark('system message', 'END', 1, 'all'))).toBe(
      'start_marker "system message" is not in the messages. Copy a few words of the text exactly, as they stand there.',
    )
  })

  it.each([
    ['', 'END', 'start_marker is empty.'],
    ['START', '', 'end_marker is empty.'],
    ['nowhere', 'END', 'start_marker "nowhere" is not in the user messages. Copy a few words'],
    ['Answer', 'END', 'start_marker "Answer" is not in the user messages. It is in other messages: call again with role "all".'],
    ['start', 'END', 'start_marker "start" is not in the user messages. It is there in other upper or lower case'],
    ['START', 'nowhere', 'end_marker "nowhere" is not in the user messages.'],
    ['four', 'three', 'end_marker "three" does not come after start_marker, only before its end.'],
  ])('refuses the markers %j, %j and says how to go on', (start, end, message) => {
    const before = conversation.snapshot()
    expect(refused(mark(start, end))).toContain(message)
    expect(conversation.snapshot()).toEqual(before)
  })

  it('does not find a refused marker in its own error message', () => {
    const said = refused(mark('nowhere', 'END'))
    conversation.add({ role: 'tool', name: 'fragment_context', content: `Error: ${said}` })
    expect(refused(mark('nowhere', 'END'))).toBe(said)
    conversation.add({ role: 'tool', name: 'read_file', content: 'It is nowhere.' })
    expect(refused(mark('nowhere', 'END'))).toContain('It is in other messages')
  })

  it('refuses a span that overlaps fragments, and names them', () => {
    const [first, second] = granted(mark('START', 'END')).fragments
    granted(conversation.fold(first!.id))
    const before = conversation.snapshot()
    expect(refused(mark('two', 'three'))).toBe(
      `Between these markers there are fragments already: ${first!.id} (folded) and ${second!.id} (open). ` +
        'Use fold_fragment, summarize_fragment or restore_fragment on them, or choose markers outside them.',
    )
    expect(conversation.snapshot()).toEqual(before)
    granted(mark('Before', '. ', 1))
    granted(mark('after', '.', 1))
    expect(texts()).toEqual(['Before. ', 'START one two', ' three four END', 'after.'])
  })

  it('cuts spans given by a program, and refuses invalid ones', () => {
    granted(conversation.cut([{ message: 2, span: span(0, 6) }], 1))
    expect(texts()).toEqual(['Answer'])
    expect(refused(conversation.cut([{ message: 1, span: span(5, 900) }], 1))).toContain(
      'is not a span of characters in message 2',
    )
    expect(refused(conversation.cut([{ message: 1, span: span(5, 5) }], 1))).toContain('is not a span of characters')
    expect(refused(conversation.cut([], 1))).toContain('nothing to cut')
    expect(refused(conversation.cut([{ message: 1, span: span(0, 5) }], 0))).toContain('whole number from 1')
    expect(
      refused(
        conversation.cut(
          [
            { message: 1, span: span(0, 9) },
            { message: 1, span: span(8, 12) },
          ],
          2,
        ),
      ),
    ).toContain('out of order')
    expect(() => conversation.cut([{ message: 9, span: span(0, 1) }], 1)).toThrow('There is no message 9')
  })

  it('shows one marker after another for folded text, and the text again after a restore', () => {
    const [first, second] = granted(mark('START', 'END')).fragments
    granted(conversation.fold(second!.id))
    granted(conversation.fold(first!.id))
    expect(conversation.shown(1)).toBe(
      `Before. [folded ${first!.id}: 13 characters, restore_fragment shows them]` +
        `[folded ${second!.id}: 15 characters, restore_fragment shows them] after.`,
    )
    expect(conversation.edits().map((edit) => edit.span)).toEqual([span(8, 21), span(21, 36)])
    granted(conversation.restore(first!.id))
    expect(conversation.shown(1)).toContain('Before. START one two[folded')
    granted(conversation.restore(second!.id))
    expect(conversation.edits()).toEqual([])
  })

  it('refuses to fold folded text, to restore open text, and unknown ids', () => {
    expect(refused(conversation.fold('f00000'))).toBe(
      'There is no fragment "f00000". There are no fragments yet: call fragment_context first.',
    )
    const [first, second] = granted(mark('START', 'END')).fragments
    expect(refused(conversation.restore(first!.id))).toContain('is open: its text is already shown')
    granted(conversation.fold(first!.id))
    const before = conversation.snapshot()
    expect(refused(conversation.fold(first!.id))).toBe(`${first!.id} is already folded. restore_fragment shows it again.`)
    expect(refused(conversation.fold('zzz'))).toBe(
      `There is no fragment "zzz". Fragments: ${first!.id} (folded) and ${second!.id} (open).`,
    )
    expect(conversation.snapshot()).toEqual(before)
    const { hits } = granted(conversation.search({ query: 'two' }))
    expect(refused(conversation.fold(hits[0]!.id))).toContain(
      'is a search result, not a fragment: get_search_detail shows more of it.',
    )
  })

  it('searches the original text and says where each hit is', () => {
    const [first] = granted(mark('START', 'END')).fragments
    granted(conversation.fold(first!.id))
    const result = granted(conversation.search({ query: 'END', role: 'all', contextSize: 4 }))
    expect(result.total).toBe(4)
    expect(result.hits.map(({ message, role, standing }) => [message, role, standing.kind])).toEqual([
      [1, 'user', 'shown'],
      [3, 'tool', 'shown'],
      [3, 'tool', 'shown'],
      [4, 'user', 'shown'],
    ])
    const { hits } = granted(conversation.search({ query: 'two', contextSize: 6 }))
    expect(hits[0]?.standing).toEqual({ kind: 'folded', fragment: first!.id })
    expect(conversation.messages[1]?.content.slice(hits[0]!.excerpt.start, hits[0]!.excerpt.end)).toBe('T one two three')
  })

  it('gives a hit the same search id every time, and finds it again by that id', () => {
    const once = granted(conversation.search({ query: 'END', maxResults: 1 }))
    expect([once.hits.length, once.total]).toEqual([1, 2])
    const twice = granted(conversation.search({ query: 'END', role: 'all' }))
    expect(twice.hits[0]?.id).toBe(once.hits[0]?.id)
    expect(new Set(twice.hits.map((hit) => hit.id)).size).toBe(4)
    expect(once.hits[0]?.id).toMatch(/^s[0-9a-f]{5}$/u)
    expect(granted(conversation.detail(once.hits[0]!.id, 100)).hit.span).toEqual(once.hits[0]?.span)
  })

  it('counts near matches of a search without hits', () => {
    expect(granted(conversation.search({ query: 'start' }))).toMatchObject({ total: 0, ignoringCase: 1, elsewhere: 0 })
    expect(granted(conversation.search({ query: 'Answer' }))).toMatchObject({ total: 0, ignoringCase: 0, elsewhere: 1 })
  })

  it('does not search the results of searches', () => {
    conversation.add({ role: 'tool', name: 'search_context', content: '1 match for "three"' })
    expect(granted(conversation.search({ query: 'three', role: 'all' })).total).toBe(1)
  })

  it('counts occurrences that do not overlap', () => {
    conversation.add({ role: 'user', content: 'aaaaa' })
    expect(granted(conversation.search({ query: 'aa' })).hits.map((hit) => hit.span.start)).toEqual([0, 2])
  })

  it('refuses unknown search ids', () => {
    expect(refused(conversation.detail('s00000'))).toContain('There is none yet: call search_context first.')
    const [first] = granted(mark('START', 'END')).fragments
    const { hits } = granted(conversation.search({ query: 'two' }))
    expect(refused(conversation.detail('s0'))).toBe(`There is no search result "s0". The latest are ${hits[0]!.id}.`)
    expect(refused(conversation.detail(first!.id))).toContain('is a fragment, not a search result')
    expect(refused(conversation.search({ query: '' }))).toContain('query is empty')
    expect(refused(conversation.search({ query: 'two', maxResults: 0 }))).toContain('whole numbers from 1')
  })

  it('gives the same ids for the same messages and operations, and others for other contents', () => {
    const again = new Conversation(conversationId('another'))
    for (const message of conversation.messages) again.add(message)
    const other = new Conversation(id)
    for (const message of conversation.messages) other.add({ ...message, content: `${message.content} ` })
    const ids = [conversation, again, other].map((one) =>
      granted(one.fragment({ startMarker: 'START', endMarker: 'END', numFragments: 3 })).fragments.map((fragment) => fragment.id),
    )
    expect(ids[1]).toEqual(ids[0])
    expect(ids[2]).not.toEqual(ids[0])
  })

  it('cuts a long message fast', () => {
    const content = 'word '.repeat(1_000_000)
    conversation.add({ role: 'user', content: `${content}FINISH` })
    const started = performance.now()
    granted(mark('word word', 'FINISH', 20))
    expect(performance.now() - started).toBeLessThan(3_000)
  })

  it('cuts a message into thousands of pieces in short steps, also beside thousands of fragments', () => {
    let snaps = 0
    const snap = (_messages: unknown, _message: unknown, chars: Span) => {
      snaps++
      return chars
    }
    const long = new Conversation(id, { snap })
    const words = 'word '.repeat(40_000)
    long.add({ role: 'user', content: `ONE ${words}TWO. THREE ${words}FOUR.` })
    const longest = { snaps: 0, milliseconds: 0 }
    for (const [startMarker, endMarker] of [
      ['ONE', 'TWO.'],
      ['THREE', 'FOUR.'],
    ] as const) {
      const steps = long.fragmenting({ startMarker, endMarker, numFragments: 10_000 })
      for (let isDone = false; !isDone;) {
        snaps = 0
        const before = process.cpuUsage()
        isDone = steps.next().done === true
        const { user, system } = process.cpuUsage(before)
        longest.snaps = Math.max(longest.snaps, snaps)
        longest.milliseconds = Math.max(longest.milliseconds, (user + system) / 1000)
      }
    }
    expect(longest.snaps).toBe(1)
    expect(longest.milliseconds).toBeLessThan(400)
    expect(long.fragments).toHaveLength(20_000)
  })
})

describe('Conversation over an engine', () => {
  const over = (engine: ScriptedEngine) => {
    const conversation = new Conversation(id, portsOf(engine, id))
    conversation.add({ role: 'user', content: 'Alpha beta gamma delta. Epsilon zeta eta theta.' })
    return conversation
  }

  it('widens fragments to token borders', () => {
    const conversation = over(new ScriptedEngine([]))
    granted(conversation.fragment({ startMarker: 'eta', endMarker: 'Eps', numFragments: 2 }))
    expect(conversation.fragments.map((fragment) => conversation.text(fragment))).toEqual([' beta gamma', ' delta. Epsilon'])
  })

  it('refuses a cut whose token borders reach into a fragment, and throws on impossible borders', () => {
    let reach = 0
    const conversation = new Conversation(id, { snap: (_messages, _message, { start, end }) => span(start - reach, end) })
    conversation.add({ role: 'user', content: 'Alpha beta gamma delta.' })
    granted(conversation.fragment({ startMarker: 'Alpha', endMarker: 'beta', numFragments: 1 }))
    reach = 2
    const before = conversation.snapshot()
    expect(refused(conversation.fragment({ startMarker: 'gamma', endMarker: 'delta', numFragments: 1 }))).toContain(
      'there is a fragment already',
    )
    reach = -2
    expect(() => conversation.fragment({ startMarker: 'gamma', endMarker: 'delta' })).toThrow('Token borders around')
    expect(conversation.snapshot()).toEqual(before)
  })

  it('finds token borders without the running step, unless the text is part of it', () => {
    const asked: number[] = []
    const engine = new ScriptedEngine([])
    engine.snap = (messages, _tools, _message, chars) => {
      asked.push(messages.length)
      return chars
    }
    const conversation = over(engine)
    const toolCalls = ['1', '2'].map((call) => ({ id: call, name: 'fragment_context', arguments: {} }))
    conversation.add({ role: 'assistant', content: 'Let me cut this.', toolCalls })
    conversation.add({ role: 'tool', content: 'Cut.', toolCallId: '1', name: 'fragment_context' })
    granted(conversation.fragment({ startMarker: 'Alpha', endMarker: 'beta', numFragments: 1 }))
    granted(conversation.fragment({ startMarker: 'Let', endMarker: 'cut', numFragments: 1, role: 'assistant' }))
    conversation.add({ role: 'tool', content: 'Cut.', toolCallId: '2', name: 'fragment_context' })
    granted(conversation.fragment({ startMarker: 'gamma', endMarker: 'delta', numFragments: 1 }))
    expect(asked).toEqual([1, 3, 4])
  })

  it('has the model write the summary on a fork, from the original text', async () => {
    const engine = new ScriptedEngine([{ content: ' Greek letters. ' }, { content: 'Letters.' }])
    const conversation = over(engine)
    const [fragment] = granted(conversation.fragment({ startMarker: 'Alpha', endMarker: 'delta.', numFragments: 1 })).fragments
    granted(conversation.fold(fragment!.id))
    const { ledger } = granted(await conversation.summarize(fragment!.id, ' what kind '))
    expect(conversation.shown(0)).toBe(
      `[summary of ${fragment!.id}, 23 characters, restore_fragment shows them: Greek letters.] Epsilon zeta eta theta.`,
    )
    expect(ledger.map(({ kind }) => kind)).toEqual(['summary'])
    expect(engine.requests[0]?.conversation).not.toBe(id)
    const asked = engine.requests[0]?.messages.map(({ content }) => content).join('')
    expect(asked).toContain('Alpha beta gamma delta.')
    expect(asked).toContain('what kind')
    expect(asked).not.toContain('Epsilon')
    granted(await conversation.summarize(fragment!.id, 'kind'))
    expect(conversation.shown(0)).toContain('them: Letters.]')
    granted(conversation.fold(fragment!.id))
    granted(conversation.restore(fragment!.id))
    expect(conversation.shown(0)).toBe(conversation.messages[0]?.content)
  })

  it('changes nothing when there is no summary', async () => {
    const engine = new ScriptedEngine([{ content: '  ' }], { context: 200 })
    const conversation = over(engine)
    const [fragment] = granted(conversation.fragment({ startMarker: 'Alpha', endMarker: 'delta.', numFragments: 1 })).fragments
    const before = conversation.snapshot()
    const empty = await conversation.summarize(fragment!.id, 'all')
    expect(refused(empty)).toBe('The summary came out empty. Use fold_fragment instead.')
    expect(empty.ledger).toHaveLength(1)
    expect(refused(await conversation.summarize(fragment!.id, '  '))).toContain('focus is empty')
    conversation.add({ role: 'user', content: `Long. ${'word '.repeat(300)}End.` })
    const [long] = granted(conversation.fragment({ startMarker: 'Long.', endMarker: 'End.', numFragments: 1 })).fragments
    expect(refused(await conversation.summarize(long!.id, 'all'))).toBe(
      'The fragment is too long to be summarized at once. Use fold_fragment instead.',
    )
    expect(conversation.fragments.every(({ state }) => state.kind === 'open')).toBe(true)
    expect(conversation.snapshot().fragments[0]).toEqual(before.fragments[0])
  })

  it('reports a cancelled summary with its cost', async () => {
    const controller = new AbortController()
    const engine = new ScriptedEngine(() => {
      controller.abort()
      return { content: 'Half a' }
    })
    const conversation = over(engine)
    const [fragment] = granted(conversation.fragment({ startMarker: 'Alpha', endMarker: 'delta.', numFragments: 1 })).fragments
    const cancelled = await conversation.summarize(fragment!.id, 'all', controller.signal)
    expect(cancelled).toMatchObject({ ok: false, code: 'engine/cancelled', ledger: [{ kind: 'cancelled' }] })
    expect(conversation.edits()).toEqual([])
  })

  it('does not summarise without an engine', async () => {
    const conversation = new Conversation(id)
    conversation.add({ role: 'user', content: 'a b' })
    const [fragment] = granted(conversation.fragment({ startMarker: 'a', endMarker: 'b', numFragments: 1 })).fragments
    expect(refused(await conversation.summarize(fragment!.id, 'all'))).toContain('No model is here')
  })
})
