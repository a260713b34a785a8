/**
 * Streams of updates in other words than those of PI-LLM: does a model with an adapter still fold, and say the last values? Asked over
 * HTTP of `kvfold serve`, with the context tools (`tools`), without them (`off`), and without the adapter either (`base`).
 * `npm run --silent bench -- wordings --model MODEL --lora ADAPTER [--samples 4] [--seed 9101] [--ways tools,off,base] [--write name]`
 */
import { parseArgs } from 'node:util'
import { percent } from '../../src/runtime/figures/numbers.js'
import { left, right, table, terminal } from '../../src/runtime/figures/table.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { ownWords, type PiSample, piSample } from '../../src/lab/pi-llm.js'
import { beginRecord, fileOf, keep, modelNow, oneOf, OPTIONS } from '../record.js'
import { HERE, startKvfold } from '../runtime/serve/servers.js'
import { bootstrap } from '../statistics.js'

const SHAPE = { updates: 16, keys: 6 } as const
/** A value stands at most so many characters behind its key. */
const NEAR = 60

const WORDINGS: Readonly<Record<string, (sample: PiSample) => string>> = {
  'PI-LLM': ({ prompt }) => prompt,
  'lines of settings': ({ keys, shown }) =>
    `This is a log of settings, one change a line.\n\n${shown.map(({ key, value }) => `${key} = ${value}`).join('\n')}\n\n` +
    `What is each of these settings now: ${keys.join(', ')}? Write "<setting> = <value>", one a line.`,
  'lines of JSON': ({ keys, shown }) =>
    `${shown.map(({ key, value }) => JSON.stringify({ set: key, to: value })).join('\n')}\n\n` +
    `Above are updates. Tell me the newest value of ${keys.join(', ')}.`,
  German: ({ keys, shown }) =>
    `Hier ist ein Protokoll von Änderungen.\n\n${shown.map(({ key, value }) => `${key}: ${value};`).join(' ')}\n\n` +
    `Das Protokoll ist zu Ende. Welchen Wert haben jetzt ${keys.join(', ')}? Schreibe für jeden einen Satz.`,
  sentences: ({ keys, shown }) =>
    `${shown.map(({ key, value }) => `Then ${key} was changed to ${value}.`).join(' ')} So what are the current values of ${keys.join(', ')}?`,
}

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
    for (const [wording, write] of Object.entries(WORDINGS))
      for (const way of ways) {
        const shares: number[] = []
        let [calls, folded] = [0, 0]
        for (let sample = 0; sample < Number(values.samples); sample++) {
          const made = piSample({ words: ownWords(), ...SHAPE, seed: Number(values.seed), sample })
          const messages = [{ role: 'user', content: write(made) }]
          const { choices, kvfold } = await ask(server.url, { messages, temperature: 0, max_tokens: 400, ...WAYS[way] })
          shares.push(shareSaid(made, choices[0].message.content))
          calls += kvfold.context_calls
          const shown = kvfold.ledger.map((each) => each.shown)
          if (shown.at(-1)! < Math.max(...shown)) folded++
        }
        const accuracy = shares.reduce((sum, share) => sum + share, 0) / shares.length
        rows.push({ wording, way, samples: shares.length, accuracy, interval: bootstrap(shares), calls, folded })
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

async function ask(url: string, body: object): Promise<Completion> {
  const headers = { 'content-type': 'application/json' }
  const response = await fetch(`${url}/v1/chat/completions`, { method: 'POST', headers, body: JSON.stringify(body) })
  if (!response.ok) throw new Error(await response.text())
  return (await response.json()) as Completion
}

/** Returns the share of the keys whose last value the answer says behind the key. */
function shareSaid({ keys, updates }: PiSample, answer: string): number {
  const text = answer.toLowerCase()
  const last = new Map(updates.map(({ key, value }) => [key, value]))
  const right = keys.filter((key) => {
    const at = text.lastIndexOf(key.toLowerCase())
    return at >= 0 && text.slice(at + key.length, at + key.length + NEAR).includes(last.get(key)!.toLowerCase())
  })
  return right.length / keys.length
}
