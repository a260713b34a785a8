/**
 * The MRCR task. In a long conversation the user asks several times for the same kind of text, such as a poem about rain. The model must
 * repeat one of these texts word for word. Samples are OpenAI's rows, or conversations that we generate.
 */
import Type from 'typebox'
import type { ChatMessage } from '../../runtime/chat/message.js'
import { KvfoldError } from '../../runtime/core/errors.js'
import { Random } from '../../runtime/core/random.js'
import { strict, Text } from '../../runtime/core/schema.js'
import { openRows } from '../data/rows.js'
import type { TaskCell, Score, Task, TaskSample, TaskSpec } from '../task.js'
import {
  Axis,
  charsPerToken,
  Count,
  crossed,
  generation,
  gridPlace,
  readFields,
  readOptions,
  refuseBeyond,
  RowMessage,
} from './samples.js'
import { code, pick, prose, sentence } from './prose.js'
import { similarity } from './sequence-matcher.js'

const Options = strict({
  ...generation,
  /** The number of texts that answer the same request. */
  needles: Axis(1, 20, [2, 4, 8]),
  /** Tokens of the conversation, counted as characters / charsPerToken. */
  lengths: Axis(100, 10_000_000, [4_000, 8_000, 16_000]),
  charsPerToken,
})
const FileOptions = strict({
  /** Rows in OpenAI's format, as JSON Lines or Parquet: a path, or hf:datasets/openai/mrcr/... */
  data: Text,
  /** How many rows to use, from the first on. Default: all. */
  limit: Type.Optional(Count),
})

const Fields = Type.Object({
  prompt: Type.Array(RowMessage, { minItems: 1 }),
  answer: Type.String(),
  random_string_to_prepend: Text,
  n_needles: Type.Number(),
  desired_msg_index: Type.Optional(Type.Number()),
  total_messages: Type.Optional(Type.Number()),
  n_chars: Type.Number(),
})

/** The names of numeric fields that some files store as text. */
const NUMBERS = ['n_needles', 'desired_msg_index', 'total_messages', 'n_chars']

export interface MrcrTruth {
  /** The string with which the answer must begin. */
  readonly prefix: string
  /** The whole right answer, including the prefix. */
  readonly answer: string
}

const common = {
  title: 'MRCR',
  temperature: 0,
  score: ({ truth }: TaskSample, answer: string) => scoreOf(truth as MrcrTruth, answer),
} as const

/** Reads the rows of a file if the options have `data`, else generates conversations. @throws KvfoldError eval/bad-data */
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
      'Requests and texts are our own. Our texts consist of sentences about their subject; in the original a model writes the texts.',
      'One worked example comes first, in our own words.',
      'The last question is in our own words, too. It says how many similar texts there are; the original does not.',
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
    // A file's texts have no common title to search for, so the general system prompt suits best.
    prompt: 'general',
    // The longest texts of the public rows have about 1,500 tokens.
    maxTokens: 4096,
    differs: ['Samples get their cells by characters / 4; the original bins them by tokens of one tokenizer.'],
    size,
    sample: async (index) => {
      refuseBeyond(index, size)
      const [row, where] = [await rows.row(index), rows.where(index)]
      const fields = readFields(Fields, { ...row, prompt: parsed(row['prompt']) }, where, NUMBERS)
      const { prompt, answer, random_string_to_prepend: prefix, n_needles: needles, n_chars: characters } = fields
      if (prompt.at(-1)?.role !== 'user')
        throw new KvfoldError('eval/bad-data', `${where}: the last message of prompt must be the user’s.`)
      if (!answer.startsWith(prefix))
        throw new KvfoldError('eval/bad-data', `${where}: answer does not begin with random_string_to_prepend.`)
      return sampleOf(`mrcr-row-${index}`, { needles, length: upTo(characters / 4) }, prompt, { prefix, answer })
    },
  }
}

/** Returns a row's cell by its tokens, as the authors do: the smallest power of two that is at least `tokens`, and at least 8192. */
const upTo = (tokens: number): number => Math.max(8192, 2 ** Math.ceil(Math.log2(Math.max(tokens, 1))))

