/** The PI-LLM task. It has one cell per number of updates, and uses our own words or those of the public file. */
import Type, { type Static } from 'typebox'
import { KvfoldError } from '../../runtime/core/errors.js'
import { strict, Text } from '../../runtime/core/schema.js'
import { piOrders, piSample, type PiSample, piScore, piText, truthOf, type PiTruth, type PiWords, wordsFrom } from '../pi-llm.js'
import { nearScore, type PiWording, wordedParts, wordedTruth, wordingsIn } from '../pi-wordings.js'
import type { Score, Task, TaskSample, TaskSpec } from '../task.js'
import { originalPiLlm, type PiPromptWriter } from './originals.js'
import { Axis, Count, crossed, generation, gridPlace, readOptions } from './samples.js'

const Options = strict({
  ...generation,
  /** Updates per key; each number is a cell. Default: the numbers of the Sculptor paper. */
  updates: Axis(1, 10_000, [4, 8, 16, 32, 64, 128, 256]),
  /** Number of keys in the stream. Default: all keys of the word list; ours has 46. */
  keys: Type.Optional(Count),
  /** Path of a file `{category: [value, ...]}`, the authors' format. Default: our own words. */
  words: Type.Optional(Text),
  /** Path of a checkout of the authors' repository, to use its prompts. Default: our own prompts. */
  prompts: Type.Optional(Text),
  /** Path of a file of wordings (`pi-wordings.ts`). Each wording is a cell. Default: the task's own prompt. */
  wordings: Type.Optional(Text),
  order: Type.Enum(piOrders, { default: 'shuffled' }),
  /** The share of the stream that the prompt shows, counted from its end. A low share imitates folds of all older updates. */
  tail: Type.Number({ exclusiveMinimum: 0, maximum: 1, default: 1 }),
})
type PiTaskOptions = Static<typeof Options>

/** Makes the task from its options. @throws KvfoldError eval/bad-data */
export async function openPiLlm(spec: TaskSpec): Promise<Task> {
  const options = readOptions(Options, spec)
  if (options.prompts !== undefined && options.wordings !== undefined)
    throw new KvfoldError('eval/bad-data', 'pi-llm has the prompts of a checkout, or wordings of a file; give one of them.')
  const prompt = options.prompts === undefined ? piText : await originalPiLlm(options.prompts)
  const words = wordsFrom(options.words)
  const wordings: readonly (PiWording | null)[] = options.wordings === undefined ? [null] : wordingsIn(options.wordings)
  const cells = crossed(options.updates, wordings)
  const sampleOf = (index: number): TaskSample => {
    const { cell, sample } = gridPlace(cells, options.samples, index)
    const [updates, wording] = cell
    const { seed, order, tail } = options
    const made = piSample({
      words,
      updates,
      seed,
      // Each wording has streams of its own.
      sample: sample * wordings.length + wordings.indexOf(wording),
      order,
      tail,
      ...(options.keys === undefined ? {} : { keys: options.keys }),
    })
    const common = { id: `pi-llm-${updates}-${sample}`, cell: cellOf(updates, options) }
    return wording === null ? taskSample(made, prompt(made.keys, made.shown), common) : wordedSample(made, wording, common)
  }
  sampleOf(cells.findIndex(([updates]) => updates === Math.max(...options.updates)))
  return {
    spec: { task: spec.task, options },
    title: 'PI-LLM',
    prompt: 'pi-llm',
    maxTokens: 1024,
    temperature: 0,
    differs: differences(options, words),
    size: cells.length * options.samples,
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

type Common = Pick<TaskSample, 'id' | 'cell'>

function taskSample(made: PiSample, [framing, stream, question]: ReturnType<PiPromptWriter>, common: Common): TaskSample {
  const content = [framing, stream, question].join('\n\n')
  return { ...common, messages: [{ role: 'user', content }], context: stream, question, truth: truthOf(made) }
}

function wordedSample(made: PiSample, wording: PiWording, { id, cell }: Common): TaskSample {
  const parts = wordedParts(wording, made.keys, made.shown)
  const truth = truthOf(made)
  return {
    id: `${id}-${wording.name}`,
    cell: { ...cell, wording: wording.name },
    messages: [{ role: 'user', content: parts.join('') }],
    context: parts[1],
    question: parts[2].trim(),
    truth: { ...truth, worded: wordedTruth(wording, parts, made.shown, truth.last) },
  }
}

function scoreOf(truth: PiTruth, answer: string): Score {
  const { accuracy, correct, missing, older, foreign } =
    truth.worded === undefined ? piScore(truth, answer) : nearScore(truth, answer)
  const asked = correct + missing + older + foreign
  return {
    points: accuracy,
    outcome: correct === asked ? 'right' : missing === asked ? 'unparsed' : correct === 0 ? 'wrong' : 'partial',
    details: { asked, correct, missing, older, foreign },
  }
}

function differences({ order, tail, updates, words: file, prompts, wordings }: PiTaskOptions, words: PiWords): string[] {
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
    ...(wordings === undefined
      ? []
      : ['Prompts are in other words, and a value counts where it is the first one behind the last mention of its key.']),
    ...(prompts === undefined && wordings === undefined
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
