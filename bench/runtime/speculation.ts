/**
 * Tokens per second with and without drafts, on work that repeats its prompt and on work that does not: an edit of code, a summary, a chat.
 * All kinds run in turn in one engine, so the machine is equally busy for each. Answers are greedy.
 * `npm run --silent bench -- speculation [--model GGUF] [--threads N] [--tokens 160] [--rounds 5] [--streams 1,4] [--work "code edit,chat"]
 * [--kinds auto,ngram] [--draft GGUF] [--peer] [--json] [--write name]`. `--draft`: a draft model, for `auto` and `draft`. `--peer`: also
 * llama-server (built if missing) with its own n-gram kinds, each compared with llama-server without drafts.
 */
import { readFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import type { ChatMessage } from '../../src/runtime/chat/message.js'
import { conversationId } from '../../src/runtime/core/ids.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { SPECULATE_KINDS, type SpeculateKind } from '../../src/runtime/engine/speculate-terms.js'
import { left, right, table, terminal } from '../../src/runtime/figures/table.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { median } from '../random-tokens.js'
import { beginRecord, fileOf, keep, oneOf, OPTIONS } from '../record.js'
import type { ServerProcess } from '../server-process.js'
import { startLlamaServer } from './serve/servers.js'

const CELLS = 16_384
const SLOTS = 4
/** The kinds of llama-server. The first, `none`, is the one with which the rest is compared. */
const PEERS = ['none', 'ngram-simple', 'ngram-mod', 'ngram-map-k'] as const

const here = (path: string): string => readFileSync(new URL(path, import.meta.url), 'utf8')

/** For each case, the work of the stream with this index. */
const CASES: Readonly<Record<string, (stream: number) => string>> = {
  'code edit': (stream) => {
    const files = ['../../src/runtime/core/span.ts', '../statistics.ts', '../random-tokens.ts', '../../src/runtime/core/turns.ts']
    const file = here(files[stream % files.length]!)
    return `Rename \`start\` to \`from\` and \`values\` to \`numbers\`. Answer with the whole changed file and nothing else.\n\n\`\`\`typescript\n${file}\`\`\``
  },
  summary: (stream) => {
    const pages = ['../../docs/tiers.md', '../../docs/contracts.md', '../../docs/kv-cache.md', '../../docs/mcp.md']
    return `Summarise this page in ten sentences.\n\n${here(pages[stream % pages.length]!).slice(0, 5000)}`
  },
  chat: (stream) =>
    [
      'Tell me a long story of a lighthouse keeper and a whale.',
      'How do bees find their way home?',
      'Plan three days in Lisbon.',
      'Explain tides to a child.',
    ][stream % 4]!,
}

interface Row {
  readonly work: string
  readonly streams: number
  readonly kind: string
  /** Tokens per second of all streams together while they write; median of the rounds. */
  readonly pace: number
  /** Median over the rounds of this pace divided by the pace without drafts in the same round. */
  readonly ratio: number
  /** `drafted`: number of drafted tokens. `kept`: share of them that was accepted. Absent if the server does not report them. */
  readonly drafted?: number
  readonly kept?: number
}

/** One measured batch of answers. */
interface Measured {
  readonly tokens: number
  readonly milliseconds: number
  readonly drafted: number
  readonly accepted: number
  readonly texts: readonly string[]
}

type Ask = (work: string, streams: number, kind: string) => Promise<Measured>

export async function speculation(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      ...OPTIONS,
      threads: { type: 'string', default: '2' },
      tokens: { type: 'string', default: '160' },
      rounds: { type: 'string', default: '5' },
      streams: { type: 'string', default: '1,4' },
      work: { type: 'string', default: Object.keys(CASES).join() },
      kinds: { type: 'string' },
      draft: { type: 'string' },
      peer: { type: 'boolean', default: false },
    },
  })
  const model = fileOf(values.model)
  const [threads, tokens, rounds] = [Number(values.threads), Number(values.tokens), Number(values.rounds)]
  const streams = values.streams.split(',').map(Number)
  const work = values.work.split(',').map((name) => oneOf('work', Object.keys(CASES), name))
  const draft = values.draft === undefined ? {} : { draft: { path: fileOf(values.draft) } }
  const usual = values.draft === undefined ? 'auto,ngram' : 'auto,ngram,draft'
  const kinds = (values.kinds ?? usual).split(',').map((name) => oneOf('kinds', SPECULATE_KINDS, name))
  const native = await openNative({ gpu: 'cpu' })
  const ended = beginRecord(['speculation', ...args], model, native.backend.release, threads)
  const engine = await LlamaEngine.load(native, model, { cells: CELLS, slots: SLOTS, threads, batchThreads: threads, ...draft })
  const own = await rowsOf(work, ['off', ...kinds], streams, rounds, ownAsk(engine, tokens))
  await engine.dispose()
  const peer = values.peer ? await peerRows(work, model, threads, streams, rounds, tokens) : null
  const record = {
    ...ended(),
    tokens,
    rounds,
    kvfold: own.rows,
    equal: own.equal,
    ...(peer === null ? {} : { llamaServer: peer.rows }),
  }
  if (values.json) console.log(JSON.stringify(record, null, 2))
  else {
    console.log(shown('kvfold', own.rows))
    console.log(`${own.equal} of ${own.compared} answers with drafts are those without, to the letter.`)
    if (peer !== null) console.log(shown('llama-server', peer.rows))
  }
  await keep(values.write, record)
}

