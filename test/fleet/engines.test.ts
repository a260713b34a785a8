/** Tests a server in front of three real engines, each a process: conversations keep their cache, and survive the death of an engine. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import { randomRouter } from '../../bench/fleet/engines/routers.js'
import { play, type Reuse } from '../../bench/fleet/engines/sessions.js'
import { RemoteEngine } from '../../src/fleet/engines/remote.js'
import { KVFOLD } from '../runtime/cli/support/process.js'
import { endless, serving, type Serving } from '../runtime/server/support/serving.js'
import { temporaryFolder } from '../support/temporary-folder.js'
import { LONG } from '../support/long.js'

interface Process {
  readonly url: string
  readonly child: ChildProcess
  readonly stderr: () => string
  kill(): Promise<void>
}

const processes: Process[] = []
const fronts: Serving[] = []
const folder = temporaryFolder('fleet')

async function start(...more: readonly string[]): Promise<Process> {
  const words = ['serve', '--store', 'none', '--port', '0', '--log-level', 'silent', ...more]
  const child = spawn(process.execPath, [...KVFOLD, ...words], { cwd: join(import.meta.dirname, '../..') })
  let [stdout, stderr] = ['', '']
  child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text))
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text))
  await expect.poll(() => `${stdout}${child.exitCode ?? ''}`, { timeout: 60_000 }).toMatch(/ at http|^\d/)
  const [url] = /http:\/\/[\d.:]+/u.exec(stdout) ?? []
  if (url === undefined) throw new Error(stderr)
  const made = {
    url,
    child,
    stderr: () => stderr,
    kill: async () => {
      if (child.exitCode !== null || child.signalCode !== null) return
      child.kill('SIGKILL')
      await once(child, 'close')
    },
  }
  processes.push(made)
  return made
}

const engine = () => start('--gpu', 'cpu', '--slots', '8', '--context', '24576', '--host-cache', '0')

/** Starts a server in this process in front of these engines. */
async function front(of: readonly string[]): Promise<Serving> {
  const engines = of.map((url) => ({ url }))
  const made = await serving({ slots: 8, engine: () => RemoteEngine.connect({ url: of[0]!, engines, healthEvery: 1e9 }) })
  fronts.push(made)
  return made
}

afterEach(async () => {
  await Promise.all(fronts.splice(0).map((each) => each.close()))
  await Promise.all(processes.splice(0).map((each) => each.kill()))
})

const post = (url: string, body: object) =>
  fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ temperature: 0, max_tokens: 8, ...body }),
  })
const user = (content: string) => ({ role: 'user', content })

it.runIf(LONG)(
  'with three engines reuses at least 95 % of what one reuses; a random router does not',
  { timeout: 180_000 },
  async () => {
    const options = { clients: 8, turns: 6, characters: 250, seed: 7 }
    // Each round uses new engines with empty caches.
    const fresh = async (count: number) => {
      await Promise.all(processes.splice(0).map((each) => each.kill()))
      return (await Promise.all(Array.from({ length: count }, engine))).map(({ url }) => url)
    }
    const one: Reuse = await play((await front(await fresh(1))).url, options)
    const served = await front(await fresh(3))
    const three = await play(served.url, options)
    const router = await randomRouter(await fresh(3), 7)
    const random = await play((await front([router.url])).url, options)
    await router.close()
    const share = (reuse: Reuse) => reuse.cached / one.cached
    console.log(
      `reused of the tokens that one engine reuses (${one.cached} of ${one.prompt}): three ${share(three).toFixed(3)}, by a random router ${share(random).toFixed(3)}`,
    )
    expect(share(three)).toBeGreaterThanOrEqual(0.95)
    expect(share(random)).toBeLessThan(0.9)
    const { engines } = served.service.status().models[0]!.loaded!
    expect(engines!.every(({ requests, failures, moved }) => requests > 0 && failures + moved === 0)).toBe(true)
    // The expected tokens were cached; common beginnings of conversations were cached in addition.
    const total = (part: 'cached' | 'expected') => engines!.reduce((sum, each) => sum + each[part], 0)
    expect(total('cached')).toBe(three.cached)
    expect(total('expected') / total('cached')).toBeGreaterThan(0.9)
    expect(total('expected') / total('cached')).toBeLessThan(1.01)
  },
)

