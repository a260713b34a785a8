/**
 * How a real model answers tasks: alone, with an adapter, and beside another model. Each row is a cell of `kvfold eval`. With an adapter it
 * also measures general ability: perplexity on text and code, and 50 short questions.
 * `npm run --silent bench -- answers --model MODEL [--lora ADAPTER] [--beside MODEL] [--tasks "pi-llm --keys 6 --n 16;logbook"] [--agent
 * plain,sculptor] [--contract exact] [--samples 20] [--base-samples 4] [--seed 9001] [--only general|tasks] [--write name]`.
 * `--base-samples`: fewer samples for models without the adapter, which may use up all their calls with tools; 0: none. A stopped run
 * resumes. A task is written as for `kvfold eval`, with its own options such as --n or --task-option. The texts are pages and sources of
 * this repository, which no trajectory of `kvfold collect` contains.
 */
import { createHash } from 'node:crypto'
import { mkdirSync, readFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { place } from '../../src/runtime/attention/places.js'
import type { ChatMessage } from '../../src/runtime/chat/message.js'
import { Random } from '../../src/runtime/core/random.js'
import { freshConversation } from '../../src/runtime/core/ids.js'
import { span } from '../../src/runtime/core/span.js'
import type { AdapterScale, PromptLogprob } from '../../src/runtime/engine/engine.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { percent } from '../../src/runtime/figures/numbers.js'
import { left, right, table, terminal } from '../../src/runtime/figures/table.js'
import { openNative } from '../../src/runtime/native/binding.js'
import type { Native } from '../../src/runtime/native/types.js'
import { bootstrap, type Interval, mean } from '../statistics.js'
import { beginRecord, fileOf, keep, modelNow, oneOf, OPTIONS } from '../record.js'
import { evaluated, ofCell, samplesIn, sumsOf } from './builtin.js'
import { computedBy } from './logs.js'

const TASKS = [
  'pi-llm --keys 6 --n 4,16',
  'pi-llm --keys 6 --n 16 --words native-models/unseen-words.json',
  'needles --needles 3 --length 1k',
]
const PARTS = ['all', 'tasks', 'general'] as const
const TOKENS_OF_TEXT = 400
const CELLS = 4096

const TEXTS = {
  prose: ['docs/tiers.md', 'docs/contracts.md', 'docs/kv-cache.md', 'docs/mcp.md', 'docs/serving.md', 'docs/ledger.md'],
  code: ['core/span.ts', 'core/turns.ts', 'core/random.ts', 'context/search.ts', 'context/fragment.ts', 'chat/message.ts'].map(
    (name) => `src/runtime/${name}`,
  ),
} as const

interface Variant {
  readonly name: string
  readonly model: string
  readonly lora?: string
  /** The beginnings of its files' hashes; they name the folder of its logs. */
  readonly hash: string
}

interface TaskRow {
  readonly variant: string
  readonly command: string
  readonly agent: string
  readonly contract: string
  readonly cell: Readonly<Record<string, number | string>>
  readonly samples: number
  readonly accuracy: number
  readonly interval: Interval
  readonly tokensAfter: number | null
  /** Mean number of tokens that all steps of a sample computed. */
  readonly tokensComputed: number
  /** Sums of the scores' details over the samples, such as answers with an outdated value. */
  readonly details: Readonly<Record<string, number>>
  /** `calls`: tool calls of all samples. `valid`: those that did not fail. */
  readonly calls: number
  readonly valid: number
  /** Number of samples in which the model ended its answer by itself. */
  readonly answered: number
}

export async function answers(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      ...OPTIONS,
      lora: { type: 'string' },
      beside: { type: 'string' },
      samples: { type: 'string', default: '20' },
      'base-samples': { type: 'string' },
      seed: { type: 'string', default: '9001' },
      tasks: { type: 'string', default: TASKS.join(';') },
      agent: { type: 'string', default: 'plain,sculptor' },
      contract: { type: 'string', default: 'exact' },
      only: { type: 'string', default: 'all' },
    },
  })
  const [model, lora, part] = [fileOf(values.model), values.lora, oneOf('only', PARTS, values.only)]
  const native = await openNative({ gpu: 'cpu' })
  const origin = beginRecord(['answers', ...args], model, native.backend.release)
  // Hash each file only once, because hashing reads the whole file.
  const [base, adapter, other] = [
    modelNow(model),
    lora === undefined ? null : modelNow(lora),
    values.beside === undefined ? null : modelNow(values.beside),
  ]
  const hashOf = (...files: readonly { readonly sha256: string }[]) => files.map(({ sha256 }) => sha256.slice(0, 12)).join('-')
  const variants: readonly Variant[] = [
    { name: base.name, model, hash: hashOf(base) },
    ...(lora === undefined || adapter === null ? [] : [{ name: 'with the adapter', model, lora, hash: hashOf(base, adapter) }]),
    ...(values.beside === undefined || other === null ? [] : [{ name: other.name, model: values.beside, hash: hashOf(other) }]),
  ]
  const samplesOf = ({ lora: own }: Variant) => (own === undefined ? (values['base-samples'] ?? values.samples) : values.samples)
  const optionsOf = (variant: Variant) =>
    `--agent ${values.agent} --contract ${values.contract} --samples ${samplesOf(variant)} --seed ${values.seed}`
  const measured = variants.filter((variant) => samplesOf(variant) !== '0')
  const tasks: TaskRow[] = []
  const logs: string[] = []
  for (const words of part === 'general' ? [] : values.tasks.split(';'))
    for (const variant of measured) {
      const { log, rows } = await taskRows(variant, words.trim(), optionsOf(variant))
      tasks.push(...rows)
      logs.push(log)
    }
  const general = part === 'tasks' || lora === undefined ? [] : await generalRows(native, model, lora)
  const about = { ...(adapter && { adapter }), ...(other && { beside: other }) }
  const record = { ...origin(), computed: computedBy(logs), ...about, tasks, general }
  await keep(values.write, record)
  const shown = [...(tasks.length === 0 ? [] : shownTasks(tasks)), ...(general.length === 0 ? [] : shownGeneral(general))]
  console.log(values.json ? JSON.stringify(record) : shown.join('\n'))
}

