/** Tests starting and stopping `kvfold serve` in a separate process. */
import { spawn, type ChildProcess } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { request as plain, type IncomingMessage, type RequestOptions } from 'node:http'
import { request as secure } from 'node:https'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { KVFOLD, kvfold } from '../cli/support/process.js'
import { selfSigned } from './support/self-signed.js'
import { endless } from './support/serving.js'

const ROOT = join(import.meta.dirname, '../../..')
let folder: string
const children = new Set<ChildProcess>()

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-serve-'))
})
afterEach(() => {
  for (const child of children) child.kill('SIGKILL')
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

interface Started {
  readonly child: ChildProcess
  /** The address in the first line, after `at`. */
  readonly where: string
  readonly ended: Promise<{ code: number | null; signal: string | null; stderr: string }>
}

/** Resolves when the server prints its address. */
function start(...words: readonly string[]): Promise<Started> {
  const child = spawn(process.execPath, [...KVFOLD, 'serve', '--gpu', 'cpu', '--store', folder, ...words], { cwd: ROOT })
  children.add(child)
  let stderr = ''
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text))
  const ended = new Promise<{ code: number | null; signal: string | null; stderr: string }>((resolve) => {
    child.on('close', (code, signal) => {
      children.delete(child)
      resolve({ code, signal, stderr })
    })
  })
  return new Promise((resolve, reject) => {
    let stdout = ''
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      stdout += text
      const where = /serves \S+.* at (\S+)\n/.exec(stdout)?.[1]
      if (where !== undefined) resolve({ child, where, ended })
    })
    void ended.then(() => {
      reject(new Error(`ended: ${stdout}${stderr}`))
    })
  })
}

function get(
  send: typeof plain,
  options: RequestOptions & { ca?: string },
): Promise<{ status: number | undefined; body: string }> {
  return new Promise((resolve, reject) => {
    const request = send({ path: '/v1/models', ...options }, (answer: IncomingMessage) => {
      let body = ''
      answer.setEncoding('utf8').on('data', (text: string) => (body += text))
      answer.on('end', () => {
        resolve({ status: answer.statusCode, body })
      })
    })
    request.on('error', reject).end()
  })
}

const long = { messages: [{ role: 'user', content: 'Go on.' }], max_tokens: 3500, stream: true, ...endless }
const chat = (url: string, body: object) =>
  fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })

