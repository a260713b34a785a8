/** What each agent sends at each step, how it handles the replies, and how it ends. */
import { describe, expect, it, vi } from 'vitest'
import { ScriptedEngine } from '../../support/scripted.js'
import type { ScriptedReply } from '../../../src/lab/taught-engine.js'
import { agentKinds, type AgentKind, type AgentSetting, type TextEmbedder } from '../../../src/lab/agent.js'
import { embeddingAgents, isBuiltinTrained, openAgent } from '../../../src/lab/agents/open.js'
import { Recorder } from '../../../src/lab/recorder.js'
import type { TaskSample } from '../../../src/lab/task.js'
import type { LogTruth } from '../../../src/lab/tasks/logbook.js'
import { openTask } from '../../../src/lab/tasks/open.js'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import { sample, settingOn, task, TEXT, transcript, wordEmbedder } from '../support/agents-material.js'

const golden = (name: string) => `../../golden/eval/agents/${name}.txt`
const json = (value: unknown): ScriptedReply => ({ content: JSON.stringify(value) })
const addition = (text: string) => ({ event: 'ADD', id: '', text })

/** Runs an agent on a script and records its requests. */
async function run(
  kind: AgentKind,
  said: readonly ScriptedReply[],
  { options = {}, context, ...change }: Partial<AgentSetting> & { options?: Record<string, unknown>; context?: number } = {},
) {
  const engine = new ScriptedEngine(said, context === undefined ? {} : { context })
  const recorder = new Recorder(engine)
  const answered = await openAgent(kind, options).answer(settingOn(recorder, { embedder: wordEmbedder, ...change }))
  return { engine, recorder, answered, transcript: transcript(engine, said) }
}

const fold: readonly ScriptedReply[] = [
  {
    calls: [
      { name: 'fragment_context', arguments: { start_marker: 'In the year 1800', end_marker: 'black.', num_fragments: 3 } },
    ],
  },
  {
    calls: [
      { name: 'search_context', arguments: { query: 'keeper' } },
      { name: 'fold_fragment', arguments: { fragment_id: 'f00000' } },
    ],
  },
  { content: 'She is called Orla.' },
]
/** Replies for a text of three parts. */
const facts: readonly ScriptedReply[] = [
  json({ facts: ['The hat was red in 1800.', 'The boat was green in 1801.'] }),
  json({ decisions: [addition('The hat was red in 1800.'), addition('The boat was green in 1801.')] }),
  { content: '```json\n{"facts": ["The hat was grey in 1810.", "The keeper is called Orla."]}\n```' },
  json({
    decisions: [
      { event: 'UPDATE', id: '0', text: 'The hat was red in 1800 and grey in 1810.' },
      { event: 'DELETE', id: '1', text: '' },
      addition('The keeper is called Orla.'),
      { event: 'NONE', id: '0', text: '' },
      { event: 'UPDATE', id: '7', text: 'Of nothing that is stored.' },
      { event: 'ADD', id: '', text: ' ' },
    ],
  }),
  { content: 'There are no facts here.' },
  { content: 'Orla.' },
]

