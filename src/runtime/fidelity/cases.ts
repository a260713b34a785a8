/**
 * Generated questions that a fold may spoil. The model reads a text whole; then spans of it are folded; then it gets the question. The one
 * right answer is in the visible text.
 */
import { KvfoldError } from '../core/errors.js'
import { Random } from '../core/random.js'
import { span } from '../core/span.js'
import type { ChatMessage } from '../chat/message.js'
import type { Stretch } from '../context/stretch.js'

export interface FidelityCase {
  readonly kind: CaseKind
  /** Number of the text, from 0. Only cases about different texts are independent samples. */
  readonly text: number
  /** All messages. The last one is the question. */
  readonly messages: readonly ChatMessage[]
  /** The steps before the question. For each: how many messages the model has read, and how many folds come before it. */
  readonly steps: readonly { readonly messages: number; readonly folded: number }[]
  /**
   * All folds, in order. Folds that no step mentions come right before the answer. `instead`: the text in place of the folded one; default:
   * a marker.
   */
  readonly folds: readonly (Stretch & { readonly instead?: string })[]
  /** The beginning of the model's answer. The word after it is the answer proper. */
  readonly opening: string
  readonly right: string
  /** Values that were right earlier in the text. The folds hide them. */
  readonly outdated: readonly string[]
}

/**
 * `stale`: the folds hide older values of what the question asks for. `unrelated`: they hide values of other things. `within`: the question
 * is in the same message, so its tokens have read the hidden text. `after`: the question comes after the fold.
 * `seam`: the answer joins a sentence before the hole with one after it. `agent`: an agent reads a file six times; before each turn its
 * client prunes older results. `code`: a program reassigns constants. `german`: another language. `2k`, `8k`: longer texts.
 * `edited`: a client changes values in its system prompt and keeps the dialogue after it. `tools`: a search found tool definitions, and
 * they are removed when a later search finds newer ones. `notes`: notes replace all of a dialogue but its last turns.
 */
export const CASE_KINDS = [
  'stale, within',
  'stale, after',
  'unrelated, within',
  'unrelated, after',
  'seam',
  'agent',
  'code',
  'german',
  '2k',
  '8k',
  'edited',
  'tools',
  'notes',
] as const
export type CaseKind = (typeof CASE_KINDS)[number]

/** How many questions are asked about one text. */
const QUESTIONS = 3

/** Returns `count` cases of this kind. The same seed gives the same cases. */
export function fidelityCases(kind: CaseKind, count: number, seed: number): readonly FidelityCase[] {
  const texts = Math.ceil(count / QUESTIONS)
  return Array.from({ length: texts }, (_, text) => {
    const random = new Random(seed, CASE_KINDS.indexOf(kind), text)
    return casesOf(kind, random).map((one): FidelityCase => ({ kind, text, ...one }))
  })
    .flat()
    .slice(0, count)
}

type Written = Omit<FidelityCase, 'kind' | 'text'>

function casesOf(kind: CaseKind, random: Random): readonly Written[] {
  switch (kind) {
    case 'stale, within':
    case 'stale, after':
    case 'unrelated, within':
    case 'unrelated, after':
      return logbook(random, ENGLISH, { stale: kind.startsWith('stale'), within: kind.endsWith('within'), filler: 1 })
    case 'german':
      return logbook(random, GERMAN, { stale: true, within: true, filler: 1 })
    case '2k':
      return logbook(random, ENGLISH, { stale: true, within: true, filler: 24 })
    case '8k':
      return logbook(random, ENGLISH, { stale: true, within: true, filler: 104 })
    case 'seam':
      return seam(random)
    case 'agent':
      return agent(random)
    case 'code':
      return code(random)
    case 'edited':
      return edited(random)
    case 'tools':
      return tools(random)
    case 'notes':
      return notes(random)
  }
}

// The logbook: it has five days, and the fifth overwrites values of the first and the third.

interface Language {
  readonly system: string
  readonly opening: string
  readonly ending: string
  readonly days: readonly [string, string, string, string, string]
  readonly rooms: readonly string[]
  readonly words: readonly string[]
  readonly filler: readonly string[]
  readonly first: (room: string, word: string) => string
  readonly changed: (room: string, word: string) => string
  readonly ask: (room: string) => string
  readonly answer: (room: string) => string
  readonly seen: string
}

