/** Tests conversations that clients name by headers: their threads are found by that name, then by their messages. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { sessionOf } from '../../../src/runtime/server/dialects/session-headers.js'
import { serving, type Serving } from './support/serving.js'

interface Message {
  readonly role: 'system' | 'user' | 'assistant'
  readonly content: string
}

interface Answered {
  readonly choices: readonly { readonly message: { readonly content: string } }[]
  readonly usage: { readonly prompt_tokens: number; readonly prompt_tokens_details: { readonly cached_tokens: number } }
  readonly kvfold: {
    readonly thread: string
    readonly edits: null | { readonly approximate: number; readonly changes: readonly { readonly kind: string }[] }
  }
}

const user = (content: string): Message => ({ role: 'user', content })
const assistant = (content: string): Message => ({ role: 'assistant', content })
const long = (topic: string) => `About ${topic}: ${`the ${topic} is what it is, and it goes on. `.repeat(12)}`

let served: Serving
beforeAll(async () => {
  served = await serving()
})
afterAll(() => served.close())

async function ask(messages: readonly Message[], headers: Record<string, string>, kvfold: object = {}): Promise<Answered> {
  const response = await fetch(`${served.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify({ model: 'builtin', messages, max_tokens: 8, temperature: 0, kvfold }),
  })
  const text = await response.text()
  expect([response.status, text]).toEqual([200, text])
  return JSON.parse(text) as Answered
}

const splice = { client_edits: 'splice' }

describe('a named session', () => {
  it('has its edits recognised where the client writes the answers anew', async () => {
    const turns = (topic: string) => [user(long(`${topic} one`)), user(long(`${topic} two`)), user(long(`${topic} three`))]
    const rewritten = (topic: string, first: string) => {
      const [, two, three] = turns(topic)
      return [user(first), assistant('Noted by the client.'), two!, assistant('Noted, too.'), three!]
    }
    const play = async (topic: string, headers: Record<string, string>) => {
      await ask(rewritten(topic, long(`${topic} one`)), headers, splice)
      return ask([...rewritten(topic, 'Cleared.'), assistant('Noted again.'), user('Go on.')], headers, splice)
    }
    const named = await play('stone', { 'x-session-id': 'edits' })
    expect(named.kvfold.edits?.changes).toEqual([{ kind: 'shortened', message: 0, was: 1 }])
    expect(named.kvfold.edits?.approximate).toBeGreaterThan(0)
    // Without a name it is another conversation with some of the same messages.
    const unnamed = await play('river', {})
    expect(unnamed.kvfold.edits).toBeNull()
    expect(named.usage.prompt_tokens_details.cached_tokens).toBeGreaterThan(unnamed.usage.prompt_tokens_details.cached_tokens)
  })

  it('continues its own thread, although another session has the same messages', async () => {
    const first = [user(long('paper'))]
    const one = await ask(first, { 'thread-id': 'one' })
    const two = await ask(first, { 'thread-id': 'two' })
    expect(two.kvfold.thread).not.toBe(one.kvfold.thread)
    const next = [...first, assistant(one.choices[0]!.message.content), user('Go on.')]
    expect((await ask(next, { 'thread-id': 'one' })).kvfold.thread).toBe(one.kvfold.thread)
    expect((await ask(next, { 'thread-id': 'two' })).kvfold.thread).toBe(two.kvfold.thread)
  })

  it('forks the thread of its parent, which stays as it was', async () => {
    const first = [user(long('window'))]
    const parent = await ask(first, { 'x-dynamo-session-id': 'parent' })
    const next = [...first, assistant(parent.choices[0]!.message.content), user('Look into it.')]
    const fork = await ask(next, { 'x-dynamo-session-id': 'child', 'x-dynamo-parent-session-id': 'parent' })
    expect(fork.kvfold.thread).not.toBe(parent.kvfold.thread)
    expect(fork.usage.prompt_tokens_details.cached_tokens).toBeGreaterThan(100)
    const on = await ask([...next.slice(0, 2), user('Go on.')], { 'x-dynamo-session-id': 'parent' })
    expect(on.kvfold.thread).toBe(parent.kvfold.thread)
  })

  it('may ask something unrelated beside its conversation', async () => {
    const main = [user(long('train'))]
    const headers = { 'x-claude-code-session-id': 'coding' }
    const first = await ask(main, headers)
    const title = await ask([{ role: 'system', content: 'You write titles.' }, user('Write a title.')], headers)
    expect(title.kvfold.thread).not.toBe(first.kvfold.thread)
    const next = await ask([...main, assistant(first.choices[0]!.message.content), user('Go on.')], headers)
    expect(next.kvfold.thread).toBe(first.kvfold.thread)
  })
})

describe('the headers of a session', () => {
  it.each([
    ['x-claude-code-session-id', { 'x-claude-code-session-id': 's' }, '["s",null]', undefined],
    ['a Claude Code subagent', { 'x-claude-code-session-id': 's', 'x-claude-code-agent-id': 'a' }, '["s","a"]', '["s",null]'],
    [
      "a subagent's subagent",
      { 'x-claude-code-session-id': 's', 'x-claude-code-agent-id': 'b', 'x-claude-code-parent-agent-id': 'a' },
      '["s","b"]',
      '["s","a"]',
    ],
    ['Codex', { 'thread-id': 't', 'x-codex-parent-thread-id': 'p' }, '["t",null]', '["p",null]'],
    ['opencode', { 'x-session-id': 't', 'x-parent-session-id': 'p' }, '["t",null]', '["p",null]'],
    ['Dynamo', { 'x-dynamo-session-id': 't', 'x-dynamo-parent-session-id': 'p' }, '["t",null]', '["p",null]'],
  ])('%s', (_, headers, name, parent) => {
    const { session } = sessionOf({ ...headers, host: 'localhost' })
    expect([session?.name, session?.parent]).toEqual([name, parent])
    expect(session?.headers).toEqual(headers)
  })

  it('say that nothing follows', () => {
    expect(sessionOf({ 'x-dynamo-session-id': 't', 'x-dynamo-session-final': 'true' }).expectedReuse).toBe(0)
    expect(sessionOf({ 'x-dynamo-session-id': 't', 'x-dynamo-session-final': 'false' }).expectedReuse).toBeUndefined()
    expect(sessionOf({ host: 'localhost' })).toEqual({})
  })

  it('are refused when a name is too long', () => {
    expect(() => sessionOf({ 'x-session-id': 'x'.repeat(300) })).toThrow(
      'The header x-session-id has 300 characters; the longest name has 256.',
    )
  })
})
