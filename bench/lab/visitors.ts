/**
 * What visitors ask of the built-in model beyond its model card: several questions in one conversation, and other separators, sentences,
 * markers, words and names, from a list that no training run has read.
 * `npm run --silent bench -- visitors [--models builtin,<path>] [--samples 10] [--seed 21] [--list native-models/held-out.json] [--write]`.
 * All models get the same questions; with `--write` the rows go to results/visitors.json.
 */
import { readFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { plain, sculptor } from '../../src/runtime/agents/sculptor.js'
import { BUILTIN, builtinModel } from '../../src/runtime/cli/builtin.js'
import { PromptTooLong } from '../../src/runtime/core/errors.js'
import { conversationId } from '../../src/runtime/core/ids.js'
import { Random } from '../../src/runtime/core/random.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { estimate } from '../../src/lab/accuracy.js'
import { lastValues, ownWords, piSample, type PiSample, piScore, type PiWords } from '../../src/lab/pi-llm.js'
import { openTask } from '../../src/lab/tasks/open.js'
import { percent } from '../../src/runtime/figures/numbers.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { beginRecord, fileOf, keep, modelNow } from '../record.js'

/** The held-out list. A template's `question` contains `{keys}`; its `opening` may contain it. */
interface List {
  readonly keys: readonly string[]
  readonly values: readonly string[]
  readonly given: readonly string[]
  readonly family: readonly string[]
  readonly markers: readonly (readonly [start: string, end: string])[]
  readonly templates: readonly { readonly opening: string; readonly question: string }[]
}

/** Runs a sample. Returns how many of the asked values are right, and how many were asked. */
type Played = (engine: LlamaEngine, seed: number, name: string) => Promise<{ readonly points: number; readonly asked: number }>

const KEYS = 8
const UPDATES = 4
const MOST = { maxTokens: 400 }

export async function visitors(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      models: { type: 'string', default: BUILTIN },
      samples: { type: 'string', default: '10' },
      seed: { type: 'string', default: '21' },
      list: { type: 'string', default: 'native-models/held-out.json' },
      write: { type: 'boolean', default: false },
    },
  })
  const native = await openNative({ gpu: 'cpu' })
  const origin = beginRecord(['visitors', ...args], builtinModel(), native.backend.release, 1)
  const list = JSON.parse(readFileSync(values.list, 'utf8')) as List
  const rows: object[] = []
  for (const model of values.models.split(',')) {
    const file = fileOf(model)
    const engine = await LlamaEngine.load(native, file, { threads: 1, batchThreads: 1 })
    for (const [cell, play] of Object.entries(cellsOf(list))) {
      const scores = []
      for (let sample = 0; sample < Number(values.samples); sample++) {
        const { points, asked } = await play(engine, 1000 * Number(values.seed) + sample, `${cell}/${sample}`)
        scores.push({ points, details: { asked } })
      }
      const { value, interval } = estimate(scores)!
      rows.push({ cell, model: modelNow(file), samples: scores.length, accuracy: value, interval })
      console.log(`| ${cell} | ${model} | ${percent(value)} (${percent(interval[0])} to ${percent(interval[1])}) |`)
    }
    await engine.dispose()
  }
  if (values.write) await keep('visitors', { ...origin(), rows })
}

function cellsOf(list: List): Readonly<Record<string, Played>> {
  const own = ownWords()
  const held: PiWords = {
    keys: list.keys,
    draw: (random, asked, updates) => {
      const drawn = random.shuffled(list.values)
      return new Map(asked.map((key, n) => [key, drawn.slice(n * updates, (n + 1) * updates)]))
    },
  }
  const stream = (seed: number, words: PiWords = own, other = 0) =>
    piSample({ words, updates: UPDATES, keys: KEYS, seed, sample: other })
  const separated = (between: string) => one(({ prompt }) => prompt.replaceAll('; ', between).replace(/;(?=\n\n)/u, ''))
  return {
    'the task as it is': one(({ prompt }) => prompt),
    'a second stream': talk((seed) => [stream(seed).prompt, asking(stream(seed, own, 1))]),
    'a follow-up question': talk((seed) => {
      const made = stream(seed)
      const [key = ''] = made.keys.slice(3)
      return [made.prompt, { prompt: `What is the current value of ${key}?`, truth: truthOf(made, [key]) }]
    }),
    'a greeting first': talk((seed) => ['Hello!', asking(stream(seed))]),
    'commas between updates': separated(', '),
    'a line for each update': separated('\n'),
    'other sentences': one((made, random) => inWords(made, random, list)),
    'other words': one(({ prompt }) => prompt, held),
    'other sentences and words': one((made, random) => inWords(made, random, list), held),
    'other words, second stream, other sentences': talk((seed) => {
      const second = stream(seed, held, 1)
      return [stream(seed, held).prompt, { prompt: inWords(second, new Random(seed, 7), list), truth: truthOf(second) }]
    }),
    'other markers, with tools, 16 updates': marked(list),
    'three needles, other names': needles(list, true),
    'three needles, known names': needles(list, false),
  }

  /** Asks the plain model one question, worded by `text`. */
  function one(text: (made: PiSample, random: Random) => string, words: PiWords = own): Played {
    return talk((seed) => {
      const made = stream(seed, words)
      return [{ prompt: text(made, new Random(seed, 7)), truth: truthOf(made) }]
    })
  }
}

