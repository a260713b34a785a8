/** The files of a report: golden Markdown, CSV that other programs read back, and a page that loads nothing else. */
import { parse } from 'csv-parse/sync'
import fc from 'fast-check'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { publish, summaryOf, tablesOf } from '../../../src/lab/report/publish.js'
import type { Summary } from '../../../src/lab/report/summary.js'
import { csv, dataTable, markdownFile } from '../../../src/lab/figures/data-table.js'
import { launch, missing } from '../../runtime/dashboard/support/browser.js'
import { error, header, madeRun, sample, writeLog } from '../support/report-logs.js'

const MADE = { date: '2026-11-21T12:00:00.000Z', kvfold: '0.1.0', command: 'kvfold report run.jsonl' }
const PLAIN = { agent: 'plain', contract: null } as const

let folder: string
let summary: Summary
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-report-page-'))
  const log = writeLog(join(folder, 'run.jsonl'), madeRun(header({ contracts: ['exact', 'splice'] })))
  summary = await summaryOf([log], PLAIN, MADE)
  publish(summary, join(folder, 'report'))
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

const read = (name: string): string => readFileSync(join(folder, 'report', name), 'utf8')

describe('tables', () => {
  it('are the recorded ones as Markdown', async () => {
    await expect(tablesOf(summary).map(markdownFile).join('\n')).toMatchFileSnapshot('../../golden/eval/report-tables.md')
  })

  it('are read back from CSV as they were written', () => {
    for (const { name, names, values } of tablesOf(summary)) {
      const [head, ...body] = parse(read(`${name}.csv`), { relax_column_count: false })
      expect(head, name).toEqual(names)
      expect(new Set(head).size, name).toBe(names.length)
      expect(body, name).toEqual(values.map((row) => row.map((value) => (value === null ? '' : String(value)))))
    }
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.string({ unit: 'binary' }), fc.constantFrom('a,b', '"', '\r\n', ' x ', '')), { minLength: 1 }),
        (rows) => {
          const written = csv(
            dataTable<(typeof rows)[number]>(
              { name: 'any', title: 'Any' },
              [
                { name: 'first', title: 'first', value: ([text]) => text },
                { name: 'second', title: 'second', value: ([, text]) => text },
                { name: 'third', title: 'third', value: () => -0.5 },
              ],
              rows,
            ),
          )
          expect(parse(written)).toEqual([['first', 'second', 'third'], ...rows.map(([a, b]) => [a, b, '-0.5'])])
        },
      ),
    )
  })

  it('have all rows and every quoted number', () => {
    const second = tablesOf(summary).find(({ name }) => name === 'paper-table-2')!
    // The paper's means are the means of its five columns, up to rounding.
    const theirs = second.values.filter((_, index) => second.rows[index]!.theirs)
    expect(theirs.length).toBeGreaterThan(2)
    for (const values of theirs) {
      const [, ...numbers] = values as [string, ...number[]]
      expect(Math.abs(numbers.slice(0, 5).reduce((sum, one) => sum + one, 0) / 5 - numbers[5]!)).toBeLessThan(0.06)
    }
    const first = tablesOf(summary).find(({ name }) => name === 'accuracy')!
    expect(first.rows).toHaveLength(summary.conditions.length)
  })
})

describe('figures', () => {
  it('are drawn only where there is data', async () => {
    const log = writeLog(join(folder, 'plain.jsonl'), [header(), sample(), error({ index: 1, id: 'pi-llm-4-1' })])
    const page = publish(await summaryOf([log], PLAIN, MADE), join(folder, 'plain'))
    const pictures = readdirSync(join(folder, 'plain')).filter((name) => name.endsWith('.svg'))
    expect(pictures.sort()).toEqual(['accuracy.svg', 'time.svg', 'work.svg'])
    const html = readFileSync(page, 'utf8')
    expect(html).toContain('no agent of these logs called tools')
    expect(html).toContain('its cells have no axis')
    expect(html).toContain('The report compares nothing')
  })

  it('say how many samples a point of their own axis has', async () => {
    const answers = [2, 3].flatMap((needles) =>
      Array.from({ length: 5 }, (_, index) =>
        sample({ task: 1, index: needles * 5 + index, id: `${needles}-${index}`, cell: { needles, length: 1000 } }),
      ),
    )
    const log = writeLog(join(folder, 'needles.jsonl'), [header(), ...answers])
    publish(await summaryOf([log], PLAIN, MADE), join(folder, 'needles'))
    const drawings = readdirSync(join(folder, 'needles')).filter((name) => name.startsWith('accuracy-') && name.endsWith('.svg'))
    expect(drawings.map((name) => readFileSync(join(folder, 'needles', name), 'utf8')).join()).toContain('>5 samples a point<')
  })
})

