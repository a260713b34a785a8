/** Runs a browser against the dashboard's files, built from the sources, for tests of what a person sees. */
import { execFile } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { chromium, type Browser, type Locator, type Page } from 'playwright-core'

const ROOT = join(import.meta.dirname, '../../../..')

/** Debian's browser; playwright-core brings none of its own. */
const CHROMIUM = '/usr/bin/chromium'

/** The reason why no test can run in a browser, or null when tests can. */
export const missing: string | null = existsSync(CHROMIUM) ? null : `there is no ${CHROMIUM}; apt-get install chromium`

export const launch = (): Promise<Browser> => chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] })

const BUILT = join(ROOT, 'dist/dashboard')

/**
 * Builds the dashboard from the current sources. Several builds may run at once: each file is replaced as a whole, the page that names them
 * last.
 */
export async function build(): Promise<void> {
  mkdirSync(join(ROOT, 'build'), { recursive: true })
  const own = mkdtempSync(join(ROOT, 'build/dashboard-'))
  try {
    const vite = ['node_modules/vite/bin/vite.js', 'build', 'src/runtime/dashboard', '--logLevel', 'error', '--outDir', own]
    await promisify(execFile)(process.execPath, vite, { cwd: ROOT, env: { ...process.env, NODE_ENV: 'production' } })
    mkdirSync(join(BUILT, 'assets'), { recursive: true })
    for (const name of readdirSync(join(own, 'assets'))) renameSync(join(own, 'assets', name), join(BUILT, 'assets', name))
    renameSync(join(own, 'index.html'), join(BUILT, 'index.html'))
  } finally {
    rmSync(own, { recursive: true })
  }
}

/** A page, and its errors. */
export interface Watched {
  readonly page: Page
  /** Errors of scripts and of the console. */
  readonly errors: string[]
  /** The origins of all requests. */
  readonly origins: ReadonlySet<string>
}

export async function open(browser: Browser, url: string, hash = ''): Promise<Watched> {
  const context = await browser.newContext({ viewport: { width: 1400, height: 1000 }, colorScheme: 'light' })
  await context.grantPermissions(['clipboard-read', 'clipboard-write'])
  const page = await context.newPage()
  page.setDefaultTimeout(45_000)
  const errors: string[] = []
  const origins = new Set<string>()
  page.on('pageerror', ({ message }) => errors.push(message))
  page.on('console', (message) => {
    if (message.type() === 'error') errors.push(message.text())
  })
  page.on('request', (request) => origins.add(new URL(request.url()).origin))
  await page.goto(url + hash)
  return { page, errors, origins }
}

/** Presses Tab until the element has the focus, to check that it can be reached without a mouse. */
export async function tabTo(page: Page, target: Locator): Promise<void> {
  for (let presses = 0; presses < 60; presses++) {
    if (await hasFocus(page, target)) return
    await page.keyboard.press('Tab')
  }
  throw new Error('Tab does not get there.')
}

export const hasFocus = async (page: Page, target: Locator): Promise<boolean> =>
  (await target.and(page.locator(':focus')).count()) === 1

/** Finds the fragment or message in the context bar. */
export const stop = (page: Page, key: string): Locator => page.locator(`[data-stop="${key}"]`)

/** Opens one of the thread's tabs. */
export const tab = (page: Page, name: 'Chat' | 'Steps' | 'Attention' | 'Search'): Promise<void> =>
  page.getByRole('navigation', { name: 'Of this thread' }).getByRole('link', { name }).click()

/** Finds a message of the conversation by its index. */
export const row = (page: Page, index: number): Locator => page.locator(`[data-row="${index}"]`)

/** Asks in the chat, and waits for the end of the answer. */
export async function ask(page: Page, text: string): Promise<void> {
  await page.getByLabel('Message', { exact: true }).fill(text)
  // The page sends nothing before it knows the server's models.
  await page.getByRole('button', { name: 'Send', exact: true, disabled: false }).waitFor()
  await page.keyboard.press('Enter')
  await page.getByText(/prompt tokens?, .* cached/).waitFor()
}
