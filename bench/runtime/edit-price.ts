/**
 * What folds cost on an engine with a prefix cache, depending on when they are made. Folds ten fragments of one message, one per turn from
 * first to last, while the conversation continues, on a real llama-server and a kvfold engine. Tokens are the engine's own counts; costs at
 * a price of a cached token are calculated from them. The rows of two engines that do not run are calculated from the tokens of the prompts
 * that llama-server received: SGLang keeps every computed token (a radix tree), vLLM whole blocks of 16, and neither evicts anything. The
 * row for single tokens is the control, to compare with llama-server's own counts.
 * `npm run --silent bench -- edit-price [--turns 14] [--json] [--write NAME]`
 */
import { parseArgs } from 'node:util'
import type { ChatMessage, Edit } from '../../src/runtime/chat/message.js'
import { conversationId } from '../../src/runtime/core/ids.js'
import { RemoteEngine, type RemoteEngineOptions } from '../../src/fleet/engines/remote.js'
import { number, table, terminal } from '../../src/runtime/figures/table.js'
import { commonPrefix } from '../../src/runtime/kv/prompt.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { beginRecord, keep, OPTIONS } from '../record.js'
import { HERE, type Serving, startKvfold, startLlamaServer } from './serve/servers.js'

const PARTS = 10
const TIMES = "by the engine's times"
const PRICES = [0, 0.1, 0.5] as const
/** `defer` null: edits are sent at once. At a price of 0 a fold never pays off, so it waits for the end of the context. */
const WAYS: Readonly<Record<string, { readonly folds: boolean; readonly defer: RemoteEngineOptions['deferEdits'] | null }>> = {
  'never folded': { folds: false, defer: null },
  'each at once': { folds: true, defer: null },
  'all wait': { folds: true, defer: { cachedPrice: 0 } },
  'by price, 0.1': { folds: true, defer: { cachedPrice: 0.1 } },
  'by price, 0.5': { folds: true, defer: { cachedPrice: 0.5 } },
  [TIMES]: { folds: true, defer: {} },
}

/** Engines that do not run: the tokens of a block, which the engine keeps as a whole or not at all. */
const BY_ARITHMETIC: Readonly<Record<string, number>> = { 'SGLang, by arithmetic': 1, 'vLLM, by arithmetic': 16 }

interface Row {
  readonly engine: string
  readonly way: string
  readonly computed: number
  readonly cached: number
  /** Costs in computed tokens, by the price of a cached token. */
  readonly costs: Readonly<Record<string, number>>
  /** Tokens of the last prompt. */
  readonly last: number
}

const line = (at: number) => `Line ${at}: the value of key ${at} is ${at * 7 + 1}.\n`
const part = (at: number) => Array.from({ length: 8 }, (_, each) => line(8 * at + each)).join('')

/** A step by its tokens: `prompt`, and `all` tokens that were computed or cached at its end. */
export interface Computed {
  readonly prompt: Int32Array
  readonly all: Int32Array
}

/**
 * Returns how many prompt tokens an engine finds cached, and how many tokens it computes. The engine keeps whole blocks of what it
 * computed, and always computes a prompt's last token.
 */
export function kept(steps: readonly Computed[], block: number): { readonly computed: number; readonly cached: number } {
  let [computed, cached] = [0, 0]
  for (const [at, { prompt, all }] of steps.entries()) {
    const longest = Math.max(0, ...steps.slice(0, at).map((before) => commonPrefix(before.all, prompt)))
    const found = Math.floor(Math.min(longest, prompt.length - 1) / block) * block
    cached += found
    computed += all.length - found
  }
  return { computed, cached }
}

const costsOf = (computed: number, cached: number) =>
  Object.fromEntries(PRICES.map((price) => [String(price), Math.round(computed + price * cached)]))

