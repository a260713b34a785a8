/** Owns conversations in the form of MRCR: asks for texts of a form on a subject, several of them the same ask, and the texts. */
import type { ChatMessage } from '../../chat/message.js'
import { KvfoldError } from '../../core/errors.js'
import { Random } from '../../core/random.js'
import { code, pick } from './draw.js'
import { prose, sentence } from './prose.js'

export interface ConversationOptions {
  /** Texts that answer the same ask. */
  readonly needles: number
  /** Of all messages together. */
  readonly characters: number
  readonly seed: number
  readonly sample: number
}

export interface Conversation {
  readonly messages: readonly ChatMessage[]
  /** What the answer must begin with. */
  readonly prefix: string
  /** The text that is asked for. */
  readonly text: string
}

interface Ask {
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

/** Characters; longer texts leave room for few. */
export const LONGEST_TEXT = 2_000
/** Shorter texts could hardly be told apart. */
const SHORTEST_TEXT = 120

/** @throws KvfoldError eval/bad-data when so many texts do not fit */
export function makeConversation({ needles, characters, seed, sample }: ConversationOptions): Conversation {
  const random = new Random(seed, sample, needles, characters)
  const wanted: Ask = { form: pick(random, forms), subject: pick(random, subjects) }
  const which = 1 + random.below(needles)
  const prefix = code(random, 10)
  const example = exampleOf(random)
  const question = questionOf(prefix, wanted, which, needles)
  const room = characters - example.length - question.length
  // At least half of the texts are other ones, so that there is something to look through.
  const each = Math.min(LONGEST_TEXT, Math.floor(room / (2 * needles)) - 60)
  if (each < SHORTEST_TEXT)
    throw new KvfoldError(
      'eval/bad-data',
      `${needles} alike texts and as many others do not fit into ${characters} characters; ask for a greater length or fewer needles.`,
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

/** `needles` times what is wanted, wherever chance puts it; the rest shares its form or its subject now and then, never both. */
function arranged(random: Random, wanted: Ask, needles: number, turns: number): Ask[] {
  const others = Array.from({ length: turns - needles }, () => otherThan(random, wanted))
  return random.shuffled([...Array.from({ length: needles }, () => wanted), ...others])
}

function otherThan(random: Random, wanted: Ask): Ask {
  for (;;) {
    const near = random.below(4)
    const form = near === 0 ? wanted.form : pick(random, forms)
    const subject = near === 1 ? wanted.subject : pick(random, subjects)
    if (form !== wanted.form || subject !== wanted.subject) return { form, subject }
  }
}

const article = (word: string): string => (/^[aeiou]/u.test(word) ? 'an' : 'a')
const askOf = ({ form, subject }: Ask): string => `Write ${article(form)} ${form} about ${subject}.`

/** A title, then sentences about the subject among others, up to so many characters. Two texts of one ask share their title and little else. */
function textOf(random: Random, { form, subject }: Ask, characters: number): string {
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

const questionOf = (prefix: string, { form, subject }: Ask, which: number, of: number): string =>
  `Of the ${of} times I asked for ${article(form)} ${form} about ${subject}, repeat the ${ordinal(which)} one that you wrote, word for word. ` +
  `Put ${prefix} directly in front of it, and write nothing else.`

/** A short conversation with the right answer, in front of the first ask. */
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
