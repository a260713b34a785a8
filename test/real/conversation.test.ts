/**
 * A conversation with each real instruct model over HTTP: template, tools, a fold, its restore, a schema, a stop string. What a model says is its own; the
 * tests look at the form of it, and at what was computed and shown for it.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { TEST_GPU } from '../support/device.js'
import { serving, type Serving } from '../runtime/server/support/serving.js'
import { NEEDED, REAL_MODELS } from './support/models.js'

const INSTRUCT = ['smollm2', 'qwen-0.5b', 'qwen-1.5b'].filter((name) => REAL_MODELS[name] !== undefined)

interface Message {
  readonly role: string
  readonly content: string | null
  readonly tool_calls?: readonly {
    readonly id: string
    readonly function: { readonly name: string; readonly arguments: string }
  }[]
  readonly tool_call_id?: string
}
interface Completion {
  readonly choices: readonly [
    {
      readonly message: Message
      readonly finish_reason: string
      readonly logprobs: null | {
        readonly content: readonly { readonly top_logprobs: readonly { token: string; logprob: number }[] }[]
      }
    },
  ]
  readonly usage: {
    readonly prompt_tokens: number
    readonly completion_tokens: number
    readonly prompt_tokens_details: { readonly cached_tokens: number }
  }
  readonly kvfold: {
    readonly thread: string
    readonly ledger: readonly {
      readonly shown: number
      readonly submitted: number
      readonly approximate: number
      readonly replaced: number
    }[]
  }
}

const WEATHER = {
  type: 'function',
  function: {
    name: 'weather',
    description: 'Tells the weather of a city.',
    parameters: {
      type: 'object',
      properties: { city: { type: 'string', maxLength: 20 }, unit: { enum: ['celsius', 'fahrenheit'] } },
      required: ['city', 'unit'],
      additionalProperties: false,
    },
  },
}
const ROOMS = ['cellar', 'tower', 'library', 'shed', 'vault', 'hall', 'kitchen', 'attic']
const WORDS = ['velvet', 'amber', 'copper', 'walnut', 'silver', 'marble', 'cotton', 'ginger']
const day = (name: string, shift: number) =>
  `${name}. ${ROOMS.map((room, at) => `The password of the ${room} is ${WORDS[(at + shift) % WORDS.length]!}.`).join(' ')}`
const LOGBOOK = [day('Monday', 0), day('Tuesday', 3), day('Wednesday', 5)].join('\n\n')
const SYSTEM: Message = { role: 'system', content: 'You answer questions about a logbook in one short sentence.' }
const user = (content: string): Message => ({ role: 'user', content })
const QUESTION = 'What is the password of the tower on Wednesday?'
/** Tenants: what was computed for one never serves another. */
const KEYS = ['main', 'stop-whole', 'stop-early', 'fresh-0', 'fresh-1', 'fresh-2']
/** Of a template; none may be left in a text. */
const SPECIAL = /<\|[a-z_]+\|>/

if (INSTRUCT.length === 0) it.skip(NEEDED)