describe('what agents ask', () => {
  it('plain: sends the sample unchanged, once', async () => {
    const { transcript, answered, recorder } = await run('plain', [{ content: 'Orla.' }], { contract: 'splice' })
    await expect(transcript).toMatchFileSnapshot(golden('plain'))
    expect(answered).toEqual({ answer: 'Orla.', end: 'stop', calls: [], refusedCalls: 0, details: {} })
    expect(recorder.cost().work.steps).toBe(1)
  })

  it('sculptor: sends the prompt of the task and six tools, and begins with a call', async () => {
    const { transcript, answered, recorder } = await run('sculptor', fold)
    await expect(transcript).toMatchFileSnapshot(golden('sculptor'))
    expect(answered).toEqual({
      answer: 'She is called Orla.',
      end: 'stop',
      calls: [
        { step: 0, name: 'fragment_context', failed: false, modifies: true },
        { step: 1, name: 'search_context', failed: false, modifies: false },
        { step: 1, name: 'fold_fragment', failed: true, modifies: false },
      ],
      refusedCalls: 0,
      details: { fragments: 3, folded: 0, summarised: 0 },
    })
    expect(recorder.talks).toHaveLength(1)
  })

  it('rag-bm25: sends the best chunks first, and nothing else of the text', async () => {
    const options = { chunkTokens: 24, retrievedTokens: 60 }
    const { transcript, answered } = await run('rag-bm25', [{ content: 'Orla.' }], { options })
    await expect(transcript).toMatchFileSnapshot(golden('rag-bm25'))
    expect(/Passages:\n\n(.*)\n/u.exec(transcript)![1]).toContain('called Orla')
    expect(answered.details).toMatchObject({ contextTokens: 436, chunks: 20, passages: 3 })
  })

  it('rag-dense: sends the most similar chunks first, and nothing else of the text', async () => {
    const options = { chunkTokens: 24, retrievedTokens: 60, queryPrefix: 'Query: ' }
    const { transcript, answered } = await run('rag-dense', [{ content: 'Orla.' }], { options })
    await expect(transcript).toMatchFileSnapshot(golden('rag-dense'))
    expect(answered.details).toMatchObject({ chunks: 20, passages: 3, embeddedTexts: 21 })
  })

  it('memagent: sends each part with the memory so far, then only the memory', async () => {
    const said = ['Nothing yet.', 'The keeper is called Orla.', 'Still Orla.', 'Orla.'].map((content) => ({ content }))
    const { transcript, answered, engine } = await run('memagent', said, { options: { chunkTokens: 150 } })
    await expect(transcript).toMatchFileSnapshot(golden('memagent'))
    expect(answered).toMatchObject({
      answer: 'Orla.',
      details: { contextTokens: 436, trimmedTokens: 0, parts: 3, memoriesCutOff: 0 },
    })
    const parts = engine.requests
      .slice(0, 3)
      .map(({ messages }) => /Next part:\n([\s\S]*)\n\nThe new memory:/u.exec(messages[0]!.content)![1])
    expect(parts.join(' ')).toBe(TEXT.trim())
    expect(engine.requests[3]!.messages[0]!.content).not.toContain('In the year')
  })

  it('mem0: asks for facts of each part and their changes, then for an answer from the facts it finds again', async () => {
    const { transcript, answered } = await run('mem0', facts, { options: { chunkTokens: 150, nearest: 2 } })
    await expect(transcript).toMatchFileSnapshot(golden('mem0'))
    expect(answered).toMatchObject({
      answer: 'Orla.',
      details: {
        parts: 3,
        facts: 4,
        added: 3,
        updated: 1,
        deleted: 1,
        kept: 1,
        ignored: 2,
        unreadable: 1,
        stored: 2,
        retrieved: 2,
      },
    })
  })
})

