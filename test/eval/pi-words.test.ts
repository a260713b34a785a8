import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { piSample } from '../../src/eval/pi-llm.js'
import { ownWords, wordsFrom } from '../../src/eval/pi-words.js'

describe('ownWords', () => {
  it('has 46 keys of one word, and values that are all different', () => {
    const { keys } = ownWords()
    expect(keys).toHaveLength(46)
    expect(new Set(keys).size).toBe(46)
    for (const key of keys) expect(key).toMatch(/^[a-z]+$/u)
    const { updates } = piSample({ words: ownWords(), updates: 60, seed: 1 })
    expect(new Set(updates.map(({ value }) => value)).size).toBe(46 * 60)
  })
})

describe('wordsFrom', () => {
  let folder = ''
  const file = (content: unknown) => {
    const path = join(folder, 'words.json')
    writeFileSync(path, typeof content === 'string' ? content : JSON.stringify(content))
    return path
  }
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'kvfold-words-'))
  })
  afterAll(() => {
    rmSync(folder, { recursive: true })
  })

  it('reads {category: [value]}, gives a category its own values, and no value twice', () => {
    const words = wordsFrom(file({ fruit: ['Apple', 'Pear', 'Fig', 'Plum'], tree: ['apple', 'Oak', 'Ash', 'Fig tree', ''] }))
    expect(words.keys).toEqual(['fruit', 'tree'])
    for (let seed = 0; seed < 50; seed++) {
      const { updates } = piSample({ words, updates: 3, seed })
      expect(new Set(updates.map(({ value }) => value.toLowerCase())).size).toBe(6)
      for (const { key, value } of updates)
        expect(key === 'fruit' ? ['Apple', 'Pear', 'Fig', 'Plum'] : ['apple', 'Oak', 'Ash', 'Fig tree']).toContain(value)
    }
  })

  it('says what is missing or wrong, and where', () => {
    expect(() => wordsFrom(join(folder, 'nowhere.json'))).toThrow(/Cannot read words from .*nowhere\.json: ENOENT/u)
    expect(() => wordsFrom(file('no JSON'))).toThrow(/Cannot read words from .*words\.json: .*JSON/u)
    expect(() => wordsFrom(file({ fruit: 'Apple' }))).toThrow(/Cannot read words from .*fruit/u)
    const words = wordsFrom(file({ fruit: ['Apple', 'Pear'], tree: ['Oak', 'Ash', 'Yew'] }))
    expect(() => piSample({ words, updates: 3, seed: 1 })).toThrow('needs 3 different values of fruit, and there are 2')
  })
})
