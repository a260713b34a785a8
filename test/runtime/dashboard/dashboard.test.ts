/** Tests the dashboard as a person uses it: a real browser, a real server, the built-in model. */
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { systemPrompts } from '../../../src/runtime/agents/sculptor.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { percent } from '../../../src/runtime/figures/numbers.js'
import { LlamaEngine, type LlamaEngineOptions } from '../../../src/runtime/engine/llama.js'
import { ownWords, piSample, piText } from '../../../src/lab/pi-llm.js'
import { ScriptedEngine } from '../../support/scripted.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { PUBLIC } from '../../../src/runtime/server/ask.js'
import { serving, type Serving } from '../server/support/serving.js'
import { ask, build, hasFocus, launch, missing, open, row, stop, tab, tabTo, type Watched } from './support/browser.js'

/** The question has the form of the training data, so that the answer is longer than the two tokens of "I do not know". */
const KEYS = ['lamp', 'hat', 'boat', 'river', 'tree', 'lake', 'tool', 'bread']
const STREAM = Array.from({ length: 32 }, (_, at) => ({ key: KEYS[at % KEYS.length]!, value: `value${at}` }))
const UPDATES = piText(KEYS, STREAM).join('\n\n')
const HOSTILE = '<img src=x onerror="window.broken = true"><script>window.broken = true</script> **not bold** &amp;'

const load = (options: Pick<LlamaEngineOptions, 'slots' | 'attention'>) => async () =>
  LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), { threads: 1, batchThreads: 1, ...options })
const model = { name: 'builtin', slots: 2, load: load({ slots: 2 }), loadForAttention: load({ slots: 1, attention: true }) }

/** Records in `lengths` how long the answer is whenever the page changes. */
const GROWTH = `
  window.lengths = new Set()
  new MutationObserver(() => {
    const answer = document.querySelector('.row[aria-busy="true"]')
    if (answer !== null) window.lengths.add(answer.textContent.length)
  }).observe(document.body, { subtree: true, childList: true, characterData: true })`