describe('baselines with tools of their own', () => {
  const shownIn = (engine: ScriptedEngine, step: number) =>
    engine.requests[step]!.messages.map(({ content }) => content).join('\n')

  it('archive: shows the newest parts, and recalls older ones by their words', async () => {
    const calls = [
      { name: 'recall', arguments: { query: 'lighthouse keeper' } },
      { name: 'recall', arguments: { query: 'zebra' } },
      { name: 'recall', arguments: {} },
    ]
    const options = { chunkTokens: 60, shownTokens: 100, recalled: 1 }
    const { answered, engine } = await run('archive', [{ calls }, { content: 'Orla.' }], { options })
    expect(engine.requests.map(({ toolChoice }) => toolChoice)).toEqual(['required', 'auto'])
    expect(shownIn(engine, 0)).toMatch(/Parts 1 to 7 of a text of 8 parts .*In the year 1839.*called\?$/su)
    expect(shownIn(engine, 0)).not.toContain('Orla')
    const [found, none, wrong] = engine.requests[1]!.messages.slice(-3).map(({ content }) => content)
    expect(found).toMatch(/^Part 4 of 8:\n.*Orla/su)
    expect(none).toBe('No older part has these words.')
    expect(wrong).toContain('recall failed: query: is missing.')
    expect(answered).toMatchObject({ answer: 'Orla.', end: 'stop', details: { parts: 8, archived: 7 } })
    expect(answered.calls.map(({ failed }) => failed)).toEqual([false, false, true])
  })

  it.each([
    ['a word that half of the older parts have', ['Red is the hat.', 'Blue is the boat.', 'The end is near.'], 'Part 1 of 3:'],
    [
      'the part that has a common word most often',
      ['Is the hat red?', 'Hat is the hat.', 'The hat is the boat.', 'The end is near.'],
      'Part 2 of 4:',
    ],
  ])('archive: recalls %s', async (_, sentences, part) => {
    const { answered, engine } = await run(
      'archive',
      [{ calls: [{ name: 'recall', arguments: { query: 'hat' } }] }, { content: 'Orla.' }],
      { options: { chunkTokens: 5, shownTokens: 5, recalled: 1 }, sample: { ...sample, context: sentences.join(' ') } },
    )
    expect(answered.details).toEqual({ parts: sentences.length, archived: sentences.length - 1 })
    expect(engine.requests[1]!.messages.at(-1)!.content.split('\n')[0]).toBe(part)
  })

  it('archive: shows all of a short text, without a tool', async () => {
    const { engine } = await run('archive', [{ content: 'Orla.' }], { options: { shownTokens: 1000 } })
    expect(engine.requests[0]!.tools).toBeUndefined()
    expect(shownIn(engine, 0)).toContain('Orla')
  })

  it('files: shows nothing of the text, and reads and searches its lines', async () => {
    const calls = [
      { name: 'search_file', arguments: { text: 'KEEPER' } },
      { name: 'read_file', arguments: { from: 17, to: 30 } },
      { name: 'read_file', arguments: { from: 90, to: 99 } },
      { name: 'search_file', arguments: { text: 'zebra' } },
    ]
    const { answered, engine } = await run('files', [{ calls }, { content: 'Orla.' }], { options: { lines: 2 } })
    expect(shownIn(engine, 0)).toBe(
      `A text is in the file text.txt, which has 40 lines. The later a line, the newer it is.\n\n${sample.question}`,
    )
    expect(engine.requests[1]!.messages.slice(-4).map(({ content }) => content)).toEqual([
      '18: The lighthouse keeper is called Orla.',
      '17: In the year 1816 the door of the town was red.\n18: The lighthouse keeper is called Orla.\n(12 more lines)',
      'text.txt has the lines 1 to 40.',
      'No line contains this text.',
    ])
    expect(answered).toMatchObject({ end: 'stop', details: { lines: 40 } })
  })

  it('edit-text: shows the text as the edits left it, and the error of a failed edit', async () => {
    const first = [
      { name: 'delete_lines', arguments: { from: 2, to: 17 } },
      { name: 'replace_lines', arguments: { from: 19, to: 40, line: 'The town had many colours.' } },
      { name: 'delete_lines', arguments: { from: 3, to: 5 } },
    ]
    const second = [
      { name: 'delete_lines', arguments: { from: 3, to: 9 } },
      { name: 'fold', arguments: {} },
    ]
    const said = [{ calls: first }, { calls: second.slice(0, 1) }, { calls: second.slice(1) }, { content: 'Orla.' }]
    const { answered, engine } = await run('edit-text', said)
    expect(shownIn(engine, 0)).toContain('40: In the year 1839')
    expect(shownIn(engine, 1)).toMatch(
      /\n\n1: In the year 1800 [^\n]*\n2: The lighthouse keeper is called Orla\.\n3: The town had many colours\.\n\n/u,
    )
    expect(shownIn(engine, 1)).toContain(
      'Your last edits: The text has 24 lines now. The text has 3 lines now. Error: delete_lines failed: another edit has',
    )
    expect(shownIn(engine, 2)).toContain('delete_lines failed: the text has the lines 1 to 3')
    expect(shownIn(engine, 3)).toContain('there is no tool fold.')
    expect(answered).toMatchObject({ answer: 'Orla.', end: 'stop', refusedCalls: 0, details: { lines: 40, left: 3 } })
    expect(answered.calls.map(({ step, failed }) => [step, failed])).toEqual([
      [0, false],
      [0, false],
      [0, true],
      [1, true],
      [2, true],
    ])
  })

  it('edit-text: answers without tools after its last call', async () => {
    const calls = Array.from({ length: 3 }, () => ({ name: 'delete_lines', arguments: { from: 1, to: 1 } }))
    const { answered, engine } = await run('edit-text', [{ calls }, { content: 'Orla.' }], { options: { maxCalls: 2 } })
    expect(engine.requests.map(({ toolChoice }) => toolChoice)).toEqual(['required', 'none'])
    expect([0, 1].map((step) => shownIn(engine, step).includes('You may edit'))).toEqual([true, false])
    expect(shownIn(engine, 1)).toContain('You can edit it no more')
    expect(answered).toMatchObject({ refusedCalls: 1, details: { left: 39 } })
  })
})

