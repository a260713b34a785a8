/**
 * What pruning by the client costs in fidelity. In a session, the client puts a placeholder in the place of each older message. The bench
 * compares `splice` with a fresh prefill of the same messages, by the number of prunes. Controls: two fresh prefills of one prompt; prunes
 * of text that nothing refers to; and, for scale, the effect of pruning itself, compared with the session without prunes. It prints a
 * table; with --write it also writes a record.
 * `npm run --silent bench -- prunes [--prunes 1,10,100] [--streams 6] [--questions 4] [--seed 2026] [--model path] [--json] [--write
 * name]`.
 */
import { parseArgs } from 'node:util'
import type { ChatMessage } from '../../src/runtime/chat/message.js'
import { builtinModel } from '../../src/runtime/cli/builtin.js'
import { type ConversationId, freshConversation } from '../../src/runtime/core/ids.js'
import { Random } from '../../src/runtime/core/random.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { ownWords, PI_STREAM_START, piText } from '../../src/lab/pi-llm.js'
import { percent } from '../../src/runtime/figures/numbers.js'
import { left, right, table, terminal, type Table } from '../../src/runtime/figures/table.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { SETTINGS } from '../lab/contracts/stage.js'
import { Watch } from '../lab/contracts/watch.js'
import { divergence } from '../driver.js'
import { beginRecord, keep, OPTIONS, SEED } from '../record.js'
import { bootstrap, mean, type Interval } from '../statistics.js'

const PLACEHOLDER = ' [Old content cleared]'
/**
 * The number of turns that stay whole, the updates in a message that is later pruned, and the keys that are updated. One more update is its
 * own message and always stays.
 */
const [WHOLE, UPDATES, KEYS] = [3, 4, 8]
/** Tokens of a greedy answer. */
const ANSWER = 6
const CELLS = 16_384
/** Messages are parts of one text, as the built-in model was trained to read it, and an answer is already begun. */
const BUILTIN =
  "{{ '<|im_start|>user\\n' }}{% for message in messages %}{% if message.role == 'assistant' %}{{ '<|im_end|>\\n<|im_start|>assistant\\n' }}" +
  '{% endif %}{{ message.content }}{% endfor %}'
const COMPLETION = '{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}'

const user = (content: string): ChatMessage => ({ role: 'user', content })

interface Session {
  /** Returns all messages sent for turn `turn`; `pruned`: with the placeholders. */
  readonly messages: (turn: number, pruned: boolean) => ChatMessage[]
  readonly turns: number
  /** The questions, each with the beginning of an answer, and the right values. */
  readonly questions: readonly { readonly ask: readonly ChatMessage[]; readonly right: string }[]
}

/**
 * `refers`: the pruned messages update the keys that the questions ask for, as later messages do; otherwise they update other keys, which
 * nothing refers to.
 */
function sessionOf(prunes: number, refers: boolean, questions: number, seed: number): Session {
  const words = ownWords()
  const random = new Random(seed, prunes)
  const keys = random.shuffled(words.keys)
  const [asked, others] = [keys.slice(0, KEYS), keys.slice(KEYS, 2 * KEYS)]
  const turns = prunes + WHOLE
  const drawn = words.draw(random, keys.slice(0, 2 * KEYS), Math.ceil((turns * (UPDATES + 1)) / KEYS))
  const last = new Map<string, string>()
  const update = (number: number, of: readonly string[]) => {
    const key = of[number % KEYS]!
    const value = drawn.get(key)![Math.floor(number / KEYS)]!
    last.set(key, value)
    return ` ${key}: ${value};`
  }
  const texts = Array.from({ length: turns }, (_, turn) => {
    const first = turn * (UPDATES + 1)
    const long = Array.from({ length: UPDATES }, (__, at) => update(first + at, refers || turn >= prunes ? asked : others))
    return { long: long.join(''), kept: update(first + UPDATES, asked) }
  })
  const [framing, , question] = piText(asked, [])
  const messages = (turn: number, pruned: boolean) => [
    user(`${framing}\n\n${PI_STREAM_START}`),
    ...texts
      .slice(0, turn + 1)
      .flatMap(({ long, kept }, at) => [user(pruned && at <= turn - WHOLE ? PLACEHOLDER : long), user(kept)]),
  ]
  const asking = (key: string) => ({
    ask: [user(`\n\n${question}`), { role: 'assistant', content: `The current value of ${key} is` } as const],
    right: last.get(key)!,
  })
  return { messages, turns, questions: asked.slice(0, questions).map(asking) }
}

