/** Makes a small stand-in for PI-LLM's public file: the same form and size, 46 categories of 400 values, from our own words. */
import { writeFileSync } from 'node:fs'
import { ownWords } from '../../../src/lab/pi-llm.js'
import { Random } from '../../../src/runtime/core/random.js'

/** Categories of one and two words, some with capitals; no value is in two of them. */
export function publicWords(): Record<string, string[]> {
  const words = ownWords()
  const names = words.keys.map((key, at) =>
    at % 3 === 0 ? `${key} place` : at % 3 === 1 ? key.charAt(0).toUpperCase() + key.slice(1) : key,
  )
  const values = words.draw(new Random(46), words.keys, 400)
  return Object.fromEntries(words.keys.map((key, at) => [names[at]!, [...values.get(key)!]]))
}

export function writePublicWords(path: string): void {
  writeFileSync(path, JSON.stringify(publicWords()))
}