// A process may have to translate the sources first.
describe('kvfold serve', { timeout: 180_000 }, () => {
  it('serves until a signal: the first one lets streams end, and the exit code is 0', async () => {
    const { child, where, ended } = await start('--port', '0', '--grace', '0.5', '--model', 'small=builtin', '--model', 'builtin')
    expect(where).toMatch(/^http:\/\/127\.0\.0\.1:\d+$/)
    const models = (await (await fetch(`${where}/v1/models`)).json()) as { data: { id: string }[] }
    expect(models.data.map(({ id }) => id)).toEqual(['small', 'builtin'])
    const answer = (await (await chat(where, { ...long, stream: false, max_tokens: 2, model: 'builtin' })).json()) as {
      model: string
    }
    expect(answer.model).toBe('builtin')
    const stream = await chat(where, long)
    const text = stream.text()
    child.kill('SIGTERM')
    expect((await text).trimEnd().endsWith('data: [DONE]')).toBe(true)
    const { code, stderr } = await ended
    expect(code).toBe(0)
    expect(stderr).toContain('Shutting down')
    expect(stderr).toContain('"status":200')
  })

  it('goes on when nothing reads its output any more', async () => {
    const { child, where, ended } = await start('--port', '0', '--grace', '0.5')
    child.stdout!.destroy()
    child.stderr!.destroy()
    // Every answer is a line in the log.
    for (let times = 0; times < 3; times++) expect((await fetch(`${where}/v1/models`)).status).toBe(200)
    child.kill('SIGTERM')
    expect((await ended).code).toBe(0)
  })

  it('accepts any model name on request, and prints at its start who can reach it and its settings', async () => {
    const words = [
      '--alias',
      'gpt-5',
      '--alias',
      '*',
      '--contract',
      'splice',
      '--acm',
      'auto-policy',
      '--overflow',
      'fold-oldest',
    ]
    const { child, where, ended } = await start(
      '--port',
      '0',
      '--host',
      '0.0.0.0',
      '--api-key',
      'sk-a',
      '--api-key',
      'sk-b',
      ...words,
    )
    const headers = { authorization: 'Bearer sk-a', 'content-type': 'application/json' }
    const body = JSON.stringify({ model: 'claude-9', messages: [{ role: 'user', content: 'Hi.' }], max_tokens: 1 })
    const answer = await fetch(`${where}/v1/chat/completions`, { method: 'POST', headers, body })
    expect(await answer.json()).toMatchObject({ model: 'builtin' })
    const model = await fetch(`${where}/v1/models/claude-9`, { headers })
    expect(await model.json()).toMatchObject({ id: 'builtin', aliases: ['gpt-5', '*'] })
    child.kill('SIGTERM')
    const { stderr } = await ended
    const said = stderr.replace(/\s+/g, ' ')
    expect(said).toContain('Loading builtin ...')
    // Each address once.
    expect(said.split(`${where}/v1`)).toHaveLength(2)
    expect(said).toContain(`Programs use ${where}/v1, and a browser opens ${where}/ for the dashboard.`)
    expect(said).toContain('It needs an API key, and each of the 2 sees its own threads.')
    expect(said).toContain('builtin is also called gpt-5. Every other model name means builtin.')
    expect(said).toContain('contract splice, acm auto-policy, overflow fold-oldest, client edits exact.')
  })

  it('ends at once at the second signal', async () => {
    const { child, where, ended } = await start('--port', '0', '--grace', '600', '--log-level', 'silent')
    const stream = await chat(where, long)
    child.kill('SIGINT')
    await expect.poll(async () => await (await fetch(`${where}/health`)).json()).toEqual({ status: 'closing' })
    child.kill('SIGINT')
    expect((await ended).code).toBe(130)
    await stream.text().catch(() => undefined)
  })

  it('listens on a UNIX socket that only its owner can open, even if a dead server left one', async () => {
    const path = join(folder, 'kvfold.sock')
    const first = await start('--unix-socket', path)
    expect(statSync(path).mode & 0o777).toBe(0o600)
    expect((await get(plain, { socketPath: path, headers: { host: 'anything' } })).status).toBe(200)
    first.child.kill('SIGKILL')
    await first.ended
    const second = await start('--unix-socket', path)
    expect((await get(plain, { socketPath: path })).status).toBe(200)
    const third = await kvfold(['serve', '--gpu', 'cpu', '--store', join(folder, 'other'), '--unix-socket', path])
    expect([third.code, third.stderr]).toEqual([2, expect.stringMatching(/Cannot listen on.*another path with --unix-socket/)])
    second.child.kill('SIGTERM')
    expect((await second.ended).code).toBe(0)
  })

  it('leaves a file alone that is no socket', async () => {
    const path = join(folder, 'notes.txt')
    writeFileSync(path, 'years of work')
    const { code, stderr } = await kvfold(['serve', '--gpu', 'cpu', '--store', join(folder, 'none'), '--unix-socket', path])
    expect([code, stderr]).toEqual([2, expect.stringMatching(/exists and is no socket/)])
    expect(readFileSync(path, 'utf8')).toBe('years of work')
  })

  it('uses TLS and keys from a file', async () => {
    const { cert, key } = selfSigned()
    const [certFile, keyFile, keysFile] = [join(folder, 'cert.pem'), join(folder, 'key.pem'), join(folder, 'keys')]
    writeFileSync(certFile, cert)
    writeFileSync(keyFile, key)
    writeFileSync(keysFile, '# who may ask\nanna:sk-anna\n\nsk-alone\n')
    const { where, child, ended } = await start(
      '--port',
      '0',
      '--tls-cert',
      certFile,
      '--tls-key',
      keyFile,
      '--api-keys-file',
      keysFile,
    )
    const { port, protocol } = new URL(where)
    expect(protocol).toBe('https:')
    const ask = (headers: Record<string, string>) => get(secure, { host: 'localhost', port, ca: cert, headers })
    expect((await ask({})).status).toBe(401)
    expect((await ask({ authorization: 'Bearer sk-anna' })).status).toBe(200)
    expect((await ask({ 'x-api-key': 'sk-alone' })).status).toBe(200)
    child.kill('SIGTERM')
    expect((await ended).code).toBe(0)
  })

  it.each([
    [['--tls-cert', 'a.pem'], 'go together'],
    [['--api-keys-file', '/dev/null'], 'has no key'],
    [['--model', 'builtin', '--model', 'x/builtin.gguf'], 'Two models are called builtin'],
    [['--alias', 'gpt=other'], 'names a model that is not served'],
  ])('refuses %j', async (words, says) => {
    const { code, stderr } = await kvfold(['serve', ...words])
    expect(code).toBe(2)
    expect(stderr.replace(/\s+/g, ' ')).toContain(says)
  })

  it('embeds by an ONNX model on a thread, and by a GGUF texts as long as asked', async () => {
    const embedded = async (where: string, input: string) => {
      const answer = await fetch(`${where}/v1/embeddings`, { method: 'POST', body: JSON.stringify({ input }) })
      return { status: answer.status, body: (await answer.json()) as { model?: string; usage?: { total_tokens: number } } }
    }
    const onnx = await start('--port', '0', '--embeddings', `mini=${join(ROOT, 'native-models/builtin/onnx')}`)
    expect(await embedded(onnx.where, 'A text.')).toMatchObject({ status: 200, body: { model: 'mini' } })
    onnx.child.kill('SIGTERM')
    expect(await onnx.ended).toMatchObject({ code: 0 })
    const long = await start('--port', '0', '--embeddings', '--embedding-tokens', '3000')
    const { status, body } = await embedded(long.where, 'one two three four five. '.repeat(350))
    expect([status, body.usage!.total_tokens > 2048]).toEqual([200, true])
    long.child.kill('SIGTERM')
    expect(await long.ended).toMatchObject({ code: 0 })
  })

  it('says at the start that the first model cannot be loaded', async () => {
    const { code, stderr } = await kvfold([
      'serve',
      '--gpu',
      'cpu',
      '--store',
      folder,
      '--port',
      '0',
      '--model',
      '/nowhere/model.gguf',
    ])
    expect([code, stderr]).toEqual([1, expect.stringContaining('model/not-found')])
  })
})
