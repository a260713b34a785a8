/** Tests the count of tokens saved today: it starts at midnight, and survives a restart. */
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { SavedToday } from '../../../../src/runtime/server/threads/status.js'

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-saved-'))
})
afterEach(() => {
  rmSync(folder, { recursive: true })
})

it('continues after a restart, and starts again at midnight', () => {
  const file = join(folder, 'saved-today.json')
  let now = new Date(2026, 10, 23, 23, 59)
  const open = () => new SavedToday(file, () => now)
  const first = open()
  first.add(300)
  first.add(-20)
  expect(readdirSync(folder)).toEqual(['saved-today.json'])
  const second = open()
  expect([first.tokens, second.tokens]).toEqual([280, 280])
  now = new Date(2026, 10, 24)
  expect([second.tokens, open().tokens]).toEqual([0, 0])
  second.add(5)
  expect(open().tokens).toBe(5)
})

it('works without a file, and with one that cannot be read or written', () => {
  const bad = join(folder, 'bad.json')
  for (const text of ['', 'null', '{"day":7,"tokens":"many"}']) {
    writeFileSync(bad, text)
    expect(new SavedToday(bad).tokens, text).toBe(0)
  }
  for (const file of [null, join(folder, 'none', 'saved.json')]) {
    const saved = new SavedToday(file)
    saved.add(7)
    expect(saved.tokens).toBe(7)
  }
})
