/** Tests drafts over HTTP: the fields that ask for them, their counts in usage and timings, and the answers that stay the same. */
import { afterAll, beforeAll, expect, it } from 'vitest'
import { serving, type Serving } from '../support/serving.js'

let served: Serving
beforeAll(async () => {
  served = await serving({})
})
afterAll(() => served.close())

interface Counts {
  readonly accepted_prediction_tokens?: number
  readonly rejected_prediction_tokens?: number
}
interface Answer {
  readonly choices: readonly { readonly text?: string; readonly message?: { readonly content: string } }[]
  readonly usage: { readonly completion_tokens_details: Counts }
  readonly content: string
  readonly timings: { readonly draft_n?: number; readonly draft_n_accepted?: number }
}

async function ask(path: string, body: object, status = 200): Promise<Answer> {
  const answer = await fetch(served.url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })
  expect(answer.status).toBe(status)
  return (await answer.json()) as Answer
}

const NGRAM = { 'speculative.type': 'ngram-simple', 'speculative.n_max': 8 }
// Long enough that several batches see the repeats, however many tokens the first run takes.
const text = Array.from({ length: 12 }, () => 'abcdefgh').join(' ')
const grammar = `root ::= "${text}"`
const prompt = 'abcdefgh abcdefgh abcdefgh '

it('counts drafts in the usage of OpenAI’s routes, and answers the same', async () => {
  const plain = await ask('/v1/completions', { prompt, max_tokens: 200, temperature: 0, grammar })
  const drafting = await ask('/v1/completions', { prompt, max_tokens: 200, temperature: 0, grammar, ...NGRAM })
  expect(drafting.choices[0]?.text).toBe(plain.choices[0]?.text)
  expect(plain.usage.completion_tokens_details.accepted_prediction_tokens).toBeUndefined()
  const { accepted_prediction_tokens: accepted, rejected_prediction_tokens: rejected } = drafting.usage.completion_tokens_details
  expect(accepted).toBeGreaterThan(5)
  expect(rejected).toBeGreaterThanOrEqual(0)

  const messages = [{ role: 'user', content: prompt }]
  const chat = await ask('/v1/chat/completions', { messages, temperature: 0, grammar, timings_per_token: true, ...NGRAM })
  expect(chat.choices[0]?.message?.content).toBe(text)
  expect(chat.timings.draft_n_accepted).toBe(chat.usage.completion_tokens_details.accepted_prediction_tokens)
})

it('counts drafts in llama-server’s timings; n_max 0 and none turn them off', async () => {
  const drafting = await ask('/completion', { prompt, n_predict: 200, temperature: 0, grammar, ...NGRAM })
  expect(drafting.timings.draft_n).toBeGreaterThanOrEqual(drafting.timings.draft_n_accepted!)
  expect(drafting.timings.draft_n_accepted).toBeGreaterThan(5)
  for (const off of [{ 'speculative.n_max': 0 }, { 'speculative.type': 'none' }]) {
    const plain = await ask('/completion', { prompt, n_predict: 200, temperature: 0, grammar, ...NGRAM, ...off })
    expect(plain.content).toBe(drafting.content)
    expect(plain.timings.draft_n).toBeUndefined()
  }
})

it.each(['draft-eagle3', 'ngrammar'])('refuses the kind %s by name', async (type) => {
  const refused = (await ask('/completion', { prompt, 'speculative.type': type }, 400)) as unknown
  expect(JSON.stringify(refused)).toContain(type)
})

it('refuses drafts by a model where none is loaded', async () => {
  const refused = await ask('/completion', { prompt, 'speculative.type': 'draft-simple' }, 400)
  expect(JSON.stringify(refused)).toContain('There is no draft model here')
})
