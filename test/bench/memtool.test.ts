import { expect, it } from 'vitest'
import { rowsOf } from '../../bench/lab/memtool.js'
import { RESULTS } from '../../bench/record.js'

it('a record of MemTool is continued only with the same turns, tools and shape', () => {
  const record = new URL('memtool-builtin.json', RESULTS)
  const about = { turns: 8, tools: 5000, shape: 'builtin' }
  expect(rowsOf(record, about)).toHaveLength(5)
  for (const other of [{ turns: 9 }, { tools: 500 }, { shape: '1x32' }])
    expect(() => rowsOf(record, { ...about, ...other })).toThrow('write to another name')
})
