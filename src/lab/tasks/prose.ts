/**
 * Generates neutral text for tasks: any number of sentences about places, work and weather, without people's names. Also shortens texts
 * that are too long.
 */
import { invariant } from '../../runtime/core/errors.js'
import type { Random } from '../../runtime/core/random.js'

const lists = {
  place: [
    'the harbour', 'the old mill', 'the upper valley', 'the railway station', 'the market square', 'the lighthouse',
    'the botanical garden', 'the northern road', 'the quarry', 'the town hall', 'the river bank', 'the orchard',
    'the covered bridge', 'the public library', 'the brickworks', 'the ferry landing', 'the hill fort', 'the mountain pass',
    'the fishing village', 'the water tower', 'the glass workshop', 'the school yard', 'the salt marsh', 'the post office',
  ],
  thing: [
    'a new roof', 'a row of lime trees', 'an iron gate', 'a copper bell', 'a stone staircase', 'a map of the district',
    'a wooden pier', 'a set of brass scales', 'a small museum', 'a weather station', 'a printing press', 'a narrow canal',
    'a cabinet of minerals', 'a tall chimney', 'a flight of steps', 'a sundial', 'a collection of clocks', 'a drinking fountain',
  ],
  trade: [
    'bakers', 'carpenters', 'surveyors', 'gardeners', 'bookbinders', 'fishermen', 'masons', 'weavers', 'engineers', 'teachers',
    'potters', 'clerks', 'shepherds', 'glaziers', 'boatbuilders', 'printers', 'millers', 'beekeepers',
  ],
  time: [
    'In early spring', 'Towards the end of summer', 'After the first frost', 'On market days', 'Before sunrise', 'In dry years',
    'During the long winter', 'Once a month', 'At low tide', 'Every second autumn', 'In the evening', 'After heavy rain',
    'For most of the century', 'When the wind turns', 'On clear nights', 'Around midday',
  ],
  weather: [
    'fog drifts in from the sea', 'the ground stays wet for weeks', 'a warm wind comes down from the hills',
    'the streets are quiet and the shutters closed', 'swallows gather on the wires', 'the snow lies deep on the fields',
    'the air smells of cut grass', 'thunder can be heard far away', 'the water stands higher than the lowest step',
    'dust settles on every window sill', 'the light turns yellow over the fields', 'the ice is thick enough to walk on',
  ],
  quality: [
    'older than it looks', 'well kept', 'easy to overlook', 'open to visitors', 'known for its quiet', 'larger than expected',
    'built of local stone', 'painted a pale green', 'described in every guide book', 'cheaper to repair than to replace',
    'used as a store house today', 'warm even in winter',
  ],
  work: [
    'count the boats', 'repair the walls', 'measure the depth of the water', 'sort the letters', 'dry the herbs',
    'sharpen the tools', 'draw up the accounts', 'plant new hedges', 'clean the lamps', 'store the grain', 'weigh the catch',
    'oil the hinges', 'check the level of the reservoir', 'bind the reports of the year',
  ],
  number: ['two', 'three', 'four', 'five', 'six', 'seven', 'eight', 'nine', 'eleven', 'a dozen', 'fifteen', 'twenty', 'forty', 'ninety'],
  reason: [
    'because the soil holds the warmth', 'since nobody wanted to pay for another', 'so that nothing is lost',
    'which makes the journey shorter', 'although the cost is high', 'as the old plans had foreseen',
    'because the current is strong there', 'even if few people notice', 'which surprised the visitors',
    'since the road was widened', 'as long as the weather holds', 'because wood was scarce',
  ],
} as const // prettier-ignore

type WordSlot = keyof typeof lists

const patterns = [
  '{time} {weather}.',
  '{place} has {thing}, {reason}.',
  '{time} the {trade} of {place} {work}.',
  '{place} is {quality}, {reason}.',
  'Between {place} and {place} there is {thing}, {quality}.',
  'It takes {number} {trade} to {work}, {reason}.',
  'About {number} of the {trade} live near {place}.',
  '{time} {weather}, and the {trade} {work}.',
  'Visitors who come to {place} look for {thing} first and for {thing} later.',
  'The report on {place} says that {weather}, {reason}.',
  'Nobody remembers when {place} was given {thing}.',
  '{time} one can see {place} from {place}.',
  'The {trade} asked for {thing}, and {number} years later they had it.',
  'To {work} is the task of the {trade}, {reason}.',
  'From {place} it is {number} hours on foot to {place}.',
  'The way past {place} is {quality}.',
] as const

/** Returns a random sentence with its full stop. No phrase occurs in it twice. */
export function sentence(random: Random): string {
  const said = new Set<string>()
  const text = pick(random, patterns).replace(/\{(\w+)\}/gu, (_, slot: string) => {
    const free = lists[slot as WordSlot].filter((words) => !said.has(words))
    const words = pick(random, free)
    said.add(words)
    return words
  })
  return text.charAt(0).toUpperCase() + text.slice(1)
}

/** Yields sentences without end, in paragraphs of four to eight. A blank line follows a paragraph's last sentence, a space any other. */
export function* prose(random: Random): Generator<string, never> {
  for (;;) {
    const count = 4 + random.below(5)
    for (let at = 1; at <= count; at++) yield sentence(random) + (at === count ? '\n\n' : ' ')
  }
}

// Below: repeatable random draws from lists.

/** Draws one item. The list must not be empty. */
export function pick<T>(random: Random, list: readonly T[]): T {
  invariant(list.length > 0, 'Nothing to pick from.')
  return list[random.below(list.length)] as T
}

/** Draws `count` different items, in random order. The list must have that many. */
export function some<T>(random: Random, list: readonly T[], count: number): T[] {
  invariant(count <= list.length, `There are ${list.length} to draw from, not ${count}.`)
  return random.shuffled(list).slice(0, count)
}

/** Draws a random string of letters and digits. */
export function code(random: Random, length: number): string {
  const characters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789'
  return Array.from({ length }, () => characters[random.below(characters.length)]).join('')
}

/**
 * Shortens a text to `characters` UTF-16 units, or one or two less. Keeps the beginning and the end, half of that each, and never divides a
 * surrogate pair. A text that is short enough stays unchanged.
 */
export function middleCut(text: string, characters: number): string {
  if (text.length <= characters) return text
  const head = Math.floor(characters / 2)
  const tail = text.length - (characters - head)
  return text.slice(0, torn(text, head) ? head - 1 : head) + text.slice(torn(text, tail) ? tail + 1 : tail)
}

/** Returns whether the index `at` is inside a surrogate pair. */
const torn = (text: string, at: number): boolean =>
  /^[\ud800-\udbff][\udc00-\udfff]$/.test(text.slice(Math.max(0, at - 1), at + 1))
