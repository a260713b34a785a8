import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { parquetWriteBuffer } from 'hyparquet-writer'
import { describe, expect, it } from 'vitest'
import { isRowsFile, openRows, type Row } from '../../../src/lab/data/rows.js'
import { temporaryFolder } from '../../support/temporary-folder.js'

const folder = temporaryFolder('rows')
const file = (name: string, content: string | Uint8Array): string => {
  const path = join(folder, name)
  writeFileSync(path, content)
  return path
}
async function all(path: string): Promise<Row[]> {
  const rows = await openRows(path)
  const read: Row[] = []
  for (let index = rows.size - 1; index >= 0; index--) read.unshift(await rows.row(index))
  return read
}

const anyRow = fc.dictionary(fc.string({ maxLength: 6 }), fc.jsonValue({ maxDepth: 3 }))
const anyRows = fc.array(anyRow, { maxLength: 12 })
/** The value as JSON reads it: -0 becomes 0 there. */
const plain = (value: unknown): unknown => JSON.parse(JSON.stringify(value))

describe('JSON rows', () => {
  it('are read one by one from lines, whatever stands between them', async () => {
    await fc.assert(
      fc.asyncProperty(anyRows, fc.constantFrom('\n', '\r\n', '\n\n', ' \n\t\n'), fc.boolean(), async (rows, between, ending) => {
        const path = file('any.jsonl', rows.map((row) => JSON.stringify(row)).join(between) + (ending ? between : ''))
        expect(await all(path)).toEqual(plain(rows))
      }),
      { numRuns: 60 },
    )
  })

  it('are read one by one from an array, however it is written', async () => {
    await fc.assert(
      fc.asyncProperty(anyRows, fc.constantFrom(undefined, 2, '\t'), async (rows, indent) => {
        expect(await all(file('any.json', `\n ${JSON.stringify(rows, null, indent)}\n`))).toEqual(plain(rows))
      }),
      { numRuns: 60 },
    )
  })

  it('may begin with a byte order mark, and hold any character', async () => {
    const rows = [{ text: 'Ä€😀', nested: [{ 'a"]}': '\\"[{' }] }, { text: '' }]
    expect(await all(file('mark.jsonl', `\ufeff${rows.map((row) => JSON.stringify(row)).join('\n')}`))).toEqual(rows)
    expect(await all(file('mark.json', `\ufeff${JSON.stringify(rows)}`))).toEqual(rows)
    expect(await all(file('pretty.jsonl', JSON.stringify(rows, null, 1)))).toEqual(rows)
  })

  it('report which line is wrong, and the other lines can still be read', async () => {
    const rows = await openRows(file('broken.jsonl', '{"a": 1}\n\n{"a": \n[1]\n{"a": 2}\n'))
    expect(rows.size).toBe(4)
    expect(await rows.row(0)).toEqual({ a: 1 })
    await expect(rows.row(1)).rejects.toThrow(/broken\.jsonl, line 3 is not JSON \(.+\); correct it, or remove it from the file/u)
    await expect(rows.row(2)).rejects.toThrow(/line 4 is not a JSON object/u)
    expect(await rows.row(3)).toEqual({ a: 2 })
    await expect(rows.row(4)).rejects.toThrow('has no row 4; it has 4')
    await expect(rows.row(1)).rejects.toMatchObject({ code: 'eval/bad-data' })
    const cut = await openRows(file('cut.json', '[\n{"a": 1},\n{"a": "x'))
    expect(cut.size).toBe(2)
    await expect(cut.row(1)).rejects.toThrow(/cut\.json, line 3 is not JSON/u)
  })

  it('are empty for an empty file', async () => {
    for (const content of ['', '\n\n', '[]', ' [ \n ] ']) expect((await openRows(file('none.json', content))).size).toBe(0)
  })

  it('are found where a read of the file ends in the middle of one', async () => {
    const rows = Array.from({ length: 3000 }, (_, at) => ({ at, text: `ü"\\${'é'.repeat(at % 700)}` }))
    expect(await all(file('large.jsonl', rows.map((row) => JSON.stringify(row)).join('\n')))).toEqual(rows)
    expect(await all(file('large.json', JSON.stringify(rows)))).toEqual(rows)
  })
})