describe('what agents ask about a logbook that was read with a tool', () => {
  const read = async (place: 'late' | 'early') => {
    const book = await openTask({ task: 'logbook', options: { kinds: ['stale'], places: [place], samples: 1 } })
    return { task: book, sample: await book.sample(0) }
  }
  const outdatedIn = (shown: string, { truth }: TaskSample) => (truth as LogTruth).outdated.filter((word) => shown.includes(word))

  it('policy: reads all of it, folds what the server would, and asks once', async () => {
    const change = await read('late')
    const said = [{ content: 'I' }, { content: 'It is falcon.' }]
    const { answered, engine, transcript } = await run('policy', said, { ...change, contract: 'splice' })
    await expect(transcript).toMatchFileSnapshot(golden('policy'))
    const [reading, asking] = engine.requests
    expect(reading).toMatchObject({ maxTokens: 1, conversation: asking!.conversation, contract: 'splice' })
    expect(asking!.messages).toEqual(change.sample.messages)
    // Six results, of which the last three are too young; each has one call and one answer after it.
    expect(asking!.edits!.map(({ message }) => message)).toEqual([2, 4, 6])
    const hidden = new Set(asking!.edits!.map(({ message }) => message))
    const shown = asking!.messages.filter((_, at) => !hidden.has(at)).map(({ content }) => content)
    expect(outdatedIn(shown.join(' '), change.sample)).toEqual([])
    expect(shown.join(' ')).toContain((change.sample.truth as LogTruth).current)
    expect(answered).toMatchObject({ answer: 'It is falcon.', calls: [], details: { folded: 3 } })
    expect(answered.details['saved']).toBeGreaterThan(0)
  })

  it('policy: folds nothing while the prompt is below the threshold of the budget', async () => {
    const change = await read('late')
    const options = { budget: 4000 }
    const { answered, engine } = await run('policy', [{ content: 'I' }, { content: 'So.' }], { ...change, options })
    expect(engine.requests[1]!.edits ?? []).toEqual([])
    expect(answered.details).toEqual({ folded: 0, saved: 0 })
  })

  it('policy: folds by age and size as its options say', async () => {
    const change = await read('late')
    const said = [{ content: 'I' }, { content: 'So.' }]
    const old = await run('policy', said, { ...change, options: { olderThanTurns: 4 } })
    expect(old.answered.details['folded']).toBe(2)
    const large = await run('policy', said, { ...change, options: { budget: 0.4, largerThanTokens: 40 } })
    expect(large.answered.details['folded']).toBeGreaterThan(3)
    const small = await run('policy', said, { ...change, options: { threshold: 1, budget: 1 } })
    expect(small.answered.details['folded']).toBe(0)
  })

  it('summary: lets the model write the older messages anew, and answers from that and the newest', async () => {
    const change = await read('early')
    const said = [{ content: 'All passwords were changed.' }, { content: 'I do not know.' }]
    const { answered, engine, transcript } = await run('summary', said, change)
    await expect(transcript).toMatchFileSnapshot(golden('summary'))
    const [writing, asking] = engine.requests.map(({ messages }) => messages)
    const cut = answered.details['summarised']!
    expect(asking!.slice(1)).toEqual(change.sample.messages.slice(cut))
    expect(asking![0]!.content).toContain('All passwords were changed.')
    expect(asking![1]!.role).not.toBe('tool')
    expect(writing).toHaveLength(1)
    for (const { content } of change.sample.messages.slice(0, cut)) expect(writing![0]!.content).toContain(content)
    expect(writing![0]!.content).not.toContain(change.sample.messages.at(-1)!.content)
    expect(answered).toMatchObject({ answer: 'I do not know.', details: { summariesCutOff: 0 } })
  })

  it('summary: summarises nothing within its budget, and says when a summary was cut off', async () => {
    const change = await read('late')
    const whole = await run('summary', [{ content: 'So.' }], { ...change, options: { budget: 1 } })
    expect(whole.engine.requests.map(({ messages }) => messages)).toEqual([change.sample.messages])
    expect(whole.answered.details).toEqual({ summarised: 0 })
    const cut = await run('summary', [{ content: 'All', finish: 'length' }, { content: 'So.' }], change)
    expect(cut.answered).toMatchObject({ end: 'stop', details: { summariesCutOff: 1 } })
  })
})

