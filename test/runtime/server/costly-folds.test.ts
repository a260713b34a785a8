/** Tests folds by the model that take more tokens than their text: the server's setting applies unless the request has its own. */
import { afterEach, expect, it } from 'vitest'
import { ScriptedEngine, type Script } from '../../support/scripted.js'
import { serving, type Serving } from './support/serving.js'

let asked = 0
let served: Serving | null = null
afterEach(async () => {
  await served?.close()
})

/** A model that cuts a line of two words, folds it, and answers with the result. */
const script: Script = ({ messages }) => {
  const result = messages.at(-1)
  if (result?.role !== 'tool')
    return { calls: [{ name: 'fragment_context', arguments: { start_marker: 'A very', end_marker: 'line.', num_fragments: 1 } }] }
  const [, id] = /\b(f[0-9a-f]{5})\b/u.exec(result.content) ?? []
  return /^(Folded|Error)/u.test(result.content)
    ? { content: result.content }
    : { calls: [{ name: 'fold_fragment', arguments: { fragment_id: id } }] }
}

const ROUTES = {
  '/v1/chat/completions': (text: string) => ({ messages: [{ role: 'user', content: text }] }),
  '/v1/responses': (text: string) => ({ input: text }),
  '/v1/messages': (text: string) => ({ messages: [{ role: 'user', content: text }], max_tokens: 100 }),
} as const

async function ask(route: keyof typeof ROUTES, kvfold: object): Promise<string> {
  const body = { model: 'builtin', ...ROUTES[route](`A very short line. ${asked++}`), kvfold: { acm: 'tools', ...kvfold } }
  const headers = { 'content-type': 'application/json', 'anthropic-version': '2023-06-01' }
  const response = await fetch(`${served!.url}${route}`, { method: 'POST', headers, body: JSON.stringify(body) })
  return response.text()
}

it.each(['refuse', 'allow'] as const)(
  "a request's setting takes precedence over the server's setting %s",
  async (costlyFolds) => {
    served = await serving({ engine: () => new ScriptedEngine(script), service: { costlyFolds } })
    const allowed = /Folded f\w+\. This does not pay: the marker takes \d+ tokens more than the text/u
    const refused = /Error: f\w+ stays as it is\. This does not pay/u
    for (const route of Object.keys(ROUTES) as (keyof typeof ROUTES)[]) {
      expect(await ask(route, { costly: true }), route).toMatch(allowed)
      expect(await ask(route, { costly: false }), route).toMatch(refused)
      // A request's setting does not apply to the next request.
      expect(await ask(route, {}), route).toMatch(costlyFolds === 'allow' ? allowed : refused)
    }
  },
)

it('is true or false, and has no effect on a bare completion', async () => {
  served = await serving({ engine: () => new ScriptedEngine(script) })
  expect(await ask('/v1/chat/completions', { costly: 'allow' })).toContain('kvfold.costly')
  const body = JSON.stringify({ prompt: 'A line.', kvfold: { costly: true } })
  const response = await fetch(`${served.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body,
  })
  expect(response.status).toBe(400)
  expect(await response.text()).toContain('kvfold.costly')
})
