/**
 * Tests clients that change their earlier messages, over a real server with the built-in model: the recognised changes, their cost and the
 * prompt.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { serving, type Serving } from './support/serving.js'

interface Message {
  readonly role: string
  readonly content: string
  readonly [more: string]: unknown
}

interface Told {
  readonly choices: readonly { readonly message: Message }[]
  readonly usage: {
    readonly kvfold: { readonly saved_tokens: number; readonly saved_seconds: number }
    readonly prompt_tokens: number
    readonly prompt_tokens_details: { readonly cached_tokens: number }
  }
  readonly kvfold: {
    readonly thread: string
    readonly ledger?: readonly { readonly plain: number; readonly submitted: number; readonly approximate: number }[]
    readonly edits: null | {
      readonly contract: string
      readonly changes: readonly { kind: string; message: number; was: number }[]
      readonly approximate: number
    }
  }
}

const user = (content: string): Message => ({ role: 'user', content })
const long = (topic: string) => user(`About ${topic}: ${`the ${topic} is what it is, and it goes on. `.repeat(12)}`)

let served: Serving

beforeAll(async () => {
  served = await serving()
})
afterAll(() => served.close())

/**
 * Sends a chat completion.
 * @param kvfold null sends the request without the field
 */
async function ask(messages: readonly Message[], kvfold: object | null = {}, key = ''): Promise<Told> {
  const response = await fetch(`${served.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...(key === '' ? {} : { authorization: `Bearer ${key}` }) },
    body: JSON.stringify({
      ...{ model: 'builtin', messages, max_tokens: 8, temperature: 0 },
      ...(kvfold === null ? {} : { kvfold }),
    }),
  })
  const text = await response.text()
  expect([response.status, text]).toEqual([200, text])
  return JSON.parse(text) as Told
}

/** Runs five turns. Returns the messages with their answers, and the thread. */
async function talk(name: string, kvfold: object = {}): Promise<{ readonly messages: Message[]; readonly thread: string }> {
  const messages: Message[] = []
  let thread = ''
  for (let turn = 0; turn < 5; turn++) {
    messages.push(long(`${name} ${turn}`))
    const told = await ask(messages, kvfold)
    thread = told.kvfold.thread
    messages.push(told.choices[0]!.message)
  }
  return { messages: messages.map(({ role, content }) => ({ role, content })), thread }
}

describe('a client that changes its messages', () => {
  it.each<[string, string, (messages: Message[]) => void, readonly { kind: string; message: number; was: number }[]]>([
    [
      'replaces',
      'replaced',
      (all) => (all[2] = user(`${all[2]!.content} And more.`)),
      [{ kind: 'replaced', message: 2, was: 1 }],
    ],
    ['shortens', 'shortened', (all) => (all[2] = user('[cleared]')), [{ kind: 'shortened', message: 2, was: 1 }]],
    ['empties', 'emptied', (all) => (all[2] = user('')), [{ kind: 'emptied', message: 2, was: 1 }]],
    ['removes', 'removed', (all) => all.splice(2, 2), [1, 2].map(() => ({ kind: 'removed', message: 2, was: 1 }))],
    ['inserts', 'inserted', (all) => all.splice(2, 0, user('By the way.')), [{ kind: 'inserted', message: 2, was: 0 }]],
    [
      'compacts',
      'summarised',
      (all) => all.splice(0, 6, user('Summary: colours.')),
      [{ kind: 'summarised', message: 0, was: 6 }],
    ],
  ])('%s: the change is an exact edit of its thread, equal to a fresh conversation', async (_, name, change, changes) => {
    const { messages, thread } = await talk(name)
    const changed = [...messages]
    change(changed)
    changed.push(user('Go on.'))
    const told = await ask(changed)
    expect(told.kvfold.thread).toBe(thread)
    expect(told.kvfold.edits).toEqual({ contract: 'exact', changes, approximate: 0 })
    // The same messages in a new thread get the same answer.
    const fresh = await ask(changed, { thread: (await ask([user(`Fresh ${name}`)])).kvfold.thread })
    expect(told.usage.prompt_tokens).toBe(fresh.usage.prompt_tokens)
    expect(told.choices[0]!.message.content).toBe(fresh.choices[0]!.message.content)
    const view = served.service.threads.view('public', thread)
    expect(view.slice(0, -1).map(({ role, content }) => ({ role, content }))).toEqual(changed)
    expect(served.service.threads.get('public', thread).events.map(({ kind }) => kind)).toEqual(['client'])
  })

  it('computes the placeholders under splice, and nothing when the text is sent again', async () => {
    const { messages, thread } = await talk('moon', { client_edits: 'splice' })
    const pruned = messages.map((message, at) => (at % 2 === 0 && at < 6 ? user('[cleared]') : message))
    const spliced = await ask([...pruned, user('Go on.')], { client_edits: 'splice', ledger: true })
    const { kvfold, usage } = spliced
    expect(kvfold.thread).toBe(thread)
    expect(kvfold.edits?.changes.map(({ kind }) => kind)).toEqual(['shortened', 'shortened', 'shortened'])
    expect(kvfold.edits?.approximate).toBeGreaterThan(0)
    expect(usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens).toBeLessThan(80)
    // A plain prefix cache would compute everything after the first placeholder; the ledger has the tokens computed here.
    const [entry] = kvfold.ledger!
    expect(usage.kvfold.saved_tokens).toBe(entry!.plain - entry!.submitted)
    expect(usage.kvfold.saved_tokens).toBeGreaterThan(usage.prompt_tokens / 2)
    const metrics = await (await fetch(`${served.url}/metrics`)).text()
    const total = Number(/^kvfold_saved_tokens_total\{.*\} (\d+)$/m.exec(metrics)?.[1])
    expect(total).toBeGreaterThanOrEqual(usage.kvfold.saved_tokens)
    const again = await ask([...messages, user('Go on.'), spliced.choices[0]!.message, user('And?')], { client_edits: 'splice' })
    expect(again.kvfold.thread).toBe(thread)
    expect(again.kvfold.edits?.changes.map(({ kind }) => kind)).toEqual(['restored', 'restored', 'restored'])
    expect(again.usage.prompt_tokens - again.usage.prompt_tokens_details.cached_tokens).toBeLessThan(40)
  })

  it('that leaves out the last answer gets a fork, which shares the cells of the thread under the same contract', async () => {
    const { messages, thread } = await talk('star', { client_edits: 'splice' })
    const pruned = [user('[cleared]'), ...messages.slice(1)]
    await ask([...pruned, user('Go on.')], { client_edits: 'splice' })
    const other = await ask([...pruned.slice(0, -1), user('Something else.')], { client_edits: 'splice' })
    expect(other.kvfold.thread).not.toBe(thread)
    expect(other.usage.prompt_tokens_details.cached_tokens).toBeGreaterThan(other.usage.prompt_tokens / 2)
    const back = await ask([...pruned, user('Go on.')], { client_edits: 'splice' })
    expect(back.usage.prompt_tokens - back.usage.prompt_tokens_details.cached_tokens).toBeLessThan(40)
  })

  it('gets the number of approximate tokens, including those of earlier edits, even without asking for kvfold fields', async () => {
    const { messages, thread } = await talk('comet', { client_edits: 'splice' })
    const pruned = [user('[cleared]'), ...messages.slice(1), user('Go on.')]
    const first = await ask(pruned, { client_edits: 'splice', ledger: true })
    const next = [...pruned, first.choices[0]!.message, user('And?')]
    const second = await ask(next, { client_edits: 'splice', ledger: true })
    for (const { kvfold } of [first, second]) {
      expect(kvfold.thread).toBe(thread)
      expect(kvfold.edits?.approximate).toBe(kvfold.ledger!.at(-1)!.approximate)
      expect(kvfold.edits?.approximate).toBeGreaterThan(100)
    }
    expect([second.kvfold.edits?.contract, second.kvfold.edits?.changes]).toEqual(['splice', []])
    // Under the server's contract, exact, approximate cells are recomputed, so there is nothing to report.
    const third = [...next, second.choices[0]!.message, user('So?')]
    expect((await ask(third, { ledger: true })).kvfold.edits).toBe(null)
    const defaults = served
    served = await serving({ service: { defaults: { clientEdits: 'splice' } } })
    try {
      const other = await talk('comet')
      const { kvfold, ...told } = await ask([user('[cleared]'), ...other.messages.slice(1), user('Go on.')], null)
      expect(told.choices).toHaveLength(1)
      expect(kvfold).toEqual({
        edits: {
          contract: 'splice',
          changes: [{ kind: 'shortened', message: 0, was: 1 }],
          approximate: expect.any(Number) as number,
        },
      })
    } finally {
      await served.close()
      served = defaults
    }
  })

  it('is not matched with a thread that has little in common with its messages', async () => {
    const { thread } = await talk('sun')
    const told = await ask([user('Quite another question.'), { role: 'assistant', content: 'Yes.' }, user('Go on.')])
    expect(told.kvfold.thread).not.toBe(thread)
    expect(told.kvfold.edits).toBe(null)
  })
})

describe('another conversation', () => {
  const splice = { client_edits: 'splice', ledger: true }
  const answered = (content: string): Message => ({ role: 'assistant', content })
  const system = (content: string): Message => ({ role: 'system', content })
  const examples = (of: string): Message[] =>
    [0, 1, 2, 3].flatMap((at) => [long(`${of} example ${at}`), answered(`Label ${at}.`)])
  /** Checks by the hashes of its cells that the step computed the same as a fresh prefill. */
  const isExact = ({ kvfold }: Told) => {
    expect([kvfold.edits, kvfold.ledger!.at(-1)!.approximate]).toEqual([null, 0])
  }

  it('is a new question over the same examples: it reuses their cells, and nothing is approximate', async () => {
    const few = [system('Label it.'), ...examples('few')]
    const first = await ask([...few, long('first question')], splice)
    const threads = new Set([first.kvfold.thread])
    for (const of of ['second', 'third']) {
      const messages = [...few, long(`${of} question`)]
      const told = await ask(messages, splice)
      threads.add(told.kvfold.thread)
      expect(told.usage.prompt_tokens_details.cached_tokens).toBeGreaterThan(told.usage.prompt_tokens / 2)
      isExact(told)
    }
    expect(threads.size).toBe(3)
  })

  it('has the same examples under another system prompt, only some of them, or in another order', async () => {
    const of = examples('other')
    const question = long('other question')
    const first = await ask([system('Label it.'), ...of, question], splice)
    for (const messages of [
      [system('Give it a label, please.'), ...of, question],
      [system('Label it.'), ...of.slice(2), question],
      [system('Label it.'), ...of.slice(4), ...of.slice(0, 4), question],
    ]) {
      const told = await ask(messages, splice)
      expect(told.kvfold.thread).not.toBe(first.kvfold.thread)
      isExact(told)
    }
  })

  it("is a fork with another last message after the thread's answers", async () => {
    const { messages } = await talk('fork', splice)
    const fork = [...messages.slice(0, -2), long('another ending')]
    isExact(await ask(fork, splice))
  })

  it('is an edit if it has an answer of the thread, and the response says so', async () => {
    const { messages, thread } = await talk('system', splice)
    const told = await ask([system('Be brief.'), ...messages, user('Go on.')], splice)
    expect(told.kvfold.thread).toBe(thread)
    expect(told.kvfold.edits?.changes).toEqual([{ kind: 'inserted', message: 0, was: 0 }])
    expect(told.kvfold.edits?.approximate).toBe(told.kvfold.ledger!.at(-1)!.approximate)
    expect(told.kvfold.edits?.approximate).toBeGreaterThan(100)
  })
})

it('client edits follow the contract of the key; the log has the tokens that every answer saved', async () => {
  const before = served
  served = await serving({
    keys: [
      { name: 'agent', key: 'a' },
      { name: 'other', key: 'b' },
    ],
    service: { defaults: { clientEditsOf: new Map([['agent', 'splice']]) } },
  })
  try {
    const contracts: (string | undefined)[] = []
    for (const [key, own] of [
      ['a', {}],
      ['b', {}],
      ['a', { client_edits: 'blend' }],
    ] as const) {
      const messages = [long(`key ${contracts.length}`)]
      messages.push((await ask(messages, {}, key)).choices[0]!.message, long(`more of key ${contracts.length}`))
      messages.push((await ask(messages, {}, key)).choices[0]!.message, user('Go on.'))
      const told = await ask([user('[cleared]'), ...messages.slice(1)], own, key)
      contracts.push(told.kvfold.edits?.contract)
    }
    expect(contracts).toEqual(['splice', 'exact', 'blend'])
    const savings = () => served.log.flatMap((line) => (JSON.parse(line) as { saved?: number }).saved ?? [])
    // The log line is written when the whole answer is on its way.
    await expect.poll(savings, { timeout: 30_000 }).toHaveLength(9)
    const saved = savings()
    expect(saved[2]).toBeGreaterThan(0)
  } finally {
    await served.close()
    served = before
  }
})