describe.each(INSTRUCT)('%s', { timeout: 600_000 }, (name) => {
  let served: Serving

  beforeAll(async () => {
    served = await serving({
      keys: KEYS.map((key) => ({ name: key, key })),
      engine: async () =>
        LlamaEngine.load(await openNative({ gpu: TEST_GPU }), REAL_MODELS[name]!, { cells: 8192, slots: 2, hostBytes: 2 ** 28 }),
    })
  }, 600_000)
  afterAll(() => served.close())

  /** @param key of a tenant */
  async function post<T>(path: string, body: object, key: string): Promise<T> {
    const response = await fetch(served.url + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json', authorization: `Bearer ${key}` },
      body: JSON.stringify(body),
    })
    const text = await response.text()
    expect([response.status, text]).toEqual([200, text])
    return JSON.parse(text) as T
  }
  const ask = (messages: readonly Message[], more: object = {}, key = 'main') =>
    post<Completion>(
      '/v1/chat/completions',
      {
        model: 'builtin',
        messages,
        temperature: 0,
        max_tokens: 48,
        ...more,
        kvfold: { ledger: true, ...(more as { kvfold?: object }).kvfold },
      },
      key,
    )
  const computed = ({ usage }: Completion) => usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens
  /** The likeliest first tokens of an answer. */
  const first = ({ choices: [{ logprobs }] }: Completion) => logprobs!.content[0]!.top_logprobs
  const likely = { max_tokens: 1, logprobs: true, top_logprobs: 10 }
  /** The largest difference over the tokens that both have. */
  function distance(one: Completion, other: Completion) {
    const theirs = new Map(first(other).map(({ token, logprob }) => [token, logprob]))
    const both = first(one).filter(({ token }) => theirs.has(token))
    expect(both.length).toBeGreaterThan(4)
    return Math.max(...both.map(({ token, logprob }) => Math.abs(logprob - theirs.get(token)!)))
  }

  it('answers by its template, and computes only what a later turn appends', async () => {
    const messages = [SYSTEM, user(`${LOGBOOK}\n\nWhich rooms are in the logbook?`)]
    const one = await ask(messages)
    const { message, finish_reason } = one.choices[0]
    expect(message.content).toMatch(/\w/)
    expect(message.content).not.toMatch(SPECIAL)
    expect(['stop', 'length']).toContain(finish_reason)

    const next = await ask([...messages, message, user(QUESTION)])
    expect(next.kvfold.thread).toBe(one.kvfold.thread)
    // The question, the turn's frame, and the end of the answer before it.
    expect(computed(next)).toBeLessThan(40)
    expect(next.choices[0].message.content).not.toMatch(SPECIAL)
  })

  it('calls a tool whose arguments keep to its schema, and reads the result', async () => {
    const messages = [SYSTEM, user('How is the weather in Oslo, in celsius?')]
    const asked = await ask(messages, { tools: [WEATHER], tool_choice: 'required', parallel_tool_calls: false, max_tokens: 96 })
    const { message, finish_reason } = asked.choices[0]
    expect(finish_reason).toBe('tool_calls')
    const call = message.tool_calls![0]!
    expect(call.function.name).toBe('weather')
    const args = JSON.parse(call.function.arguments) as { city: string; unit: string }
    expect(Object.keys(args).sort()).toEqual(['city', 'unit'])
    expect(['celsius', 'fahrenheit']).toContain(args.unit)

    const results = message.tool_calls!.map(({ id }) => ({ role: 'tool', tool_call_id: id, content: 'Snow, -4 degrees.' }))
    const answered = await ask([...messages, message, ...results], { tools: [WEATHER], tool_choice: 'none' })
    expect(answered.kvfold.thread).toBe(asked.kvfold.thread)
    expect(computed(answered)).toBeLessThan(40 + 20 * results.length)
    expect(answered.choices[0].message.content).toMatch(/\w/)
  })

  it('keeps to a schema', async () => {
    const schema = {
      type: 'object',
      properties: {
        room: { enum: ROOMS },
        days: { type: 'integer', minimum: 1, maximum: 3 },
        words: { type: 'array', items: { enum: WORDS }, minItems: 2, maxItems: 2 },
      },
      required: ['room', 'days', 'words'],
      additionalProperties: false,
    }
    const asked = await ask([SYSTEM, user(`${LOGBOOK}\n\nName a room, its number of days and two passwords, as JSON.`)], {
      response_format: { type: 'json_schema', json_schema: { name: 'entry', strict: true, schema } },
      max_tokens: 200,
    })
    const entry = JSON.parse(asked.choices[0].message.content!) as { room: string; days: number; words: string[] }
    expect(ROOMS).toContain(entry.room)
    expect([1, 2, 3]).toContain(entry.days)
    expect(entry.words.length).toBe(2)
    for (const word of entry.words) expect(WORDS).toContain(word)
  })

  it('ends before a stop string', async () => {
    const messages = [SYSTEM, user(`${LOGBOOK}\n\nWrite what happened on Monday.`)]
    const whole = (await ask(messages, {}, 'stop-whole')).choices[0].message.content!
    const stop = whole.slice(12, 18)
    const stopped = await ask(messages, { stop: [stop] }, 'stop-early')
    expect(stopped.choices[0].finish_reason).toBe('stop')
    expect(stopped.choices[0].message.content).toBe(whole.slice(0, whole.indexOf(stop)))
  })

  it('shows after an exact fold and after its restore what a fresh prefill shows', async () => {
    const messages = [SYSTEM, user(LOGBOOK), { role: 'assistant', content: 'I have read the logbook.' }]
    const begun = await ask([...messages, user('Is that all?')], { max_tokens: 4 })
    const { thread } = begun.kvfold
    const shown = [...messages, user('Is that all?'), begun.choices[0].message]
    const path = `/kvfold/threads/${thread}/fragments`
    const { fragments } = await post<{ fragments: readonly { id: string }[] }>(
      path,
      { startMarker: 'Monday.', endMarker: 'Tuesday.', numFragments: 1, role: 'user' },
      'main',
    )
    const { id } = fragments[0]!
    const turn = async (question: string) => {
      shown.push(user(question))
      const reply = await ask(shown, likely)
      shown.push(reply.choices[0].message)
      return reply
    }
    const before = await turn(QUESTION)
    await post(`${path}/${id}/fold`, {}, 'main')
    const folded = await turn('And the password of the shed?')
    await post(`${path}/${id}/restore`, {}, 'main')
    const restored = await turn('And the password of the attic?')

    for (const { kvfold } of [folded, restored]) {
      expect(kvfold.thread).toBe(thread)
      expect(kvfold.ledger.map(({ approximate }) => approximate)).toEqual(kvfold.ledger.map(() => 0))
    }
    expect(folded.usage.prompt_tokens).toBeLessThan(before.usage.prompt_tokens)
    expect(restored.usage.prompt_tokens).toBeGreaterThan(before.usage.prompt_tokens)
    // Its cells were parked: what the turns behind the fold appended is computed, in their own places, and nothing before it.
    expect(computed(restored)).toBeLessThan(80)

    // Fresh prefills of the same prompt, cut into other batches: what they differ by is rounding.
    const fresh = await Promise.all(
      [0, 1, 2].map(async (cut) => {
        const key = `fresh-${cut}`
        if (cut > 0)
          await ask(
            messages.slice(0, cut + 1).map((each, at) => (at === cut ? user('?') : each)),
            { max_tokens: 1 },
            key,
          )
        return ask(shown.slice(0, -1), likely, key)
      }),
    )
    const noise = Math.max(distance(fresh[0]!, fresh[1]!), distance(fresh[0]!, fresh[2]!), distance(fresh[1]!, fresh[2]!))
    const away = distance(restored, fresh[0]!)
    console.log(
      `${name}: fresh prefills differ by ${noise.toExponential(1)}, a restored conversation by ${away.toExponential(1)}`,
    )
    expect(away).toBeLessThanOrEqual(3 * noise + 1e-3)
  })
})