describe('options', () => {
  it('have the paper’s values by default', () => {
    expect(Object.fromEntries(agentKinds.map((kind) => [kind, openAgent(kind).options]))).toEqual({
      plain: {},
      sculptor: { prompt: 'task', maxCalls: 20, firstStep: 'required', hints: false, system: '', toolTexts: '' },
      'rag-bm25': {
        ...{ chunkTokens: 200, retrievedTokens: 1500, query: 'question', endTokens: 500 },
        ...{ terms: 'words', k1: 1.5, b: 0.75, epsilon: 0.25 },
      },
      'rag-dense': { chunkTokens: 200, retrievedTokens: 1500, query: 'question', endTokens: 500, queryPrefix: '' },
      memagent: { contextTokens: 120_000, chunkTokens: 5000, newTokens: 1024, endTokens: 500 },
      mem0: { chunkTokens: 5000, nearest: 5, retrieved: 100, newTokens: 1024, schema: true, endTokens: 500 },
      policy: { budget: 0.75, threshold: 0.75, olderThanTurns: 3, largerThanTokens: 2000 },
      summary: {
        budget: 0.75,
        summaryTokens: 256,
        instruction: expect.stringContaining('Summarise the conversation') as unknown,
      },
      archive: { chunkTokens: 200, shownTokens: 400, recalled: 2, maxCalls: 20, firstStep: 'required' },
      files: { lines: 20, maxCalls: 20, firstStep: 'required' },
      'edit-text': { maxCalls: 20, firstStep: 'required' },
    })
  })

  it.each([
    ['rag-bm25', { chunks: 3 }, 'chunks'],
    ['memagent', { chunkTokens: 0 }, 'chunkTokens'],
    ['plain', { prompt: 'pi-llm' }, 'prompt'],
    ['sculptor', { prompt: 'poem' }, 'prompt'],
    ['policy', { budget: 0 }, 'budget'],
  ] as const)('are named in the error when %s cannot use them: %j', (kind, options, name) => {
    expect(() => openAgent(kind, options)).toThrow(
      expect.objectContaining({ code: 'eval/bad-agent', message: expect.stringContaining(name) as unknown }),
    )
  })

  it('are refused for an unknown agent', () => {
    expect(() => openAgent('react' as AgentKind)).toThrow(expect.objectContaining({ code: 'eval/bad-agent' }))
    expect(() => openAgent('toString' as AgentKind)).toThrow(/"toString" is not an agent/u)
  })

  it('change the sculptor’s prompt and calls', async () => {
    const calls = Array.from({ length: 2 }, () => ({ name: 'search_context', arguments: { query: 'hat' } }))
    const options = { prompt: 'general', maxCalls: 1, firstStep: 'auto' }
    const { answered, engine } = await run('sculptor', [{ calls }, { content: 'Orla.' }], { options })
    expect(engine.requests[0]!.messages[0]!.content).toContain('looks after your own context')
    expect(engine.requests.map(({ toolChoice }) => toolChoice)).toEqual(['auto', 'none'])
    expect(answered).toMatchObject({ refusedCalls: 1, calls: [{ step: 0, name: 'search_context', failed: false }] })
  })

  it('change the query to the two ends of the text', async () => {
    const asked: string[] = []
    const embedder: TextEmbedder = {
      name: 'spy',
      embed: (texts, signal) => (asked.push(texts[0]!), wordEmbedder.embed(texts, signal)),
    }
    const ends = { query: 'ends', endTokens: 23, chunkTokens: 24 }
    await run('rag-dense', [{ content: '' }], { embedder, options: ends })
    await run('rag-dense', [{ content: '' }], {
      embedder,
      options: { ...ends, query: 'question' },
      sample: { ...sample, question: ' ' },
    })
    await run('rag-dense', [{ content: '' }], { embedder, options: { ...ends, query: 'question' } })
    const both = /^In the year 1800 [^\n]*was green\.\nIn the year 1838 [^\n]*was grey\.$/u
    expect(asked).toEqual([expect.stringMatching(both), expect.stringMatching(both), sample.question])
  })

  it('leave schemas out, and count characters as terms', async () => {
    const { engine } = await run('mem0', [json({ facts: [] }), { content: '' }], { options: { schema: false } })
    expect(engine.requests.map(({ schema }) => schema)).toEqual([undefined, undefined])
    const { transcript } = await run('rag-bm25', [{ content: '' }], {
      options: { terms: 'characters', chunkTokens: 24, retrievedTokens: 24 },
    })
    expect(transcript).toContain('Passages:')
  })
})