/** These run in the page, so they are text here. This one finds the XML errors of a drawing. */
const FAULTS = `(text) => [...new DOMParser().parseFromString(text, 'image/svg+xml').querySelectorAll('parsererror')].map((one) => one.textContent)`
/** Finds texts that stick out of their drawing. */
const OUTSIDE = `[...document.querySelectorAll('figure svg')].flatMap((svg) => {
  const frame = svg.getBoundingClientRect()
  return [...svg.querySelectorAll('text')].flatMap((text) => {
    const box = text.getBoundingClientRect()
    const inside = box.left >= frame.left - 1 && box.right <= frame.right + 1 && box.bottom <= frame.bottom + 1
    return inside ? [] : [text.textContent]
  })
})`
/** Finds the titles of tables that are wider than the paper. */
const CUT = `[...document.querySelectorAll('.wide')].flatMap((one) =>
  one.scrollWidth > one.clientWidth + 1 ? [one.previousElementSibling.textContent] : [],
)`

describe.skipIf(missing !== null)('the page in a browser', () => {
  let browser: Browser
  beforeAll(async () => {
    browser = await launch()
  })
  afterAll(() => browser.close())

  async function opened(path: string) {
    const context = await browser.newContext({ viewport: { width: 1200, height: 900 } })
    const page = await context.newPage()
    const asked: string[] = []
    const errors: string[] = []
    page.on('request', (request) => asked.push(request.url()))
    page.on('console', (message) => errors.push(message.text()))
    page.on('pageerror', ({ message }) => errors.push(message))
    const url = pathToFileURL(path).href
    await page.goto(url)
    expect(asked.filter((one) => one !== url && !one.startsWith('data:'))).toEqual([])
    expect(errors).toEqual([])
    return page
  }

  it('loads nothing, shows every table and figure, and its links lead to existing files', async () => {
    const page = await opened(join(folder, 'report/report.html'))
    const names = readdirSync(join(folder, 'report'))
    const figures = names.filter((name) => name.endsWith('.svg'))
    expect(await page.locator('figure svg').count()).toBe(figures.length)
    expect(await page.locator('table').count()).toBe(tablesOf(summary).filter(({ onPage }) => onPage).length)
    const links = await page.evaluate<string[]>(`[...document.querySelectorAll('a')].map((one) => one.getAttribute('href'))`)
    for (const link of links) {
      if (link.startsWith('#')) expect(await page.locator(`[id="${link.slice(1)}"]`).count(), link).toBe(1)
      else expect(names, link).toContain(decodeURIComponent(link))
    }
    for (const name of names.filter((one) => !['report.html', 'summary.json'].includes(one))) expect(links, name).toContain(name)
    // Only wide tables, which scroll by themselves, are wider than the page.
    expect(await page.evaluate<boolean>('document.documentElement.scrollWidth <= document.documentElement.clientWidth')).toBe(
      true,
    )
  })

  it('has drawings that are valid XML and stay inside their frame', async () => {
    const page = await opened(join(folder, 'report/report.html'))
    for (const name of readdirSync(join(folder, 'report')).filter((one) => one.endsWith('.svg'))) {
      const faults = await page.evaluate<string[]>(`(${FAULTS})(${JSON.stringify(read(name))})`)
      expect(faults, name).toEqual([])
    }
    const outside = await page.evaluate<string[]>(OUTSIDE)
    expect(outside).toEqual([])
  })

  it('shows any text as text, and prints without cutting tables', async () => {
    const nasty = '</pre><script>document.title = "owned"</script><img src="http://example.com/x.png" onerror="alert(1)">'
    const about = header({
      command: nasty,
      model: { name: nasty, fingerprint: nasty },
      tasks: header().tasks.map((task) => ({ ...task, title: nasty, differs: [nasty], options: { [nasty]: nasty, samples: 1 } })),
      agents: header().agents.map((agent) => ({ ...agent, title: nasty })),
    })
    const cells = { cell: { [nasty]: nasty } }
    const call = { step: 0, name: nasty, failed: false, modifies: false }
    const lines = [
      about,
      sample({ ...cells, calls: [call] }),
      sample({ agent: 'sculptor', ...cells, calls: [call], contract: nasty }),
      error({ index: 1, id: 'x', code: nasty, message: nasty, ...cells }),
    ]
    const log = writeLog(join(folder, 'nasty.jsonl'), lines)
    const page = await opened(publish(await summaryOf([log], PLAIN, { ...MADE, command: nasty }), join(folder, 'nasty')))
    expect(await page.locator('script, img').count()).toBe(0)
    expect(await page.locator('h1').textContent()).toContain(nasty)
    for (const name of readdirSync(join(folder, 'nasty')).filter((one) => one.endsWith('.md')))
      expect(readFileSync(join(folder, 'nasty', name), 'utf8'), name).not.toMatch(/(?<!\\)<(?:script|img)/u)

    const printed = await opened(join(folder, 'report/report.html'))
    await printed.emulateMedia({ media: 'print' })
    // The printable part of A4 with the page's margins.
    await printed.setViewportSize({ width: 703, height: 1000 })
    const cut = await printed.evaluate<string[]>(CUT)
    expect(cut).toEqual([])
  })
})
