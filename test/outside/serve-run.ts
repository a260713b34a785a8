/** Runs histories over HTTP: a real `kvfold serve` with the shim below it, killed and started again; what it acknowledged must stay. */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { LedgerEntry } from '../../src/index.js'
import { KVFOLD } from '../runtime/cli/support/process.js'
import { codesOf } from './history.js'
import { emptyTally, Judge, type Noise } from './judge.js'
import { calibrated, modelOf, settled, type Verdict } from './run.js'
import { Observer, type ObservedCache, type Seen } from './observer.js'
import { programs } from './programs.js'
import { Reference } from './reference.js'
import type { ServeHistory, ServeOp } from './serve-history.js'

const ROOT = join(import.meta.dirname, '../..')
const KEYS = ['key-of-a', 'key-of-b'] as const

interface Message {
  readonly role: string
  readonly content: string | null
  readonly tool_calls?: readonly unknown[]
}

interface ChatReply {
  readonly choices: readonly {
    readonly message: Message
    readonly logprobs: { readonly content: readonly { readonly top_logprobs: readonly { readonly logprob: number }[] }[] } | null
  }[]
  readonly kvfold: {
    readonly thread: string
    readonly ledger: readonly LedgerEntry[]
    readonly edits: { readonly approximate: number } | null
  }
}

interface ExportedThread {
  readonly messages: readonly { readonly message: { readonly role: string; readonly content: string } }[]
  readonly edits: { readonly fragments: readonly Fragment[] }
  readonly ledger: readonly LedgerEntry[]
}

interface Fragment {
  readonly id: string
  readonly message: number
  readonly span: { readonly start: number; readonly end: number }
  readonly state: { readonly kind: 'open' | 'folded' | 'summarised'; readonly summary?: string }
}

/** A client's conversation. */
interface Talk {
  readonly key: string
  messages: Message[]
  thread: string | null
  /** As it was when something was last acknowledged, with nothing under way since. */
  sure: ExportedThread | null
  /** An answer was given up or under way since: there may be more than was acknowledged. */
  mayHaveMore: boolean
}

class Server {
  private constructor(
    private readonly child: ChildProcess,
    readonly url: string,
  ) {}

  static start(args: readonly string[], log: string): Promise<Server> {
    const child = spawn(process.execPath, [...KVFOLD, 'serve', ...args], {
      cwd: ROOT,
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, LD_PRELOAD: programs().shim, KVFOLD_OUTSIDE_LOG: log },
    })
    return new Promise((resolve, reject) => {
      let said = ''
      child.stdout.setEncoding('utf8').on('data', (text: string) => {
        said += text
        const url = /serves \S+.* at (\S+)\n/.exec(said)?.[1]
        if (url !== undefined) resolve(new Server(child, url))
      })
      child.stderr.setEncoding('utf8').on('data', (text: string) => (said = (said + text).slice(-4000)))
      child.once('close', (code, signal) => {
        reject(new Error(`The server ended (${signal ?? code ?? ''}): ${said}`))
      })
    })
  }

  get died(): boolean {
    return this.child.exitCode !== null || this.child.signalCode !== null
  }

  async stop(signal: 'SIGKILL' | 'SIGTERM'): Promise<void> {
    if (this.died) return
    const closed = once(this.child, 'close')
    this.child.kill(signal)
    await closed
  }

  /** Null: it could not be reached. */
  async ask(
    method: string,
    path: string,
    key: string,
    body?: unknown,
    signal?: AbortSignal,
  ): Promise<{ status: number; body: unknown } | null> {
    try {
      const answer = await fetch(this.url + path, {
        method,
        headers: { authorization: `Bearer ${key}`, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        ...(signal === undefined ? {} : { signal }),
      })
      const read = await answer.text()
      return { status: answer.status, body: read.startsWith('{') ? (JSON.parse(read) as unknown) : read }
    } catch {
      return null
    }
  }
}

/** Plays one history on servers of its own. */
export async function runServed(history: ServeHistory, noises: Map<string, Noise>): Promise<Verdict> {
  return settled(await playedOnce(history, noises), () => playedOnce({ ...history, cacheType: 'f32' }, noises))
}

async function playedOnce(history: ServeHistory, noises: Map<string, Noise>): Promise<Verdict> {
  const folder = mkdtempSync(join(tmpdir(), 'kvfold-outside-'))
  mkdirSync(join(folder, 'model'))
  const model = await modelOf(history, join(folder, 'model'))
  const { flashAttention, cacheType } = history
  const reference = await Reference.start({
    model,
    cells: 4096,
    flashAttention: flashAttention === 'on',
    keyType: cacheType,
    valueType: cacheType,
  })
  const tally = emptyTally()
  const log = join(folder, 'calls')
  const observer = new Observer(log)
  try {
    const noise = await calibrated(noises, history, [flashAttention, cacheType, cacheType].join(' '), reference)
    const judge = new Judge(observer, reference, noise, tally, 512)
    const served = new Served(history, judge, observer, reference, { folder, model, log })
    await served.all()
    for (const complaint of observer.complaints) judge.blame('visible', history.ops.length, complaint)
    return { violations: judge.violations, tally }
  } finally {
    reference.end()
    rmSync(folder, { recursive: true, force: true })
  }
}

