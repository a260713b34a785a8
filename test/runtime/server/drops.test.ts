/** Tests AKV's fields: messages and reasoning that a client drops, what stays in their place, and the counts in usage. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { serving, type Serving } from './support/serving.js'
import type { LedgerEntry } from '../../../src/runtime/kv/ledger.js'

let served: Serving
beforeAll(async () => {
  served = await serving()
})
afterAll(() => served.close())

interface Answered {
  readonly choices: readonly { readonly message: { readonly role: string; readonly content: string } }[]
  readonly usage: {
    readonly prompt_tokens: number
    readonly prompt_tokens_details: {
      readonly cached_tokens: number
      readonly drop_skipped_tokens?: number
      readonly repos_tokens?: number
    }
  }
  readonly kvfold: { readonly thread: string; readonly ledger: readonly LedgerEntry[] }
  readonly error?: { readonly message: string; readonly param: string }
}

async function chat(messages: readonly object[], more: object = {}, contract = 'splice'): Promise<Answered> {
  const response = await fetch(`${served.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ messages, max_tokens: 4, kvfold: { ledger: true, contract }, ...more }),
  })
  return (await response.json()) as Answered
}

const user = (content: string) => ({ role: 'user', content })
const text = (of: string, at: number) => `Part ${at} of ${of}. ${'Some words that fill the page, one after another. '.repeat(8)}`

/** Has two turns, and returns the five messages of the third one: system, user, answer, user, answer, user. */
async function begun(of: string, contract?: string): Promise<object[]> {
  let messages: object[] = [{ role: 'system', content: `You read ${of}.` }]
  for (let at = 0; at < 2; at++) {
    messages = [...messages, user(text(of, at))]
    const { choices } = await chat(messages, {}, contract)
    messages = [...messages, choices[0]!.message]
  }
  return [...messages, user('And now?')]
}

describe('drop_message', () => {
  it('counts the messages as the request has them, also where results stand in another order than their calls', async () => {
    const call = (id: string) => ({ id, type: 'function', function: { name: 'look', arguments: '{}' } })
    const result = (id: string) => ({ role: 'tool', tool_call_id: id, content: text(`result ${id}`, 0) })
    const messages = [
      user('Look twice.'),
      { role: 'assistant', content: null, tool_calls: [call('a'), call('b')] },
      result('b'),
      result('a'),
      user('And now?'),
    ]
    const { kvfold } = await chat(messages, { drop_message: { '4': [2] } })
    const { all } = served.service.threads.get('public', kvfold.thread)
    const omitted = all.flatMap(({ message, omitted: parts }) => (parts.length === 0 ? [] : [message.toolCallId]))
    expect(omitted).toEqual(['b'])
  })

  it('counts the note on a long message beside the context tools', async () => {
    const long = 'Some words that fill the page. '.repeat(80)
    const messages = [user(long), { role: 'assistant', content: 'Read.' }, user(long), user('And now?')]
    const { usage, kvfold } = await chat(messages, { drop_message: { '3': [0] }, kvfold: { acm: 'tools' } })
    const { saves } = served.service.threads.get('public', kvfold.thread).events.at(-1)!
    expect(usage.prompt_tokens_details.drop_skipped_tokens).toBe(saves)
  })

  it.each(['splice', 'exact'])('takes messages out of the prompt under %s, and counts them', async (contract) => {
    const messages = await begun(`drops under ${contract}`, contract)
    const before = served.service.status().models[0]!.loaded!.submitted!
    const { usage, kvfold } = await chat(messages, { drop_message: { '3': [1, 2] } }, contract)
    const [entry] = kvfold.ledger as [LedgerEntry]
    // The books say the same as the addon.
    expect(served.service.status().models[0]!.loaded!.submitted! - before).toBe(entry.submitted)
    const shown = new Map(entry.messages.map(({ index, shown: tokens }) => [index, tokens]))
    expect([shown.get(1), shown.get(2)]).toEqual([0, 0])
    expect(shown.get(3)).toBeGreaterThan(80)
    const { drop_skipped_tokens: skipped, repos_tokens: moved } = usage.prompt_tokens_details
    expect(skipped).toBeGreaterThan(80)
    expect(moved).toBe(0)
    // Under splice the cells behind stay; under exact they are those of a fresh prefill.
    if (contract === 'splice') expect(entry).toMatchObject({ contract, recomputed: 0, positions: entry.shown + skipped! })
    else expect(entry).toMatchObject({ contract, approximate: 0, positions: entry.shown })
    expect(entry.recomputed > 80).toBe(contract === 'exact')

    // They stay dropped, as folds, and can be shown again.
    const view = served.service.threads.get('public', kvfold.thread)
    expect(view.all.flatMap(({ omitted }) => omitted).map(({ message }) => message)).toEqual([1, 2])
    expect(view.events.at(-1)).toMatchObject({ reason: 'the client drops messages', saves: skipped })
  })

  it('reposition moves what stays to the positions of what is gone', async () => {
    const messages = await begun('repositions')
    const { usage, kvfold, choices } = await chat(messages, { drop_message: { '3': [1, 2] }, reposition: [3] })
    const [entry] = kvfold.ledger as [LedgerEntry]
    const behind = entry.messages.filter(({ index }) => index > 1).reduce((sum, { shown }) => sum + shown, 0)
    expect(usage.prompt_tokens_details.repos_tokens).toBe(behind)
    const next = await chat([...messages, choices[0]!.message, user('Then?')])
    const [later] = next.kvfold.ledger as [LedgerEntry]
    expect(later.recomputed).toBe(0)
    expect(later.positions).toBe(later.shown)
  })

  it('says what is wrong', async () => {
    const messages = [user('One'), user('Two')]
    const error = async (more: object) => (await chat(messages, more)).error!
    expect((await error({ drop_message: { '9': [0] } })).message).toMatch(
      /drop_message\["9"\] names no message; the request has 2/,
    )
    expect((await error({ drop_message: { x: [0] } })).param).toBe('drop_message["x"]')
    expect((await error({ drop_message: { '1': [1] } })).message).toMatch(/drops message 1, which is not before message 1/)
    expect((await error({ reposition: [7] })).message).toMatch(/reposition names message 7/)
    expect((await error({ drop_rule: { type: 'all' } })).message).toMatch(/drop_rule/)
  })
})

it('drop_rule message_drop keeps the newest results of tools', async () => {
  const tools = [{ type: 'function', function: { name: 'read', parameters: { type: 'object' } } }]
  const messages = [
    user('Read it all.'),
    ...[0, 1, 2, 3].flatMap((at) => [
      {
        role: 'assistant',
        content: null,
        tool_calls: [{ id: `c${at}`, type: 'function', function: { name: 'read', arguments: '{}' } }],
      },
      { role: 'tool', tool_call_id: `c${at}`, content: text('the results', at) },
    ]),
  ]
  const rule = { drop_rule: { type: 'message_drop', keep_tool_responses: 2 }, tools, tool_choice: 'none' }
  const { kvfold, usage } = await chat(messages, rule)
  const [entry] = kvfold.ledger as [LedgerEntry]
  const results = entry.messages.filter(({ role }) => role === 'tool').map(({ shown }) => shown > 0)
  expect(results).toEqual([false, false, true, true])
  expect(usage.prompt_tokens_details.drop_skipped_tokens).toBeGreaterThan(160)
  const all = await chat([user('Hm.'), ...messages], { drop_rule: { type: 'thinking_drop' }, tools, tool_choice: 'none' })
  expect(all.usage.prompt_tokens_details).toMatchObject({ drop_skipped_tokens: 0, repos_tokens: 0 })
})
