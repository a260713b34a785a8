/** Tests which model the control route of reasoning asks about, on scripted engines of a folder. */
import { once } from 'node:events'
import { expect, it } from 'vitest'
import { ScriptedEngine } from '../../../support/scripted.js'
import { serving } from '../support/serving.js'

it('ends the reasoning of a chat that named no model while another model became idle', async () => {
  const thinker = new ScriptedEngine(async ({ endReasoning, signal }) => {
    await once(AbortSignal.any([endReasoning!, signal!]), 'abort')
    return { content: 'Red.' }
  })
  const sources = Object.entries({
    thinker: Object.assign(thinker, { boundsReasoning: true }),
    plain: new ScriptedEngine([{ content: 'Blue.' }]),
  }).map(([name, engine]) => ({ name, slots: 1, load: () => Promise.resolve(engine) }))
  const served = await serving({ service: { models: [], folder: () => sources } })
  const send = (path: string, body: object) =>
    fetch(`${served.url}/v1/chat/completions${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
  const messages = [{ role: 'user', content: 'Which colour?' }]
  const chunks = (await send('', { messages, stream: true, reasoning_control: true })).body!.pipeThrough(new TextDecoderStream())
  const reader = chunks.getReader()
  try {
    let text = (await reader.read()).value!
    expect(text).toContain('"model":"thinker"')
    expect((await send('', { messages, model: 'plain' })).status).toBe(200)
    const id = /"id":"([^"]+)"/.exec(text)![1]
    const reply = await send('/control', { id, action: 'reasoning_end' })
    expect(await reply.json()).toEqual({ success: true })
    for (let next = await reader.read(); !next.done; next = await reader.read()) text += next.value
    expect(text).toContain('Red.')
  } finally {
    await reader.cancel()
    await served.close()
  }
})
