/** Tables: the same rows in a terminal, as Markdown and as HTML, and no text in a cell is read as markup. */
import fc from 'fast-check'
import { DOMParser } from 'linkedom'
import { describe, expect, it } from 'vitest'
import { html } from '../../../src/lab/figures/page.js'
import { inMarkdown, left, markdown, number, right, table, terminal } from '../../../src/runtime/figures/table.js'

const red = (text: string) => `\u001b[31m${text}\u001b[39m`

interface Row {
  readonly name: string
  readonly tokens: number
}
const made = table<Row>(
  [{ title: 'name', text: ({ name }) => name }, number('tokens_shown', ({ tokens }) => String(tokens))],
  [
    { name: 'a', tokens: 1 },
    { name: 'a', tokens: 22 },
    { name: '<b>', tokens: 3 },
  ],
  { opens: (row, before) => row.name !== before.name, theirs: ({ name }) => name === '<b>' },
)

describe('in a terminal', () => {
  it('aligns by visible width and leaves no trailing blanks', () => {
    const rows = [['plain', '1,234'], [red('sculptor'), '9'], ['none']]
    const lines = terminal(table([left('agent'), right('tokens')], rows))
    expect(lines).toEqual(['agent     tokens', '────────────────', 'plain      1,234', `${red('sculptor')}       9`, 'none'])
  })

  it('puts an empty line between groups', () => {
    const opens = ([text]: readonly string[], [before]: readonly string[]) => text !== before
    expect(terminal(table([left('a')], [['1'], ['1'], ['2']], { opens }), '-')).toEqual(['a', '-', '1', '1', '', '2'])
  })
})

it('leaves out columns and rows that say nothing', () => {
  const rows = [
    ['plain', '1', '-', '–'],
    ['other', '-', '-', '3'],
    ['silent', '–', '-', '-'],
  ]
  const { columns, rows: kept } = table([left('agent'), right('tokens'), right('ms'), right('right')], rows)
  expect(columns.map(({ title }) => title)).toEqual(['agent', 'tokens', 'right'])
  expect(kept.map(({ texts }) => texts)).toEqual([
    ['plain', '1', '–'],
    ['other', '-', '3'],
  ])
  // A table without rows keeps its columns.
  expect(table([left('agent'), right('tokens')], []).columns).toHaveLength(2)
})

describe('as Markdown', () => {
  it('has one line for each row, and marks rows that are not ours', () => {
    expect(markdown(made).split('\n')).toEqual([
      '| name | tokens_shown |',
      '| :-- | --: |',
      '| a | 1 |',
      '| a | 22 |',
      '| *\\<b\\>* | *3* |',
    ])
  })

  it('escapes text that would be Markdown', () => {
    expect(inMarkdown('[1.0, −2.5] [x]')).toBe('[1.0, −2.5] \\[x\\]')
    expect(inMarkdown('a|b\n*c* <d> [e](f) `g` snake_case _h_')).toBe(
      'a\\|b \\*c\\* \\<d\\> \\[e\\](f) \\`g\\` snake_case \\_h\\_',
    )
  })

  it('has the same number of cells in every line, whatever is in them', () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.string(), fc.string()), { maxLength: 4 }), (rows) => {
        const lines = markdown(table([left('a'), right('b')], rows)).split('\n')
        expect(lines).toHaveLength(rows.length + 2)
        for (const line of lines) expect(line.replaceAll(/\\[\\|]/gu, '').match(/\|/gu)).toHaveLength(3)
      }),
    )
  })
})

describe('as HTML', () => {
  const cells = (text: string, name: string) => [
    ...(new DOMParser().parseFromString(text, 'text/html').querySelectorAll(name) as unknown as {
      readonly textContent: string
    }[]),
  ]

  it('has the same cells, with numbers at the right, and marks groups and rows that are not ours', () => {
    const page = html(made)
    expect(cells(page, 'th').map(({ textContent }) => textContent)).toEqual(['name', 'tokens_shown'])
    expect(cells(page, 'td').map(({ textContent }) => textContent)).toEqual(['a', '1', 'a', '22', '<b>', '3'])
    expect(cells(page, 'td.right')).toHaveLength(3)
    expect(cells(page, 'tr.opens.theirs')).toHaveLength(1)
    expect(cells(page, 'tr.opens')).toHaveLength(1)
  })

  it('keeps a number and its interval together', () => {
    expect(html(table([left('a')], [['1.5 [1.0, 2.0]']]))).toContain('<span>1.5</span> <span>[1.0, 2.0]</span>')
  })

  it('shows any text as text', () => {
    fc.assert(
      fc.property(fc.stringMatching(/^[<>&"'a-z/ ]{0,12}$/u), (text) => {
        expect(cells(html(table([left('a')], [[text]])), 'td').map(({ textContent }) => textContent)).toEqual([text])
      }),
    )
  })
})