export const ENGLISH: Language = {
  system: 'You answer questions about a logbook.',
  opening: 'This is the logbook.',
  ending: 'End of the logbook.',
  days: ['Monday.', 'Tuesday.', 'Wednesday.', 'Thursday.', 'Friday.'],
  rooms:
    'boiler room,coal cellar,north tower,chart library,seed store,engine shed,weaving hall,tool loft,print shop,orchard gate,lock house,bell chamber,map vault,ice house,glass studio,stone quarry'.split(
      ',',
    ),
  words:
    'velvet amber copper walnut silver marble cotton ginger lemon pepper saffron tulip orchid falcon badger otter salmon beetle comet harbor lantern anchor mirror ribbon button candle hammer pencil bottle blanket pillow carpet basket ladder saddle whistle trumpet violin guitar piano thunder breeze glacier canyon meadow forest island desert'.split(
      ' ',
    ),
  filler: [
    'The night watch noted nothing and went home at six.',
    'A cart of timber came two hours late because of fog on the road.',
    'The caretaker oiled the hinges of the east door and swept the stairs.',
    'Guests asked about the tower clock, which has run slow since March.',
    'The kitchen ordered more flour, and the dog slept beside the stove.',
    'Rain fell all afternoon, so the men put off the work on the roof.',
  ],
  first: (room, word) => `The password of the ${room} is ${word}.`,
  changed: (room, word) => `The password of the ${room} was changed to ${word}.`,
  ask: (room) => `What is the password of the ${room} now, at the end of the logbook?`,
  answer: (room) => `The password of the ${room} is now`,
  seen: 'I have read the logbook.',
}

const GERMAN: Language = {
  system: 'Du beantwortest Fragen zu einem Tagebuch.',
  opening: 'Dies ist das Tagebuch.',
  ending: 'Ende des Tagebuchs.',
  days: ['Montag.', 'Dienstag.', 'Mittwoch.', 'Donnerstag.', 'Freitag.'],
  rooms:
    'Heizraum,Weinkeller,Nordturm,Kartensaal,Samenspeicher,Webraum,Druckraum,Obstgarten,Glockenturm,Eiskeller,Steinbruch,Musiksaal,Werkraum,Lesesaal,Stall,Speicher'.split(
      ',',
    ),
  words:
    'Samt Bernstein Kupfer Walnuss Silber Marmor Ingwer Zitrone Pfeffer Safran Tulpe Falke Dachs Otter Lachs Komet Hafen Laterne Anker Spiegel Kerze Hammer Flasche Decke Teppich Korb Leiter Sattel Trompete Geige Klavier Donner Wiese Insel'.split(
      ' ',
    ),
  filler: [
    'Die Nachtwache sah nichts und ging um sechs nach Hause.',
    'Ein Wagen mit Holz kam wegen des Nebels zwei Stunden zu spät.',
    'Der Hausmeister ölte die Tür im Osten und fegte die Treppe.',
    'Die Küche bestellte Mehl, und der Hund schlief neben dem Ofen.',
  ],
  first: (room, word) => `Das Passwort für ${room} ist ${word}.`,
  changed: (room, word) => `Das Passwort für ${room} wurde geändert in ${word}.`,
  ask: (room) => `Wie lautet das Passwort für ${room} jetzt, am Ende des Tagebuchs?`,
  answer: (room) => `Das Passwort für ${room} ist jetzt`,
  seen: 'Ich habe das Tagebuch gelesen.',
}

/** How many rooms one day mentions, each with one word. */
const DAILY = 4

interface LogbookOptions {
  readonly stale: boolean
  readonly within: boolean
  /** How many sentences without a value each day has. */
  readonly filler: number
}

