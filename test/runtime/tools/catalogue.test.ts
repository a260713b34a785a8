import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import type { ToolDefinition } from '../../../src/runtime/chat/message.js'
import { Catalogue, KeptVectors, type ToolEmbedder } from '../../../src/runtime/tools/catalogue.js'

const tool = (name: string, description: string, properties: object = {}): ToolDefinition => ({
  name,
  description,
  parameters: { type: 'object', properties },
})

const TOOLS = [
  tool('getWeather', 'Forecast for a city', { city: { type: 'string', description: 'Where, such as Lisbon' } }),
  tool('stock_price', 'Price of a share'),
  tool('share_file', 'Gives a file to somebody'),
  tool('translate_text', 'Turns text into another language'),
]

/** The embedder of the tests: a vector says which of these words a text has. */
const WORDS = ['weather', 'price', 'file', 'language']
const wordEmbedder: ToolEmbedder = {
  name: 'words',
  embed: (texts) =>
    Promise.resolve(
      texts.map((text) => {
        const has = WORDS.map((word) => (text.toLowerCase().includes(word) ? 1 : 0.1))
        const length = Math.hypot(...has)
        return Float32Array.from(has, (value) => value / length)
      }),
    ),
}

const found = async (catalogue: Catalogue, ...args: Parameters<Catalogue['search']>) =>
  (await catalogue.search(...args)).map(({ name }) => name)

test('words find tools by name, description and arguments, in whatever form they are written', async () => {
  const catalogue = await Catalogue.of(TOOLS)
  expect(await found(catalogue, 'weather', 5)).toEqual(['getWeather'])
  expect(await found(catalogue, 'somewhere like lisbon', 5)).toEqual(['getWeather'])
  expect(await found(catalogue, 'price of shares', 1)).toEqual(['stock_price'])
  expect(await found(catalogue, 'files', 5)).toEqual(['share_file'])
  expect(await found(catalogue, 'share', 5)).toHaveLength(2)
  expect(catalogue.get('share_file')).toBe(TOOLS[2])
  catalogue.close()
})

test('no text is an operator of the query language, and an empty query finds nothing', async () => {
  const catalogue = await Catalogue.of(TOOLS)
  for (const words of ['"', 'price AND', 'NEAR(', 'a*b', "'; DROP TABLE tools", '-price', 'name:share', ''])
    await catalogue.search(words, 5)
  expect(await found(catalogue, '"price" OR -', 5)).toEqual(['stock_price'])
  expect(await found(catalogue, '?!', 5)).toEqual([])
  catalogue.close()
})

test('two tools of the same name are refused by name; vectors without an embedder are refused, too', async () => {
  await expect(Catalogue.of([TOOLS[0]!, TOOLS[0]!])).rejects.toThrow('two tools called getWeather')
  const catalogue = await Catalogue.of(TOOLS)
  await expect(catalogue.search('weather', 5, 'embeddings')).rejects.toThrow('has no embedder')
})

test('with an embedder both lists are merged: the first of either comes before tools that lead neither', async () => {
  const catalogue = await Catalogue.of(TOOLS, { embedder: wordEmbedder })
  expect((await found(catalogue, 'language', 4, 'embeddings'))[0]).toBe('translate_text')
  expect((await found(catalogue, 'share price', 4, 'fused')).slice(0, 2).sort()).toEqual(['share_file', 'stock_price'])
  expect(await found(catalogue, 'weather', 4)).toHaveLength(4)
  catalogue.close()
})

test('saved vectors are computed once, by whichever process, and stay the same', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvfold-vectors-'))
  const asked: string[] = []
  let fails = false
  const counted: ToolEmbedder = {
    name: 'counted',
    embed: (texts) => {
      if (fails) return Promise.reject(new Error('out of power'))
      asked.push(...texts)
      return wordEmbedder.embed(texts)
    },
  }
  const kept = () => new KeptVectors(counted, join(folder, 'vectors.db'))
  const first = kept()
  const [weather] = await first.embed(['weather'])
  fails = true
  await expect(first.embed(['weather', 'price'])).rejects.toThrow('out of power')
  first.close()

  // Interrupted work continues from where it stopped.
  fails = false
  const second = kept()
  const vectors = await second.embed(['price', 'weather', 'file'])
  expect(asked).toEqual(['weather', 'price', 'file'])
  expect(vectors).toEqual(await wordEmbedder.embed(['price', 'weather', 'file']))
  expect(vectors[1]).toEqual(weather)
  const heard: [number, number][] = []
  const catalogue = await Catalogue.of(TOOLS, { embedder: second, onEmbedded: (...said) => heard.push(said) })
  expect(heard).toEqual([[TOOLS.length, TOOLS.length]])
  expect((await found(catalogue, 'language', 4, 'embeddings'))[0]).toBe('translate_text')
  catalogue.close()
  second.close()
  rmSync(folder, { recursive: true })
})