/** Returns a file name for a command. A name too long for file systems is cut and gets a hash. */
function fileNameOf(command: string): string {
  const name = command.replaceAll(/[^0-9a-z]+/gu, '-')
  return name.length <= 200 ? name : `${name.slice(0, 180)}-${createHash('sha256').update(command).digest('hex').slice(0, 16)}`
}

async function taskRows(
  variant: Variant,
  words: string,
  options: string,
): Promise<{ readonly log: string; readonly rows: readonly TaskRow[] }> {
  const folder = `build/answers/${variant.hash}`
  mkdirSync(folder, { recursive: true })
  const log = `${folder}/${fileNameOf(`${words} ${options}`)}.jsonl`
  const model = ['--model', variant.model, ...(variant.lora === undefined ? [] : ['--lora', variant.lora])]
  const cells = await evaluated(['eval', ...words.split(' '), ...options.split(' '), ...model, '--log', log, '--json'])
  const logged = samplesIn(log)
  const rows = cells.map((row): TaskRow => {
    const { agent, contract, cell, samples, accuracy, interval, tokensAfter, tokensComputed } = row
    const own = ofCell(logged, row)
    const calls = own.flatMap((one) => one.calls)
    return {
      ...{ variant: variant.name, command: `kvfold eval ${words} ${options}` },
      ...{ agent, contract, cell, samples, accuracy, interval, tokensAfter, tokensComputed, details: sumsOf(own) },
      ...{ calls: calls.length, valid: calls.filter(({ failed }) => !failed).length },
      answered: own.filter(({ end }) => end === 'stop').length,
    }
  })
  return { log, rows }
}

