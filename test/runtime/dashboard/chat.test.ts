/** Tests working in the dashboard on a scripted engine, so that every answer can be held, stopped and repeated. */
import { readFileSync } from 'node:fs'
import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import {
  type Engine,
  EngineAround,
  type EngineRequest,
  type Generation,
  generationOf,
} from '../../../src/runtime/engine/engine.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { TEST_GPU } from '../../support/device.js'
import { readJson, writeJson } from '../../../src/runtime/core/written-json.js'
import type { ScriptedReply } from '../../../src/lab/taught-engine.js'
import { PUBLIC } from '../../../src/runtime/server/ask.js'
import { ScriptedEngine, type Script } from '../../support/scripted.js'
import { serving, type Serving } from '../server/support/serving.js'
import { ask, build, launch, missing, open, row, stop, type Watched } from './support/browser.js'
import { LONG } from '../../support/long.js'

const user = (content: string): ChatMessage => ({ role: 'user', content })
const assistant = (content: string): ChatMessage => ({ role: 'assistant', content })

/** A browser takes seconds for each of these; parts.test.ts has what they compute. */

const MARKDOWN = `A **bold** word, [a link](https://example.org/), [a bad one](javascript:window.broken=1).

<img src=x onerror="window.broken = true"> <b onclick="window.broken = true">raw</b> ![a picture](https://example.org/x.png)

| key | value |
| --- | --- |
| lamp | 3 |

\`\`\`ts
const lamp = '<b>3</b>'
\`\`\`
`

/** How many pixels of the conversation are below what the page shows. */
const BELOW = `(({ scrollHeight, scrollTop, clientHeight }) => scrollHeight - scrollTop - clientHeight)(document.querySelector('.log'))`

const builtin = async (): Promise<Engine> =>
  LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), { threads: 1, batchThreads: 1 })

/** An engine whose answers end only when they are stopped, except those that continue a stopped one. */
class EndlessEngine extends EngineAround {
  respond(request: EngineRequest): Generation {
    const held = request.continues === true ? { maxTokens: 8 } : { grammar: 'root ::= [a-z ] root' }
    return this.engine.respond({ ...request, ...held })
  }
}

/** An engine that thinks line by line, and answers only after `held`. */
class ThinkingEngine extends EngineAround {
  constructor(
    engine: Engine,
    private readonly held: Promise<void>,
  ) {
    super(engine)
  }

  respond(request: EngineRequest): Generation {
    return generationOf(async (stream) => {
      for (let line = 0; line < 100; line++) {
        stream.push({ type: 'reasoning', text: `Thought ${line}.\n` })
        await new Promise((resolve) => setTimeout(resolve, 5))
      }
      await this.held
      return this.engine.respond(request).reply
    })
  }
}

/** Starts a server with this script, and opens its page. */
async function served(browser: Browser, script: Script): Promise<Watched & { readonly server: Serving }> {
  const server = await serving({ engine: () => new ScriptedEngine(script) })
  return { server, ...(await open(browser, server.url)) }
}

/** Makes a thread with these messages and an answer, as another client would. */
async function begun({ service }: Pick<Serving, 'service'>, messages: readonly ChatMessage[]): Promise<string> {
  const { thread } = await service.ask({ tenant: PUBLIC, messages, tools: [], toolChoice: 'auto' }).answer
  return thread
}

const button = (page: Page, name: string) => page.getByRole('button', { name, exact: true })
const title = (page: Page) => page.locator('.thread-head h2')

