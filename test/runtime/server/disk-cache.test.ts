/**
 * Tests `kvfold serve --disk-cache`. With a damaged cache the answer stays the same, and log, ledger and `/metrics` report the loss. Deleted
 * threads leave no cells.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { KVFOLD } from '../cli/support/process.js'

let folder: string

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-disk-cache-'))
})
afterEach(() => {
  rmSync(folder, { recursive: true })
})

interface Seen {
  readonly content: string
  readonly logprobs: readonly number[]
  readonly reason: string | null
  readonly fromDisk: number
  readonly metrics: string
  readonly stderr: string
}

/**
 * Runs a server, asks one question and stops it.
 * @param meanwhile runs before the question
 * @param after runs after the question, with the server's address and the question's thread
 */
async function ask(
  meanwhile: () => void = () => undefined,
  after: (url: string, thread: string) => Promise<void> = () => Promise.resolve(),
): Promise<Seen> {
  const words = ['serve', '--gpu', 'cpu', '--store', 'none', '--port', '0', '--disk-cache', folder, '--log-level', 'silent']
  const child = spawn(process.execPath, [...KVFOLD, ...words], { cwd: join(import.meta.dirname, '../../..') })
  let [stdout, stderr] = ['', '']
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text))
  child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text))
  const closed = once(child, 'close')
  try {
    await expect.poll(() => stdout, { timeout: 60_000 }).toMatch(/ at http/)
    const [url] = /http:\/\/[\d.:]+/u.exec(stdout)!
    meanwhile()
    const response = await fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({
        messages: [{ role: 'user', content: 'The first key is blue; the second key is green. '.repeat(12) }],
        temperature: 0,
        max_tokens: 6,
        logprobs: true,
        kvfold: { ledger: true },
      }),
    })
    const body = (await response.json()) as {
      readonly choices: readonly {
        readonly message: { readonly content: string }
        readonly logprobs: { readonly content: readonly { readonly logprob: number }[] }
      }[]
      readonly kvfold: {
        readonly thread: string
        readonly ledger: readonly { readonly recomputeReason: string | null; readonly tiers: { readonly disk: number } }[]
      }
    }
    expect(response.status, JSON.stringify(body)).toBe(200)
    const metrics = await (await fetch(`${url}/metrics`)).text()
    const [choice] = body.choices
    const [entry] = body.kvfold.ledger
    await after(url, body.kvfold.thread)
    child.kill('SIGTERM')
    await closed
    return {
      content: choice!.message.content,
      logprobs: choice!.logprobs.content.map(({ logprob }) => logprob),
      reason: entry!.recomputeReason,
      fromDisk: entry!.tiers.disk,
      metrics,
      stderr,
    }
  } finally {
    child.kill('SIGKILL')
    await closed
  }
}

function spoil(fromEnd: boolean): number {
  const items = readdirSync(folder).filter((name) => name.endsWith('.kvshelf'))
  for (const name of items) {
    const bytes = readFileSync(join(folder, name))
    bytes[fromEnd ? bytes.length - 100 : 100]! ^= 4
    writeFileSync(join(folder, name), bytes)
  }
  return items.length
}

const counted = ({ metrics }: Seen) => Number(/^kvfold_disk_cache_refused_total\{[^}]*\} (\d+)$/mu.exec(metrics)?.[1])

it('heads and states: refused, counted and told of, at the start or when they are read', { timeout: 240_000 }, async () => {
  const first = await ask()
  expect(counted(first)).toBe(0)
  const whole = await ask()
  expect(whole.fromDisk).toBeGreaterThan(100)
  expect(whole.stderr).not.toContain('saved sequence')
  for (const moment of ['before the start', 'before it is read', 'while it is open'] as const) {
    const isHead = moment === 'before the start'
    let items = moment === 'while it is open' ? 0 : spoil(!isHead)
    const seen = await ask(() => {
      if (moment === 'while it is open') items = spoil(true)
    })
    expect(items).toBeGreaterThan(0)
    expect(seen.content, moment).toBe(first.content)
    for (const [at, logprob] of seen.logprobs.entries())
      expect(Math.abs(logprob - first.logprobs[at]!), moment).toBeLessThan(0.02)
    expect(seen.fromDisk, moment).toBe(0)
    expect(counted(seen), moment).toBe(items)
    expect(seen.stderr.replaceAll('\n', ' '), moment).toMatch(/\d+ saved sequences? deleted \(damaged/u)
    if (!isHead) expect(seen.reason, moment).toMatch(/damaged or missing/u)
  }
})

it(
  'cells of a deleted thread are deleted while its model is not loaded, also without a store',
  { timeout: 120_000 },
  async () => {
    const items = () => readdirSync(folder).filter((name) => name.endsWith('.kvshelf')).length
    await ask(undefined, async (url, thread) => {
      const unload = { method: 'POST', headers: { 'content-type': 'application/json' }, body: '{"model":"builtin"}' }
      expect((await fetch(`${url}/models/unload`, unload)).status).toBe(200)
      expect(items()).toBeGreaterThan(0)
      expect((await fetch(`${url}/kvfold/threads/${thread}`, { method: 'DELETE' })).status).toBe(200)
      expect(items()).toBe(0)
    })
  },
)
