/** A process that runs conversations over a store until it is killed, and prints every acknowledged operation on stdout. */
import { writeSync } from 'node:fs'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { builtinModel } from '../../../../src/runtime/cli/builtin.js'
import type { ChatMessage } from '../../../../src/runtime/chat/message.js'
import { Random } from '../../../../src/runtime/core/random.js'
import { LlamaEngine } from '../../../../src/runtime/engine/llama.js'
import { openNative } from '../../../../src/runtime/native/binding.js'
import { ThreadService } from '../../../../src/runtime/server/service.js'
import type { ExportedThread } from '../../../../src/runtime/server/threads/thread-api.js'
import { SqliteStore } from '../../../../src/runtime/store/sqlite-store.js'

/**
 * `begin`: the store is about to be opened. `try`: an operation begins. `ack`: it was acknowledged; `is` has the thread as it must be from
 * now on, or null when it was deleted.
 */
export type Said =
  | { readonly say: 'begin' }
  | { readonly say: 'try'; readonly talker: string; readonly thread: string | null; readonly what: string }
  | {
      readonly say: 'ack'
      readonly talker: string
      readonly thread: string
      readonly what: string
      readonly is: ExportedThread | null
    }

const TENANT = 'public'
const say = (said: Said) => writeSync(1, `${JSON.stringify(said)}\n`)

/** Two talkers run this many operations on each service; then the store is closed and opened again. */
const OPERATIONS = 12

async function talk(service: ThreadService, random: Random, mine: Set<string>, talker: string): Promise<void> {
  const { threads } = service
  const acknowledge = (thread: string, what: string) => {
    say({ say: 'ack', talker, thread, what, is: threads.export(TENANT, thread) })
  }
  for (let operation = 0; operation < OPERATIONS; operation++) {
    const known = threads.list(TENANT).filter(({ id }) => mine.has(id))
    const thread = random.below(4) === 0 ? undefined : known[random.below(Math.max(1, known.length))]?.id
    const fragments = thread === undefined ? [] : threads.export(TENANT, thread).edits.fragments
    const { id: fragment = '', state = { kind: 'open' } } = fragments[random.below(Math.max(1, fragments.length))] ?? {}
    // A kill between a thread's start and its first message leaves it empty; nothing of it was acknowledged.
    const empty = thread !== undefined && threads.export(TENANT, thread).messages.length === 0
    const kind = thread === undefined || empty ? 0 : random.below(10)
    if (thread !== undefined && kind === 9 && known.length > 4) {
      say({ say: 'try', talker, thread, what: 'delete' })
      await threads.delete(TENANT, thread)
      say({ say: 'ack', talker, thread, what: 'delete', is: null })
    } else if (thread !== undefined && kind > 4 && fragments.length > 0) {
      const what = state.kind === 'open' ? 'fold' : 'restore'
      say({ say: 'try', talker, thread, what: `${what} ${fragment}` })
      await threads[what](TENANT, thread, fragment)
      acknowledge(thread, what)
    } else if (thread !== undefined && kind > 4) {
      say({ say: 'try', talker, thread, what: 'fragment' })
      const options = { startMarker: 'one', endMarker: 'nine', numFragments: 3 }
      await threads.fragment(TENANT, thread, options)
      await threads.search(TENANT, thread, { query: 'i', maxResults: 3 })
      acknowledge(thread, 'fragment')
    } else {
      const question = `${talker} ${operation}: one two three four five six seven eight nine. Say ${random.below(1000)}.`
      const messages: ChatMessage[] = [{ role: 'user', content: question }]
      say({ say: 'try', talker, thread: thread ?? null, what: 'ask' })
      const asked = service.ask({
        ...{ tenant: TENANT, messages, tools: [], toolChoice: 'auto', maxTokens: 24 },
        ...(thread === undefined ? {} : { thread, appended: true }),
        ...(random.below(2) === 0 ? {} : { format: { kind: 'grammar', grammar: 'root ::= "a" root' } as const }),
      })
      for await (const event of asked) if (event.type === 'started') acknowledge(event.thread, 'message')
      const answer = await asked.answer
      mine.add(answer.thread)
      acknowledge(answer.thread, 'answer')
    }
    await nextTurn()
  }
}

async function main(folder: string, seed: number): Promise<void> {
  for (let turn = 0; ; turn++) {
    say({ say: 'begin' })
    const store = SqliteStore.open({ folder })
    const load = async () =>
      LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), {
        ...{ threads: 1, batchThreads: 1, slots: 2, cells: 4096, hostBytes: 0 },
      })
    const service = await ThreadService.open({ store, models: [{ name: 'builtin', slots: 2, load }], costlyFolds: 'allow' })
    // Each talker has half of the existing threads, and those that it starts.
    const half = (parity: number) => {
      const ids = service.threads.list(TENANT).map(({ id }) => id)
      return new Set(ids.filter((id) => parseInt(id.slice(-1), 16) % 2 === parity))
    }
    await Promise.all([0, 1].map((each) => talk(service, new Random(seed + turn, each), half(each), `${seed}-${turn}-${each}`)))
    await service.close()
  }
}

if (process.argv[1] === import.meta.filename) {
  const [folder = '', seed = ''] = process.argv.slice(2)
  await main(folder, Number(seed))
}
