/**
 * Runs two `kvfold serve` over one database and kills one in the middle of an answer, again and again: the other takes its threads over.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { KVFOLD } from '../runtime/cli/support/process.js'
import { noPostgres, TestPostgres } from '../support/postgres.js'
import { endless } from '../runtime/server/support/serving.js'
import { LONG } from '../support/long.js'

const ROUNDS = LONG ? 20 : 1
const ROOT = join(import.meta.dirname, '../..')

if (noPostgres !== null) console.warn(`skipped: ${noPostgres}`)

interface Front {
  readonly child: ChildProcess
  readonly where: string
  /** Returns everything it printed. */
  readonly said: () => string
}

interface Message {
  readonly role: string
  readonly content: string
}

const user = (content: string): Message => ({ role: 'user', content })

describe.skipIf(noPostgres !== null)('a server that is killed beside another', () => {
  let postgres: TestPostgres
  let url: string
  const children = new Set<ChildProcess>()

  beforeAll(async () => {
    postgres = await TestPostgres.make()
    url = (await postgres.database()).replace('kvfold@', 'kvfold:sesame@')
  }, 60_000)
  afterEach(() => {
    for (const child of children) child.kill('SIGKILL')
  })
  afterAll(() => postgres.remove())

  function start(): Promise<Front> {
    const words = [
      'serve',
      '--gpu',
      'cpu',
      '--trial',
      'off',
      '--threads',
      '1',
      '--port',
      '0',
      '--store',
      url,
      '--log-level',
      'debug',
    ]
    const child = spawn(process.execPath, [...KVFOLD, ...words], { cwd: ROOT })
    children.add(child)
    let said = ''
    const heard = (text: string) => (said += text)
    child.stderr.setEncoding('utf8').on('data', heard)
    return new Promise((resolve, reject) => {
      child.stdout.setEncoding('utf8').on('data', (text: string) => {
        heard(text)
        const where = /serves \S+.* at (\S+)\n/.exec(said)?.[1]
        if (where !== undefined) resolve({ child, where, said: () => said })
      })
      child.once('exit', () => {
        reject(new Error(`ended: ${said}`))
      })
    })
  }
  const post = (front: Front, body: object): Promise<Response> =>
    fetch(`${front.where}/v1/chat/completions`, {
      method: 'POST',
      body: JSON.stringify(body),
      headers: { 'content-type': 'application/json' },
    })
  const get = async <T>(front: Front, path: string): Promise<T> => (await (await fetch(`${front.where}${path}`)).json()) as T

  it(
    `leaves threads that the other continues, with each answer once (${ROUNDS} kills)`,
    { timeout: 60_000 + ROUNDS * 20_000 },
    async () => {
      let [victim, other] = await Promise.all([start(), start()])
      const messages: Message[] = []
      const threads = new Set<string>()
      for (let round = 0; round < ROUNDS; round++) {
        messages.push(user(`Question ${round}.`))
        const stream = await post(victim, { messages, max_tokens: 2000, stream: true, ...endless })
        const reader = stream.body!.getReader()
        expect((await reader.read()).done).toBe(false)
        const gone = once(victim.child, 'exit')
        victim.child.kill('SIGKILL')
        await gone
        await reader.cancel().catch(() => undefined)
        // The lock ends with the connection, whose end the database has to notice.
        const locks = () => postgres.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'", url)
        await expect.poll(locks).toEqual([])
        const response = await post(other, { messages, max_tokens: 6, kvfold: {} })
        const answer = (await response.json()) as { choices: { message: Message }[]; kvfold: { thread: string } }
        expect(response.status).toBe(200)
        threads.add(answer.kvfold.thread)
        const { role, content } = answer.choices[0]!.message
        messages.push({ role, content })
        expect(other.said() + victim.said() + JSON.stringify(await get(other, '/kvfold/status'))).not.toContain('sesame')
        victim = await start()
        ;[victim, other] = [other, victim]
      }
      expect(threads.size).toBe(1)
      const [thread = ''] = threads
      for (const front of [victim, other]) {
        const exported = await get<{ messages: { message: Message }[] }>(front, `/kvfold/threads/${thread}/export`)
        expect(exported.messages.map(({ message: { role, content } }) => ({ role, content }))).toEqual(messages)
        expect((await get<{ threads: unknown[] }>(front, '/kvfold/threads')).threads).toHaveLength(1)
      }
    },
  )
})