interface Reading {
  readonly next: Float32Array
  readonly answer: string
  readonly approximate: number
  readonly shown: number
}

class Reader {
  constructor(private readonly engine: LlamaEngine) {}

  async read(conversation: ConversationId, messages: readonly ChatMessage[], isPruned: boolean): Promise<Reading> {
    const { vocabulary } = this.engine.modelInfo
    const ask = (maxTokens: number, logprobs: number) =>
      this.engine.respond({
        ...{ conversation, messages, maxTokens, logprobs, sampling: { temperature: 0 } },
        ...(isPruned ? { clientEdits: 'splice' } : {}),
      }).reply
    const { logprobs } = await ask(1, vocabulary)
    const next = new Float32Array(vocabulary)
    for (const { token, logprob } of logprobs?.[0]?.top ?? []) next[token] = logprob
    const { message, ledger } = await ask(ANSWER, 0)
    return { next, answer: message.content, approximate: ledger.approximate, shown: ledger.shown }
  }

  /** Reads the messages in a new conversation; `first`: messages that it shows before, in their own step. */
  async fresh(messages: readonly ChatMessage[], first?: readonly ChatMessage[]): Promise<Reading> {
    const conversation = freshConversation()
    if (first !== undefined) await this.show(conversation, first, false)
    const reading = await this.read(conversation, messages, false)
    this.engine.forget(conversation)
    return reading
  }

  async show(conversation: ConversationId, messages: readonly ChatMessage[], isPruned = true): Promise<void> {
    await this.engine.respond({ conversation, messages, maxTokens: 1, ...(isPruned ? { clientEdits: 'splice' } : {}) }).reply
  }

  /** Asks each question, one in place of the other, at the end of a session that was pruned turn by turn. */
  async spliced({ messages, turns, questions }: Session): Promise<Reading[]> {
    const conversation = freshConversation()
    for (let turn = 0; turn < turns; turn++) await this.show(conversation, messages(turn, true))
    const readings: Reading[] = []
    for (const { ask } of questions) readings.push(await this.read(conversation, [...messages(turns - 1, true), ...ask], true))
    this.engine.forget(conversation)
    return readings
  }
}

const WAYS = ['fresh again', 'spliced, nothing refers to it', 'spliced', 'not pruned'] as const
type Way = (typeof WAYS)[number]

/** One stream: means over its questions. */
interface Measured {
  readonly prunes: number
  readonly way: Way
  readonly divergence: number
  readonly sameToken: number
  readonly sameAnswer: number
  readonly right: number
  readonly approximate: number
  readonly shown: number
}

async function measure(reader: Reader, prunes: number, questions: number, seed: number): Promise<Measured[]> {
  const measured: Measured[] = []
  const session = sessionOf(prunes, true, questions, seed)
  const control = sessionOf(prunes, false, questions, seed)
  const note = (way: Way, exact: readonly Reading[], other: readonly Reading[], { questions: all }: Session = session) => {
    const over = (of: (a: Reading, b: Reading) => number) => mean(exact.map((reading, at) => of(reading, other[at]!)))
    measured.push({
      ...{ prunes, way },
      divergence: over((a, b) => Math.max(0, divergence(a.next, b.next))),
      sameToken: over((a, b) => Number(likeliest(a) === likeliest(b))),
      sameAnswer: over((a, b) => Number(a.answer === b.answer)),
      right: mean(other.map(({ answer }, at) => Number(answer.trim().startsWith(all[at]!.right)))),
      approximate: over((_, { approximate }) => approximate),
      shown: over((_, { shown }) => shown),
    })
  }
  const freshly = async ({ messages, turns, questions: all }: Session, pruned: boolean, first?: readonly ChatMessage[]) => {
    const readings: Reading[] = []
    for (const { ask } of all) readings.push(await reader.fresh([...messages(turns - 1, pruned), ...ask], first))
    return readings
  }
  const exact = await freshly(session, true)
  const half = session.messages(session.turns - 1, true)
  note('fresh again', exact, await freshly(session, true, half.slice(0, half.length >> 1)))
  note('spliced, nothing refers to it', await freshly(control, true), await reader.spliced(control), control)
  note('spliced', exact, await reader.spliced(session))
  note('not pruned', exact, await freshly(session, false))
  return measured
}

