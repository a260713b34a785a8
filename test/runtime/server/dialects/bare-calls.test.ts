/** What clients are told of bare calls, and how they turn them off, in every dialect. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { EngineAround, type EngineRequest, type Generation, generationOf } from '../../../../src/runtime/engine/engine.js'
import { ScriptedEngine } from '../../../support/scripted.js'
import { serving, type Serving } from '../support/serving.js'

/** Says of every call that it was bare, as engines do that read one. */
class BareCalling extends EngineAround<ScriptedEngine> {
  get requests(): readonly EngineRequest[] {
    return this.engine.requests
  }

  respond(request: EngineRequest): Generation {
    return generationOf(async (stream) => {
      const running = this.engine.respond(request)
      for await (const event of running) {
        if (event.type === 'call') stream.push({ type: 'bare-call', name: event.call.name, form: '```json' })
        stream.push(event)
      }
      return running.reply
    })
  }
}

const engine = new BareCalling(new ScriptedEngine(() => ({ calls: [{ name: 'look', arguments: { where: 'sky' } }] })))
let served: Serving
beforeAll(async () => {
  served = await serving({ engine: () => engine })
})
afterAll(() => served.close())

const parameters = { type: 'object', properties: { where: { type: 'string' } }, required: ['where'] }
const messages = [{ role: 'user', content: 'Look.' }]
const ROUTES = {
  '/v1/chat/completions': { messages, tools: [{ type: 'function', function: { name: 'look', parameters } }] },
  '/v1/responses': { input: 'Look.', tools: [{ type: 'function', name: 'look', parameters }] },
  '/v1/messages': { max_tokens: 50, messages, tools: [{ name: 'look', input_schema: parameters }] },
  '/api/chat': { messages, tools: [{ type: 'function', function: { name: 'look', parameters } }], stream: false },
}

describe.each(Object.entries(ROUTES))('%s', (route, body) => {
  const post = async (more: object) => {
    const response = await fetch(served.url + route, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'builtin', ...body, ...more }),
    })
    expect(response.status).toBe(200)
    return response.text()
  }

  // Ollama's answers have no place for it.
  const told = it.runIf(route.startsWith('/v1/'))

  told('says how each was written, to clients that ask', async () => {
    expect(JSON.parse(await post({ kvfold: {} }))).toMatchObject({
      kvfold: { bare_calls: [{ name: 'look', form: '```json' }] },
    })
    expect(JSON.parse(await post({}))).not.toHaveProperty('kvfold')
  })

  told('says so in a stream', async () => {
    expect(await post({ stream: true, kvfold: { events: true } })).toContain('"type":"bare-call","name":"look","form":"```json"')
  })

  it('leaves them text where the request says so', async () => {
    await post({ kvfold: { bare_calls: false } })
    expect(engine.requests.at(-1)).toMatchObject({ bareCalls: false })
    await post({})
    expect(engine.requests.at(-1)).not.toHaveProperty('bareCalls')
  })
})