class Served {
  readonly #talks: readonly [Talk, Talk]
  #server: Server | null = null

  constructor(
    private readonly history: ServeHistory,
    private readonly judge: Judge,
    private readonly observer: Observer,
    private readonly reference: Reference,
    private readonly places: { readonly folder: string; readonly model: string; readonly log: string },
  ) {
    const talk = (key: string): Talk => ({ key, messages: [], thread: null, sure: null, mayHaveMore: false })
    this.#talks = [talk(KEYS[0]), talk(KEYS[1])]
  }

  async all(): Promise<void> {
    await this.#start()
    for (const [at, op] of this.history.ops.entries()) {
      await this.#one(at, op)
      if (this.#server?.died !== false) {
        this.judge.blame('error', at, `the server died in ${op.op}`)
        return
      }
    }
    await this.#server?.stop('SIGTERM')
    this.observer.read()
  }

  async #start(): Promise<void> {
    const { cells, flashAttention, cacheType, disk, hostCache } = this.history
    const { folder, model, log } = this.places
    const flags = {
      ...{
        model,
        gpu: 'cpu',
        port: 0,
        context: cells,
        threads: 1,
        'flash-attention': flashAttention,
        'cache-type-k': cacheType,
        'cache-type-v': cacheType,
        store: join(folder, 'store'),
      },
      ...{ 'host-cache': hostCache, 'log-level': 'error', attention: 'off', temperature: 0, slots: 2 },
      'costly-folds': 'allow',
      ...(disk ? { 'disk-cache': join(folder, 'disk') } : {}),
    }
    const words = Object.entries(flags).flatMap(([name, value]) => [`--${name}`, String(value)])
    this.observer.restarted()
    this.#server = await Server.start([...words, ...KEYS.flatMap((key) => ['--api-key', key])], log)
  }

  get #cache(): ObservedCache | undefined {
    return this.observer.caches.at(-1)
  }

  async #one(at: number, op: ServeOp): Promise<void> {
    this.observer.read()
    const cache = this.#cache
    if (cache !== undefined) cache.seen = []
    const marks = { decoded: cache?.decoded ?? 0, decode: this.observer.decodes }
    if (op.op === 'restart') {
      await this.#server?.stop('SIGTERM')
      await this.#start()
      await this.#nothingLost(at)
    } else if (op.op === 'kill') await this.#kill(at, op)
    else if (op.op === 'ask') await this.#ask(at, op, marks)
    else if (op.op === 'both') await this.#both(at, op, marks)
    else if (op.op === 'leave') await this.#leave(op)
    else await this.#change(at, op)
  }

  #send(talk: Talk, words: string, more: object, signal?: AbortSignal) {
    const messages = [...talk.messages, { role: 'user', content: words }]
    const { kvfold = {}, ...rest } = more as { kvfold?: object }
    const body = { messages, kvfold: { ledger: true, acm: 'off', ...kvfold }, ...rest }
    return this.#server!.ask('POST', '/v1/chat/completions', talk.key, body, signal)
  }

  /** Takes an answer in, or says why there is none. */
  async #told(
    at: number,
    talk: Talk,
    words: string,
    answer: { status: number; body: unknown } | null,
  ): Promise<ChatReply | null> {
    if (answer?.status !== 200) {
      const code = (answer?.body as { error?: { code?: string } } | undefined)?.error?.code ?? ''
      // A conversation that has outgrown the context begins anew.
      if (code.includes('context')) Object.assign(talk, { messages: [], thread: null, sure: null })
      else this.judge.blame('error', at, `${answer?.status ?? 'no answer'}: ${JSON.stringify(answer?.body ?? '').slice(0, 300)}`)
      return null
    }
    const reply = answer.body as ChatReply
    const { content, tool_calls: calls } = reply.choices[0]!.message
    const said: Message = { role: 'assistant', content: content ?? '', ...(calls === undefined ? {} : { tool_calls: calls }) }
    // Calls that a model of random weights makes have no results; such a conversation is left there.
    if (calls === undefined) talk.messages.push({ role: 'user', content: words }, said)
    const { thread, edits, ledger } = reply.kvfold
    const approximate = Math.max(0, ...ledger.filter(({ kind }) => kind === 'answer').map((entry) => entry.approximate))
    if ((edits?.approximate ?? 0) !== approximate)
      this.judge.blame('counts', at, `${approximate} tokens are approximate, the answer says ${edits?.approximate ?? 'nothing'}`)
    talk.thread = thread
    await this.#acknowledged(at, talk)
    return reply
  }

  async #acknowledged(at: number, talk: Talk): Promise<void> {
    const { status, body } = (await this.#server!.ask('GET', `/kvfold/threads/${talk.thread ?? ''}/export`, talk.key)) ?? {
      status: 0,
    }
    if (status !== 200) this.judge.blame('lost', at, `thread ${talk.thread ?? ''} is not there (${status})`)
    else Object.assign(talk, { sure: body as ExportedThread, mayHaveMore: false })
  }

  async #ask(at: number, op: Extract<ServeOp, { op: 'ask' }>, marks: { decoded: number; decode: number }): Promise<void> {
    const talk = this.#talks[op.talk]!
    const { contract, maxTokens: max_tokens, tools } = op
    const sent = { max_tokens, logprobs: true, top_logprobs: 20, kvfold: { contract, ...(tools ? { acm: 'tools' } : {}) } }
    const reply = await this.#told(at, talk, op.text, await this.#send(talk, op.text, sent))
    this.observer.read()
    const cache = this.#cache
    if (reply === null || cache === undefined) return
    const { ledger } = reply.kvfold
    const decoded = cache.decoded - marks.decoded
    this.judge.tally.tokens += decoded
    const sum = ledger.reduce((total, { submitted }) => total + submitted, 0)
    if (sum !== decoded) this.judge.blame('counts', at, `${decoded} tokens were decoded, the ledger of the answer says ${sum}`)
    const entry = ledger[0]
    // With tools a turn has several steps, and what each showed is known to the server alone.
    if (entry === undefined || ledger.length > 1 || tools) return
    const last = cache.seen.findLast(({ cells, output }) => output && cells.length === entry.shown)
    const first = cache.seen.find(({ output }) => output)
    if (last === undefined || first === undefined) {
      this.judge.blame('visible', at, `no decode saw the ${entry.shown} tokens that the ledger calls shown`)
      return
    }
    const full = last.cells.map(({ token }) => token)
    const prompt = full.slice(0, first.cells.length)
    this.judge.visible(at, cache.seen, [{ tenant: talk.key, tokens: full }])
    const fragments = talk.sure?.edits.fragments ?? []
    const contents = (talk.sure?.messages ?? []).slice(0, -1).map(({ message }) => message.content)
    await this.judge.step(
      at,
      {
        ...{ talk: String(op.talk), tenant: talk.key, prompt, contents, twin: null, ledger },
        fragments: fragments.map(({ message, span, state }) => ({ message, span, ...state })),
        // The last generated token may not have been decoded, and what ended the answer is not told.
        ...{ outcome: 'stop', generated: full.slice(prompt.length), rows: [] },
        tops: reply.choices[0]!.logprobs?.content.map(({ top_logprobs: top }) => top.map(({ logprob }) => logprob)) ?? [],
      },
      cache,
      marks.decode,
      { exact: null, isRestore: false, least: 1, ample: false, held: new Set(), refreshes: false, isAlone: false },
      true,
    )
  }

  async #both(at: number, op: Extract<ServeOp, { op: 'both' }>, marks: { decoded: number }): Promise<void> {
    const sent = { max_tokens: 8, kvfold: { contract: op.contract } }
    const answers = await Promise.all(this.#talks.map((talk, index) => this.#send(talk, op.texts[index]!, sent)))
    let sum = 0
    let whole = true
    for (const [index, talk] of this.#talks.entries()) {
      const reply = await this.#told(at, talk, op.texts[index]!, answers[index] ?? null)
      whole &&= reply !== null
      sum += reply?.kvfold.ledger.reduce((total, { submitted }) => total + submitted, 0) ?? 0
    }
    this.observer.read()
    const cache = this.#cache
    if (cache === undefined) return
    if (whole && cache.decoded - marks.decoded !== sum)
      this.judge.blame(
        'counts',
        at,
        `${cache.decoded - marks.decoded} tokens were decoded, the ledgers of the answers say ${sum}`,
      )
    await this.#ownCodes(at, cache.seen)
  }

  /** Nobody's text is seen in anybody else's conversation. */
  async #ownCodes(at: number, seen: readonly Seen[]): Promise<void> {
    const codes = this.#talks.map(({ messages }) =>
      messages.flatMap(({ content }) => codesOf(content ?? '').map(({ code }) => code)),
    )
    for (const { cells, output, decode } of seen.filter((each) => each.output)) {
      const read = await this.reference.text(cells.map(({ token }) => token))
      const whose = codes.map((all, index) => all.some((code) => read.includes(code) && !codes[1 - index]!.includes(code)))
      if (output && whose[0] === true && whose[1] === true)
        this.judge.blame('tenants', at, `decode ${decode} sees the text of both keys`)
    }
  }

  async #leave(op: Extract<ServeOp, { op: 'leave' }>): Promise<void> {
    const talk = this.#talks[op.talk]!
    talk.mayHaveMore = true
    await this.#send(talk, op.text, { stream: true, max_tokens: 60 }, AbortSignal.timeout(1 + op.milliseconds))
    await this.#idle()
  }

  /** Waits until no thread runs, 30 seconds at most. A real model ends its decode before it is cancelled. */
  async #idle(): Promise<void> {
    for (let turn = 0; turn < 1500; turn++) {
      const lists = await Promise.all(KEYS.map((key) => this.#server!.ask('GET', '/kvfold/threads', key)))
      const running = lists.some((list) =>
        (list?.body as { threads?: { running: boolean }[] }).threads?.some((each) => each.running),
      )
      if (!running) return
      await sleep(20)
    }
  }

  async #change(at: number, op: Exclude<ServeOp, { op: 'ask' | 'both' | 'leave' | 'kill' | 'restart' }>): Promise<void> {
    const talk = this.#talks[op.talk]!
    if (talk.thread === null || talk.sure === null) return
    const path = `/kvfold/threads/${talk.thread}`
    const { fragments } = talk.sure.edits
    const post = async (rest: string, body: unknown) => {
      const answer = await this.#server!.ask('POST', path + rest, talk.key, body)
      if (answer === null || answer.status >= 500)
        this.judge.blame('error', at, `${op.op}: ${JSON.stringify(answer).slice(0, 300)}`)
      return answer?.status === 200
    }
    if (op.op === 'stranger') {
      const other = this.#talks[1 - op.talk]!.key
      const answer = await this.#server!.ask('GET', path, other)
      if (answer?.status !== 404) this.judge.blame('tenants', at, `another key's thread is answered with ${answer?.status ?? 0}`)
      return
    }
    if (op.op === 'search') await post('/search', { query: 'stone' })
    else if (op.op === 'refresh') await post('/refresh', {})
    else if (op.op === 'fragment') {
      const codes = talk.messages
        .filter(({ role }) => role === 'user')
        .flatMap(({ content }) => codesOf(content ?? '').map(({ code }) => code))
      const [start, end] = [codes[op.from % codes.length], codes[op.to % codes.length]]
      if (start !== undefined && end !== undefined)
        await post('/fragments', { startMarker: start, endMarker: end, numFragments: op.pieces })
    } else if ('pick' in op) {
      const fragment = fragments[op.pick % fragments.length]?.id
      if (fragment === undefined) return
      const body =
        op.op === 'summarize'
          ? { focus: 'codes' }
          : op.op === 'fold' && op.contract !== undefined
            ? { contract: op.contract }
            : {}
      const done = await post(`/fragments/${fragment}/${op.op}`, body)
      await this.#acknowledged(at, talk)
      const wanted = { fold: 'folded', restore: 'open', summarize: 'summarised' }[op.op]
      const is = talk.sure.edits.fragments.find(({ id }) => id === fragment)?.state.kind
      if (done && is !== wanted) this.judge.blame('lost', at, `${fragment} was acknowledged as ${wanted} and is ${is ?? 'gone'}`)
    }
    await this.#acknowledged(at, talk)
  }

  async #kill(at: number, { talk: index, milliseconds }: Extract<ServeOp, { op: 'kill' }>): Promise<void> {
    const talk = this.#talks[index]!
    talk.mayHaveMore = true
    const under = this.#send(talk, 'This is never answered.', { max_tokens: 200 })
    await sleep(milliseconds)
    await this.#server?.stop('SIGKILL')
    await under
    this.observer.read()
    await this.#start()
    await this.#nothingLost(at)
  }

  async #nothingLost(at: number): Promise<void> {
    for (const talk of this.#talks) {
      const { sure: was, mayHaveMore } = talk
      if (was === null) continue
      await this.#acknowledged(at, talk)
      const is = talk.sure
      const same = (a: unknown, b: unknown) => JSON.stringify(a) === JSON.stringify(b)
      if (is === was || is === null) continue
      if (!same(was.messages, is.messages.slice(0, was.messages.length)))
        this.judge.blame('lost', at, 'messages were lost or changed')
      if (!same(was.ledger, is.ledger.slice(0, was.ledger.length)))
        this.judge.blame('lost', at, 'ledger entries were lost or changed')
      if (!same(was.edits.fragments, is.edits.fragments)) this.judge.blame('lost', at, 'fragments were lost or changed')
      if (!mayHaveMore && is.messages.length !== was.messages.length) this.judge.blame('lost', at, 'messages came from nowhere')
    }
  }
}