const likeliest = ({ next }: Reading): number => next.reduce((best, logprob, at) => (logprob > next[best]! ? at : best), 0)

interface Row extends Omit<Measured, 'divergence'> {
  readonly streams: number
  /** The mean, and its 95 % bootstrap interval over streams, in nats. */
  readonly divergence: { readonly value: number; readonly interval: Interval }
}

function rowsOf(measured: readonly Measured[], prunes: readonly number[]): Row[] {
  return prunes.flatMap((count) =>
    WAYS.flatMap((way) => {
      const group = measured.filter((each) => each.prunes === count && each.way === way)
      if (group.length === 0) return []
      const all = (of: 'divergence' | 'sameToken' | 'sameAnswer' | 'right' | 'approximate' | 'shown') =>
        group.map((each) => each[of])
      return {
        ...{ prunes: count, way, streams: group.length },
        divergence: { value: mean(all('divergence')), interval: bootstrap(all('divergence')) },
        sameToken: mean(all('sameToken')),
        sameAnswer: mean(all('sameAnswer')),
        right: mean(all('right')),
        approximate: mean(all('approximate')),
        shown: mean(all('shown')),
      }
    }),
  )
}

export async function prunes(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      ...OPTIONS,
      ...SEED,
      prunes: { type: 'string', default: '1,10,100' },
      streams: { type: 'string', default: '6' },
      questions: { type: 'string', default: '4' },
    },
  })
  const { model } = values
  const native = await openNative({ gpu: 'cpu' })
  const origin = beginRecord(['prunes', ...args], model, native.backend.release, SETTINGS.threads)
  const chatTemplate = model === builtinModel() ? BUILTIN : COMPLETION
  const engine = await LlamaEngine.load(native, model, { ...SETTINGS, cells: CELLS, slots: 1, chatTemplate })
  const watch = new Watch()
  const counts = values.prunes.split(',').map(Number)
  const measured: Measured[] = []
  for (let stream = 0; stream < Number(values.streams); stream++)
    for (const count of counts) {
      if (watch.over()) break
      watch.say(`stream ${stream + 1} of ${values.streams}: ${count} prunes`)
      measured.push(...(await measure(new Reader(engine), count, Number(values.questions), Number(values.seed) + stream)))
    }
  watch.end()
  await engine.dispose()
  const about = { seconds: Math.round(watch.seconds), interrupted: watch.over(), seed: Number(values.seed) }
  const result = { ...origin(), ...about, rows: rowsOf(measured, counts) }
  await keep(values.write, result)
  console.log(values.json ? JSON.stringify(result) : terminal(tableOf(result.rows)).join('\n'))
}

function tableOf(rows: readonly Row[]): Table {
  const columns = [
    right('prunes'),
    left('against exact'),
    ...['KL, nats (95 %)', 'same token', 'same answer', 'right', 'approximate'].map(right),
  ]
  const texts = rows.map(
    ({ prunes: count, way, divergence: { value, interval }, sameToken, sameAnswer, right: known, approximate, shown }) => [
      ...[String(count), way, `${value.toExponential(1)} (${interval.map((end) => end.toExponential(1)).join(' to ')})`],
      ...[percent(sameToken, 0), percent(sameAnswer, 0), percent(known, 0), `${Math.round(approximate)} of ${Math.round(shown)}`],
    ],
  )
  return table(columns, texts, { opens: (row, before) => row[0] !== before[0] })
}
