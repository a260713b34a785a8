/**
 * Streams of updates in other words than PI-LLM's: does a model with an adapter still fold, and give the last values? Asked over HTTP of
 * `kvfold serve`, with the context tools (`tools`), without them (`off`), and without the adapter either (`base`). The wordings are those
 * of `wordings.json`, which no training example of an adapter has.
 * `npm run --silent bench -- wordings --model MODEL --lora ADAPTER [--samples 4] [--seed 9101] [--ways tools,off,base] [--write name]`
 * `[--wordings FILE]`
 */
import { randomUUID } from 'node:crypto'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { percent } from '../../src/runtime/figures/numbers.js'
import { left, right, table, terminal } from '../../src/runtime/figures/table.js'
import { openNative } from '../../src/runtime/native/binding.js'
import type { PiTruth } from '../../src/lab/pi-llm.js'
import { nearScore, wordingsIn } from '../../src/lab/pi-wordings.js'
import { openPiLlm } from '../../src/lab/tasks/pi-llm.js'
import { beginRecord, fileOf, keep, modelNow, oneOf, OPTIONS } from '../record.js'
import { HERE, startKvfold } from '../runtime/serve/servers.js'
import { mean, shareInterval } from '../statistics.js'

const SHAPE = { updates: 16, keys: 6 } as const
const FILE = fileURLToPath(new URL('wordings.json', import.meta.url))

const WAYS = {
  tools: { kvfold: { acm: 'tools', ledger: true } },
  off: { kvfold: { acm: 'off', ledger: true } },
  base: { kvfold: { acm: 'off', ledger: true }, lora: [{ id: 0, scale: 0 }] },
} as const

interface Completion {
  readonly choices: readonly [{ readonly message: { readonly content: string } }]
  readonly kvfold: { readonly context_calls: number; readonly ledger: readonly { readonly shown: number }[] }
}

export async function wordings(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      ...OPTIONS,
      lora: { type: 'string', default: 'acm' },
      samples: { type: 'string', default: '4' },
      seed: { type: 'string', default: '9101' },
      wordings: { type: 'string', default: FILE },
      ways: { type: 'string', default: Object.keys(WAYS).join() },
    },
  })
  const model = fileOf(values.model)
  const ways = values.ways.split(',').map((way) => oneOf('ways', Object.keys(WAYS) as (keyof typeof WAYS)[], way))
  const { backend } = await openNative({ gpu: 'cpu' })
  const origin = beginRecord(['wordings', ...args], model, backend.release)
  const server = await startKvfold('kvfold', HERE, { model, slots: 1, threads: 2, cells: 8192 }, ['--lora', values.lora])
  const rows = []
  try {
    for (const [options, names] of [
      [{}, ['PI-LLM']],
      [{ wordings: values.wordings }, wordingsIn(values.wordings).map(({ name }) => name)],
    ] as const) {
      const samples = Number(values.samples)
      const task = await openPiLlm({
        task: 'pi-llm',
        options: { updates: [SHAPE.updates], keys: SHAPE.keys, samples, seed: Number(values.seed), ...options },
      })
      for (const [at, wording] of names.entries())
        for (const way of ways) {
          const shares: number[] = []
          let [calls, folded] = [0, 0]
          for (let sample = 0; sample < samples; sample++) {
            const { messages, truth } = await task.sample(sample * names.length + at)
            const { choices, kvfold } = await ask(server.url, { messages, temperature: 0, max_tokens: 400, ...WAYS[way] })
            shares.push(nearScore(truth as PiTruth, choices[0].message.content).accuracy)
            calls += kvfold.context_calls
            const shown = kvfold.ledger.map((each) => each.shown)
            if (shown.at(-1)! < Math.max(...shown)) folded++
          }
          const told = { accuracy: mean(shares), interval: shareInterval(shares) }
          rows.push({ wording, way, samples: shares.length, ...told, calls, folded })
        }
    }
  } finally {
    await server.close()
  }
  await keep(values.write, { ...origin(), adapter: values.lora === 'acm' ? 'acm' : modelNow(values.lora), rows })
  const head = [left('wording'), left('way'), ...['right', '95 %', 'calls', 'folded'].map(right)]
  const lines = rows.map(({ wording, way, accuracy, interval, calls, folded, samples }) => [
    ...[wording, way, percent(accuracy, 0), interval.map((end) => percent(end, 0)).join(' to ')],
    ...[String(calls), `${folded} of ${samples}`],
  ])
  console.log(terminal(table(head, lines)).join('\n'))
}

/** Asks in a thread of its own: the salt keeps the folds of an earlier way from the next way's request, which has the same messages. */
async function ask(url: string, request: object): Promise<Completion> {
  const headers = { 'content-type': 'application/json' }
  const body = JSON.stringify({ ...request, cache_salt: randomUUID() })
  const response = await fetch(`${url}/v1/chat/completions`, { method: 'POST', headers, body })
  if (!response.ok) throw new Error(await response.text())
  return (await response.json()) as Completion
}
