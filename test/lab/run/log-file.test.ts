/** Logs of runs: what can be read, which logs are refused with which message, who may write, and the schema for other languages. */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { format, resolveConfig } from 'prettier'
import { beforeAll, describe, expect, it } from 'vitest'
import { type ErrorRecord, type LogHeader, logSchema } from '../../../src/lab/log.js'
import { commitOf } from '../../../src/lab/run/plan.js'
import { isTaken, lockOf } from '../../../src/lab/run/json-lines.js'
import { openRunLog } from '../../../src/lab/run/log-file.js'
import { readLog } from '../support/read-log.js'
import { asker, headerFor, sums } from '../support/run-fixture.js'
import { temporaryFolder } from '../../support/temporary-folder.js'

const folder = temporaryFolder('log')
let header: LogHeader
let count = 0
beforeAll(async () => {
  header = await headerFor([sums(2, 2)], [asker('plain')])
})
const place = (): string => join(folder, `log-${count++}.jsonl`)

const failed = (index: number): ErrorRecord => ({
  kind: 'error',
  task: 0,
  agent: 'plain',
  contract: 'exact',
  index,
  id: `sum-${index}`,
  cell: { numbers: 1 },
  code: 'remote/failed',
  message: 'It failed.',
})

const written = async (...indices: number[]): Promise<string> => {
  const path = place()
  const log = await openRunLog(path, header)
  for (const index of indices) await log.add(failed(index))
  await log.close()
  return path
}

