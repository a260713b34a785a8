/** Tests a long-running server: every conversation is kept, and their memory is bounded and known. */
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { tinyModel } from '../../support/models.js'
import { serverProcess, type ServerProcess } from './support/process.js'
import { LONG } from '../../support/long.js'

const CONVERSATIONS = LONG ? 5000 : 100
/** Conversations before the first measurement, by when one-time allocations are done. */
const WARM = CONVERSATIONS / 5
/** The most bytes of JavaScript memory for a loaded conversation whose cells are kept. These need 42,000, of which 25,000 are the engine's. */
const EACH = 64_000
/** How many bytes the process may grow by otherwise, for memory that allocators keep. */
const OTHERWISE = 64 * 2 ** 20

let folder: string
let server: ServerProcess | null = null

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-soak-'))
})
afterAll(async () => {
  await server?.kill()
  rmSync(folder, { recursive: true })
})

/** On SIGUSR2 the process collects its garbage. */
const COLLECTS = `data:text/javascript,process.on('SIGUSR2',()=>{gc();gc();process.stderr.write('collected\\n')})`

const start = async () =>
  (server = await serverProcess(
    ['--model', `tiny=${await tinyModel()}`, '--trial', 'off', '--store', folder, '--log-level', 'error'],
    ['--expose-gc', '--import', COLLECTS],
  ))

it(
  `keeps ${CONVERSATIONS} conversations of one key, in bounded memory`,
  { timeout: LONG ? 1_500_000 : 240_000 },
  async (context) => {
    const { child, url } = await start()
    const post = async (path: string, body: object) => {
      const headers = { 'content-type': 'application/json' }
      const response = await fetch(url + path, { method: 'POST', headers, body: JSON.stringify(body) })
      const answer = (await response.json()) as Record<string, unknown>
      expect(response.status, JSON.stringify(answer)).toBe(200)
      return answer
    }
    const memory = async () => {
      const collected = once(child.stderr, 'data')
      child.kill('SIGUSR2')
      await collected
      const text = await (await fetch(`${url}/metrics`)).text()
      const figure = (name: string) => Number(new RegExp(`^${name} (.*)$`, 'm').exec(text)?.[1])
      return {
        resident: figure('process_resident_memory_bytes'),
        heap: figure('nodejs_heap_size_used_bytes') + figure('nodejs_external_memory_bytes'),
      }
    }
    const first = await post('/v1/responses', { input: 'What is first?', max_output_tokens: 16 })
    let begun = { resident: 0, heap: 0 }
    const told: string[] = []
    for (let at = 1; at < CONVERSATIONS; at++) {
      const messages: object[] = [{ role: 'user', content: `Question ${at}?` }]
      const { choices } = (await post('/v1/chat/completions', { messages, max_tokens: 2 })) as unknown as {
        readonly choices: readonly { readonly message: object }[]
      }
      if (at % 2 === 0)
        await post('/v1/chat/completions', {
          messages: [...messages, choices[0]!.message, { role: 'user', content: 'And?' }],
          max_tokens: 2,
        })
      if (at === WARM) begun = await memory()
      if (LONG && at % 500 === 0) told.push(JSON.stringify(await memory()))
    }
    const ended = await memory()
    const count = CONVERSATIONS - WARM
    told.push(`from ${JSON.stringify(begun)} to ${JSON.stringify(ended)} in ${count} conversations`)
    await context.annotate(told.join('\n'))
    expect((ended.heap - begun.heap) / count, told.join('\n')).toBeLessThan(EACH)
    expect(ended.resident - begun.resident, told.join('\n')).toBeLessThan(EACH * count + OTHERWISE)

    const { threads } = (await (await fetch(`${url}/kvfold/threads`)).json()) as {
      readonly threads: readonly { readonly id: string }[]
    }
    expect(new Set(threads.map(({ id }) => id)).size).toBe(CONVERSATIONS)
    const again = await post('/v1/responses', { input: 'And then?', previous_response_id: first['id'], max_output_tokens: 16 })
    expect(again['status']).toMatch(/^(completed|incomplete)$/u)
  },
)
