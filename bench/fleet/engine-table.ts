/**
 * Compares other engines through kvfold's client: which routes an engine has; whether forced calls, schemas and log-probabilities work;
 * whether it reports cached tokens; and what folds cost on it. For the folds, it folds eight fragments of a text, one per turn from first
 * to last, and runs four more turns. It does so once with each fold sent at once, and once with deferred folds (`--defer-edits`). Tokens
 * come from the engine's own counters if it has some, else from the usage in its answers. Runs the engines that scripts/engine-parts.mjs
 * and scripts/test-parts.mjs installed, and names the missing ones.
 * `npm run --silent bench -- engine-table [--only vLLM,SGLang] [--json] [--write engine-table]`
 */
import { spawnSync } from 'node:child_process'
import { parseArgs } from 'node:util'
import { plain } from '../../src/runtime/agents/sculptor.js'
import type { ChatMessage, ToolDefinition } from '../../src/runtime/chat/message.js'
import { conversationId } from '../../src/runtime/core/ids.js'
import type { DeferralOptions } from '../../src/fleet/engines/deferral.js'
import { RemoteEngine } from '../../src/fleet/engines/remote.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { counters } from '../runtime/client-edits/session.js'
import { type EngineKind, ENGINES, randomModel } from './engines/kinds.js'
import { pythonOf } from './engines/parts.js'
import { beginRecord, keep, OPTIONS } from '../record.js'
import type { ServerProcess } from '../server-process.js'

const READ: ToolDefinition = {
  name: 'read',
  description: 'Reads a file.',
  parameters: { type: 'object', properties: { file: { type: 'integer' } }, required: ['file'], additionalProperties: false },
}
const SCHEMA = { type: 'object', properties: { sure: { type: 'boolean' } }, required: ['sure'], additionalProperties: false }

const asked = { model: 'bench', max_tokens: 1, messages: [{ role: 'user', content: 'Well?' }] }
/** The request body for each path; null: a GET request. */
const ROUTES: Readonly<Record<string, object | null>> = {
  '/health': null,
  '/metrics': null,
  '/v1/models': null,
  '/v1/chat/completions': asked,
  '/v1/completions': { model: 'bench', max_tokens: 1, prompt: 'Well?' },
  '/v1/responses': { model: 'bench', max_output_tokens: 16, input: 'Well?' },
  '/v1/messages': asked,
  '/tokenize': { model: 'bench', content: 'Well?', prompt: 'Well?' },
}

/** The tokens of an episode, without its first prompt. */
interface Episode {
  /** Tokens that the engine computed: by its own counters, or by its answers' usage if it has none. */
  readonly computed: number
  /** Tokens that our ledger counts as computed. */
  readonly ledger: number
  /** Number of steps in which some edits waited. */
  readonly waited: number
  readonly lastPrompt: number
}

interface Seen {
  readonly engine: string
  readonly version: string
  readonly model: EngineKind['model']
  /** The flavour that our client detects. */
  readonly flavour: string
  /** `routes`: the paths of `ROUTES` that answer with 200. `refusing`: the status of each path that exists but refuses the request. */
  readonly routes: readonly string[]
  readonly refusing: Readonly<Record<string, number>>
  /** The outcomes, in a few words, of a forced call, a history with a call and its result, a schema, and log-probabilities. */
  readonly forcedCall: string
  readonly callHistory: string
  readonly schema: string
  readonly logprobs: string
  /**
   * In a conversation's second turn: `cached` is what the engine reports as cached (null: no report), `left` the tokens that the first turn
   * left in its cache.
   */
  readonly cached: number | null
  readonly left: number
  readonly counted: 'its counters' | 'its usage'
  readonly atOnce: Episode
  readonly deferred: Episode
  readonly notes: readonly string[]
}

const user = (content: string): ChatMessage => ({ role: 'user', content })
const lines = (first: number, last: number) =>
  Array.from({ length: last - first }, (_, at) => `Line ${first + at}: key ${first + at} is ${(first + at) * 7 + 1}.`).join('\n')

/** Runs the work and returns its outcome in a few words, also if it throws. */
async function became(work: () => Promise<string>): Promise<string> {
  try {
    return await work()
  } catch (error) {
    return `refused: ${error instanceof Error ? error.message : String(error)}`.slice(0, 200)
  }
}

async function routesOf(url: string): Promise<Pick<Seen, 'routes' | 'refusing'>> {
  const routes: string[] = []
  const refusing: Record<string, number> = {}
  for (const [path, body] of Object.entries(ROUTES)) {
    const sent = { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }
    const { status } = await fetch(url + path, body === null ? {} : sent)
    if (status === 200) routes.push(path)
    else if (![404, 405, 501].includes(status)) refusing[path] = status
  }
  return { routes, refusing }
}

/** A started engine of one kind. */
class Running {
  constructor(
    private readonly kind: EngineKind,
    private readonly server: ServerProcess,
  ) {}