function logbook(random: Random, language: Language, { stale, within, filler }: LogbookOptions): readonly Written[] {
  const rooms = random.shuffled(language.rooms)
  const words = random.shuffled(language.words)
  const own = rooms.slice(0, DAILY)
  const hidden = stale ? own : rooms.slice(DAILY, 2 * DAILY)
  const far = rooms.slice(2 * DAILY, 3 * DAILY)
  const wordsOf = (day: number) => words.slice(day * DAILY, (day + 1) * DAILY)
  const say = (day: number, of: readonly string[], how: Language['first']) => {
    const values = wordsOf(day)
    const entries = of.map((room, at) => how(room, values[at]!))
    for (let count = 0; count < filler; count++)
      entries.splice(random.below(entries.length + 1), 0, language.filler[random.below(language.filler.length)]!)
    return `${language.days[day]!}\n${entries.join(' ')}`
  }
  const parts = [
    say(0, hidden, language.first),
    say(1, far, language.first),
    say(2, hidden, language.changed),
    say(3, far, language.changed),
    say(4, own, language.changed),
  ]
  const text = `${language.opening}\n\n${parts.join('\n\n')}\n\n${language.ending}`
  const system: ChatMessage = { role: 'system', content: language.system }
  return own.slice(0, QUESTIONS).map((room, at): Written => {
    const ask = language.ask(room)
    const messages: ChatMessage[] = within
      ? [system, { role: 'user', content: `${text} ${ask}` }]
      : [system, { role: 'user', content: text }, { role: 'assistant', content: language.seen }, { role: 'user', content: ask }]
    return {
      messages,
      steps: [{ messages: within ? 2 : 3, folded: 0 }],
      folds: [parts[0]!, parts[2]!].map((part) => placeOf(messages, 1, part)),
      opening: language.answer(room),
      right: wordsOf(4)[at]!,
      outdated: stale ? [wordsOf(0)[at]!, wordsOf(2)[at]!] : [],
    }
  })
}

// The seam: a sentence before the hole names a room, a sentence after it gives that room's password. The hidden text has older passwords of
// all rooms.

function seam(random: Random): readonly Written[] {
  const [a, b, c, d, e, f] = random.shuffled(ENGLISH.rooms) as [string, string, string, string, string, string]
  const words = random.shuffled(ENGLISH.words)
  const things = ['spare key', 'old flag', 'ledger'] as const
  const places = [a, b, c]
  const before = things.map((thing, at) => `The ${thing} hangs in the ${places[at]!}.`).join(' ')
  const hidden = [d, a, e, b, f, c].map((room, at) => `On Monday the password of the ${room} was ${words[at]!}.`).join(' ')
  const behind = [...random.shuffled([d, e, f, ...places])]
  const value = (room: string) => words[6 + behind.indexOf(room)]!
  const now = behind.map((room) => `Since Friday the password of the ${room} is ${value(room)}.`).join(' ')
  const text = `${before}\n\n${hidden}\n\n${now}`
  return things.map((thing, at): Written => {
    const messages: ChatMessage[] = [
      { role: 'system', content: ENGLISH.system },
      { role: 'user', content: `${text}\n\nWhat is the password of the room in which the ${thing} hangs?` },
    ]
    return {
      messages,
      steps: [{ messages: 2, folded: 0 }],
      folds: [placeOf(messages, 1, hidden)],
      opening: `The ${thing} hangs in the ${places[at]!}, and its password is`,
      right: value(places[at]!),
      outdated: [words[1 + 2 * at]!],
    }
  })
}

// The agent: it reads one settings file again and again. Before each turn, its client prunes the result before the last one.

const KEYS = ['region', 'theme', 'profile', 'channel', 'cluster', 'mirror'] as const
const READS = 6