describe.skipIf(missing !== null)(`work in the dashboard${missing === null ? '' : ` (skipped: ${missing})`}`, () => {
  let browser: Browser
  beforeAll(async () => {
    await build()
    browser = await launch()
  }, 120_000)
  afterAll(() => browser.close())

  it("uses the server's settings, or those chosen on the page", async () => {
    const { page, server } = await served(browser, () => ({ content: 'Yes.' }))
    const asked = () => page.waitForRequest('**/v1/chat/completions')
    let request = asked()
    await ask(page, 'Well?')
    const usual = (await request).postDataJSON() as Record<string, unknown>
    expect(usual['kvfold']).toEqual({ events: true })
    expect(Object.keys(usual).sort()).toEqual(['kvfold', 'messages', 'model', 'reasoning_control', 'stream', 'stream_options'])
    await row(page, 1).waitFor()
    await page.locator('summary').filter({ hasText: 'Settings' }).click()
    await page.getByRole('combobox', { name: 'Who folds' }).selectOption('tools')
    await page.getByLabel('Longest answer, tokens').fill('40')
    // The input stays when the page redraws its figures.
    for (let drawn = 0; drawn < 2; drawn++) await page.waitForResponse('**/metrics')
    request = asked()
    await ask(page, 'And now?')
    expect((await request).postDataJSON()).toMatchObject({ max_tokens: 40, kvfold: { acm: 'tools' } })
    await server.close()
  })

  it('shows Markdown and code, copies them, and shows no HTML of the model', async () => {
    const { page, errors, origins, server } = await served(browser, () => ({ content: MARKDOWN }))
    await ask(page, 'Show it.')
    const answer = row(page, 1)
    await answer.locator('strong').getByText('bold').waitFor()
    await answer.getByRole('cell', { name: 'lamp' }).waitFor()
    await answer.getByText('<b onclick="window.broken = true">raw</b>').waitFor()
    const link = answer.getByRole('link', { name: 'a link' })
    expect([await link.getAttribute('href'), await link.getAttribute('rel')]).toEqual([
      'https://example.org/',
      'noopener noreferrer',
    ])
    expect(await answer.getByText('a bad one').getAttribute('href')).toBeNull()
    expect(await answer.locator('img, b, script').count()).toBe(0)
    await button(page, 'Copy code').click()
    await button(page, 'Copied').waitFor()
    expect(await page.evaluate('navigator.clipboard.readText()')).toBe("const lamp = '<b>3</b>'")
    await button(page, 'Copy message 2').click()
    await answer.getByText('Copied', { exact: true }).nth(1).waitFor()
    expect(await page.evaluate('navigator.clipboard.readText()')).toBe(MARKDOWN)
    expect(await page.evaluate('window.broken')).toBeUndefined()
    expect([...origins]).toEqual([server.url])
    expect(errors).toEqual([])
    await server.close()
  })

  it('stops an answer', async () => {
    const { page, server } = await served(
      browser,
      ({ signal }) =>
        new Promise<ScriptedReply>((resolve) => {
          signal?.addEventListener('abort', () => {
            resolve({ content: 'Too late.' })
          })
        }),
    )
    await page.getByLabel('Message', { exact: true }).fill('Go on for ever.')
    await button(page, 'Send').click()
    await page.waitForURL('**/#/threads/*')
    await button(page, 'Stop').click()
    await page.getByRole('status').getByText('Stopped.').waitFor()
    await button(page, 'Send').waitFor()
    await expect.poll(() => server.service.status().asks.cancelled).toBe(1)
    await server.close()
  })

  it('keeps a question that was stopped before it began, with its files', async () => {
    let goOn = (): void => undefined
    const held = new Promise<void>((resolve) => (goOn = resolve))
    const engine = new ScriptedEngine(async () => {
      await held
      return { content: 'Yes.' }
    })
    const server = await serving({ engine: () => engine, slots: 1 })
    const first = begun(server, [user('Go on for long.')])
    const { page } = await open(browser, server.url)
    const buffer = Buffer.from('The lamp is on.')
    await page.locator('input[type=file]').setInputFiles([{ name: 'lamp.txt', mimeType: '', buffer }])
    await page.getByRole('list', { name: 'Attached files' }).getByText('lamp.txt').waitFor()
    await page.getByLabel('Message', { exact: true }).fill('Is it on?')
    await button(page, 'Send').click()
    const log = page.getByRole('log')
    await log.getByText(/^Waiting; /).waitFor()
    await button(page, 'Stop').click()
    await log.getByRole('alert').getByText('Stopped before it began.').waitFor()
    await log.getByText('Is it on?').waitFor()
    await log.getByText('lamp.txt').waitFor()
    await expect.poll(() => server.service.status().queue.waiting).toBe(0)
    goOn()
    await first
    // The next question goes its way.
    await ask(page, 'And now?')
    await row(page, 1).getByText('Yes.').waitFor()
    expect(server.service.threads.list(PUBLIC)).toHaveLength(2)
    await server.close()
  })

  it('keeps the text of a stopped answer, and continues it', async () => {
    const server = await serving({ engine: async () => new EndlessEngine(await builtin()) })
    const { page } = await open(browser, server.url)
    await page.getByLabel('Message', { exact: true }).fill('Tell me all.')
    await button(page, 'Send').click()
    await page.locator('[aria-busy=true] .markdown').waitFor()
    await button(page, 'Stop').click()
    await row(page, 1).getByText('stopped before its end').waitFor()
    expect(await row(page, 1).locator('.row-head').innerText()).toBe('Model stopped before its end')
    await row(page, 1).getByRole('button', { name: 'Message 2, stopped before its end' }).waitFor()
    const views = () => server.service.threads.list(PUBLIC).map(({ id }) => server.service.threads.view(PUBLIC, id))
    const [asked, said] = views()[0]!
    expect([asked?.content, said?.cut]).toEqual(['Tell me all.', true])
    await button(page, 'Continue message 2').click()
    await row(page, 1).getByText('stopped before its end').waitFor({ state: 'detached' })
    await expect.poll(() => views()[0]!.map(({ cut }) => cut)).toEqual([undefined, undefined])
    const [whole] = views()
    expect(views()).toHaveLength(1)
    expect(whole![1]!.content.startsWith(said!.content)).toBe(true)
    expect(whole![1]!.content.length).toBeGreaterThan(said!.content.length)
    // It ended at its longest; a branch has it with what follows.
    await page.getByText('cut off at the longest answer').waitFor()
    await button(page, 'Continue message 2').click()
    await page.getByText('This thread, a branch').waitFor()
    await button(page, 'Send').waitFor()
    const [branch, first] = views()
    expect(first).toEqual(whole)
    expect(branch![1]!.content.startsWith(whole![1]!.content)).toBe(true)
    expect(branch![1]!.content.length).toBeGreaterThan(whole![1]!.content.length)
    await server.close()
  })

  it('makes branches for new answers and edited messages, and leaves the thread as it is', async () => {
    const { page, server } = await served(browser, (_, step) => ({ content: `Answer ${step}.` }))
    await ask(page, 'One?')
    await row(page, 1).getByText('Answer 0.').waitFor()
    await ask(page, 'Two?')
    await row(page, 3).getByText('Answer 1.').waitFor()
    const first = page.url()
    await button(page, 'Regenerate message 4').click()
    await row(page, 3).getByText('Answer 2.').waitFor()
    expect(page.url()).not.toBe(first)
    await page.getByText('This thread, a branch').waitFor()
    await button(page, 'Edit message 1').click()
    await page.getByLabel('Say instead').fill('Three?')
    await button(page, 'Ask in a branch').click()
    await row(page, 1).getByText('Answer 3.').waitFor()
    await title(page).getByText('Three?').waitFor()
    const { service } = server
    const views = service.threads.list(PUBLIC).map(({ id }) => service.threads.view(PUBLIC, id).map(({ content }) => content))
    expect(views.map((texts) => texts.join(' ')).sort()).toEqual([
      'One? Answer 0. Two? Answer 1.',
      'One? Answer 0. Two? Answer 2.',
      'Three? Answer 3.',
    ])
    await page.goto(first)
    await row(page, 3).getByText('Answer 1.').waitFor()
    await page.getByText('branched off').first().waitFor()
    await server.close()
  })

  it('folds in the text: a closed card that opens and restores', async () => {
    const server = await serving({ engine: () => new ScriptedEngine(() => ({ content: 'Yes.' })) })
    const text = `First line.\n${'All of this is out of date. '.repeat(40)}`
    const id = await begun(server, [user(text)])
    const { page } = await open(browser, server.url, `/#/threads/${id}`)
    const fragment = () => server.service.threads.get(PUBLIC, id).all[0]!.fragments[0]!
    await button(page, 'Fold message 1').click()
    await page.locator('.told').getByText('Folded message 1.').waitFor()
    const card = row(page, 0).locator('.piece.folded')
    await card.getByText('All of this is out of date.').first().waitFor()
    expect(fragment().state.kind).toBe('folded')
    expect(await card.locator('.plain').isVisible()).toBe(false)
    await card.locator('summary').click()
    await card.locator('.plain').waitFor()
    expect(await card.locator('.plain').textContent()).toBe(text.trimEnd())
    await button(page, `Restore ${fragment().id}`).click()
    await page.locator('.told').getByText(`Restored ${fragment().id}`).waitFor()
    await row(page, 0).locator('.piece').and(page.locator(':not(.folded)')).waitFor()
    // The button of the map does the same to the fragment.
    await stop(page, `fragment-${fragment().id}`).click()
    await page
      .locator('.map')
      .getByRole('button', { name: `Fold ${fragment().id}`, exact: true })
      .click()
    await card.waitFor()
    expect(fragment().state.kind).toBe('folded')
    await server.close()
  })

  it('says that a message is hidden as a whole, and shows it to the model again', async () => {
    const server = await serving({ engine: () => new ScriptedEngine(() => ({ content: 'Yes.' })) })
    const messages = [user('Read this.'), assistant('Yes.'), user('And now?')]
    const drops = { messages: [0], repositions: false }
    const { thread } = await server.service.ask({ tenant: PUBLIC, messages, tools: [], toolChoice: 'auto', drops }).answer
    const omitted = () => server.service.threads.get(PUBLIC, thread).all[0]!.omitted
    const { page } = await open(browser, server.url, `/#/threads/${thread}`)
    await row(page, 0).getByText('hidden as a whole').waitFor()
    expect(await button(page, 'Fold message 1').count()).toBe(0)
    await stop(page, 'message-0').focus()
    await page.locator('.map').getByRole('button', { name: 'Restore no. 1', exact: true }).waitFor()
    const { id } = omitted()[0]!
    await button(page, 'Restore message 1').click()
    await page.locator('.told').getByText(`Restored ${id}`).waitFor()
    await button(page, 'Fold message 1').waitFor()
    expect(omitted()).toEqual([])
    await server.close()
  })

  it('shows calls and their results, and no empty answer', async () => {
    const server = await serving({ engine: () => new ScriptedEngine(() => ({ content: 'Read.' })) })
    const call = { id: 'c1', name: 'read_file', arguments: { path: 'notes.md' } }
    const lines = Array.from({ length: 30 }, (_, at) => `line ${at} of the notes`).join('\n')
    const id = await begun(server, [
      user('Read notes.md.'),
      { ...assistant(''), toolCalls: [call] },
      { role: 'tool', content: lines, toolCallId: 'c1', name: 'read_file' },
    ])
    const { page } = await open(browser, server.url, `/#/threads/${id}`)
    await row(page, 1).getByText('Calls read_file {"path":"notes.md"}').click()
    await row(page, 1).locator('pre').getByText('"path": "notes.md"').waitFor()
    expect(await row(page, 1).locator('.markdown, .plain').count()).toBe(0)
    await row(page, 2).getByRole('heading', { name: 'Result of read_file' }).waitFor()
    await row(page, 2).getByText('30 lines').click()
    await row(page, 2).getByText('line 29 of the notes').waitFor()
    await row(page, 3).getByText('Read.').waitFor()
    await server.close()
  })

  it.runIf(LONG)('shows a block of code as code, although its end is missing or folds cut it', async () => {
    const server = await serving({ engine: () => new ScriptedEngine(() => ({ content: 'Yes.' })) })
    const lines = Array.from({ length: 24 }, (_, at) => `const lamp${at} = "**${at}**"`).join('\n')
    const id = await begun(server, [user('A program?'), assistant(`So:\n\n\`\`\`ts\n${lines}`), user('Go on.')])
    const { page } = await open(browser, server.url, `/#/threads/${id}`)
    const code = row(page, 1).locator('.code')
    await code.getByText('const lamp23 = "**23**"').waitFor()
    const cut = { startMarker: 'const lamp8 ', endMarker: '"**15**"', numFragments: 1, role: 'all' } as const
    const [middle] = await server.service.threads.fragment(PUBLIC, id, cut)
    await server.service.threads.fold(PUBLIC, id, middle!.id, {}, 'allow')
    const card = row(page, 1).locator('.piece.folded')
    await card.getByText('Folded by a person or a program').click()
    await card.locator('.code').getByText('const lamp8 = "**8**"').waitFor()
    expect(await code.count()).toBe(3)
    expect(await code.last().locator('figcaption').textContent()).toContain('ts')
    expect(await row(page, 1).locator('strong').count()).toBe(0)
    await server.close()
  })

  it.runIf(LONG)('attaches text files, shows them as cards, and folds one of them', async () => {
    const engine = new ScriptedEngine(() => ({ content: 'Seen.' }))
    const server = await serving({ engine: () => engine })
    const { page } = await open(browser, server.url)
    const file = (name: string, content: string | Buffer) => ({ name, mimeType: '', buffer: Buffer.from(content) })
    const text = Array.from({ length: 20 }, (_, at) => `The lamp of room ${at} is on.`).join('\n')
    const input = page.locator('input[type=file]')
    await input.setInputFiles([file('lamps.txt', text), file('hats.txt', 'No hat.')])
    await page.getByRole('list', { name: 'Attached files' }).getByText('lamps.txt 20 lines').waitFor()
    await button(page, 'Remove hats.txt').click()
    await input.setInputFiles([file('hat.png', Buffer.from([0x89, 0x50, 0xff]))])
    await page.getByRole('alert').getByText('hat.png is not a text in UTF-8.').waitFor()
    await ask(page, 'Which lamp is on?')
    const said = `File lamps.txt:\n\`\`\`txt\n${text}\n\`\`\``
    expect(engine.requests[0]!.messages.map(({ content }) => content)).toEqual([`${said}\n\nWhich lamp is on?`])
    const question = row(page, 0)
    await question.getByText('Which lamp is on?', { exact: true }).waitFor()
    await title(page).getByText('Which lamp is on?', { exact: true }).waitFor()
    await question.getByText('lamps.txt').click()
    await question.getByText('The lamp of room 19 is on.').waitFor()
    await button(page, 'Fold lamps.txt').click()
    await page.locator('.told').getByText('Folded lamps.txt.').waitFor()
    const id = server.service.threads.list(PUBLIC)[0]!.id
    const { fragments, shown } = server.service.threads.get(PUBLIC, id).all[0]!
    expect(fragments).toMatchObject([{ span: { start: 0, end: said.length }, state: { kind: 'folded' } }])
    expect(shown).toMatch(/Which lamp is on\?$/)
    await question.locator('.piece.folded').waitFor()
    await server.close()
  })

  it('follows a model that thinks to the end of the page', async () => {
    let goOn = (): void => undefined
    const held = new Promise<void>((resolve) => (goOn = resolve))
    const engine = new ThinkingEngine(new ScriptedEngine(() => ({ content: 'Yes.' })), held)
    const server = await serving({ engine: () => engine })
    const { page } = await open(browser, server.url)
    await page.getByLabel('Message', { exact: true }).fill('Think.')
    await button(page, 'Send').click()
    const log = page.getByRole('log')
    await log.getByText('Thought 99.').waitFor()
    const below = () => page.evaluate<number>(BELOW)
    await expect.poll(below).toBeLessThan(40)
    goOn()
    await row(page, 1).getByText('Yes.').waitFor()
    await server.close()
  })

  it('says at once that a restore waits for the end of an answer', async () => {
    let goOn = (): void => undefined
    const held = new Promise<void>((resolve) => (goOn = resolve))
    const script: Script = async (_, step) => {
      if (step > 0) await held
      return { content: 'Yes.' }
    }
    const server = await serving({ engine: () => new ScriptedEngine(script) })
    const { threads } = server.service
    const id = await begun(server, [user(`First line. ${'All of this is out of date. '.repeat(40)}`)])
    const [part] = await threads.fragment(PUBLIC, id, { startMarker: 'First', endMarker: 'line. All', numFragments: 1 })
    await threads.fold(PUBLIC, id, part!.id, {}, 'allow')
    const { page } = await open(browser, server.url, `/#/threads/${id}`)
    await page.getByLabel('Message', { exact: true }).fill('And now?')
    await page.keyboard.press('Enter')
    await button(page, 'Stop').waitFor()
    await button(page, `Restore ${part!.id}`).click()
    await page.locator('.told').getByText(`${part!.id} waits: the answer must end before it can be restored.`).waitFor()
    await row(page, 0).getByText('Waits…').waitFor()
    await stop(page, `fragment-${part!.id}`).hover()
    await page.locator('.caption').getByText('folded by a person or a program; waits for the end of the answer').waitFor()
    expect(threads.get(PUBLIC, id).all[0]!.fragments[0]!.state.kind).toBe('folded')
    goOn()
    await page.locator('.told').getByText(`Restored ${part!.id}.`).waitFor()
    await row(page, 0).getByText('Waits…').waitFor({ state: 'detached' })
    expect(threads.get(PUBLIC, id).all[0]!.fragments[0]!.state.kind).toBe('open')
    await server.close()
  })

  it.runIf(LONG)('renames a thread, finds it by its text, and keeps the chosen colours', async () => {
    const server = await serving({ engine: () => new ScriptedEngine(() => ({ content: 'The lamp is green.' })) })
    const id = await begun(server, [user('One.'), assistant('Two.'), user('Three.')])
    await begun(server, [user('Something else.'), assistant('It is red.'), user('Why?')])
    const { page } = await open(browser, server.url, `/#/threads/${id}`)
    await page.locator('summary').filter({ hasText: 'This thread' }).click()
    await page.getByLabel('Title').fill('Numbers')
    await button(page, 'Rename').click()
    await title(page).getByText('Numbers').waitFor()
    const list = page.getByRole('navigation', { name: /^Threads/ })
    await list.getByRole('link', { name: /^Numbers/ }).waitFor()
    await list.getByLabel('Search threads').fill('it IS  red')
    await list.getByText('In the texts of 1 thread').waitFor()
    await list.getByRole('link', { name: 'Message 2: It is red' }).click()
    await title(page).getByText('Something else.').waitFor()
    await page.locator('.row.found').getByText('It is red.').waitFor()
    const ground = () => page.evaluate<string>('getComputedStyle(document.body).backgroundColor')
    const light = await ground()
    await button(page, 'Colours: system').click()
    expect(await ground()).toBe(light)
    await button(page, 'Colours: light').click()
    const dark = await ground()
    expect(dark).not.toBe(light)
    await page.reload()
    await button(page, 'Colours: dark').click()
    expect(await ground()).toBe(light)
    expect(await page.evaluate('JSON.stringify(localStorage)')).toBe('{}')
    await server.close()
  })

  it('shows, sends back and exports arguments and tools with their digits and in their order', async () => {
    const engine = new ScriptedEngine(() => ({ content: 'Read.' }))
    const server = await serving({ engine: () => engine })
    const json = '{"id":9007199254740993,"7":{"b":1.0}}'
    const fields = readJson(json) as Record<string, unknown>
    const call = { id: 'c1', name: 'look', arguments: fields }
    const tools = [{ name: 'look', description: 'Looks.', parameters: fields }]
    const messages = [
      user('Look.'),
      { ...assistant(''), toolCalls: [call] },
      { role: 'tool', content: 'R', toolCallId: 'c1' } as const,
    ]
    const { thread } = await server.service.ask({ tenant: PUBLIC, messages, tools, toolChoice: 'auto' }).answer
    const { page } = await open(browser, server.url, `/#/threads/${thread}`)
    await row(page, 1).getByText(`Calls look ${json}`).click()
    expect(await row(page, 1).locator('pre').textContent()).toContain('"id": 9007199254740993,\n  "7": {\n    "b": 1.0')
    await row(page, 1)
      .getByRole('button', { name: /^Message 2/ })
      .click()
    await page.getByText(`look(${json})`).waitFor()
    await ask(page, 'Again?')
    await row(page, 5).getByText('Read.').waitFor()
    const request = engine.requests.at(-1)!
    expect(request.messages.flatMap(({ toolCalls = [] }) => toolCalls.map(({ arguments: args }) => writeJson(args)))).toEqual([
      json,
    ])
    expect(request.tools?.map(({ parameters }) => writeJson(parameters))).toEqual([json])
    await page.locator('summary').filter({ hasText: 'This thread' }).click()
    const [download] = await Promise.all([page.waitForEvent('download'), button(page, 'Export').click()])
    const exported = readFileSync(await download.path(), 'utf8')
    expect(exported.replaceAll(/\s/g, '')).toContain(`"parameters":${json}`)
    await server.close()
  })

  it('shows a question at once, and keeps what is typed while another request runs', async () => {
    let goOn = (): void => undefined
    const held = new Promise<void>((resolve) => (goOn = resolve))
    const script: Script = async (_, step) => {
      if (step > 0) await held
      return { content: `Answer ${step}.` }
    }
    const server = await serving({ engine: () => new ScriptedEngine(script) })
    const id = await begun(server, [user('One?')])
    const { page } = await open(browser, server.url, `/#/threads/${id}`)
    await row(page, 1).getByText('Answer 0.').waitFor()
    let fetchOn = (): void => undefined
    const fetched = new Promise<void>((resolve) => (fetchOn = resolve))
    await page.route('**/export', async (route) => {
      await fetched
      await route.continue()
    })
    await button(page, 'Edit message 1').click()
    await page.getByLabel('Say instead').fill('Another one?')
    const field = page.getByLabel('Message', { exact: true })
    await field.fill('Two?')
    await button(page, 'Send').click()
    // The export has not come yet.
    const log = page.getByRole('log')
    await log.getByText('Two?', { exact: true }).waitFor()
    await button(page, 'Stop').waitFor()
    expect(await log.getByText('Answer 0.').count()).toBe(1)
    await field.fill('Three?')
    await field.press('Enter')
    await button(page, 'Ask in a branch').click({ force: true })
    expect(await field.inputValue()).toBe('Three?')
    expect(await page.getByLabel('Say instead').inputValue()).toBe('Another one?')
    const asked = page.waitForRequest('**/v1/chat/completions')
    fetchOn()
    await asked
    await button(page, 'Ask in a branch').click({ force: true })
    expect(await page.getByLabel('Say instead').inputValue()).toBe('Another one?')
    goOn()
    await row(page, 3).getByText('Answer 1.').waitFor()
    expect(await field.inputValue()).toBe('Three?')
    await button(page, 'Ask in a branch').click()
    await page.getByText('This thread, a branch').waitFor()
    await row(page, 0).getByText('Another one?').waitFor()
    expect(server.service.threads.list(PUBLIC)).toHaveLength(2)
    await server.close()
  })

  it('shows the whole conversation after a request that failed before it began', async () => {
    const { page, server } = await served(browser, (_, step) => ({ content: `Answer ${step}.` }))
    const id = await begun(server, [user('One?')])
    await page.goto(`${server.url}/#/threads/${id}`)
    await row(page, 1).getByText('Answer 0.').waitFor()
    await page.route('**/export', (route) => route.abort())
    const log = page.getByRole('log')
    const failed = log.getByRole('alert').getByText('The server does not answer.')
    await page.getByLabel('Message', { exact: true }).fill('Two?')
    await button(page, 'Send').click()
    await failed.waitFor()
    expect(await log.getByText('Two?', { exact: true }).count()).toBe(1)
    expect(await row(page, 1).getByText('Answer 0.').count()).toBe(1)
    await button(page, 'Edit message 1').click()
    await page.getByLabel('Say instead').fill('Another one?')
    await button(page, 'Ask in a branch').click()
    await log.getByText('Another one?', { exact: true }).waitFor()
    await failed.waitFor()
    expect(await row(page, 0).getByText('One?').count()).toBe(1)
    expect(await row(page, 1).getByText('Answer 0.').count()).toBe(1)
    await server.close()
  })

  it('shows what the thread has of an answer whose stream broke', async () => {
    const { page, server } = await served(browser, (_, step) => ({ content: `Answer ${step}.` }))
    const id = await begun(server, [user('One?')])
    await page.goto(`${server.url}/#/threads/${id}`)
    await row(page, 1).getByText('Answer 0.').waitFor()
    const chunks = [
      { choices: [], kvfold: { event: { type: 'started', thread: id } } },
      { choices: [{ delta: { content: 'Ans' } }] },
      { error: { code: 'engine/failed', message: 'The stream broke.' } },
    ]
    await page.route('**/v1/chat/completions', async (route) => {
      await begun(server, [user('One?'), assistant('Answer 0.'), user('Two?')])
      const body = chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join('')
      await route.fulfill({ contentType: 'text/event-stream', body })
    })
    await page.getByLabel('Message', { exact: true }).fill('Two?')
    await button(page, 'Send').click()
    const log = page.getByRole('log')
    await log.getByRole('alert').getByText('The stream broke.').waitFor()
    await row(page, 3).getByText('Answer 1.').waitFor()
    expect(await log.getByText('Two?', { exact: true }).count()).toBe(1)
    expect(await log.getByText('Ans', { exact: true }).count()).toBe(0)
    await button(page, 'Regenerate message 4').waitFor()
    await server.close()
  })

  it('keeps a thread on the page while the server fails for a moment, and tries again', async () => {
    const { page, server } = await served(browser, (_, step) => ({ content: `Answer ${step}.` }))
    const id = await begun(server, [user('One?')])
    const error = { code: 'store/failed', message: 'The store could not be read.' }
    let isFailing = true
    await page.route(`**/kvfold/threads/${id}`, (route) =>
      isFailing ? route.fulfill({ status: 500, json: { error } }) : route.continue(),
    )
    await page.goto(`${server.url}/#/threads/${id}`)
    await page.getByRole('alert').getByText(error.message).waitFor()
    isFailing = false
    await row(page, 1).getByText('Answer 0.').waitFor()
    isFailing = true
    const failed = page.waitForResponse((response) => response.url().endsWith(id) && response.status() === 500)
    await begun(server, [user('One?'), assistant('Answer 0.'), user('Two?')])
    await failed
    await row(page, 1).getByText('Answer 0.').waitFor()
    isFailing = false
    await row(page, 3).getByText('Answer 1.').waitFor()
    await server.service.threads.delete(PUBLIC, id)
    await page.getByRole('alert').getByText('This thread was deleted.').waitFor()
    await server.close()
  })

  it('stays where the user went while a question waited', async () => {
    let goOn = (): void => undefined
    const held = new Promise<void>((resolve) => (goOn = resolve))
    const script: Script = async (_, step) => {
      if (step > 0) await held
      return { content: `Answer ${step}.` }
    }
    const server = await serving({ engine: () => new ScriptedEngine(script), slots: 1 })
    const id = await begun(server, [user('One?')])
    const { page } = await open(browser, server.url)
    await page
      .getByRole('navigation', { name: /^Threads/ })
      .getByRole('link', { name: /^One/ })
      .waitFor()
    const other = begun(server, [user('Go on for long.')])
    await page.getByLabel('Message', { exact: true }).fill('Two?')
    await button(page, 'Send').click()
    await page.getByText(/^Waiting; /).waitFor()
    await page.getByRole('link', { name: /^One/ }).click()
    await row(page, 1).getByText('Answer 0.').waitFor()
    const field = page.getByLabel('Message', { exact: true })
    await field.fill('Not sent yet.')
    goOn()
    await other
    await page.getByRole('link', { name: /^Two/ }).waitFor()
    await button(page, 'Send').waitFor()
    expect(page.url()).toContain(`#/threads/${id}`)
    expect(await field.inputValue()).toBe('Not sent yet.')
    await server.close()
  })

  it('skips to the content of a thread by the keyboard', async () => {
    const server = await serving({ engine: () => new ScriptedEngine(() => ({ content: 'Yes.' })) })
    const id = await begun(server, [user('One?')])
    const { page } = await open(browser, server.url, `/#/threads/${id}`)
    await row(page, 1).getByText('Yes.').waitFor()
    await page.getByRole('link', { name: 'Skip to the content' }).focus()
    await page.keyboard.press('Enter')
    await page.locator('#main:focus').waitFor()
    expect(page.url()).toBe(`${server.url}/#/threads/${id}`)
    await row(page, 1).getByText('Yes.').waitFor()
    await server.close()
  })

  it('lists threads with their times, filters them, and deletes several', async () => {
    const server = await serving({ engine: () => new ScriptedEngine(() => ({ content: 'Yes.' })) })
    const topics = ['the lamp', 'the hat', 'a boat', 'a river', 'a tree', 'a lake']
    for (const topic of topics) await begun(server, [user(`About ${topic}.`)])
    const { page } = await open(browser, server.url)
    const list = page.getByRole('navigation', { name: /^Threads/ })
    const titles = list.locator('li .title')
    await titles.nth(5).waitFor()
    const newest = server.service.threads.list(PUBLIC)[0]!
    expect(await list.locator('time').first().getAttribute('datetime')).toBe(new Date(newest.used).toISOString())
    await list.getByLabel('Search threads').fill('ABOUT THE')
    await titles.nth(2).waitFor({ state: 'detached' })
    expect(await titles.allTextContents()).toEqual(['About the hat.', 'About the lamp.'])
    await button(page, 'Select').click()
    await button(page, 'All').click()
    await button(page, 'Delete 2 threads…').click()
    await button(page, 'Delete 2 threads for good').click()
    await page.getByText('No title has this.').waitFor()
    await list.getByLabel('Search threads').fill('')
    await titles.nth(3).waitFor()
    expect(server.service.threads.list(PUBLIC).map(({ title: each }) => each)).toEqual(
      ['a lake', 'a tree', 'a river', 'a boat'].map((topic) => `About ${topic}.`),
    )
    await server.close()
  })

  it('shows the tokens saved today', async () => {
    const { page, server } = await served(browser, () => ({ content: 'Yes.' }))
    await page.getByText('Today 0 tokens not computed').waitFor()
    await server.close()
  })
})