/** Runs all kinds in turn, in a different order every round. The first round is a warm-up and is not counted. */
async function rowsOf(
  works: readonly string[],
  kinds: readonly string[],
  streams: readonly number[],
  rounds: number,
  ask: Ask,
): Promise<{ readonly rows: readonly Row[]; readonly equal: number; readonly compared: number }> {
  const rows: Row[] = []
  let [equal, compared] = [0, 0]
  for (const work of works)
    for (const count of streams) {
      const all = new Map<string, Measured[]>(kinds.map((kind) => [kind, []]))
      for (let round = 0; round <= rounds; round++)
        for (const kind of round % 2 === 0 ? kinds : [...kinds].reverse()) {
          const measured = await ask(work, count, kind)
          if (round > 0) all.get(kind)!.push(measured)
        }
      const plain = all.get(kinds[0]!)!
      for (const kind of kinds) {
        const of = all.get(kind)!
        const paces = of.map(pace)
        const drafted = of.reduce((sum, each) => sum + each.drafted, 0)
        const accepted = of.reduce((sum, each) => sum + each.accepted, 0)
        rows.push({
          ...{ work, streams: count, kind, pace: median(paces), ratio: median(paces.map((each, at) => each / pace(plain[at]!))) },
          ...(drafted === 0 ? {} : { drafted, kept: accepted / drafted }),
        })
        if (kind === kinds[0]) continue
        for (const [at, { texts }] of of.entries())
          for (const [index, text] of texts.entries()) {
            compared++
            if (text === plain[at]!.texts[index]) equal++
          }
      }
    }
  return { rows, equal, compared }
}

const pace = ({ tokens, milliseconds }: Measured): number => (1000 * tokens) / milliseconds

function shown(name: string, rows: readonly Row[]): string {
  const cells = rows.map(({ work, streams, kind, pace, ratio, drafted, kept }) => [
    ...[work, String(streams), kind, pace.toFixed(1), ratio.toFixed(2)],
    ...[drafted === undefined ? '' : String(drafted), kept === undefined ? '' : kept.toFixed(2)],
  ])
  const head = [left(name), right('streams'), left('kind'), right('tokens/s'), right('ratio'), right('drafted'), right('kept')]
  return terminal(table(head, cells)).join('\n')
}

let asked = 0

function ownAsk(engine: LlamaEngine, maxTokens: number): Ask {
  return async (work, streams, kind) => {
    const texts: string[] = []
    const running = Array.from({ length: streams }, (_, stream) => {
      const messages: readonly ChatMessage[] = [{ role: 'user', content: CASES[work]!(stream) }]
      const speculate = { kind: kind as SpeculateKind }
      return engine.respond({ conversation: conversationId(`c${++asked}`), messages, maxTokens, speculate, last: true }).reply
    })
    const begun = performance.now()
    const replies = await Promise.all(running)
    const now = performance.now()
    // Prompts are computed until the first token of the last stream, so count only the time behind it.
    const first = Math.max(...replies.map(({ timing }) => timing.firstToken))
    for (const { message } of replies) texts.push(message.sampled?.text ?? message.content)
    const sum = (of: 'drafted' | 'accepted') => replies.reduce((total, { ledger }) => total + (ledger[of] ?? 0), 0)
    return {
      ...{ tokens: replies.reduce((total, { timing }) => total + timing.generatedTokens, 0), milliseconds: now - begun - first },
      ...{ drafted: sum('drafted'), accepted: sum('accepted'), texts },
    }
  }
}

interface PeerAnswer {
  readonly choices: readonly { readonly message: { readonly content: string } }[]
  readonly timings: {
    readonly predicted_n: number
    readonly prompt_ms: number
    readonly draft_n?: number
    readonly draft_n_accepted?: number
  }
}

async function peerRows(
  works: readonly string[],
  model: string,
  threads: number,
  streams: readonly number[],
  rounds: number,
  maxTokens: number,
) {
  const servers = new Map<string, ServerProcess>()
  try {
    for (const kind of PEERS)
      servers.set(
        kind,
        await startLlamaServer({ model, slots: SLOTS, threads, cells: CELLS }, kind === 'none' ? [] : ['--spec-type', kind]),
      )
    return await rowsOf(works, PEERS, streams, rounds, async (work, count, kind) => {
      const begun = performance.now()
      const answers = await Promise.all(
        Array.from({ length: count }, async (_, stream) => {
          const body = { messages: [{ role: 'user', content: CASES[work]!(stream) }], max_tokens: maxTokens, temperature: 0 }
          const response = await fetch(`${servers.get(kind)!.url}/v1/chat/completions`, {
            ...{ method: 'POST', headers: { 'content-type': 'application/json' } },
            body: JSON.stringify(body),
          })
          return (await response.json()) as PeerAnswer
        }),
      )
      const sum = (of: 'predicted_n' | 'draft_n' | 'draft_n_accepted') =>
        answers.reduce((total, { timings }) => total + (timings[of] ?? 0), 0)
      const prompts = Math.max(...answers.map(({ timings }) => timings.prompt_ms))
      return {
        ...{ tokens: sum('predicted_n'), milliseconds: performance.now() - begun - prompts },
        ...{ drafted: sum('draft_n'), accepted: sum('draft_n_accepted') },
        texts: answers.map(({ choices }) => choices[0]!.message.content),
      }
    })
  } finally {
    for (const server of servers.values()) await server.close()
  }
}
