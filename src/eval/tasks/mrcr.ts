/** Owns MRCR as a task: asked for the k-th of several alike texts of a long conversation, word for word; OpenAI's rows, or conversations of our own. */
import { z } from 'zod'
import { KvfoldError } from '../../core/errors.js'
import type { ChatMessage } from '../../chat/message.js'
import { openRows } from '../data/rows.js'
import type { Cell, Score, Task, TaskSample, TaskSpec } from '../task.js'
import { crossed, gridPlace, refuseBeyond } from './grid.js'
import { LONGEST_TEXT, makeConversation } from './mrcr-conversation.js'
import { Axis, charsPerToken, generation, readFields, readOptions } from './options.js'
import { similarity } from './sequence-matcher.js'

const Options = z.strictObject({
  ...generation,
  /** Alike texts. */
  needles: Axis(1, 20, [2, 4, 8]),
  /** Tokens of the conversation; counted as characters / charsPerToken. */
  lengths: Axis(100, 10_000_000, [4_000, 8_000, 16_000]),
  charsPerToken,
})
const FileOptions = z.strictObject({
  /** Rows in OpenAI's form, JSON Lines or Parquet: a path or hf:datasets/openai/mrcr/... */
  data: z.string().min(1),
  /** Rows that are read, from the first. Default: all. */
  limit: z.int().min(1).optional(),
})

const Prompt = z
  .array(z.object({ role: z.enum(['system', 'user', 'assistant']), content: z.string() }))
  .min(1)
  .refine((messages) => messages.at(-1)?.role === 'user', 'the last message must be the user’s')
const Fields = z.object({
  prompt: z.preprocess((value) => (typeof value === 'string' ? parsed(value) : value), Prompt),
  answer: z.string(),
  random_string_to_prepend: z.string().min(1),
  n_needles: z.coerce.number(),
  desired_msg_index: z.coerce.number().optional(),
  total_messages: z.coerce.number().optional(),
  n_chars: z.coerce.number(),
})

export interface MrcrTruth {
  /** What the answer must begin with. */
  readonly prefix: string
  /** The whole answer, prefix included. */
  readonly answer: string
}

const common = {
  title: 'MRCR',
  temperature: 0,
  score: ({ truth }: TaskSample, answer: string) => scoreOf(truth as MrcrTruth, answer),
} as const

/** Rows of a file when `data` is given, else our own. @throws KvfoldError eval/bad-data */
export function openMrcr(spec: TaskSpec): Task | Promise<Task> {
  return 'data' in spec.options ? fromRows(spec) : generated(spec)
}

function generated(spec: TaskSpec): Task {
  const options = readOptions(Options, spec)
  const cells = crossed(options.needles, options.lengths)
  return {
    ...common,
    spec: { task: spec.task, options },
    prompt: 'similar',
    maxTokens: 64 + Math.ceil((1.5 * LONGEST_TEXT) / options.charsPerToken),
    differs: [
      'Asks and texts are our own: texts are made of sentences on their subject, where the original has a model write them.',
      'One worked example comes first, in our own words.',
      `Length is counted as characters / ${options.charsPerToken}.`,
    ],
    size: cells.length * options.samples,
    // eslint-disable-next-line @typescript-eslint/require-await -- what it throws is a rejection
    sample: async (index) => {
      const { cell, sample } = gridPlace(cells, options.samples, index)
      const [needles, length] = cell
      const { messages, prefix, text } = makeConversation({
        needles,
        characters: Math.round(length * options.charsPerToken),
        seed: options.seed,
        sample,
      })
      return sampleOf(`mrcr-${needles}-${length}-${sample}`, { needles, length }, messages, { prefix, answer: prefix + text })
    },
  }
}

async function fromRows(spec: TaskSpec): Promise<Task> {
  const options = readOptions(FileOptions, spec)
  const rows = await openRows(options.data)
  const size = Math.min(rows.size, options.limit ?? rows.size)
  return {
    ...common,
    spec: { task: spec.task, options },
    // Texts from elsewhere have no title to search for.
    prompt: 'general',
    // The longest texts of the public rows are some 1,500 tokens.
    maxTokens: 4096,
    differs: [],
    size,
    sample: async (index) => {
      refuseBeyond(index, size)
      const fields = readFields(Fields, await rows.row(index), rows.where(index))
      const { prompt, answer, random_string_to_prepend: prefix, n_needles: needles, n_chars: characters } = fields
      if (!answer.startsWith(prefix))
        throw new KvfoldError('eval/bad-data', `${rows.where(index)}: answer does not begin with random_string_to_prepend.`)
      return sampleOf(`mrcr-row-${index}`, { needles, length: upTo(characters / 4) }, prompt, { prefix, answer })
    },
  }
}

/** The power of two at or above so many tokens, as the authors bin their rows; at least 8192. */
const upTo = (tokens: number): number => Math.max(8192, 2 ** Math.ceil(Math.log2(Math.max(tokens, 1))))

function sampleOf(id: string, cell: Cell, messages: readonly ChatMessage[], truth: MrcrTruth): TaskSample {
  const before = messages.slice(0, -1)
  return {
    id,
    cell,
    messages,
    context: before.map(({ role, content }) => `${role.charAt(0).toUpperCase()}${role.slice(1)}: ${content}`).join('\n\n'),
    question: messages.at(-1)?.content ?? '',
    truth,
  }
}

/** The authors' rule: nothing without the prefix; else how alike the rest is, as CPython's difflib says. */
function scoreOf({ prefix, answer }: MrcrTruth, response: string): Score {
  if (!response.startsWith(prefix)) return { points: 0, outcome: 'unparsed', details: { prefix: 0 } }
  const points = similarity(response.slice(prefix.length), answer.slice(prefix.length))
  return { points, outcome: points === 1 ? 'right' : points === 0 ? 'wrong' : 'partial', details: { prefix: 1 } }
}

/** JSON in a field, as OpenAI's rows hold their messages. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}