describe('reading a log', () => {
  it('returns the written records, and skips an unfinished line', async () => {
    const path = await written(0, 1)
    const text = readFileSync(path, 'utf8')
    writeFileSync(path, `${text}{"kind":"error","task":0`)
    expect(await readLog(path)).toEqual({ header, records: [failed(0), failed(1)], resumed: [] })
  })

  it.each([
    ['not JSON', (lines: string[]) => lines.with(2, '{"kind":'), /is damaged: line 3 is not JSON/],
    [
      'a wrong field',
      (lines: string[]) => lines.with(2, lines[2]!.replace('"index":1', '"index":"1"')),
      /line 3 .*\(index: .*number/,
    ],
    ['an unknown agent', (lines: string[]) => lines.with(1, lines[1]!.replace('plain', 'plane')), /line 2 .*\(agent: /],
    ['no header', (lines: string[]) => lines.slice(1), /does not begin with a header/],
    ['two headers', (lines: string[]) => [lines[0]!, ...lines], /second header in line 2/],
    ['a later version', (lines: string[]) => lines.with(0, lines[0]!.replace('"version":1', '"version":2')), /has version 2/],
  ])('says where it is wrong: %s', async (_, change, said) => {
    const path = await written(0, 1)
    const lines = readFileSync(path, 'utf8').trim().split('\n')
    writeFileSync(
      path,
      change(lines)
        .map((line) => `${line}\n`)
        .join(''),
    )
    await expect(readLog(path)).rejects.toMatchObject({ code: 'eval/bad-log', message: expect.stringMatching(said) as string })
  })

  it('reports a missing log', async () => {
    await expect(readLog(join(folder, 'none.jsonl'))).rejects.toThrow(/none\.jsonl cannot be read \(ENOENT\)/)
  })
})

describe('continuing a log', () => {
  it('is refused for another run, naming the differences', async () => {
    const path = await written(0)
    const before = readFileSync(path, 'utf8')
    const other = await headerFor([sums(2, 2)], [asker('plain')], 5)
    await expect(openRunLog(path, other)).rejects.toMatchObject({
      code: 'eval/other-run',
      message: expect.stringMatching(/seed: 1 there, 5 now/) as string,
    })
    const longer = await headerFor([sums(2, 3)], [asker('plain')])
    await expect(openRunLog(path, longer)).rejects.toThrow(/tasks\[0\]\.options\.samples: 2 there, 3 now/)
    const more = await headerFor([sums(2, 2)], [asker('plain'), asker('mem0')])
    await expect(openRunLog(path, more)).rejects.toThrow(/agents\[1\]: nothing there/)
    expect(readFileSync(path, 'utf8')).toBe(before)
    expect(isTaken(path)).toBe(false)
  })

  it('is refused when the samples have changed', async () => {
    const path = await written(0)
    const task = sums(2, 2)
    const changed = { ...task, sample: async (index: number) => ({ ...(await task.sample(index)), truth: -1 }) }
    await expect(openRunLog(path, await headerFor([changed], [asker('plain')]))).rejects.toThrow(/tasks\[0\]\.samples: /)
  })

  it('is allowed on another day and by another commit', async () => {
    const path = await written(0)
    const later = { ...header, date: '2031-01-01T00:00:00.000Z', commit: 'a'.repeat(40), command: 'kvfold eval again' }
    const log = await openRunLog(path, later)
    expect(log.before).toEqual([failed(0)])
    await log.add(failed(1))
    await log.close()
    const { resumed, records } = await readLog(path)
    const { kvfold, commit, date, command, machine } = later
    expect(resumed).toEqual([{ kind: 'resumed', kvfold, commit, date, command, machine }])
    expect(records).toEqual([failed(0), failed(1)])
  })

  it('starts again after half a header, and does not touch a file that is not a log', async () => {
    const path = place()
    writeFileSync(path, JSON.stringify(header).slice(0, 40))
    const log = await openRunLog(path, header)
    expect(log.torn).toBe(true)
    await log.close()
    expect((await readLog(path)).header).toEqual(header)
    const diary = place()
    for (const text of ['Dear diary', 'Dear diary,\nno log.\n']) {
      writeFileSync(diary, text)
      await expect(openRunLog(diary, header)).rejects.toMatchObject({ code: 'eval/bad-log' })
      expect(readFileSync(diary, 'utf8')).toBe(text)
    }
  })

  it('is for one process at a time; a dead process does not count', async () => {
    const path = place()
    const log = await openRunLog(path, header)
    await expect(openRunLog(path, header)).rejects.toMatchObject({ code: 'eval/log-busy' })
    await log.close()
    // No process has such a large number.
    writeFileSync(lockOf(path), '4194999\n')
    const again = await openRunLog(path, header)
    await again.close()
  })

  it('is not for a process of another machine or container, and says which lock to delete', async () => {
    const path = place()
    writeFileSync(lockOf(path), '4194999 0000aaaa\n')
    expect(isTaken(path)).toBe(true)
    await expect(openRunLog(path, header)).rejects.toMatchObject({
      code: 'eval/log-busy',
      message: expect.stringContaining(`If that process has ended, wait two minutes, or delete ${lockOf(path)}.`) as string,
    })
  })

  it('refuses what could not be read again, and says when there is no place', async () => {
    const log = await openRunLog(place(), header)
    await expect(log.add({ ...failed(0), cell: { numbers: NaN } })).rejects.toMatchObject({ code: 'internal/invariant' })
    await log.close()
    const file = place()
    writeFileSync(file, '')
    await expect(openRunLog(join(file, 'log.jsonl'), header)).rejects.toMatchObject({ code: 'eval/bad-log' })
  })
})

describe('the commit', () => {
  it('is read from branches, packed references, detached heads and work trees', () => {
    const make = (name: string, files: Readonly<Record<string, string>>): string => {
      const root = join(folder, name)
      for (const [path, text] of Object.entries(files)) {
        mkdirSync(join(root, path, '..'), { recursive: true })
        writeFileSync(join(root, path), text)
      }
      return root
    }
    const hash = '0123456789abcdef0123456789abcdef01234567'
    expect(commitOf(make('loose', { '.git/HEAD': 'ref: refs/heads/main\n', '.git/refs/heads/main': `${hash}\n` }))).toBe(hash)
    expect(
      commitOf(make('packed', { '.git/HEAD': 'ref: refs/heads/a/b\n', '.git/packed-refs': `# pack\n${hash} refs/heads/a/b\n` })),
    ).toBe(hash)
    expect(commitOf(make('detached', { '.git/HEAD': `${hash}\n` }))).toBe(hash)
    make('main', { '.git/refs/heads/side': `${hash}\n`, '.git/worktrees/side/HEAD': 'ref: refs/heads/side\n' })
    make('main', { '.git/worktrees/side/commondir': '../..\n' })
    expect(commitOf(make('side', { '.git': 'gitdir: ../main/.git/worktrees/side\n' }))).toBe(hash)
    expect(commitOf(make('none', { 'package.json': '{}' }))).toBeNull()
    expect(commitOf(make('new', { '.git/HEAD': 'ref: refs/heads/main\n' }))).toBeNull()
  })
})

it('has the schema that docs/eval-log.schema.json says (npx vitest run test/lab/run/log-file.test.ts -u writes it)', async () => {
  const path = join(import.meta.dirname, '../../../docs/eval-log.schema.json')
  const text = await format(JSON.stringify(logSchema()), { ...(await resolveConfig(path)), filepath: path })
  await expect(text).toMatchFileSnapshot(path)
})