describe.skipIf(missing !== null)(`the dashboard in a browser${missing === null ? '' : ` (skipped: ${missing})`}`, () => {
  let browser: Browser
  let server: Serving
  let watched: Watched
  const thread = () => server.service.threads.list(PUBLIC)[0]!
  const view = () => server.service.threads.get(PUBLIC, thread().id)
  const fragment = (at: number) => view().all[0]!.fragments[at]!

  beforeAll(async () => {
    await build()
    browser = await launch()
    server = await serving({ service: { models: [model] } })
    watched = await open(browser, server.url)
  }, 120_000)
  afterAll(async () => {
    await browser.close()
    await server.close()
  })

  it('answers in the chat and shows the thread', async () => {
    const { page } = watched
    await page.getByText('Ask something; it begins a new thread.').waitFor()
    await page.evaluate(GROWTH)
    await ask(page, UPDATES)
    expect(thread().messages).toBe(2)
    // The answer came in several pieces.
    expect(await page.evaluate('window.lengths.size')).toBeGreaterThan(1)
    const answer = view().all[1]!.message.content
    await page.getByRole('log').getByText(answer.split('\n')[0]!).first().waitFor()
    expect(await page.getByRole('log').textContent()).toContain(UPDATES)
    expect(page.url()).toContain(`#/threads/${thread().id}`)
    await stop(page, 'message-1').waitFor()
    const { shown, fresh } = view().ledger[0]!
    await row(page, 1)
      .getByText(/ · [\d.,]+ tokens\/s/)
      .waitFor()
    await tab(page, 'Steps')
    const step = page.getByRole('row').filter({ hasText: '1 answer' })
    const cells = await step.getByRole('cell').allTextContents()
    expect(cells.slice(0, 5)).toEqual(['exact', String(shown), '0', '0', String(fresh)])
  })

  it('cuts, folds and restores by the keyboard alone', async () => {
    const { page } = watched
    await tab(page, 'Chat')
    // The chat takes the focus when it appears.
    await page.getByLabel('Message', { exact: true }).and(page.locator(':focus')).waitFor()
    await stop(page, 'message-0').focus()
    await page.keyboard.press('Enter')
    await page.getByRole('heading', { name: 'Message 1, user' }).waitFor()
    await tabTo(page, page.getByRole('button', { name: 'Cut the chosen stretch, or all' }))
    await page.keyboard.press('Enter')
    await page.locator('.pieces .fragment').nth(3).waitFor()
    const [first, second] = [fragment(0).id, fragment(1).id]

    await page.keyboard.press('Escape')
    expect(await hasFocus(page, stop(page, 'message-0'))).toBe(true)
    await page.keyboard.press('ArrowRight')
    await page.keyboard.press('f')
    await page.locator('.told').getByText(`Folded ${first}`).waitFor()
    await stop(page, `fragment-${first}`)
      .and(page.getByLabel(/folded/))
      .waitFor()
    await page.keyboard.press('ArrowRight')
    await page.keyboard.press('Enter')
    await page.getByRole('heading', { name: `Fragment ${second}` }).waitFor()
    const { span } = fragment(1)
    expect(await page.locator('.panel pre').first().textContent()).toBe(UPDATES.slice(span.start, span.end))
    await tabTo(page, page.getByRole('button', { name: 'Fold', exact: true }))
    await page.keyboard.press('Enter')
    await page.locator('.told').getByText(`Folded ${second}`).waitFor()
    expect(view().all[0]!.fragments.map(({ state }) => state.kind)).toEqual(['folded', 'folded', 'open', 'open'])

    await ask(page, 'And the hat?')
    const last = view().ledger.at(-1)!
    expect(last.recomputed).toBeGreaterThan(0)
    // The margin of the message shows where its tokens came from.
    const cost = last.messages[0]!
    await row(page, 0)
      .getByRole('button', { name: new RegExp(`^Message 1, ${cost.shown} tokens: .*${cost.recomputed} computed again`) })
      .waitFor()
    await tab(page, 'Steps')
    await page.reload()
    await page.getByText(`${first}, ${second} folded by a person or a program`).waitFor()
    const cells = page.getByRole('row').filter({ hasText: '2 answer' }).getByRole('cell')
    await cells.first().waitFor()
    expect((await cells.allTextContents()).slice(1, 5)).toEqual(
      [last.shown, last.reused, last.recomputed, last.fresh].map((figure) => figure.toLocaleString('en-US')),
    )

    await stop(page, `fragment-${first}`).focus()
    await page.keyboard.press('r')
    await page.locator('.told').getByText(`Restored ${first}`).waitFor()
    expect(view().all[0]!.fragments.map(({ state }) => state.kind)).toEqual(['open', 'folded', 'open', 'open'])
  })

  it("shows the last answer's attention, part by part", async () => {
    const { page } = watched
    await tab(page, 'Attention')
    await page.getByText('how much of its attention the last answer gave to each message').waitFor()
    const looked = page.getByRole('switch', { name: 'Where the last answer looked' })
    let goOn = (): void => undefined
    const held = new Promise<void>((resolve) => (goOn = resolve))
    await page.route('**/attention', async (route) => {
      await held
      await route.continue()
    })
    await tabTo(page, looked)
    await page.keyboard.press('Enter')
    expect(await looked.getAttribute('aria-checked')).toBe('true')
    await page.getByText('Showing the thread to the model again').waitFor()
    goOn()
    const table = page.getByRole('table', { name: 'Where the last answer looked' })
    await table.waitFor()
    await page.getByText(/^A replay\. .*without flash attention.*in one prefill\.$/).waitFor()
    const { messages, own } = await server.service.threads.attention(PUBLIC, thread().id)
    // Two parts were folded during the second answer; one of them has been restored since.
    expect(messages[0]!.cuts.map(({ shows }) => shows)).toEqual(['marker', 'marker', 'text', 'text'])
    const rows = messages.flatMap(({ tokens, mass, cuts }) => [{ tokens, mass }, ...cuts])
    const cells = await table.getByRole('row').getByRole('cell').allTextContents()
    const shown = cells.flatMap((cell, at) => (at % 3 === 1 ? [cell] : [])).slice(0, -1)
    expect(shown).toEqual(rows.map(({ mass }) => percent(mass)))
    expect(cells.at(-2)).toBe(percent(own))
    await table.getByRole('button', { name: `${fragment(2).id}, open` }).click()
    await page.getByRole('heading', { name: `Fragment ${fragment(2).id}` }).waitFor()
    await page.keyboard.press('Escape')
    await looked.click()
    await table.waitFor({ state: 'detached' })
  })

  it("shows the server's refusals", async () => {
    const { page } = watched
    const first = fragment(0).id
    await stop(page, `fragment-${first}`).focus()
    await page.keyboard.press('r')
    await page.getByRole('alert').getByText(`${first} is open`).waitFor()
    // The browser reports it, too; there was no other error so far.
    expect(watched.errors.splice(0)).toEqual([expect.stringContaining('409')])
  })

  it('searches hidden text, too, and jumps to it', async () => {
    const { page } = watched
    const second = fragment(1)
    const inside = /value\d+/.exec(UPDATES.slice(second.span.start, second.span.end))![0]
    await tab(page, 'Search')
    await page.getByLabel('Exact text').fill(`${inside};`)
    await page.keyboard.press('Enter')
    await page.getByText('1 hit.').waitFor()
    expect(await page.locator('.hits mark').textContent()).toBe(`${inside};`)
    await page.getByRole('button', { name: `Message 1, user, folded in ${second.id}` }).click()
    await page.getByRole('heading', { name: `Fragment ${second.id}` }).waitFor()
  })

  it('asks the model for a summary', async () => {
    const { page } = watched
    const third = fragment(2).id
    await stop(page, `fragment-${third}`).click()
    await page.getByLabel('Summary must keep').fill('the last values')
    await page.keyboard.press('Enter')
    await page.locator('.told').getByText(`Summarised ${third}`).waitFor()
    const { state } = fragment(2)
    expect(state).toMatchObject({ kind: 'summarised', focus: 'the last values' })
    await page
      .locator('.panel')
      .getByText(state.kind === 'summarised' ? state.summary : '', { exact: true })
      .waitFor()
    await tab(page, 'Steps')
    await page.getByRole('row').filter({ hasText: 'summary' }).waitFor()
    await page.getByText(`${third} summarised by a person or a program`).waitFor()
  })

  it('sets the contract, makes the thread exact and exports it', async () => {
    const { page } = watched
    await page.getByText('This thread').click()
    await page.locator('main').getByRole('combobox', { name: 'Contract' }).selectOption('splice')
    await page.getByText('Later steps keep to splice.').waitFor()
    expect(view().contract).toBe('splice')
    await page.getByRole('button', { name: 'Exact again' }).click()
    await page.getByText('The thread is exact.').waitFor()
    const download = page.waitForEvent('download')
    await page.getByRole('button', { name: 'Export' }).click()
    const exported: unknown = JSON.parse(readFileSync(await (await download).path(), 'utf8'))
    expect(exported).toEqual(JSON.parse(JSON.stringify(server.service.threads.export(PUBLIC, thread().id))))
  })

  it("shows other clients' work without a reload", async () => {
    const { page } = watched
    const answered = await fetch(`${server.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ messages: [{ role: 'user', content: 'Somebody else asks.' }], max_tokens: 8 }),
    })
    expect(answered.status).toBe(200)
    const link = page.getByRole('navigation').getByRole('link', { name: 'Somebody else asks.' })
    await link.getByText('2 messages').waitFor()
    await link.getByLabel('runs now').waitFor({ state: 'detached' })
    await page.getByRole('link', { name: 'Server' }).click()
    await page.getByRole('heading', { name: 'Models and slots' }).waitFor()
    await page.getByText(/0 of 2, idle/).waitFor()
    const { used, cells } = server.service.models()[0]!.loaded!.cache!
    await page.getByText(`${used.toLocaleString('en-US')} of ${cells.toLocaleString('en-US')} used`).waitFor()
    await page.getByRole('img', { name: /^Cache, cells: now used/ }).waitFor()
  })

  it('shows a thread with a salt, and offers no question that the server would refuse', async () => {
    const { page } = watched
    await fetch(`${server.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({
        messages: [{ role: 'user', content: 'Salted words. '.repeat(40) }],
        max_tokens: 8,
        cache_salt: 'a',
      }),
    })
    await page
      .getByRole('navigation')
      .getByRole('link', { name: /^Salted words/ })
      .click()
    await page.getByText('Only requests with the same one continue it').waitFor()
    await page.getByRole('button', { name: 'Details of message 1' }).waitFor()
    for (const name of ['Edit message 1', 'Regenerate message 2'])
      expect(await page.getByRole('button', { name }).count()).toBe(0)
    expect(await page.getByLabel('Message', { exact: true }).count()).toBe(0)
    await row(page, 0).getByRole('button', { name: 'Fold message 1' }).click()
    await page.locator('.told').getByText('Folded').waitFor()
    expect(view().all[0]!.fragments.map(({ state }) => state.kind)).toEqual(['folded'])
  })

  it('shows HTML in messages as text', async () => {
    const { page } = watched
    await page.getByRole('link', { name: 'kvfold' }).click()
    await ask(page, HOSTILE)
    await stop(page, 'message-1').waitFor()
    await stop(page, 'message-0').click()
    await tab(page, 'Search')
    await page.getByLabel('Exact text').fill('<img')
    await page.keyboard.press('Enter')
    await page.locator('.hits mark').first().waitFor()
    expect(await page.locator('main h2').first().textContent()).toBe(HOSTILE.slice(0, 80))
    expect(await page.locator('img').count()).toBe(0)
    expect(await page.evaluate('window.broken')).toBeUndefined()
  })

  it('continues a thread in which the model called its tools', async () => {
    const { page } = watched
    await page.getByRole('link', { name: 'New thread' }).click()
    await page.locator('summary').filter({ hasText: 'Settings' }).click()
    await page.getByRole('combobox', { name: 'Who folds' }).selectOption('tools')
    await page.getByLabel('Temperature').fill('0')
    // The small model continues its answer up to the limit.
    await page.getByLabel('Longest answer, tokens').fill('40')
    await page.getByLabel('System message').fill(systemPrompts['pi-llm'])
    await ask(page, piSample({ words: ownWords(), updates: 10, keys: 8, seed: 3 }).prompt)
    await tab(page, 'Steps')
    await page.getByText(/the model: fragment_context/).waitFor()
    await tab(page, 'Chat')
    // The server's own steps are shown, and distinguished from what clients see.
    await page.locator('.row.inside').getByText('Calls fragment_context').first().waitFor()
    await page.locator('summary').filter({ hasText: 'Settings' }).click()
    const [before, threads] = [view(), server.service.threads.list(PUBLIC).length]
    expect(before.all.some(({ visible }) => !visible)).toBe(true)
    await page.getByRole('combobox', { name: 'Who folds' }).selectOption('off')
    await ask(page, 'And the first of them?')
    expect(thread().id).toBe(before.id)
    expect(view().messages).toBeGreaterThanOrEqual(before.messages + 2)
    expect(server.service.threads.list(PUBLIC).length).toBe(threads)
    expect(page.url()).toContain(before.id)
  })

  it('fits narrow screens, and is dark on request', async () => {
    const { page } = watched
    const ground = () => page.evaluate<string>('getComputedStyle(document.body).backgroundColor')
    const light = await ground()
    await page.emulateMedia({ colorScheme: 'dark' })
    expect(await ground()).not.toBe(light)
    await page.setViewportSize({ width: 360, height: 740 })
    expect(await page.evaluate('document.documentElement.scrollWidth')).toBe(360)
    // The conversation fills the page; Send is on the screen, and the threads are behind a button.
    const { y, height } = (await page.getByRole('button', { name: 'Send' }).boundingBox())!
    expect(y + height).toBeLessThanOrEqual(740)
    const list = page.getByRole('navigation', { name: /^Threads/ })
    expect(await list.isVisible()).toBe(false)
    await page.getByRole('button', { name: 'Threads' }).click()
    await list.waitFor()
    await page.getByRole('link', { name: 'Server' }).click()
    await page.getByRole('heading', { name: 'Models and slots' }).waitFor()
    expect(await page.evaluate('document.documentElement.scrollWidth')).toBe(360)
    await page.setViewportSize({ width: 1400, height: 1000 })
  })

  it('deletes a thread after a confirmation', async () => {
    const { page } = watched
    await page.getByRole('navigation').getByRole('link', { name: 'Somebody else asks.' }).click()
    await page.getByText('This thread').click()
    await page.getByRole('button', { name: 'Delete…' }).click()
    await page.getByRole('button', { name: 'Delete', exact: true }).click()
    await page.getByRole('heading', { name: 'Ask something; it begins a new thread.' }).waitFor()
    await page.getByRole('link', { name: 'Somebody else asks.' }).waitFor({ state: 'detached' })
    expect(server.service.threads.list(PUBLIC).map(({ title }) => title)).not.toContain('Somebody else asks.')
  })

  it('sends requests to the server only, without an error', () => {
    expect([...watched.origins]).toEqual([server.url])
    expect(watched.errors).toEqual([])
  })

  it('says why attention is not available', async () => {
    const other = await serving({ engine: () => new ScriptedEngine(() => ({ content: 'Yes.' })) })
    try {
      const asked = { tenant: PUBLIC, messages: [{ role: 'user', content: 'Well?' }], tools: [], toolChoice: 'auto' } as const
      const { thread: id } = await other.service.ask(asked).answer
      const { page } = await open(browser, other.url, `/#/threads/${id}`)
      await tab(page, 'Attention')
      await page.getByRole('switch', { name: 'Where the last answer looked' }).click()
      await page.getByRole('alert').getByText('No attention of builtin can be seen here').waitFor()
    } finally {
      await other.close()
    }
  })

  it('says that a fold does not pay, and by how much, before and after', async () => {
    const other = await serving({ engine: () => new ScriptedEngine(() => ({ content: 'Yes.' })) })
    try {
      const { threads } = other.service
      const content = `A very short line. ${'All of this is out of date. '.repeat(40)}`
      const asked = { tenant: PUBLIC, messages: [{ role: 'user', content }], tools: [], toolChoice: 'auto' } as const
      const { thread: id } = await other.service.ask(asked).answer
      const cut = { startMarker: 'A very', endMarker: 'line.', numFragments: 1 }
      const [short] = await threads.fragment(PUBLIC, id, cut)
      const { page } = await open(browser, other.url, `/#/threads/${id}`)
      await page.getByRole('button', { name: `Fragment ${short!.id}` }).click()
      await page.getByRole('button', { name: 'Fold', exact: true }).click()
      await page
        .getByRole('alert')
        .getByText(/This does not pay: the marker takes \d+ tokens more than the text/)
        .waitFor()
      await page.getByRole('checkbox', { name: 'even if it takes more tokens than the text' }).check()
      await page.getByRole('button', { name: 'Fold', exact: true }).click()
      await page
        .getByText(/^Does not pay, it takes \d+ tokens more: \d+ tokens shown with the text, \d+ with the marker\.$/)
        .waitFor()
      const { open: before, hidden } = threads.get(PUBLIC, id).all[0]!.fragments[0]!.price!
      const more = `does not pay: ${hidden - before} tokens more`
      await page
        .getByRole('button', {
          name: `Fragment ${short!.id} of message 1, user; folded by a person or a program; 18 characters; ${more}`,
        })
        .waitFor()
      await row(page, 0).getByText(more).waitFor()
    } finally {
      await other.close()
    }
  })

  it('folds a message by the key F on the map, but not the system message', async () => {
    const other = await serving({ engine: () => new ScriptedEngine(() => ({ content: 'Yes.' })) })
    try {
      const { threads } = other.service
      const messages = (['system', 'user'] as const).map((role) => ({ role, content: `${role}: ${'out of date. '.repeat(40)}` }))
      const { thread: id } = await other.service.ask({ tenant: PUBLIC, messages, tools: [], toolChoice: 'auto' }).answer
      const { page } = await open(browser, other.url, `/#/threads/${id}`)
      await stop(page, 'message-0').focus()
      await page.keyboard.press('f')
      await page.keyboard.press('ArrowRight')
      await page.keyboard.press('f')
      await page.locator('.told').getByText('Folded message 2').waitFor()
      const states = threads.get(PUBLIC, id).all.map(({ fragments }) => fragments.map(({ state }) => state.kind))
      expect(states).toEqual([[], ['folded'], []])
    } finally {
      await other.close()
    }
  })

  it('asks for a key if the server needs one, and keeps it in the tab', async () => {
    const locked = await serving({
      keys: [
        { name: 'anna', key: 'secret-of-anna' },
        { name: 'bert', key: 'secret-of-bert' },
      ],
      engine: () =>
        new ScriptedEngine(async ({ signal }) => {
          await once(signal!, 'abort')
          return { content: '' }
        }),
    })
    try {
      const { page } = await open(browser, locked.url)
      await page.getByText('This server needs an API key.').waitFor()
      await page.getByLabel('API key').fill('wrong')
      await page.keyboard.press('Enter')
      await page.getByText('The server does not know this key.').waitFor()
      await page.getByLabel('API key').fill('secret-of-anna')
      await page.keyboard.press('Enter')
      await page.getByText('None yet. Ask something').waitFor()
      await page.getByRole('link', { name: 'Server' }).click()
      await page.getByText('only the key named admin may see them').waitFor()
      expect(await page.evaluate('JSON.stringify(localStorage)')).toBe('{}')
      expect(await page.evaluate('JSON.stringify(Object.values(sessionStorage))')).toBe('["secret-of-anna"]')
      await page.getByRole('link', { name: 'kvfold', exact: true }).click()
      const say = page.getByLabel('Message', { exact: true })
      await say.fill('A question of Anna.')
      await page.getByRole('button', { name: 'Send', exact: true, disabled: false }).click()
      await page.getByRole('button', { name: 'Stop', exact: true }).waitFor()
      await say.fill('A draft of Anna.')
      await page.locator('input[type=file]').setInputFiles([{ name: 'anna.txt', mimeType: '', buffer: Buffer.from('Hers.') }])
      await page.getByText('anna.txt').waitFor()
      await page.getByRole('button', { name: 'Forget the key' }).click()
      await page.getByText('This server needs an API key.').waitFor()
      // The server no longer works on what she asked.
      await expect.poll(() => locked.service.status().running).toBe(0)
      await page.getByLabel('API key').fill('secret-of-bert')
      await page.keyboard.press('Enter')
      await page.getByText('None yet. Ask something').waitFor()
      await page.goto(`${locked.url}/#/`)
      expect(await say.inputValue()).toBe('')
      expect(await page.locator('body').textContent()).not.toMatch(/of Anna|anna\.txt/)
      await page.getByRole('button', { name: 'Send', exact: true }).waitFor()
    } finally {
      await locked.close()
    }
  })
})