interface Asking {
  readonly prompt: string
  readonly truth: ReturnType<typeof truthOf>
}

/** Sends the messages one after another. Only the last answer counts. */
function talk(said: (seed: number) => readonly [...(readonly string[]), Asking]): Played {
  return async (engine, seed, name) => {
    const session = plain({ engine, id: conversationId(`visitors/${name}`), generation: MOST })
    const messages = said(seed)
    const { prompt, truth } = messages.at(-1) as Asking
    try {
      for (const message of messages.slice(0, -1)) await session.ask(message as string)
      const { answer } = await session.ask(prompt)
      return { points: piScore(truth, answer).accuracy, asked: Object.keys(truth.last).length }
    } finally {
      session.forget()
    }
  }
}

const asking = (made: PiSample): Asking => ({ prompt: made.prompt, truth: truthOf(made) })

function truthOf({ keys, updates }: PiSample, asked: readonly string[] = keys) {
  const last = lastValues(updates)
  const earlier = (key: string) =>
    updates.filter((update) => update.key === key && update.value !== last.get(key)).map(({ value }) => value)
  return {
    last: Object.fromEntries(asked.map((key) => [key, last.get(key) ?? ''])),
    earlier: Object.fromEntries(asked.map((key) => [key, earlier(key)])),
  }
}

function inWords({ keys, updates }: PiSample, random: Random, { templates, markers }: List): string {
  const { opening, question } = templates[random.below(templates.length)]!
  const [start, end] = markers[random.below(markers.length)]!
  const listed = keys.join(', ')
  const stream = updates.map(({ key, value }) => `${key}: ${value}`).join('; ')
  return `${opening.replace('{keys}', listed)}\n\n${start}\n${stream};\n\n${end} ${question.replace('{keys}', listed)}`
}

/** Asks the agent with tools, in the task's own sentences, but with other markers around the stream. */
function marked({ markers }: List): Played {
  return async (engine, seed, name) => {
    const made = piSample({ words: ownWords(), updates: 16, seed })
    const [start, end] = markers[seed % markers.length]!
    const prompt = made.prompt
      .replace('The stream of updates starts here.', start)
      .replace('The stream of updates ends here.', end)
    const session = sculptor({
      engine,
      id: conversationId(`visitors/${name}`),
      prompt: 'pi-llm',
      generation: { maxTokens: 1024 },
    })
    try {
      const { answer } = await session.ask(prompt)
      return { points: piScore(truthOf(made), answer).accuracy, asked: made.keys.length }
    } finally {
      session.forget()
    }
  }
}

/** Asks for chains of relatives, with the task's names or (`others`) with names of the list. */
function needles({ given, family }: List, others: boolean): Played {
  return async (engine, seed, name) => {
    const task = await openTask({
      task: 'needles',
      options: { seed, samples: 1, needles: [3], lengths: [1000] },
    })
    const drawn = await task.sample(0)
    const random = new Random(seed, 11)
    const first = random.shuffled(given)
    const last = random.shuffled(family)
    const { chain } = drawn.truth as { readonly chain: readonly string[] }
    const pairs = chain.flatMap((one, n) => one.split(' ').map((part, at) => [part, (at === 0 ? first : last)[n]!] as const))
    const renames = new Map(others ? pairs : [])
    const renamed = (text: string) => text.replaceAll(/[A-Z][a-z]+/gu, (word) => renames.get(word) ?? word)
    const asked = { ...drawn, messages: drawn.messages.map((each) => ({ ...each, content: renamed(each.content) })) }
    const truth = JSON.parse(renamed(JSON.stringify(drawn.truth))) as unknown
    const session = sculptor({
      engine,
      id: conversationId(`visitors/${name}`),
      prompt: 'needles',
      generation: MOST,
    })
    try {
      for (const message of asked.messages) session.conversation.add(message)
      const { answer } = await session.resume()
      return { points: task.score({ ...asked, truth }, answer).points, asked: 1 }
    } catch (error) {
      if (error instanceof PromptTooLong) return { points: 0, asked: 1 } // The model searched until the prompt was too long.
      throw error
    } finally {
      session.forget()
    }
  }
}