function shownTasks(rows: readonly TaskRow[]): readonly string[] {
  const head = [
    ...['task', 'cell', 'agent', 'contract', 'model'].map(left),
    ...['right', '95 %', 'shown', 'computed', 'valid calls'].map(right),
    left('counts'),
  ]
  const lines = rows.map(
    ({ command, cell, agent, contract, variant, accuracy, interval, tokensAfter, tokensComputed, ...row }) => [
      ...[command.split(' ')[2]!, Object.values(cell).join(', '), agent, contract, variant, percent(accuracy, 0)],
      ...[interval.map((end) => percent(end, 0)).join(' to '), tokensAfter?.toFixed(0) ?? '', tokensComputed.toFixed(0)],
      row.calls === 0 ? '' : `${row.valid} of ${row.calls}`,
      Object.entries(row.details)
        .map(([name, value]) => `${name} ${value}`)
        .join(', '),
    ],
  )
  return terminal(table(head, lines))
}

/** A question. A reply is right if one of its words is `answer`. */
interface Question {
  readonly text: string
  readonly answer: string
}

/** Returns 50 questions: sums, lengths of words, largest and smallest of numbers drawn from a seed, and facts. */
function questions(): readonly Question[] {
  const random = new Random(50, 1)
  const below = (count: number) => random.below(count)
  const words = ['stone', 'river', 'candle', 'window', 'garden', 'silver', 'hammer', 'basket']
  const sums = Array.from({ length: 12 }, () => {
    const [a, b] = [11 + below(80), 11 + below(80)]
    return { text: `What is ${a} + ${b}? Answer with the number.`, answer: String(a + b) }
  })
  const lengths = words.map((word) => {
    const more = below(4)
    return { text: `What does this Python program print?\n\nprint(len("${word}") + ${more})`, answer: String(word.length + more) }
  })
  const lists = Array.from({ length: 10 }, () => {
    const list = Array.from({ length: 4 }, () => below(90))
    const [name, value] = below(2) === 0 ? ['max', Math.max(...list)] : ['min', Math.min(...list)]
    return { text: `What does this Python program print?\n\nprint(${name}([${list.join(', ')}]))`, answer: String(value) }
  })
  return [...sums, ...lengths, ...lists, ...FACTS.map(([text, answer]) => ({ text, answer }))]
}

const FACTS = [
  ['What is the capital of France?', 'Paris'],
  ['What is the capital of Japan?', 'Tokyo'],
  ['What is the capital of Italy?', 'Rome'],
  ['What is the capital of Egypt?', 'Cairo'],
  ['What is the capital of Germany?', 'Berlin'],
  ['Which planet is closest to the sun?', 'Mercury'],
  ['Which planet has the most famous rings?', 'Saturn'],
  ['Which metal has the chemical symbol Fe?', 'iron'],
  ['Which gas has the chemical symbol O?', 'oxygen'],
  ['How many days has a week? Answer with the number.', '7'],
  ['How many degrees has a right angle? Answer with the number.', '90'],
  ['Which keyword defines a function in Python?', 'def'],
  ['Which keyword declares a constant in JavaScript?', 'const'],
  ['Which SQL keyword sorts the rows of a result?', 'ORDER'],
  ['Which git command shows the history of commits?', 'log'],
  ['Which port does HTTPS use? Answer with the number.', '443'],
  ['Which HTTP status code means that a page was not found?', '404'],
  ['What is the opposite of "hot"? Answer with one word.', 'cold'],
  ['What is the plural of "mouse"?', 'mice'],
  ['Which language do people in Brazil speak?', 'Portuguese'],
] as const

interface GeneralRow {
  readonly of: keyof typeof TEXTS | 'questions'
  readonly count: number
  /** `base` and `adapted` (with the adapter): mean nats per token for texts, share of right answers for questions. */
  readonly base: number
  readonly adapted: number
  /** `adapted` less `base`, with its 95 % interval over texts or questions. */
  readonly difference: number
  readonly interval: Interval
}

