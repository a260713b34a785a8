/** What holds of the sources as a whole. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'

const files = readdirSync('src', { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile())
  .map(({ parentPath, name }) => join(parentPath, name))

const DECLARATION = /^(?:export )?(?:declare )?(?:abstract )?(?:type|interface|class|enum) (\w+)/gm

test('src has at most 400 files', () => {
  expect(files.length).toBeGreaterThan(300)
  expect(files.length).toBeLessThanOrEqual(400)
})

test('every type has a name that no other one has', () => {
  const places = new Map<string, string[]>()
  for (const file of files.filter((each) => /\.tsx?$/.test(each)))
    for (const [, name] of readFileSync(file, 'utf8').matchAll(DECLARATION))
      places.set(name!, [...(places.get(name!) ?? []), file])
  expect(places.size).toBeGreaterThan(1000)
  expect([...places].filter(([, { length }]) => length > 1)).toEqual([])
})