it('reports the text of an engine that dies during an answer, stores none of it, and continues with another engine', async () => {
  const all = await Promise.all([engine(), engine()])
  const served = await front(all.map(({ url }) => url))
  const first = (await (await post(served.url, { messages: [user('Which is red?')], kvfold: { ledger: true } })).json()) as {
    choices: { message: { role: string; content: string } }[]
    kvfold: { thread: string; ledger: { engine: { name: string } }[] }
  }
  const { thread, ledger } = first.kvfold
  const home = all.find(({ url }) => url === ledger[0]!.engine.name)!
  const messages = [user('Which is red?'), first.choices[0]!.message, user('Go on.')]
  const body = { messages, max_tokens: 4000, ...endless }
  const response = await post(served.url, { ...body, stream: true })
  let text = ''
  const decoder = new TextDecoder()
  let killed: Promise<void> | null = null
  for await (const bytes of response.body as unknown as AsyncIterable<Uint8Array>) {
    text += decoder.decode(bytes, { stream: true })
    if (text.split('"content":').length > 12) killed ??= home.kill()
  }
  await killed
  const events = text
    .split('\n\n')
    .filter((event) => event.startsWith('data: {'))
    .map(
      (event) =>
        JSON.parse(event.slice(6)) as { choices?: { delta: { content?: string } }[]; error?: { code: string; said: string } },
    )
  const told = events.map(({ choices }) => choices?.[0]?.delta.content ?? '').join('')
  expect(events.at(-1)!.error).toMatchObject({ code: 'remote/broken-stream', said: told })
  expect(told.length).toBeGreaterThan(0)
  const kept = (await (await fetch(`${served.url}/kvfold/threads/${thread}/export`)).json()) as {
    messages: { message: { role: string } }[]
  }
  expect(kept.messages.map(({ message }) => message.role)).toEqual(['user', 'assistant', 'user'])

  const again = await post(served.url, { messages, kvfold: { ledger: true } })
  expect(again.status).toBe(200)
  const other = all.find((each) => each !== home)!
  expect(((await again.json()) as typeof first).kvfold.ledger[0]!.engine.name).toBe(other.url)
  const status = (await (await fetch(`${served.url}/kvfold/status`)).json()) as {
    models: { loaded: { engines: { name: string; state: string; failures: number; moved: number }[] } }[]
  }
  const { engines } = status.models[0]!.loaded
  expect(engines.find(({ name }) => name === home.url)).toMatchObject({ state: 'down' })
  expect(engines.find(({ name }) => name === other.url)).toMatchObject({ state: 'up', failures: 0, moved: 1 })
  const metrics = await (await fetch(`${served.url}/metrics`)).text()
  expect(metrics).toContain(`kvfold_engine_up{gen_ai_request_model="builtin",engine="${home.url}"} 0`)
  // When no engine is left, a client is told to try again.
  expect((await fetch(`${served.url}/health`)).status).toBe(200)
  await other.kill()
  const asked = () => post(served.url, { messages: [user('Is anybody there?')] })
  const [last, none] = [await asked(), await asked()]
  expect([last.status, last.headers.get('retry-after')]).toEqual([502, '5'])
  await expect.poll(async () => (await asked()).status).toBe(503)
  expect(none.headers.get('retry-after')).toBe('5')
  const health = await fetch(`${served.url}/health`)
  expect([health.status, health.headers.get('retry-after'), await health.json()]).toEqual([
    ...[503, '5', { status: 'unavailable', problems: ['No engine takes requests.'] }],
  ])
  expect(metrics).toContain(`kvfold_engine_moved_total{gen_ai_request_model="builtin",engine="${other.url}"} 1`)
})

it('reloads its file of engines on SIGHUP; an invalid one is reported and ignored', async () => {
  const [one, two] = await Promise.all([engine(), engine()])
  const file = join(folder, 'engines.json')
  const write = (content: unknown) => {
    writeFileSync(file, JSON.stringify(content))
  }
  write({ engines: [{ url: one.url }] })
  const served = await start('--engines', file)
  const loaded = async () =>
    (
      (await (await fetch(`${served.url}/kvfold/status`)).json()) as {
        models: { loaded: { engines: { name: string; state: string }[]; enginesProblem: string | null } }[]
      }
    ).models[0]!.loaded
  expect((await loaded()).engines).toMatchObject([{ name: one.url, state: 'up' }])
  write({ engines: [{ url: one.url, drain: true }, { url: two.url }] })
  served.child.kill('SIGHUP')
  await expect.poll(async () => (await loaded()).engines.map(({ state }) => state)).toEqual(['draining', 'up'])
  write({ engines: 'none' })
  await expect.poll(async () => (await loaded()).enginesProblem, { timeout: 10_000 }).toMatch(/engines: must be/)
  expect(served.stderr()).toMatch(/kvfold keeps the last valid engines/)
  expect((await post(served.url, { messages: [user('Which is red?')] })).status).toBe(200)
  expect((await loaded()).engines.map(({ state }) => state)).toEqual(['draining', 'up'])
})
