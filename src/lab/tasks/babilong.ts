/** The BABILong task: questions about a few facts that are hidden in a long text. The samples come from the authors' files. */
import Type, { type Static } from 'typebox'
import { strict, Text } from '../../runtime/core/schema.js'
import type { TaskCell, Score, Task, TaskSample, TaskSpec } from '../task.js'
import { originalBabilong } from './originals.js'
import { Count, crossed, openRowGrid, readFields, readOptions } from './samples.js'

// Below: our own prompts for BABILong's twenty tasks. Each says what the facts are about, and has an example, a form of answer, and labels.

export const babilongTasks = [
  'qa1', 'qa2', 'qa3', 'qa4', 'qa5', 'qa6', 'qa7', 'qa8', 'qa9', 'qa10', 'qa11', 'qa12', 'qa13', 'qa14', 'qa15', 'qa16', 'qa17',
  'qa18', 'qa19', 'qa20',
] as const // prettier-ignore
export type BabilongTask = (typeof babilongTasks)[number]

export interface BabilongQuestion {
  /** All possible answers, as listed by the authors. */
  readonly labels: readonly string[]
  readonly facts: string
  readonly example: string
  readonly form: string
}

const rooms = ['bathroom', 'bedroom', 'garden', 'hallway', 'kitchen', 'office']
const moves = 'people go from place to place, and only the last place of somebody counts.'
const things = 'people go from place to place, take things with them and leave them behind.'
const oneWord = 'Answer with one word.'
const yesOrNo = 'Answer with one word, yes or no.'
const onePlace = 'Answer with one word, the place.'

