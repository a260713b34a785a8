/** Runs a client's session with a server, and reads what the server computed from its own counters. */
import { cpuSince } from '../serve/servers.js'
import type { ServerProcess } from '../../server-process.js'
import { askedIn, type Client, type Message, type Turn } from './clients.js'

export interface Served {
  readonly name: string
  readonly server: ServerProcess
  /** Tokens that the server has submitted to decode so far, by its own count. */
  computed(): Promise<number>
}

export interface Session {
  /** Tokens submitted to decode, including generated ones. */
  readonly computed: number
  readonly seconds: number
  /** CPU seconds of the server's process during the session; null if they cannot be read. */
  readonly cpuSeconds: number | null
  /** Tokens of the last prompt and its answer. */
  readonly shown: number
  /** Approximate tokens of the last step; null if the server does not report them. */
  readonly approximate: number | null
}

export interface SessionOptions {
  readonly turns: number
  /** Characters of each turn's long message. */
  readonly characters: number
  readonly tools: boolean
  /** Number of turns that all clients share: the first client takes them, and the others branch off from there. Default: 0. */
  readonly common?: number
  /** Whether the clients' requests of a turn run at the same time. Default: false, one after the other. */
  readonly together?: boolean
  /**
   * Whether the server answers a request before the session, because kvfold loads a model at its first request. Use it if seconds count.
   */
  readonly warm?: boolean
  /** Further fields of every request. */
  readonly fields?: object
}

/** Tokens of an answer. */
const ANSWER = 16
const READ = {
  type: 'function',
  function: {
    name: 'read',
    description: 'Reads a file.',
    parameters: { type: 'object', properties: { file: { type: 'integer' } } },
  },
}

interface Completion {
  readonly choices: readonly { readonly message: { readonly content: string | null } }[]
  readonly usage: { readonly prompt_tokens: number; readonly completion_tokens: number }
  readonly kvfold?: { readonly ledger?: readonly { readonly approximate: number }[] }
}

/** Lets the clients talk, each in its own conversation. */
export async function talk(served: Served, clients: readonly Client[], options: SessionOptions): Promise<Session> {
  const { turns, characters, tools, common = 0, together = false, fields = {} } = options
  if (options.warm === true) await ask(served, { messages: [{ role: 'user', content: 'Hello.' }] })
  const before = await served.computed()
  const [begun, cpu] = [performance.now(), served.server.cpu()]
  const histories = clients.map((): Turn[] => [])
  let last = null as Completion | null
  const take = async (client: Client, turn: number, at: number) => {
    const history = histories[at]!
    history.push({ asked: askedIn(turn * clients.length + at, characters, tools), answer: '' })
    const reply = await ask(served, {
      messages: client(history),
      ...(tools ? { tools: [READ], tool_choice: 'none' } : {}),
      ...fields,
    })
    history.push({ ...history.pop()!, answer: reply.choices[0]!.message.content || '.' })
    last = reply
  }
  for (let turn = 0; turn < turns; turn++) {
    const talking = clients.slice(0, turn < common ? 1 : clients.length)
    if (turn === common) for (const history of histories.slice(1)) history.push(...histories[0]!)
    if (together) await Promise.all(talking.map((client, at) => take(client, turn, at)))
    else for (const [at, client] of talking.entries()) await take(client, turn, at)
  }
  const seconds = (performance.now() - begun) / 1000
  const spent = cpuSince(cpu, served.server)
  const { prompt_tokens: prompt, completion_tokens: generated } = last!.usage
  return {
    computed: (await served.computed()) - before,
    seconds,
    cpuSeconds: spent === null ? null : spent / 1000,
    shown: prompt + generated,
    approximate: last!.kvfold?.ledger?.at(-1)?.approximate ?? null,
  }
}

async function ask({ name, server }: Served, body: { readonly messages: readonly Message[] }): Promise<Completion> {
  const response = await fetch(`${server.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'bench', max_tokens: ANSWER, temperature: 0, ...body }),
  })
  const text = await response.text()
  if (!response.ok) throw new Error(`${name} answered ${response.status}: ${text}`)
  return JSON.parse(text) as Completion
}

/** Returns the sum of these Prometheus counters of the server. */
export async function counters({ server }: Pick<Served, 'server'>, names: readonly string[]): Promise<number> {
  const text = await (await fetch(`${server.url}/metrics`)).text()
  return names.reduce((sum, name) => {
    const values = [...text.matchAll(new RegExp(`^${name}(?:\\{[^}]*\\})? ([0-9.e+]+)$`, 'gm'))].map(([, value]) => Number(value))
    if (values.length === 0) throw new Error(`The server has no counter ${name}.`)
    return sum + values.reduce((total, value) => total + value, 0)
  }, 0)
}