function sampleOf(id: string, cell: TaskCell, messages: readonly ChatMessage[], truth: MrcrTruth): TaskSample {
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

/** Scores as the authors do: 0 without the prefix, else the similarity of the rest by Python's difflib. */
function scoreOf({ prefix, answer }: MrcrTruth, response: string): Score {
  if (!response.startsWith(prefix)) return { points: 0, outcome: 'unparsed', details: { prefix: 0 } }
  const points = similarity(response.slice(prefix.length), answer.slice(prefix.length))
  return { points, outcome: points === 1 ? 'right' : points === 0 ? 'wrong' : 'partial', details: { prefix: 1 } }
}

/** Parses a field that holds JSON text, as in OpenAI's rows; returns any other field unchanged. */
function parsed(field: unknown): unknown {
  try {
    return typeof field === 'string' ? JSON.parse(field) : field
  } catch {
    return field
  }
}

// Below: generates conversations like MRCR's. The user asks for texts, such as a poem about rain, and the assistant writes them. One
// request (here called ask) occurs several times.

export interface ConversationOptions {
  /** The number of texts that answer the same request. */
  readonly needles: number
  /** The most characters of all messages together. */
  readonly characters: number
  readonly seed: number
  readonly sample: number
}

export interface MrcrConversation {
  readonly messages: readonly ChatMessage[]
  /** The string with which the answer must begin. */
  readonly prefix: string
  /** The text that the last question asks for. */
  readonly text: string
}

interface TextAsk {
  readonly form: string
  readonly subject: string
}

const forms = [
  'poem',
  'short story',
  'essay',
  'speech',
  'letter',
  'news report',
  'riddle',
  'song',
  'diary entry',
  'review',
  'fable',
  'travel note',
]
const subjects = [
  'rain', 'bridges', 'patience', 'lanterns', 'apples', 'rivers', 'clocks', 'winter', 'bread', 'maps', 'stairs', 'wind', 'gardens',
  'trains', 'mirrors', 'salt', 'islands', 'silence', 'kites', 'harvests', 'shadows', 'wells', 'feathers', 'harbours', 'glass', 'roads',
  'honey', 'windows', 'tides', 'chairs', 'hats', 'snow', 'copper', 'owls', 'boots', 'ladders', 'soup', 'paper', 'stars', 'mills',
] // prettier-ignore

/** The most characters of a text, so that a conversation has room for more than a few. */
export const LONGEST_TEXT = 2_000
/** The fewest characters of a text. Shorter texts are too similar to each other. */
const SHORTEST_TEXT = 120

/** Makes a conversation; the same options give the same one. @throws KvfoldError eval/bad-data when that many texts do not fit */
export function makeConversation({ needles, characters, seed, sample }: ConversationOptions): MrcrConversation {
  const random = new Random(seed, sample, needles, characters)
  const wanted: TextAsk = { form: pick(random, forms), subject: pick(random, subjects) }
  const which = 1 + random.below(needles)
  const prefix = code(random, 10)
  const example = exampleOf(random)
  const question = questionOf(prefix, wanted, which, needles)
  const room = characters - example.length - question.length
  // At least half of the texts answer other requests, so that the agent has to search.
  const each = Math.min(LONGEST_TEXT, Math.floor(room / (2 * needles)) - 60)
  if (each < SHORTEST_TEXT)
    throw new KvfoldError(
      'eval/bad-data',
      `${needles} similar texts and as many others do not fit into ${characters} characters; ask for a greater length or fewer needles.`,
    )
  const turns = arranged(random, wanted, needles, Math.max(2 * needles, Math.floor(room / (each + 60))))
  const texts = turns.map((ask) => textOf(random, ask, each))
  const chosen = turns.map((ask, at) => (ask === wanted ? at : -1)).filter((at) => at >= 0)[which - 1] ?? 0
  const messages = turns.flatMap((ask, at): ChatMessage[] => [
    { role: 'user', content: (at === 0 ? example : '') + askOf(ask) },
    { role: 'assistant', content: texts[at] ?? '' },
  ])
  return { messages: [...messages, { role: 'user', content: question }], prefix, text: texts[chosen] ?? '' }
}

/** Returns all requests in random order: the wanted one `needles` times, and others, some with the same form or the same subject. */
function arranged(random: Random, wanted: TextAsk, needles: number, turns: number): TextAsk[] {
  const others = Array.from({ length: turns - needles }, () => otherThan(random, wanted))
  return random.shuffled([...Array.from({ length: needles }, () => wanted), ...others])
}

function otherThan(random: Random, wanted: TextAsk): TextAsk {
  for (;;) {
    const near = random.below(4)
    const form = near === 0 ? wanted.form : pick(random, forms)
    const subject = near === 1 ? wanted.subject : pick(random, subjects)
    if (form !== wanted.form || subject !== wanted.subject) return { form, subject }
  }
}

const article = (word: string): string => (/^[aeiou]/u.test(word) ? 'an' : 'a')
const askOf = ({ form, subject }: TextAsk): string => `Write ${article(form)} ${form} about ${subject}.`

/**
 * Writes a text of at most `characters` characters: a title, and sentences of which some are about the subject. Two texts for the same
 * request share the title and little else.
 */
function textOf(random: Random, { form, subject }: TextAsk, characters: number): string {
  let text = `${form.charAt(0).toUpperCase()}${form.slice(1)} about ${subject}\n\n`
  for (const passage of prose(random)) {
    const next = random.below(3) === 0 ? `${onSubject(random, subject)} ${passage}` : passage
    if (text.length + next.trimEnd().length > characters) break
    text += next
  }
  return text.trimEnd()
}

function onSubject(random: Random, subject: string): string {
  const name = subject.charAt(0).toUpperCase() + subject.slice(1)
  return pick(random, [
    `Much has been said about ${subject}, and most of it is true.`,
    `${name} came to mind again.`,
    `All of this has to do with ${subject}.`,
    `It was never only about ${subject}.`,
    `Whoever thinks of ${subject} thinks of this place.`,
    `There is no better time for ${subject}.`,
  ])
}

const ordinals = ['first', 'second', 'third', 'fourth', 'fifth', 'sixth', 'seventh', 'eighth', 'ninth', 'tenth']
const ordinal = (number: number): string => ordinals[number - 1] ?? `${number}th`

const questionOf = (prefix: string, { form, subject }: TextAsk, which: number, of: number): string =>
  `Of the ${of} times I asked for ${article(form)} ${form} about ${subject}, repeat the ${ordinal(which)} one that you wrote, word for word. ` +
  `Put ${prefix} directly in front of it, and write nothing else.`

/** Returns a short example: a conversation, a last question and the right answer. It precedes the first request. */
function exampleOf(random: Random): string {
  const [one, other] = [sentence(random), sentence(random)]
  const [form, subject] = [pick(random, forms), pick(random, subjects)]
  const ask = askOf({ form, subject })
  const prefix = code(random, 10)
  return [
    'An example of a conversation, a last question and the right answer to it:',
    `User: ${ask}\nAssistant: ${one}\nUser: ${ask}\nAssistant: ${other}`,
    `User: ${questionOf(prefix, { form, subject }, 2, 2)}\nAssistant: ${prefix}${other}`,
    'The example ends here, and the conversation begins.\n\n',
  ].join('\n\n')
}