describe('the sculptor’s steps', () => {
  it('have the same numbers as in the record, including summaries and failed summaries', async () => {
    const said: ScriptedReply[] = [
      {
        calls: [
          { name: 'fragment_context', arguments: { start_marker: 'In the year 1800', end_marker: 'grey.', num_fragments: 2 } },
        ],
      },
      { calls: [{ name: 'summarize_fragment', arguments: { fragment_id: '', focus: 'names' } }] },
      { content: 'A summary.' },
      { calls: [{ name: 'search_context', arguments: { query: 'Orla' } }] },
      { content: 'Orla.' },
    ]
    const engine = new ScriptedEngine((request, step) => {
      const reply = said[step]!
      const id = request.messages.at(-1)?.content.match(/\bf[0-9a-f]{5}\b/u)?.[0] ?? ''
      return {
        ...reply,
        ...(reply.calls === undefined
          ? {}
          : {
              calls: reply.calls.map((call) => ({
                ...call,
                arguments: { ...call.arguments, ...(step === 1 ? { fragment_id: id } : {}) },
              })),
            }),
      }
    })
    const recorder = new Recorder(engine)
    const answered = await openAgent('sculptor').answer(settingOn(recorder))
    expect(answered.calls.map(({ step, name }) => [step, name])).toEqual([
      [0, 'fragment_context'],
      [1, 'summarize_fragment'],
      [3, 'search_context'],
    ])
    const steps = recorder.talks.flatMap((talk) => talk.steps)
    expect(steps.map(({ place, ledger }) => [place, ledger.kind])).toEqual([
      [0, 'answer'],
      [1, 'answer'],
      [3, 'answer'],
      [4, 'answer'],
      [2, 'summary'],
    ])
    expect(answered.details).toEqual({ fragments: 2, folded: 0, summarised: 1 })
  })
})

describe('embedders', () => {
  it.each(embeddingAgents)('are required by %s', async (kind) => {
    await expect(openAgent(kind).answer(settingOn(new ScriptedEngine([])))).rejects.toMatchObject({
      code: 'eval/bad-agent',
      message: /--embedder/u,
    })
  })

  it.each(embeddingAgents)('make %s fail when they fail', async (kind) => {
    const embedder: TextEmbedder = { name: 'broken', embed: () => Promise.reject(new KvfoldError('native/failed', 'No.')) }
    await expect(run(kind, facts, { embedder })).rejects.toMatchObject({ code: 'native/failed' })
  })
})