async function play(url: string, name: string, way: string, turns: number): Promise<{ row: Row; steps: Computed[] | null }> {
  const { folds, defer } = WAYS[way]!
  const engine = await RemoteEngine.connect({ url, tokens: true, ...(defer == null ? {} : { deferEdits: defer }) })
  const text = Array.from({ length: PARTS }, (_, at) => part(at)).join('')
  // Each way's text begins differently, so two ways share no cache.
  const messages: ChatMessage[] = [{ role: 'user', content: `${way}.\n${text}` }]
  const edits: Edit[] = []
  let [computed, cached, last] = [0, 0, 0]
  const steps: Computed[] = []
  try {
    for (let turn = 0; turn < turns; turn++) {
      messages.push({ role: 'user', content: `Which is the value of key ${turn}?` })
      if (folds && turn >= 2 && turn < 2 + PARTS) {
        const start = messages[0]!.content.indexOf(part(turn - 2))
        edits.push({
          message: 0,
          span: { start, end: start + part(turn - 2).length },
          replacement: `[part ${turn - 2} is folded]\n`,
        })
      }
      const { message, ledger, tokens } = await engine.respond({
        ...{ conversation: conversationId(way), messages: [...messages], edits: [...edits], maxTokens: 12 },
      }).reply
      const reported = ledger.engine?.reported ?? 0
      cached += reported
      last = ledger.messages.reduce((sum, { shown }) => sum + shown, 0)
      computed += ledger.submitted
      if (tokens !== undefined)
        steps.push({
          prompt: tokens.prompt,
          all: Int32Array.from([...tokens.prompt, ...tokens.completion].slice(0, ledger.shown)),
        })
      messages.push(message)
    }
  } finally {
    await engine.dispose()
  }
  const row = { engine: name, way, computed, cached, costs: costsOf(computed, cached), last }
  return { row, steps: steps.length === turns ? steps : null }
}

export async function editPrice(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({ args: [...args], options: { ...OPTIONS, turns: { type: 'string', default: '14' } } })
  const turns = Number(values.turns)
  const { backend } = await openNative({ gpu: 'cpu' })
  const record = beginRecord(['edit-price', ...args], values.model, backend.release, 1)
  const serving: Serving = { model: values.model, slots: 1, threads: 1, cells: 8192 }
  const rows: Row[] = []
  const arithmetic: Row[] = []
  for (const name of ['llama-server', 'kvfold'] as const) {
    const isOurs = name === 'kvfold'
    const server = isOurs
      ? await startKvfold(name, HERE, serving)
      : await startLlamaServer(serving, ['--jinja', '--cache-ram', '0'])
    try {
      for (const way of Object.keys(WAYS)) {
        const { row, steps } = await play(server.url, name, way, turns)
        rows.push(row)
        // Without the engine's times, no price follows from them.
        if (isOurs || steps === null || way === TIMES) continue
        for (const [engine, block] of Object.entries(BY_ARITHMETIC)) {
          const { computed, cached } = kept(steps, block)
          arithmetic.push({ ...row, engine, computed, cached, costs: costsOf(computed, cached) })
        }
      }
    } finally {
      await server.close()
    }
  }
  arithmetic.sort((a, b) => (a.engine < b.engine ? -1 : a.engine > b.engine ? 1 : 0))
  rows.push(...arithmetic)
  const result = { ...record(), parts: PARTS, turns, rows }
  await keep(values.write, result)
  if (values.json) {
    console.log(JSON.stringify(result))
    return
  }
  const columns = [
    { title: 'engine', text: ({ engine }: Row) => engine },
    { title: 'folds', text: ({ way }: Row) => way },
    number('computed', ({ computed }: Row) => String(computed)),
    number('cached', ({ cached }: Row) => String(cached)),
    ...PRICES.map((price) => number(`cost at ${price}`, ({ costs }: Row) => String(costs[String(price)]))),
    number('last prompt', ({ last }: Row) => String(last)),
  ]
  for (const line of terminal(table(columns, rows))) console.log(line)
}