function agent(random: Random): readonly Written[] {
  const words = random.shuffled(ENGLISH.words)
  const keys = random.shuffled(KEYS)
  const value = (read: number, key: number) => words[(read * KEYS.length + key) % words.length]!
  const fileOf = (read: number) =>
    `# settings.conf, revision ${7 + 3 * read}\n${keys.map((key, at) => `${key} = ${value(read, at)}`).join('\n')}`
  const messages: ChatMessage[] = [
    { role: 'system', content: 'You are an agent that keeps a settings file. Results of commands come as messages of the user.' },
    { role: 'user', content: 'Deploy the service. Check the settings before each step.' },
  ]
  const results: number[] = []
  const steps: { messages: number; folded: number }[] = []
  for (let read = 0; read < READS; read++) {
    messages.push({ role: 'assistant', content: 'cat settings.conf' })
    results.push(messages.push({ role: 'user', content: `Output:\n${fileOf(read)}` }) - 1)
    messages.push({ role: 'assistant', content: `I run step ${read + 1} with these settings.` })
    messages.push({ role: 'user', content: 'Output:\nok' })
    steps.push({ messages: messages.length, folded: Math.max(0, read - 1) })
  }
  const folds = results.slice(0, -1).map((message, read) => placeOf(messages, message, fileOf(read)))
  return keys.slice(0, QUESTIONS).map((key, at): Written => ({
    messages: [...messages, { role: 'user', content: `Which ${key} does settings.conf name now?` }],
    steps,
    folds,
    opening: `settings.conf now names ${key} =`,
    right: value(READS - 1, at),
    outdated: Array.from({ length: READS - 1 }, (_, read) => value(read, at)),
  }))
}

// Code: a file that assigns the same constants three times.

function code(random: Random): readonly Written[] {
  const names = random.shuffled(['HOST', 'QUEUE', 'TOPIC', 'BUCKET', 'SCHEMA', 'BRANCH'])
  const words = random.shuffled(ENGLISH.words)
  const block = (title: string, from: number) =>
    `# ${title}\n${names.map((name, at) => `${name} = "${words[from + at]!}"`).join('\n')}\ndef ${title.toLowerCase()}_setup():\n    connect(${names[0]!}, ${names[1]!})\n    return open_store(${names[3]!}, ${names[4]!})`
  const parts = [block('Staging', 0), block('Nightly', 6), block('Production', 12)]
  const text = `\`\`\`python\n${parts.join('\n\n')}\n\`\`\``
  return names.slice(0, QUESTIONS).map((name, at): Written => {
    const messages: ChatMessage[] = [
      { role: 'system', content: 'You answer questions about a program.' },
      { role: 'user', content: `${text}\n\nWhich value does ${name} have after the whole file has run?` },
    ]
    return {
      messages,
      steps: [{ messages: 2, folded: 0 }],
      folds: [parts[0]!, parts[1]!].map((part) => placeOf(messages, 1, part)),
      opening: `After the whole file has run, ${name} is "`,
      right: words[12 + at]!,
      outdated: [words[at]!, words[6 + at]!],
    }
  })
}

// The edited system prompt: it lists current values, and the client replaces that list.

/** Messages and answers that mention no value. */
const SMALL_TALK: readonly (readonly [user: string, assistant: string])[] = [
  [
    'Good morning. I am at the front desk and take over from the night watch.',
    'Good morning. I have the list of rooms in front of me.',
  ],
  ['Two guests come at ten. Please remind me to open the east door for them.', 'I will remind you of the east door at ten.'],
  ['The clock in the hall is slow again. Who looks after it?', 'The caretaker does. He comes on Thursdays.'],
  ['Thank you. I will be back in a minute.', 'All right. I am here.'],
]

const dialogue = (turns: typeof SMALL_TALK): ChatMessage[] =>
  turns.flatMap(([user, assistant]): ChatMessage[] => [
    { role: 'user', content: user },
    { role: 'assistant', content: assistant },
  ])

function edited(random: Random): readonly Written[] {
  const rooms = random.shuffled(ENGLISH.rooms).slice(0, 2 * DAILY)
  const words = random.shuffled(ENGLISH.words)
  const listOf = (from: number) => rooms.map((room, at) => ENGLISH.first(room, words[from + at]!)).join('\n')
  const [old, now] = [listOf(0), listOf(rooms.length)]
  const before: ChatMessage[] = [
    { role: 'system', content: `You help at the front desk of a house. This holds now:\n${old}\nAnswer in one sentence.` },
    ...dialogue(SMALL_TALK),
  ]
  return rooms.slice(0, QUESTIONS).map((room, at): Written => ({
    messages: [...before, { role: 'user', content: `What is the password of the ${room}?` }],
    steps: [{ messages: before.length, folded: 0 }],
    folds: [{ ...placeOf(before, 0, old), instead: now }],
    opening: `The password of the ${room} is`,
    right: words[rooms.length + at]!,
    outdated: [words[at]!],
  }))
}

