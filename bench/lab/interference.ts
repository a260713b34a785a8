/**
 * Why are values lost in long streams: because of older values of the same key, or because of the length alone? All prompts have the same
 * length. The benchmark varies the number of keys and of updates per key, renames the older updates, and lists errors by the distance of a
 * key's last update from the end. Intervals are bootstraps over streams, or Wilson's if all streams have the same result.
 * `npm run --silent bench -- interference [--streams 20] [--updates 64] [--seed 2026] [--model path] [--json] [--write name]`
 */
import { freshConversation } from '../../src/runtime/core/ids.js'
import { parseArgs } from 'node:util'
import { Random } from '../../src/runtime/core/random.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { valuesSaid } from '../../src/lab/pi-attention.js'
import { lastValues, ownWords, piSample, piText, type PiUpdate } from '../../src/lab/pi-llm.js'
import { percent } from '../../src/runtime/figures/numbers.js'
import { left, right, table, terminal } from '../../src/runtime/figures/table.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { SETTINGS } from './contracts/stage.js'
import { Watch } from './contracts/watch.js'
import { beginRecord, keep, OPTIONS, SEED } from '../record.js'
import { mean, shareInterval, type Interval } from '../statistics.js'

const KEYS = 46
/** The lower bounds of the distance ranges, in updates from the end. */
const RANGES = [0, 15, 30, 60] as const
const CELLS = 16_384
const LONGEST_ANSWER = 1024

interface Prompt {
  readonly asked: readonly string[]
  readonly updates: readonly PiUpdate[]
}

/** An asked key. `distance`: number of updates behind its last one. `right`: whether the answer gives its last value. */
interface Told {
  readonly distance: number
  readonly right: boolean
}

/** Ways of making prompts, all with the same total number of updates. */
const WAYS: Readonly<Record<string, (updates: number, seed: number, sample: number) => Prompt>> = {
  'all keys asked': (updates, seed, sample) => sampled(KEYS, updates, seed, sample),
  'half as many keys, twice the updates': (updates, seed, sample) => sampled(KEYS / 2, 2 * updates, seed, sample),
  'half of the keys asked': (updates, seed, sample) => half(sampled(KEYS, updates, seed, sample)),
  'half asked, their older updates renamed': (updates, seed, sample) => {
    const { asked, updates: stream } = half(sampled(KEYS, updates, seed, sample))
    const others = [...new Set(stream.map(({ key }) => key))].filter((key) => !asked.includes(key))
    const random = new Random(seed, sample, 1)
    return { asked, updates: renamed(stream, new Set(asked), () => others[random.below(others.length)]!) }
  },
  "half asked, the others' older updates renamed": (updates, seed, sample) => {
    const { asked, updates: stream } = half(sampled(KEYS, updates, seed, sample))
    const others = new Set(stream.map(({ key }) => key).filter((key) => !asked.includes(key)))
    const random = new Random(seed, sample, 2)
    const made = ownWords().draw(random, ['names'], 200).get('names')!
    return { asked, updates: renamed(stream, others, () => made[random.below(made.length)]!) }
  },
}

function sampled(keys: number, updates: number, seed: number, sample: number): Prompt {
  const made = piSample({ words: ownWords(), keys, updates, seed, sample })
  return { asked: made.keys, updates: made.updates }
}

const half = ({ asked, updates }: Prompt): Prompt => ({ asked: asked.slice(0, asked.length / 2), updates })

/** Gives other names to all updates of these keys, except each key's last one. */
function renamed(updates: readonly PiUpdate[], keys: ReadonlySet<string>, name: () => string): PiUpdate[] {
  const last = new Map(updates.map(({ key }, at) => [key, at]))
  return updates.map((update, at) => (keys.has(update.key) && last.get(update.key) !== at ? { ...update, key: name() } : update))
}

export async function interference(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      ...OPTIONS,
      ...SEED,
      streams: { type: 'string', default: '20' },
      updates: { type: 'string', default: '64' },
    },
  })
  const [streams, updates, seed] = [values.streams, values.updates, values.seed].map(Number) as [number, number, number]
  const watch = new Watch()
  const native = await openNative({ gpu: 'cpu' })
  const origin = beginRecord(['interference', ...args], values.model, native.backend.release, SETTINGS.threads)
  const engine = await LlamaEngine.load(native, values.model, { ...SETTINGS, cells: CELLS, slots: 1, hostBytes: 0 })
  const told = new Map<string, Told[][]>(Object.keys(WAYS).map((way) => [way, []]))
  const tokens = new Map<string, number>()
  for (let stream = 0; stream < streams && !watch.over(); stream++)
    for (const [way, make] of Object.entries(WAYS)) {
      watch.say(`stream ${stream + 1} of ${streams}: ${way}`)
      const { shown, keys } = await answered(engine, make(updates, seed, stream))
      told.get(way)!.push(keys)
      tokens.set(way, shown)
    }
  watch.end()
  await engine.dispose()
  const cells = [...told].flatMap(([way, all]) => (all.length === 0 ? [] : [{ way, tokens: tokens.get(way), ...cellOf(all) }]))
  const result = { ...origin(), seconds: Math.round(watch.seconds), updates, keys: KEYS, seed, cells }
  await keep(values.write, result)
  if (values.json) console.log(JSON.stringify(result))
  else {
    const titles = RANGES.map((from, at) =>
      RANGES[at + 1] === undefined ? `${from} or more` : `${from} to ${RANGES[at + 1]! - 1}`,
    )
    const columns = [
      left('stream'),
      ...['streams', 'tokens', 'right (95 %)', ...titles.map((title) => `wrong, ${title} from the end`)].map(right),
    ]
    const rows = cells.map(({ way, streams: count, tokens: shown, right: share, distances }) => [
      ...[
        way,
        String(count),
        String(shown),
        `${percent(share.value)} (${share.interval.map((bound) => percent(bound)).join(' to ')})`,
      ],
      ...distances.map(({ wrong, of }) => `${wrong} of ${of}`),
    ])
    console.log(terminal(table(columns, rows)).join('\n'))
  }
}

async function answered(
  engine: LlamaEngine,
  { asked, updates }: Prompt,
): Promise<{ readonly shown: number; readonly keys: Told[] }> {
  const conversation = freshConversation()
  const messages = [{ role: 'user' as const, content: piText(asked, updates).join('\n\n') }]
  const { reply } = engine.respond({ conversation, messages, maxTokens: LONGEST_ANSWER, sampling: { temperature: 0 } })
  const { message, timing } = await reply
  engine.forget(conversation)
  const last = lastValues(updates)
  const said = valuesSaid(
    asked.map((key) => ({ key, value: last.get(key)! })),
    message.content,
  )
  const distance = (key: string): number => updates.length - 1 - updates.findLastIndex((update) => update.key === key)
  return { shown: timing.prefillTokens, keys: asked.map((key) => ({ distance: distance(key), right: said.has(key) })) }
}

interface Cell {
  readonly streams: number
  readonly right: { readonly value: number; readonly interval: Interval }
  readonly distances: readonly { readonly from: number; readonly wrong: number; readonly of: number }[]
}

function cellOf(streams: readonly (readonly Told[])[]): Cell {
  const shares = streams.map((keys) => mean(keys.map((key) => Number(key.right))))
  const all = streams.flat()
  return {
    streams: streams.length,
    right: { value: mean(shares), interval: shareInterval(shares) },
    distances: RANGES.map((from, at) => {
      const there = all.filter(({ distance }) => distance >= from && distance < (RANGES[at + 1] ?? Infinity))
      return { from, wrong: there.filter((key) => !key.right).length, of: there.length }
    }),
  }
}