export const babilongQuestions: Readonly<Record<BabilongTask, BabilongQuestion>> = {
  qa1: {
    labels: rooms,
    facts: moves,
    example: 'Ruth went to the attic. Owen went to the cellar. Ruth went to the porch. Where is Ruth? Ruth is in the porch.',
    form: 'Answer in this form: <person> is in the <place>.',
  },
  qa2: {
    labels: rooms,
    facts: things,
    example:
      'Ruth went to the attic. Ruth took the lamp there. Ruth went to the porch. Where is the lamp? The lamp is in the porch.',
    form: 'Answer in this form: The <thing> is in the <place>.',
  },
  qa3: {
    labels: rooms,
    facts: things,
    example:
      'Ruth took the lamp. Ruth went to the attic. Ruth went to the porch. Where was the lamp before the porch? Before the porch the lamp was in the attic.',
    form: 'Answer in this form: Before the <place> the <thing> was in the <place>.',
  },
  qa4: {
    labels: rooms,
    facts: 'places lie north, south, east or west of each other.',
    example: 'The attic is north of the porch. What is north of the porch? attic',
    form: onePlace,
  },
  qa5: {
    labels: ['Bill', 'Fred', 'Jeff', 'Mary', 'apple', 'football', 'milk'],
    facts: 'people take things and give them to each other.',
    example: 'Ruth took the lamp. Ruth gave the lamp to Owen. Who received the lamp? Owen',
    form: oneWord,
  },
  qa6: { labels: ['no', 'yes'], facts: moves, example: 'Ruth went to the attic. Is Ruth in the porch? no', form: yesOrNo },
  qa7: {
    labels: ['none', 'one', 'three', 'two'],
    facts: 'people take things, leave them and give them to each other.',
    example: 'Ruth took the lamp. Ruth took the rope. How many objects is Ruth carrying? two',
    form: 'Answer with one word, none or the number in letters.',
  },
  qa8: {
    labels: ['apple', 'football', 'milk', 'nothing'],
    facts: 'people take things, leave them and give them to each other.',
    example: 'Ruth took the lamp. Ruth took the rope. What is Ruth carrying? lamp,rope',
    form: 'Answer with the things, commas between them, or with the word nothing.',
  },
  qa9: {
    labels: ['no', 'yes'],
    facts: 'people are in places, or are said not to be there.',
    example: 'Ruth is no longer in the attic. Is Ruth in the attic? no',
    form: yesOrNo,
  },
  qa10: {
    labels: ['maybe', 'no', 'yes'],
    facts: 'people are in a place, or in one of two.',
    example: 'Ruth is either in the attic or the porch. Is Ruth in the porch? maybe',
    form: 'Answer with one word, yes, no or maybe.',
  },
  qa11: {
    labels: rooms,
    facts: moves,
    example: 'Ruth went to the attic. Then she went to the porch. Where is Ruth? porch',
    form: onePlace,
  },
  qa12: {
    labels: rooms,
    facts: moves,
    example: 'Ruth and Owen went to the attic. Where is Owen? attic',
    form: onePlace,
  },
  qa13: {
    labels: rooms,
    facts: moves,
    example: 'Ruth and Owen went to the attic. Then they went to the porch. Where is Owen? porch',
    form: onePlace,
  },
  qa14: {
    labels: ['bedroom', 'cinema', 'kitchen', 'office', 'park', 'school'],
    facts: 'people go from place to place at times of the day, told in any order.',
    example: 'Ruth went to the porch this afternoon. Ruth went to the attic yesterday. Where was Ruth before the porch? attic',
    form: onePlace,
  },
  qa15: {
    labels: ['cat', 'mouse', 'sheep', 'wolf'],
    facts: 'kinds of animals are afraid of other kinds, and some animals are of these kinds.',
    example: 'Hens are afraid of foxes. Ruth is a hen. What is Ruth afraid of? fox',
    form: 'Answer with one word, the animal.',
  },
  qa16: {
    labels: ['gray', 'green', 'white', 'yellow'],
    facts: 'animals are of a kind and of a colour, and animals of one kind have one colour.',
    example: 'Ruth is a hen. Ruth is brown. Owen is a hen. What color is Owen? brown',
    form: 'Answer with one word, the color.',
  },
  qa17: {
    labels: ['no', 'yes'],
    facts: 'figures lie above, below, left or right of each other.',
    example: 'The star is above the circle. The circle is above the cross. Is the cross above the star? no',
    form: yesOrNo,
  },
  qa18: {
    labels: ['no', 'yes'],
    facts: 'things fit into others or are bigger than they are.',
    example: 'The ring fits inside the cup. The crate is bigger than the cup. Does the ring fit in the crate? yes',
    form: yesOrNo,
  },
  qa19: {
    labels: ['e,e', 'e,n', 'e,s', 'n,e', 'n,n', 'n,w', 's,e', 's,s', 's,w', 'w,n', 'w,s', 'w,w'],
    facts: 'places lie north, south, east or west of each other.',
    example: 'The attic is north of the porch. The shed is east of the attic. How do you go from the porch to the shed? n,e',
    form: 'Answer with two letters out of n, e, s and w, a comma between them and no space.',
  },
  qa20: {
    labels: ['bedroom', 'bored', 'garden', 'hungry', 'kitchen', 'thirsty', 'tired'],
    facts: 'people feel something and go somewhere because of it.',
    example: 'Ruth is cold. Ruth went to the stove. Why did Ruth go to the stove? cold',
    form: 'Answer with one word, the place or how the person feels.',
  },
}

// Below: the task itself: its options, samples and scoring.

const Options = strict({
  /**
   * Path or hub name of the files, whose rows are `input, question, target`. `{task}` and `{length}` are replaced by each of `tasks` and
   * `lengths`.
   */
  data: Text,
  tasks: Type.Array(Type.Enum(babilongTasks), { minItems: 1, default: ['qa1', 'qa2', 'qa3', 'qa4', 'qa5'] }),
  /** The lengths of the texts as in the files' names, such as `4k`. */
  lengths: Type.Array(Text, { minItems: 1, default: ['4k'] }),
  /** Path of a checkout of the authors' repository, to use its prompts. Default: our own prompts. */
  prompts: Type.Optional(Text),
  /** How many rows of each file to use, from the first on. Default: as many as the shortest file has. */
  limit: Type.Optional(Count),
})