describe('the window', () => {
  it.each(['plain', 'sculptor'] as const)('makes %s fail as full when the sample does not fit', async (kind) => {
    await expect(run(kind, fold, { window: 200 })).rejects.toMatchObject({ code: 'context/full' })
    await expect(run(kind, fold, { context: 200 })).rejects.toMatchObject({ code: 'context/full' })
  })

  it('limits the answer to the room that is left', async () => {
    const { engine } = await run('plain', [{ content: 'Orla.' }], { window: 480 })
    const prompt = engine.count(sample.messages, [])
    expect(engine.requests[0]!.maxTokens).toBe(480 - prompt)
    expect(480 - prompt).toBeLessThan(task.maxTokens)
  })

  it('lets retrieving agents show fewer passages when it is small', async () => {
    const wide = await run('rag-bm25', [{ content: '' }], { options: { chunkTokens: 24 } })
    const narrow = await run('rag-bm25', [{ content: '' }], { options: { chunkTokens: 24 }, window: 240 })
    expect(wide.answered.details['passages']).toBe(20)
    expect(narrow.answered.details['passages']).toBeLessThan(8)
    const room = 240 - narrow.engine.count(narrow.engine.requests[0]!.messages, [])
    expect(room).toBeGreaterThanOrEqual(60)
    expect(room).toBeLessThan(60 + 24)
    await expect(run('rag-bm25', [{ content: '' }], { window: 90 })).rejects.toMatchObject({
      code: 'context/full',
      message: /no room/u,
    })
  })

  it('lets reading agents take smaller parts when it is small', async () => {
    const said = Array.from({ length: 40 }, () => ({ content: 'Orla it is.' }))
    const options = { newTokens: 40 }
    const { answered, engine } = await run('memagent', said, { options, window: 260 })
    expect(answered.details['parts']).toBeGreaterThan(2)
    for (const request of engine.requests)
      expect(engine.count(request.messages, []) + request.maxTokens!).toBeLessThanOrEqual(260)
    const none = said.map(() => json({ facts: [] }))
    const mem0 = await run('mem0', none, { options, window: 260 })
    expect(mem0.answered.details['parts']).toBeGreaterThan(2)
    for (const kind of ['memagent', 'mem0'] as const)
      await expect(run(kind, said, { options, window: 120 })).rejects.toMatchObject({ code: 'context/full', message: /no room/u })
  })

  it('is never full for memagent, which drops the middle of a text that is too long to read', async () => {
    const said = Array.from({ length: 3 }, () => ({ content: 'So.' }))
    const { answered, engine } = await run('memagent', said, { options: { contextTokens: 100 } })
    expect(answered.details).toMatchObject({ contextTokens: 436, parts: 1 })
    expect(answered.details['trimmedTokens']).toBeGreaterThanOrEqual(336)
    const shown = engine.requests[0]!.messages[0]!.content
    expect(shown).toContain('In the year 1800')
    expect(shown).toContain('In the year 1839')
    expect(shown).not.toContain('Orla')
  })
})