describe('tables', () => {
  it('have their names in the first line; quotes hold tabs, commas and lines together', async () => {
    const text = 'Prompt\tAnswer\nWho?\t"a ""b""\tc"\n\n"two\nlines"\td\n'
    expect(await all(file('table.tsv', text))).toEqual([
      { Prompt: 'Who?', Answer: 'a "b"\tc' },
      { Prompt: 'two\nlines', Answer: 'd' },
    ])
    expect(await all(file('table.csv', '\ufeffx,y\r\n1,"2,3"\r\n'))).toEqual([{ x: '1', y: '2,3' }])
  })

  it('let a quote stand within a value', async () => {
    expect(await all(file('loose.tsv', 'a\tb\nthe 5" disk\tx\n'))).toEqual([{ a: 'the 5" disk', b: 'x' }])
  })

  it('report a line with too many or too few values', async () => {
    await expect(openRows(file('short.tsv', 'a\tb\n1\t2\n3\n'))).rejects.toThrow(
      /short\.tsv cannot be read as a table: .*line 3/u,
    )
    const rows = await openRows(file('where.tsv', 'a\tb\n1\t2\n\n3\t4\n'))
    expect(rows.where(1)).toMatch(/where\.tsv, line 4$/u)
    await expect(rows.row(2)).rejects.toThrow('has no row 2; it has 2')
  })
})

describe('Parquet', () => {
  it('is read by groups of rows, in any order', async () => {
    const columnData = [
      { name: 'text', data: Array.from({ length: 25 }, (_, at) => `text ${at}`), type: 'STRING' as const },
      { name: 'count', data: Array.from({ length: 25 }, (_, at) => BigInt(at)), type: 'INT64' as const },
      { name: 'share', data: Array.from({ length: 25 }, (_, at) => at / 4), type: 'DOUBLE' as const },
    ]
    const path = file('rows.parquet', new Uint8Array(parquetWriteBuffer({ columnData, rowGroupSize: 10 })))
    const rows = await openRows(path)
    expect(rows.size).toBe(25)
    for (const at of [24, 0, 9, 10, 11, 3]) expect(await rows.row(at)).toEqual({ text: `text ${at}`, count: at, share: at / 4 })
    await expect(rows.row(25)).rejects.toThrow('has no row 25; it has 25')
  })

  it('is refused when the file is not Parquet', async () => {
    await expect(openRows(file('none.parquet', 'no parquet'))).rejects.toMatchObject({ code: 'eval/bad-data' })
    await expect(openRows(file('none.parquet', 'no parquet'))).rejects.toThrow(/none\.parquet cannot be read: /u)
  })
})

describe('openRows', () => {
  it('chooses the format by the end of the name, also for names on the hub', () => {
    expect(['a.jsonl', 'a.JSON', 'b.tsv', 'hf:datasets/o/n/x.parquet#v1.0'].map(isRowsFile)).toEqual([true, true, true, true])
    expect(['a.txt', 'jsonl', 'hf:datasets/o/n/x'].map(isRowsFile)).toEqual([false, false, false])
  })

  it('reports which endings it knows, and a missing file', async () => {
    await expect(openRows('data.xml')).rejects.toThrow('its name must end in one of .jsonl, .ndjson, .json, .tsv, .csv, .parquet')
    await expect(openRows(join(folder, 'nowhere.jsonl'))).rejects.toThrow(
      /The file .*nowhere\.jsonl does not exist; give the path of a data file, or hf:/u,
    )
    await expect(openRows(join(folder, 'nowhere.jsonl'))).rejects.toMatchObject({ code: 'eval/bad-data' })
  })
})