const Fields = Type.Object({ input: Type.String(), question: Type.String(), target: Text })

export interface BabilongTruth {
  readonly task: BabilongTask
  /** The question. Labels that occur in it do not count as answers. */
  readonly question: string
  readonly target: string
}

/** Makes the task from its options. @throws KvfoldError eval/bad-data */
export async function openBabilong(spec: TaskSpec): Promise<Task> {
  const options = readOptions(Options, spec)
  const cells = crossed(options.tasks, options.lengths).map(([task, length]) => ({ task, length }))
  const rows = await openRowGrid(options.data, cells, options.limit)
  const originals = options.prompts === undefined ? null : await originalBabilong(options.prompts, options.tasks)
  return {
    spec: { task: spec.task, options },
    title: 'BABILong',
    prompt: 'general',
    maxTokens: 128,
    temperature: 0,
    differs: [
      ...(originals === null
        ? [
            'Instructions, examples and the form of the answer are in our own words for every task; labels and scoring are the original’s.',
          ]
        : []),
      'Answers may have 128 tokens; the authors’ program stops after 15.',
    ],
    size: rows.size,
    sample: async (index) => {
      const { cell, number, row, where } = await rows.at(index)
      const [id, fields] = [`babilong-${cell.task}-${cell.length}-${number}`, readFields(Fields, row, where)]
      const sample = sampleOf(id, cell, cell.task, fields)
      const original = originals?.get(cell.task)
      return original === undefined ? sample : { ...sample, ...originalText(original, fields) }
    },
    score: ({ truth }, answer) => scoreOf(truth as BabilongTruth, answer),
  }
}

/**
 * Fills the authors' prompt. `messages` has the whole prompt; `question` has it with an empty context, for agents that search the context.
 */
function originalText(template: string, { input, question }: Static<typeof Fields>) {
  const filled = (context: string) => {
    const values: Readonly<Record<string, string>> = { context, question }
    return template.replace(/\{(context|question)\}/gu, (_, name: string) => values[name] ?? '').trim()
  }
  return { messages: [{ role: 'user' as const, content: filled(input.trim()) }], question: filled('') }
}

function sampleOf(id: string, cell: TaskCell, task: BabilongTask, row: Static<typeof Fields>): TaskSample {
  const { facts, form, example } = babilongQuestions[task]
  const context = row.input.trim()
  const question = `Question: ${row.question.trim()}\n${form} Write nothing else.`
  const introduction = `Somewhere in a long text there are facts: ${facts} Answer the question that follows it from these facts alone.\nAn example: ${example}`
  return {
    id,
    cell,
    messages: [{ role: 'user', content: `${introduction}\n\n<context>\n${context}\n</context>\n\n${question}` }],
    context,
    question: `${introduction}\n\n${question}`,
    truth: { task, question: row.question, target: row.target } satisfies BabilongTruth,
  }
}

/**
 * Scores an answer as the authors do. Collects the task's labels that occur in the answer's first sentence but not in the question; case
 * does not matter. The answer is right if these are exactly the target, or all targets of a list. Source: babilong/metrics.py.
 */
function scoreOf({ task, question, target }: BabilongTruth, answer: string): Score {
  const [sentence = ''] = answer.toLowerCase().split(/\.|<context>|<example>/u)
  const labels = babilongQuestions[task].labels.map((label) => label.toLowerCase())
  const named = labels.filter((label) => sentence.includes(label) && !question.toLowerCase().includes(label))
  const wanted = target.toLowerCase()
  const parts = wanted.includes(',') && wanted.length > 3 ? wanted.split(',') : [wanted]
  const right = named.length === parts.length && parts.every((part) => named.includes(part))
  return {
    points: right ? 1 : 0,
    outcome: named.length === 0 ? 'unparsed' : right ? 'right' : 'wrong',
    details: { named: named.length },
  }
}
