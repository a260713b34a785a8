/**
 * What folds cost behind an engine that caches beginnings alone, by when they are made: ten fragments of one message, folded one a turn from first to last
 * while the conversation goes on; over a real llama-server. Tokens are the engine's own counts; costs at a price of a cached token are arithmetic on them.
 *
 * `npm run --silent bench -- edit-price [--turns 14] [--json] [--write NAME]`
 */
import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import type { ChatMessage, Edit } from '../src/chat/message.js'
import { conversationId } from '../src/core/ids.js'
import { invariant } from '../src/core/errors.js'
import { RemoteEngine, type RemoteEngineOptions } from '../src/engine/remote/remote.js'
import { number, table, terminal } from '../src/figures/table.js'
import { beginRecord, keep, OPTIONS } from './record.js'
import { startServer } from './server-process.js'

const PARTS = 10
const PRICES = [0, 0.1, 0.5] as const
/** `null`: edits are shown at once. A price of 0 never lets a fold pay for what it costs, so it waits for the end of the context. */
const WAYS: Readonly<Record<string, { readonly folds: boolean; readonly defer: RemoteEngineOptions['deferEdits'] | null }>> = {
  'never folded': { folds: false, defer: null },
  'each at once': { folds: true, defer: null },
  'all wait': { folds: true, defer: { cachedPrice: 0 } },
  'by price, 0.1': { folds: true, defer: { cachedPrice: 0.1 } },
  'by price, 0.5': { folds: true, defer: { cachedPrice: 0.5 } },
  "by the engine's times": { folds: true, defer: {} },
}

interface Row {
  readonly way: string
  readonly computed: number
  readonly cached: number
  /** In computed tokens, where a cached one costs so much. */
  readonly costs: Readonly<Record<string, number>>
  /** Tokens of the last prompt. */
  readonly last: number
}

const line = (at: number) => `Line ${at}: the value of key ${at} is ${at * 7 + 1}.\n`
const part = (at: number) => Array.from({ length: 8 }, (_, each) => line(8 * at + each)).join('')

async function play(url: string, way: string, turns: number): Promise<Row> {
  const { folds, defer } = WAYS[way]!
  const engine = await RemoteEngine.connect({ url, ...(defer == null ? {} : { deferEdits: defer }) })
  const text = Array.from({ length: PARTS }, (_, at) => part(at)).join('')
  // Nobody's beginning is another's.
  const messages: ChatMessage[] = [{ role: 'user', content: `${way}.\n${text}` }]
  const edits: Edit[] = []
  let [computed, cached, last] = [0, 0, 0]
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
      const { message, ledger } = await engine.respond({
        ...{ conversation: conversationId(way), messages: [...messages], edits: [...edits], maxTokens: 12 },
      }).reply
      const reported = ledger.engine?.reported ?? 0
      cached += reported
      last = ledger.messages.reduce((sum, { shown }) => sum + shown, 0)
      computed += ledger.submitted
      messages.push(message)
    }
  } finally {
    await engine.dispose()
  }
  const costs = Object.fromEntries(PRICES.map((price) => [String(price), Math.round(computed + price * cached)]))
  return { way, computed, cached, costs, last }
}

export async function editPrice(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({ args: [...args], options: { ...OPTIONS, turns: { type: 'string', default: '14' } } })
  const cache = new URL('../.cache', import.meta.url).pathname
  const binary = (existsSync(cache) ? readdirSync(cache) : [])
    .map((folder) => join(cache, folder, 'llama-server'))
    .find((path) => /llama-server-[^/]+\/llama-server$/u.test(path) && existsSync(path))
  invariant(binary !== undefined, 'llama-server is not built: node --import tsx bench/peers/main.ts')
  const server = await startServer('llama-server', binary, (port) => [
    ...['--model', values.model, '--host', '127.0.0.1', '--port', String(port), '--offline', '--no-ui', '--jinja'],
    ...['--parallel', '1', '--threads', '1', '--threads-batch', '1', '--ctx-size', '8192', '--cache-ram', '0'],
  ])
  const record = beginRecord(['edit-price', ...args], values.model, 'v0.5.0', 1)
  const rows: Row[] = []
  try {
    for (const way of Object.keys(WAYS)) rows.push(await play(server.url, way, Number(values.turns)))
  } finally {
    await server.close()
  }
  const result = { ...record(), engine: 'llama-server v0.5.0', parts: PARTS, turns: Number(values.turns), rows }
  await keep(values.write, result)
  if (values.json) {
    console.log(JSON.stringify(result))
    return
  }
  const columns = [
    { title: 'folds', text: ({ way }: Row) => way },
    number('computed', ({ computed }: Row) => String(computed)),
    number('cached', ({ cached }: Row) => String(cached)),
    ...PRICES.map((price) => number(`cost at ${price}`, ({ costs }: Row) => String(costs[String(price)]))),
    number('last prompt', ({ last }: Row) => String(last)),
  ]
  for (const line of terminal(table(columns, rows))) console.log(line)
}
