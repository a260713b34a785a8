/** The PI-LLM task. It has one cell for each number of updates of a key, and uses our own words or the words of the public file. */
import Type, { type Static } from 'typebox'
import { strict, Text } from '../../runtime/core/schema.js'
import {
  lastValues,
  ownWords,
  piOrders,
  piSample,
  type PiSample,
  piScore,
  piText,
  type PiTruth,
  type PiWords,
  wordsFrom,
} from '../pi-llm.js'
import type { Score, Task, TaskSample, TaskSpec } from '../task.js'
import { originalPiLlm, type PiPromptWriter } from './originals.js'
import { Axis, Count, generation, gridPlace, readOptions } from './samples.js'

const Options = strict({
  ...generation,
  /** Numbers of updates of every key. Each number is one cell. Default: the numbers in the Sculptor paper. */
  updates: Axis(1, 10_000, [4, 8, 16, 32, 64, 128, 256]),
  /** The number of keys in the stream. Default: all keys that there are words for; our own words have 46. */
  keys: Type.Optional(Count),
  /** Path of a file `{category: [value, ...]}`, the form that the authors publish. Default: our own words. */
  words: Type.Optional(Text),
  /** Path of a checkout of the authors' repository, whose prompts the task uses. Default: our own prompts. */
  prompts: Type.Optional(Text),
  order: Type.Enum(piOrders, { default: 'shuffled' }),
  /** The share of the stream that the prompt shows, counted from its end. A low share imitates folds of all older updates. */
  tail: Type.Number({ exclusiveMinimum: 0, maximum: 1, default: 1 }),
})
type PiTaskOptions = Static<typeof Options>

/** Makes the task from its options. @throws KvfoldError eval/bad-data */
export async function openPiLlm(spec: TaskSpec): Promise<Task> {
  const options = readOptions(Options, spec)
  const prompt = options.prompts === undefined ? piText : await originalPiLlm(options.prompts)
  const words = options.words === undefined ? ownWords() : wordsFrom(options.words)
  const sampleOf = (index: number): TaskSample => {
    const { cell: updates, sample } = gridPlace(options.updates, options.samples, index)
    const { seed, order, tail } = options
    const made = piSample({
      words,
      updates,
      seed,
      sample,
      order,
      tail,
      ...(options.keys === undefined ? {} : { keys: options.keys }),
    })
    return taskSample(made, prompt(made.keys, made.shown), `pi-llm-${updates}-${sample}`, cellOf(updates, options))
  }
  sampleOf(options.updates.indexOf(Math.max(...options.updates)))
  return {
    spec: { task: spec.task, options },
    title: 'PI-LLM',
    prompt: 'pi-llm',
    maxTokens: 1024,
    temperature: 0,
    differs: differences(options, words),
    size: options.updates.length * options.samples,
    // eslint-disable-next-line @typescript-eslint/require-await -- what it throws is a rejection
    sample: async (index) => sampleOf(index),
    score: ({ truth }, answer) => scoreOf(truth as PiTruth, answer),
  }
}

const cellOf = (updates: number, { order, tail }: PiTaskOptions) => ({
  updates,
  ...(order === 'shuffled' ? {} : { order }),
  ...(tail === 1 ? {} : { tail }),
})

function taskSample(
  made: PiSample,
  [framing, stream, question]: ReturnType<PiPromptWriter>,
  id: string,
  cell: TaskSample['cell'],
): TaskSample {
  const last = lastValues(made.updates)
  const truth: PiTruth = {
    last: Object.fromEntries(made.keys.map((key) => [key, last.get(key) ?? ''])),
    earlier: Object.fromEntries(
      made.keys.map((key) => [
        key,
        made.shown.filter((update) => update.key === key && update.value !== last.get(key)).map(({ value }) => value),
      ]),
    ),
  }
  const content = [framing, stream, question].join('\n\n')
  return { id, cell, messages: [{ role: 'user', content }], context: stream, question, truth }
}

function scoreOf(truth: PiTruth, answer: string): Score {
  const { accuracy, correct, missing, older, foreign } = piScore(truth, answer)
  const asked = correct + missing + older + foreign
  return {
    points: accuracy,
    outcome: correct === asked ? 'right' : missing === asked ? 'unparsed' : correct === 0 ? 'wrong' : 'partial',
    details: { asked, correct, missing, older, foreign },
  }
}

function differences({ order, tail, updates, words: file, prompts }: PiTaskOptions, words: PiWords): string[] {
  const own = file === undefined
  return [
    ...(own
      ? [
          'Keys and values are our own words: 46 names of kinds of things, and made-up values that belong to no key in particular.',
          ...(words.keys.length * Math.max(...updates) > 3136
            ? ['Values have one word up to 68 updates; in larger sizes they have one or two words.']
            : []),
        ]
      : []),
    ...(prompts === undefined
      ? [
          "The instruction, the announcement of the stream and the question have the meaning of the original's, in other sentences. Parts, order and the pattern of the answer are the original's.",
          'One space separates updates, and the stream has no blank before its first one.',
        ]
      : []),
    'An answer that is empty or speaks of an error counts as wrong; the original leaves such a run out.',
    ...(order === 'shuffled'
      ? []
      : [
          `The question asks for a third of the keys. Their updates are all in the ${order === 'start-last' ? 'first' : 'middle'} third of the stream; the rest of the stream updates other keys.`,
        ]),
    ...(tail === 1 ? [] : [`The prompt shows only the last ${+(tail * 100).toFixed(3)} % of the updates.`]),
  ]
}