describe('the end of an agent', () => {
  const scripts: Readonly<Record<AgentKind, readonly ScriptedReply[]>> = {
    plain: [{ content: 'a' }],
    sculptor: fold,
    'rag-bm25': [{ content: 'a' }],
    'rag-dense': [{ content: 'a' }],
    memagent: Array.from({ length: 4 }, () => ({ content: 'a' })),
    mem0: facts,
    policy: [{ content: 'a' }],
    summary: [{ content: 'a' }],
    archive: [{ calls: [{ name: 'recall', arguments: { query: 'keeper' } }] }, { content: 'a' }],
    files: [{ calls: [{ name: 'search_file', arguments: { text: 'keeper' } }] }, { content: 'a' }],
    'edit-text': [{ calls: [{ name: 'delete_lines', arguments: { from: 1, to: 2 } }] }, { content: 'a' }],
  }
  const options: Readonly<Partial<Record<AgentKind, Record<string, unknown>>>> = {
    memagent: { chunkTokens: 150 },
    mem0: { chunkTokens: 150 },
  }
  const each = agentKinds.flatMap((kind) => Array.from({ length: scripts[kind].length }, (_, step) => [kind, step] as const))

  it.each(each)('%s ends as cancelled when the caller stops its step %i', async (kind, at) => {
    const stop = new AbortController()
    const engine = new ScriptedEngine((_, step) => {
      if (step === at) stop.abort()
      return scripts[kind][step]!
    })
    const agent = openAgent(kind, options[kind] ?? {})
    const setting = settingOn(engine, { embedder: wordEmbedder, signal: stop.signal })
    const answered = await agent.answer(setting)
    expect(answered.end).toBe('cancelled')
    expect(engine.requests.length).toBeLessThanOrEqual(at + 1)
  })

  it.each(agentKinds)('%s ends as cancelled when the caller stops it before it begins', async (kind) => {
    const engine = new ScriptedEngine([])
    const answered = await openAgent(kind).answer(settingOn(engine, { embedder: wordEmbedder, signal: AbortSignal.abort() }))
    expect(answered).toMatchObject({ answer: '', end: 'cancelled' })
    expect(engine.requests).toHaveLength(0)
  })

  it.each(agentKinds)('%s fails when its step is cancelled and the caller did not cancel it', async (kind) => {
    const engine = new ScriptedEngine((_, step) => ({ ...scripts[kind][step]!, finish: 'cancelled' }))
    await expect(openAgent(kind).answer(settingOn(engine, { embedder: wordEmbedder }))).rejects.toMatchObject({
      code: 'engine/cancelled',
    })
  })

  it.each(each)('%s fails with the engine’s error when step %i fails', async (kind, at) => {
    const engine = new ScriptedEngine((_, step) => {
      if (step === at) throw new KvfoldError('remote/overloaded', 'Later.')
      return scripts[kind][step]!
    })
    const failing = openAgent(kind, options[kind] ?? {}).answer(settingOn(engine, { embedder: wordEmbedder }))
    await expect(failing).rejects.toMatchObject({ code: 'remote/overloaded' })
  })

  it.each(each)('%s leaves no conversation on the engine, also when step %i fails', async (kind, at) => {
    const engine = new ScriptedEngine((_, step) => {
      if (step === at) throw new Error('Broken.')
      return scripts[kind][step]!
    })
    const forget = vi.spyOn(engine, 'forget')
    await openAgent(kind, options[kind] ?? {})
      .answer(settingOn(engine, { embedder: wordEmbedder }))
      .catch(() => undefined)
    const used = new Set(engine.requests.map(({ conversation }) => conversation))
    expect(new Set(forget.mock.calls.map(([conversation]) => conversation))).toEqual(used)
    for (const conversation of used) expect(conversation).toMatch(/^run-0\//u)
  })

  it('reports an answer that was cut off', async () => {
    const cut: ScriptedReply = { content: 'Or', finish: 'length' }
    expect((await run('plain', [cut])).answered.end).toBe('length')
    expect((await run('rag-bm25', [cut])).answered.end).toBe('length')
    const { answered } = await run('memagent', [cut, { content: 'Orla' }])
    expect(answered).toMatchObject({ end: 'stop', details: { memoriesCutOff: 1, memoryTokens: 1 } })
  })

  it('does not mix samples that run at once', async () => {
    const agent = openAgent('memagent', { chunkTokens: 150 })
    const engine = new ScriptedEngine(({ conversation }) => ({ content: `memory of ${conversation}` }))
    const names = ['s1', 's2', 's3']
    const all = await Promise.all(names.map((name) => agent.answer(settingOn(engine, { name }))))
    expect(all.map(({ answer }) => answer)).toEqual(names.map((name) => `memory of ${name}/answer`))
    for (const { conversation, messages } of engine.requests) {
      const [name = ''] = conversation.split('/')
      for (const other of names) if (other !== name) expect(messages[0]!.content).not.toContain(other)
    }
  })
})

it('the built-in model was trained for two agents, on pi-llm and needles only', () => {
  expect(agentKinds.filter((kind) => isBuiltinTrained(kind, 'pi-llm'))).toEqual(['plain', 'sculptor'])
  expect(agentKinds.filter((kind) => isBuiltinTrained(kind, 'needles'))).toEqual(['plain', 'sculptor'])
  expect(agentKinds.filter((kind) => isBuiltinTrained(kind, 'frames'))).toEqual([])
})
