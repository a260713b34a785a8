// Collects the words of the reading tasks from samples. Run `node --import tsx native-models/train/reading.mts` in the repository's root;
// it writes train/reading.json. A word with a capital becomes a token without the space before it, other words one with it.
import { writeFileSync } from 'node:fs'
import { openTask } from '../../src/lab/tasks/open.js'
import { given } from '../../src/lab/tasks/needles.js'

const counts = new Map<string, number>()
const asked = [
  ['needles', 5],
  ['mrcr', 5],
  ['mrcr', 8], // up to the eighth
] as const
for (const [task, needles] of asked) {
  const options = { seed: 4_000_000_000, samples: 120, needles: [needles], lengths: [8_000] }
  const reading = await openTask({ task, options })
  for (let index = 0; index < reading.size; index++)
    for (const { content } of (await reading.sample(index)).messages)
      for (const [word] of content.matchAll(/(?<![A-Za-z0-9])[A-Za-z][a-z]+(?![A-Za-z0-9])/gu))
        counts.set(word, (counts.get(word) ?? 0) + 1)
}
// Words that occur rarely are left out: they may be cut off at the end of a text.
const words = [...counts].flatMap(([word, count]) => (count > 4 ? [word] : [])).sort()
const spaced = (word: string) => /^[a-z]/u.test(word)
const lists = { spaced: words.filter(spaced), capital: words.filter((word) => !spaced(word)), given }
writeFileSync(new URL('reading.json', import.meta.url), `${JSON.stringify(lists, null, 1)}\n`)