async function generalRows(native: Native, model: string, lora: string): Promise<readonly GeneralRow[]> {
  const engine = await LlamaEngine.load(native, model, { cells: CELLS, slots: 2, lora: [{ path: lora }] })
  const scales: readonly (readonly AdapterScale[])[] = [[{ id: 0, scale: 0 }], [{ id: 0, scale: 1 }]]
  try {
    const rows: GeneralRow[] = []
    for (const of of ['prose', 'code'] as const) {
      const pairs: (readonly number[])[] = []
      for (const path of TEXTS[of]) {
        const text = engine.model.detokenize(engine.model.tokenize(readFileSync(path, 'utf8')).subarray(0, TOKENS_OF_TEXT))
        pairs.push(await both(scales, (scale) => surprise(engine, text, scale)))
      }
      rows.push(rowOf(of, pairs))
    }
    const pairs: (readonly number[])[] = []
    for (const { text, answer } of questions())
      pairs.push(await both(scales, async (scale) => Number(says(await answerTo(engine, text, scale), answer))))
    return [...rows, rowOf('questions', pairs)]
  } finally {
    await engine.dispose()
  }
}

async function both<Value>(
  scales: readonly (readonly AdapterScale[])[],
  measure: (scale: readonly AdapterScale[]) => Promise<Value>,
): Promise<readonly Value[]> {
  const values: Value[] = []
  for (const scale of scales) values.push(await measure(scale))
  return values
}

function rowOf(of: GeneralRow['of'], pairs: readonly (readonly number[])[]): GeneralRow {
  const differences = pairs.map(([base = 0, adapted = 0]) => adapted - base)
  const [base, adapted] = [0, 1].map((side) => mean(pairs.map((pair) => pair[side]!))) as [number, number]
  return { of, count: pairs.length, base, adapted, difference: mean(differences), interval: bootstrap(differences) }
}

/** Returns the mean negative log-probability, in nats, of the text's tokens in a user message. */
const surprise = async (engine: LlamaEngine, text: string, lora: readonly AdapterScale[]): Promise<number> =>
  -mean((await logprobsOf(engine, text, lora)).map(({ logprob }) => logprob))

/** Returns the text's tokens in a user message with their log-probabilities, without the template's tokens around them. */
export async function logprobsOf(
  engine: LlamaEngine,
  text: string,
  lora?: readonly AdapterScale[],
): Promise<readonly PromptLogprob[]> {
  const messages: readonly ChatMessage[] = [{ role: 'user', content: text }]
  const [at] = place(engine.format, { messages }, [{ message: 0, chars: span(0, text.length) }]).stretches
  const { promptLogprobs } = await engine.respond({
    ...{ conversation: freshConversation(), messages, maxTokens: 0, promptLogprobs: 0, last: true },
    ...(lora === undefined ? {} : { lora }),
  }).reply
  if (at === undefined || at === 'hidden' || promptLogprobs === undefined) throw new Error('The template does not show the text.')
  // `promptLogprobs` begins with the second token, because the first has no log-probability.
  return promptLogprobs.slice(Math.max(0, at.start - 1), at.end - 1)
}

async function answerTo(engine: LlamaEngine, text: string, lora: readonly AdapterScale[]): Promise<string> {
  const messages: readonly ChatMessage[] = [{ role: 'user', content: text }]
  const { message } = await engine.respond({
    ...{ conversation: freshConversation(), messages, lora, maxTokens: 64, sampling: { temperature: 0 }, last: true },
  }).reply
  return message.content
}

/** Returns whether one word of the reply is the answer. */
const says = (reply: string, answer: string): boolean =>
  reply
    .toLowerCase()
    .split(/[^\p{L}\p{N}]+/u)
    .includes(answer.toLowerCase())

function shownGeneral(rows: readonly GeneralRow[]): readonly string[] {
  const lines = rows.map(({ of, count, base, adapted, difference, interval }) => [
    ...[of, String(count), base.toFixed(3), adapted.toFixed(3), difference.toFixed(3)],
    interval.map((end) => end.toFixed(3)).join(' to '),
  ])
  const head = [left('general'), right('count'), right('base'), right('with the adapter'), right('difference'), right('95 %')]
  return terminal(table(head, lines))
}
