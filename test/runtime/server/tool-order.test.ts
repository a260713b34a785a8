/**
 * Tests clients that send their tools in another order, or other tools, over HTTP to a real engine: the tokens computed, the prompt, and
 * the report.
 */
import { afterAll, beforeAll, expect, it } from 'vitest'
import type { LedgerEntry } from '../../../src/runtime/kv/ledger.js'
import { endless, serving, type Serving } from './support/serving.js'

let served: Serving
beforeAll(async () => {
  served = await serving()
})
afterAll(() => served.close())

const NAMES = ['read_file', 'write_file', 'list_folder', 'delete_file']
const toolsOf = (names: readonly string[]) =>
  names.map((name) => ({
    type: 'function',
    function: {
      name,
      description: `Does ${name} on a disk.`,
      parameters: { type: 'object', properties: { path: { type: 'string' } } },
    },
  }))

interface Reply {
  readonly usage: { readonly prompt_tokens: number }
  readonly choices: readonly { readonly message: { readonly content: string } }[]
  readonly kvfold: { readonly thread: string; readonly ledger: readonly LedgerEntry[] }
}

/** Runs one turn for each list of tools. Returns the replies. */
async function talk(about: string, lists: readonly (readonly string[])[]): Promise<readonly Reply[]> {
  const messages: { role: string; content: string }[] = []
  const replies: Reply[] = []
  for (const [turn, names] of lists.entries()) {
    messages.push({ role: 'user', content: `Turn ${turn} about ${about}: what is there to say of it in a few words?` })
    const body = { messages, tools: toolsOf(names), max_tokens: 8, kvfold: { ...endless.kvfold, ledger: true } }
    const response = await fetch(`${served.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
    const text = await response.text()
    expect(response.status, text).toBe(200)
    const reply = JSON.parse(text) as Reply
    replies.push(reply)
    messages.push({ role: 'assistant', content: reply.choices[0]!.message.content })
  }
  return replies
}

const [a, b, c, d] = NAMES as [string, string, string, string]
const shownTo = ({ kvfold }: Reply) => served.service.threads.get('public', kvfold.thread).tools

it('another order of the same tools computes and answers the same', async () => {
  const other = await talk('the sea', [
    [a, b, c],
    [c, a, b],
    [b, c, a],
  ])
  const same = await talk('the sea', [
    [a, b, c],
    [a, b, c],
    [a, b, c],
  ])
  const entries = other.map(({ kvfold }) => kvfold.ledger[0]!)
  expect(entries.map(({ recomputed }) => recomputed)).toEqual([0, 0, 0])
  for (const [turn, { submitted, shown }] of entries.entries())
    expect(submitted).toBeLessThanOrEqual(shown - (entries[turn - 1]?.shown ?? 0) + 1)
  expect(other.map(({ choices }) => choices)).toEqual(same.map(({ choices }) => choices))
  expect(shownTo(other[2]!)).toEqual([a, b, c])
  expect(other[2]!.kvfold.ledger[0]!.recomputeReason).toBeNull()
})

it('new tools come after the known ones, one that returns gets its old place, and the ledger names the change and its cost', async () => {
  const [first, second, third, fourth] = await talk('the wind', [
    [a, b, c],
    [d, c, b, a],
    [a, c, d],
    [a, b, c, d],
  ])
  expect([first, second, third, fourth].map((reply) => reply!.usage.prompt_tokens)).not.toContain(0)
  expect(shownTo(fourth!)).toEqual([a, b, c, d])
  const reasons = [second, third, fourth].map((reply) => reply!.kvfold.ledger[0]!.recomputeReason)
  expect(reasons[0]).toMatch(
    /^\d+ tokens: the list of tools changed \(1 added: delete_file\), and \d+ tokens of the earlier prompt/,
  )
  expect(reasons[1]).toMatch(/the list of tools changed \(1 removed: write_file\)/)
  expect(reasons[2]).toMatch(/the list of tools changed \(1 added: write_file\)/)
  const [entry] = second!.kvfold.ledger
  expect(Number(/^\d+/.exec(reasons[0]!)![0])).toBe(entry!.recomputed)
})