// The tools: two searches find the same tools. The second finds newer definitions, so the first ones are removed.

const TOOLS = ['get_weather', 'book_table', 'send_parcel', 'find_route', 'play_song', 'rent_bike'] as const

function tools(random: Random): readonly Written[] {
  const names = random.shuffled(TOOLS)
  const words = random.shuffled(ENGLISH.words)
  const found = (version: number, from: number) =>
    names
      .map((name, at) =>
        JSON.stringify({
          name,
          version,
          parameters: { channel: { type: 'string', const: words[from + at] }, text: { type: 'string' } },
        }),
      )
      .join('\n')
  const [first, second] = [found(1, 0), found(2, names.length)]
  const before: ChatMessage[] = [
    { role: 'system', content: 'You find tools and call them. Definitions of tools come as messages of the user.' },
    { role: 'user', content: 'Which tools are there?' },
    { role: 'assistant', content: 'search_tools' },
    { role: 'user', content: `Found:\n${first}` },
    { role: 'assistant', content: 'These tools can be called now. I wait for your request.' },
    { role: 'user', content: 'The tools were changed. Search again.' },
    { role: 'assistant', content: 'search_tools' },
    { role: 'user', content: `Found:\n${second}` },
    { role: 'assistant', content: 'I remove the definitions of the first search and use the new ones.' },
  ]
  return names.slice(0, QUESTIONS).map((name, at): Written => ({
    messages: [...before, { role: 'user', content: `Which channel does ${name} need?` }],
    steps: [{ messages: before.length, folded: 0 }],
    folds: [placeOf(before, 3, first)],
    opening: `${name} needs the channel "`,
    right: words[names.length + at]!,
    outdated: [words[at]!],
  }))
}

// The notes: a customer changes an order again and again. Then notes state the latest order.

const FIELDS = ['colour', 'lining', 'collar', 'thread'] as const
const CHANGES = 3

function notes(random: Random): readonly Written[] {
  const words = random.shuffled(ENGLISH.words)
  const value = (change: number, field: number) => words[change * FIELDS.length + field]!
  const turn = (change: number): readonly [string, string] => [
    FIELDS.map((field, at) => `${change === 0 ? 'I order' : 'Change'} the ${field}: ${value(change, at)}.`).join(' '),
    `I have ${change === 0 ? 'taken' : 'changed'} the order. The ${FIELDS[0]} is ${value(change, 0)} and the ${FIELDS[1]} is ${value(change, 1)}.`,
  ]
  const hidden = dialogue(Array.from({ length: CHANGES }, (_, change) => turn(change)))
  const before: ChatMessage[] = [
    { role: 'system', content: 'You take orders of coats by telephone.' },
    ...hidden,
    ...dialogue([
      ['When will it be ready?', 'The tailor needs nine days.'],
      ['Good. Please send it to the same address as last time.', 'I send it to the address that we have.'],
    ]),
  ]
  const order = FIELDS.map((field, at) => `the ${field} is ${value(CHANGES - 1, at)}`).join(', ')
  return FIELDS.slice(0, QUESTIONS).map((field, at): Written => ({
    messages: [...before, { role: 'user', content: `What did I order as the ${field}?` }],
    steps: [{ messages: before.length, folded: 0 }],
    folds: hidden.map(({ content }, index) => ({
      ...placeOf(before, 1 + index, content),
      ...(index === 0 ? { instead: `[Notes: the customer orders a coat; ${order}.]` } : {}),
    })),
    opening: `You ordered a coat, and the ${field} is`,
    right: value(CHANGES - 1, at),
    outdated: Array.from({ length: CHANGES - 1 }, (_, change) => value(change, at)),
  }))
}

/** Returns the span of this text in the message. @throws KvfoldError internal/invariant when the message does not contain it */
function placeOf(messages: readonly ChatMessage[], message: number, text: string): Stretch {
  const start = messages[message]!.content.indexOf(text)
  if (start === -1) throw new KvfoldError('internal/invariant', 'A generated case does not contain the text that it folds.')
  return { message, span: span(start, start + text.length) }
}