  async seen(): Promise<Seen> {
    const { kind } = this
    const engine = await this.#connect()
    const step = (id: string, more: Partial<Parameters<RemoteEngine['respond']>[0]>) =>
      engine.respond({
        conversation: conversationId(id),
        messages: [user('Which is the value of key 3?')],
        maxTokens: 40,
        ...more,
      }).reply
    const first = await step('cached', { messages: [user(lines(0, 40))], maxTokens: 4 })
    const second = await step('cached', { messages: [user(lines(0, 40)), first.message, user('And then?')], maxTokens: 4 })
    const seen = {
      engine: kind.name,
      version: kind.package === null ? engine.info.release : versionOf(kind.package, kind),
      model: kind.model,
      flavour: engine.flavour.name,
      ...(await routesOf(this.server.url)),
      forcedCall: await became(async () => {
        const { message, finish } = await step('forced', { tools: [READ], toolChoice: 'required', maxTokens: 200 })
        const [call] = message.toolCalls ?? []
        return call === undefined ? `no call (${finish})` : `${call.name} ${JSON.stringify(call.malformed ?? call.arguments)}`
      }),
      callHistory: await became(async () => {
        const messages: ChatMessage[] = [
          user('Read file 3.'),
          { role: 'assistant', content: '', toolCalls: [{ id: 'call_1', name: 'read', arguments: { file: 3 } }] },
          { role: 'tool', content: 'Red.', toolCallId: 'call_1' },
        ]
        const { finish } = await step('history', { messages, tools: [READ] })
        return `answered (${finish})`
      }),
      schema: await became(async () => {
        const { message, finish } = await step('schema', { schema: SCHEMA, sampling: { temperature: 1, seed: 4 } })
        return keeps(message.content) ? `kept (${finish})` : `not kept (${finish})`
      }),
      logprobs: await became(async () => {
        const { logprobs = [] } = await step('logprobs', { logprobs: 2, maxTokens: 3 })
        const [one] = logprobs
        return one === undefined ? 'none' : `${one.token < 0 ? 'texts only' : 'with token numbers'}, top ${one.top.length}`
      }),
      cached: second.ledger.engine?.reported ?? null,
      left: first.ledger.shown,
      counted: kind.counters === null ? ('its usage' as const) : ('its counters' as const),
      atOnce: await this.#episode(300),
      deferred: await this.#episode(500, {}),
      notes: engine.notes,
    }
    await engine.dispose()
    return seen
  }

  #connect(deferEdits?: DeferralOptions): Promise<RemoteEngine> {
    const { url } = this.server
    const named = this.kind.name === 'transformers serve' ? randomModel() : 'bench'
    return RemoteEngine.connect({ url, model: named, ...(deferEdits === undefined ? {} : { deferEdits }) })
  }

  /** Returns the tokens computed so far, by the engine's own counters; null if it has none. */
  async #computed(): Promise<number | null> {
    if (this.kind.counters === null) return null
    const { plus, minus } = this.kind.counters
    const sum = (names: readonly string[]) => (names.length === 0 ? 0 : counters({ server: this.server }, names))
    return (await sum(plus)) - (await sum(minus))
  }

  /** @param first number of the text's first line; each episode has its own range of lines, so no two share cells */
  async #episode(first: number, deferEdits?: DeferralOptions): Promise<Episode> {
    const engine = await this.#connect(deferEdits)
    const session = plain({ engine, id: conversationId(`episode ${first}`), generation: { maxTokens: 2 } })
    session.conversation.add(user(lines(first, first + 100)))
    await session.ask('Well?')
    const before = await this.#computed()
    const whole = session.conversation.messages[0]!.content.length
    const cut = session.conversation.cut([{ message: 0, span: { start: 0, end: whole } }], 10)
    if (!cut.ok) throw new Error(cut.message)
    for (const { id } of cut.fragments.slice(0, 8)) {
      const folded = session.conversation.fold(id, {}, 'allow')
      if (!folded.ok) throw new Error(folded.message)
      await session.ask('And now?')
    }
    for (let more = 0; more < 4; more++) await session.ask('And now?')
    const entries = session.ledger.slice(1)
    const after = await this.#computed()
    const ledger = entries.reduce((sum, { submitted }) => sum + submitted, 0)
    await engine.dispose()
    return {
      computed: before === null || after === null ? ledger : after - before,
      ledger,
      waited: entries.filter(({ fallback }) => fallback?.includes('wait') === true).length,
      lastPrompt: entries.at(-1)!.shown,
    }
  }
}

function keeps(text: string): boolean {
  try {
    return typeof (JSON.parse(text) as { sure?: unknown }).sure === 'boolean'
  } catch {
    return false
  }
}

function versionOf(name: string, kind: EngineKind): string {
  const venv = { 'transformers serve': 'transformers', vLLM: 'vllm', SGLang: 'sglang' }[kind.name] ?? kind.name
  const code = `import importlib.metadata as m; print(m.version(${JSON.stringify(name)}))`
  return spawnSync(pythonOf(venv), ['-c', code], { encoding: 'utf8' }).stdout.trim()
}

export async function engineTable(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({ args: [...args], options: { ...OPTIONS, only: { type: 'string' } } })
  const only = values.only?.split(',')
  const native = await openNative({ gpu: 'cpu' })
  const origin = beginRecord(['engine-table', ...args], values.model, native.backend.release, 1)
  const rows: Seen[] = []
  const absent: Record<string, string> = {}
  for (const kind of ENGINES.filter(({ name }) => only === undefined || only.includes(name))) {
    if (kind.missing !== null) {
      absent[kind.name] = kind.missing
      continue
    }
    const server = await kind.start()
    try {
      rows.push(await new Running(kind, server).seen())
    } finally {
      await server.close()
    }
    await keep(values.write, record())
    if (!values.json) console.log(JSON.stringify(rows.at(-1), null, 2))
  }
  for (const [name, why] of Object.entries(absent)) console.error(`${name} is left out: ${why}`)
  await keep(values.write, record())
  if (values.json) console.log(JSON.stringify(record()))

  function record() {
    return { ...origin(), rows, absent: Object.keys(absent) }
  }
}
