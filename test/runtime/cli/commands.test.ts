/** Tests the commands as processes: exit codes, streams, bad input, on tiny models with random weights. */
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
  copyFileSync,
} from 'node:fs'
import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { LedgerEntry } from '../../../src/runtime/kv/ledger.js'
import { SqliteStore } from '../../../src/runtime/store/sqlite-store.js'
import { mambaModel, tinyModel } from '../../support/models.js'
import { someCard, someThread } from '../store/support/threads.js'
import { KVFOLD, kvfold, kvfoldHere, type Outcome } from './support/process.js'
import { LONG } from '../../support/long.js'

/** Options for one thread: more threads than free cores make tiny models wait. */
const ONE = ['--threads', '1']

let model: string
let folder: string

beforeAll(async () => {
  model = await tinyModel()
  folder = mkdtempSync(join(tmpdir(), 'kvfold-cli-'))
})

afterAll(() => {
  rmSync(folder, { recursive: true })
})

const file = (name: string, content: string): string => {
  const path = join(folder, name)
  writeFileSync(path, content)
  return path
}

/** Checks for one line on stderr, and no stack. */
function expectFailure({ code, stdout, stderr }: Outcome, exit: number, line: RegExp): void {
  expect(stderr.trimEnd().split('\n').at(-1)).toMatch(line)
  expect(stderr).not.toMatch(/^\s+at /m)
  expect(stdout).toBe('')
  expect(code).toBe(exit)
}

/** Checks several commands, which run in parallel. */
async function expectFailures(exit: number, failures: readonly (readonly [readonly string[], RegExp])[]): Promise<void> {
  const outcomes = await Promise.all(failures.map(([words]) => kvfoldHere(words)))
  for (const [index, outcome] of outcomes.entries()) expectFailure(outcome, exit, failures[index]![1])
}

function expectBalanced(ledger: readonly LedgerEntry[]): void {
  expect(ledger.length).toBeGreaterThan(0)
  for (const entry of ledger) {
    expect(entry.reused + entry.recomputed + entry.fresh).toBe(entry.shown)
    expect(entry.recomputed + entry.fresh + entry.side).toBe(entry.submitted)
  }
}

const RunOutput = (text: string) =>
  JSON.parse(text) as { answer: string; finish: string; ledger: LedgerEntry[]; calls: unknown[]; timing: Record<string, number> }

describe('a recorded conversation', () => {
  const recorded = () =>
    file(
      'session.jsonl',
      [
        { type: 'response_item', payload: { type: 'message', role: 'user', content: [{ type: 'input_text', text: 'abc' }] } },
        {
          type: 'response_item',
          payload: { type: 'message', role: 'assistant', content: [{ type: 'output_text', text: 'def' }] },
        },
        { type: 'response_item', payload: { type: 'message', role: 'user', content: [{ type: 'input_text', text: 'ghi' }] } },
      ]
        .map((line) => JSON.stringify(line))
        .join('\n'),
    )
  const begin = (path: string) => ['--model', model, ...ONE, '--max-tokens', '2', '--temperature', '0', '--transcript', path]

  it('is continued by run, with a prompt and without, and with its folds', async () => {
    const messages = [
      { role: 'user', content: 'abc '.repeat(50) },
      { role: 'assistant', content: 'def' },
    ]
    const [whole, folded] = [{ messages }, { messages, folds: [{ message: 0 }] }].map((body, at) =>
      file(`${at}.json`, JSON.stringify(body)),
    )
    const outcomes = await Promise.all([
      kvfoldHere(['run', '--json', ...begin(recorded())]),
      kvfoldHere(['run', '--json', '-p', 'x', ...begin(whole!)]),
      kvfoldHere(['run', '--json', '-p', 'x', ...begin(folded!)]),
    ])
    const entries = outcomes.map(({ stdout }) => RunOutput(stdout).ledger[0]!)
    const users = entries.map((entry) => entry.messages.filter(({ role }) => role === 'user').length)
    expect(users).toEqual([2, 2, 2])
    expect(entries[2]!.shown).toBeLessThan(entries[1]!.shown)
  })

  it('is continued by chat, until /clear', async () => {
    const { stdout, code } = await kvfoldHere(['chat', '--no-tools', ...begin(recorded())], {
      input: '/messages\n/clear\n/messages\n',
    })
    expect(code).toBe(0)
    const [before, after] = stdout.split('A new conversation.')
    expect(before).toMatch(/abc[^]*def[^]*ghi/)
    expect(after).not.toMatch(/abc/)
  })

  it('stays folded if it is an export of ours', async () => {
    const text = 'abc '.repeat(500)
    const messages = [text, 'def'].map((content, at) => ({ message: { role: at === 0 ? 'user' : 'assistant', content } }))
    const fragment = { id: 'f12345', message: 0, span: { start: 0, end: text.length }, state: { kind: 'folded' } }
    const edits = { fragments: [fragment], searches: [], ids: 1 }
    const path = file('exported.json', JSON.stringify({ format: 'kvfold-thread/1', id: 't', messages, edits }))
    const [ran, chatted, planned] = await Promise.all([
      kvfoldHere(['run', '--json', '-p', 'x', ...begin(path)]),
      kvfoldHere(['chat', '--no-tools', ...begin(path)], { input: '/messages\n' }),
      kvfoldHere(['plan', path, '--model', model, ...ONE]),
    ])
    expect(RunOutput(ran.stdout).ledger[0]!.shown).toBeLessThan(100)
    expect(chatted.stdout).toMatch(/f12345 +folded/)
    expect(planned.stderr).toMatch(/no text that an agent would fold/)
  })

  it('is refused in words if it is invalid', async () => {
    await expectFailures(2, [
      [['run', '--transcript', file('not.json', '{"type":')], /The transcript .*not\.json cannot be used: it is not JSON/],
    ])
  })
})

describe('usage', () => {
  it('is explained by --help', async () => {
    const { code, stdout } = await kvfold(['--help'])
    expect(code).toBe(0)
    for (const command of ['demo', 'chat', 'run', 'model']) expect(stdout).toMatch(new RegExp(`^ {2}${command}\\b`, 'm'))
  })

  it('is refused with exit code 2 and the bounds', async () => {
    const wrong: readonly (readonly [readonly string[], RegExp])[] = [
      [['run', '--context', 'lots', '-p', 'x'], /whole number from 8 to/],
      [['run', '--temperature', '-3', '-p', 'x'], /number from 0 to 100/],
      [['demo', '--tokens', '4'], /whole number from 200 to/],
      [['run', '--raw', '--tools', '-p', 'x'], /cannot be used with option/],
      [['calibrate', '--quick', '--fidelity'], /cannot be used with option/],
      [['calibrate', '--questions', '9'], /--questions needs --fidelity/],
      [['fold'], /unknown command/],
      [['compile', '--cuda-architectures', '90'], /--cuda-architectures needs --gpu cuda/],
      [['compile', '--gpu', 'metal'], /Allowed choices are cpu, cuda, vulkan/],
      [['serve', '--models', folder, '--lora', 'a.gguf'], /--lora belongs to the first --model/],
      [['serve', '--model', model, '--lora', model], /given to --lora, is the model itself and no adapter; give a LoRA/],
      [['serve', '--engine', 'http://127.0.0.1:9', '--lora', 'a.gguf'], /cannot be used with option/],
    ]
    const outcomes = await Promise.all(wrong.map(([words]) => kvfold(words)))
    for (const [index, { code, stdout, stderr }] of outcomes.entries()) {
      const [words, reason] = wrong[index]!
      expect(stderr, words.join(' ')).toMatch(reason)
      expect(stderr).toMatch(/^kvfold: /)
      expect(stdout).toBe('')
      expect(code).toBe(2)
    }
  })

  it('needs a prompt that can be read', async () => {
    await expectFailures(2, [
      [['run', '--model', model], /The prompt is empty.*\[cli\/bad-usage\]$/],
      [['run', join(folder, 'none.txt')], /none\.txt.*cannot be read \(ENOENT\)/],
      [['run', '-p', 'x', '--schema', file('bad.json', '{"type":')], /bad\.json given to --schema is not JSON/],
    ])
  })
})

describe('bad models', () => {
  it('give one line each', async () => {
    const cut = join(folder, 'cut.gguf')
    copyFileSync(model, cut)
    truncateSync(cut, 100_000)
    const notes = file('notes.gguf', 'Not a model, but notes about one.\n')
    const nowhere = join(folder, 'none.gguf')
    await expectFailures(1, [
      [['model', 'info', notes], /^kvfold: .*notes\.gguf.* \[model\/bad-file\]$/],
      [['run', '-p', 'x', '--model', nowhere], /There is no file .*none\.gguf.* \[model\/not-found\]$/],
      [['run', '-p', 'x', '--model', cut], /\[model\/bad-file\]$/],
      [['run', '-p', 'x', '--model', folder], /\[model\/(bad-file|not-found)\]$/],
      [['run', '-p', 'x', '--model', model, '--lora', model], /is not an adapter.* \[model\/bad-file\]$/],
      [['run', '-p', 'x', '--model', model, '--lora', notes], /notes\.gguf.* \[model\/bad-file\]$/],
    ])
  })

  it('with a recurrent state run, and their limits are named once', async () => {
    const mamba = await mambaModel()
    const [{ code, stderr }, { stdout }] = await Promise.all([
      // This command uses the default number of threads.
      kvfoldHere(['run', '-p', 'x', '--model', mamba, '--max-tokens', '3']),
      kvfoldHere(['model', 'info', mamba]),
    ])
    expect(code).toBe(0)
    expect(stderr.match(/mamba keeps a recurrent state.*Splice and blend are not available/g)).toHaveLength(1)
    expect(stdout).toMatch(/^edits exact +yes: the text after an edit is computed again/m)
    expect(stdout).toMatch(/^note +mamba keeps a recurrent state/m)
  })

  it('without a chat template only complete raw text', async () => {
    const bare = await tinyModel({ chatTemplate: null })
    const [asked, begun, { code, stdout }] = await Promise.all([
      kvfoldHere(['run', '-p', 'Hello', '--model', bare]),
      kvfoldHere(['chat', '--model', bare], { input: 'Hello\n' }),
      kvfoldHere(['run', '--raw', '-p', 'Hello', '--model', bare, '--max-tokens', '5', '--json', ...ONE]),
    ])
    expectFailure(asked, 1, /no chat template.*\[model\/no-chat-template\]$/)
    expectFailure(begun, 1, /\[model\/no-chat-template\]$/)
    expect(code).toBe(0)
    expectBalanced(RunOutput(stdout).ledger)
  })

  it('larger than memory are refused before anything is allocated', async () => {
    expectFailure(
      await kvfoldHere(['run', '-p', 'x', '--model', model, '--context', '1000000000']),
      1,
      /\[memory\/insufficient\]$/,
    )
  })
})

describe('run', () => {
  it('answers the same as text and as JSON, with a ledger that balances', async () => {
    const words = ['run', '--model', model, '--max-tokens', '12', '-p', 'Hello there', ...ONE]
    const [text, json] = await Promise.all([kvfold(words), kvfold([...words, '--json'])])
    expect(json).toMatchObject({ code: 0, stderr: '' })
    const { answer, ledger, timing, calls } = RunOutput(json.stdout)
    expectBalanced(ledger)
    expect(ledger).toHaveLength(1)
    expect(ledger[0]).toMatchObject({ reused: 0, recomputed: 0, kind: 'answer' })
    expect(timing['generatedTokens']).toBeLessThanOrEqual(12)
    expect(calls).toEqual([])
    expect(text.stdout.trimEnd()).toBe(answer.trimEnd())
    expect(text.stderr).toMatch(/\d+ tokens in context, 0 reused, 0 recomputed, \d+ new/)
    // eslint-disable-next-line no-control-regex -- no colours in a pipe
    expect(text.stdout.replace(answer, '') + text.stderr).not.toMatch(/\u001b\[/)
  })

  it('calls tools when the first step must, and accounts for every step', async () => {
    const { code, stdout } = await kvfold([
      'run',
      '--json',
      '--tools',
      '--model',
      model,
      '--max-tokens',
      '60',
      '-p',
      'Fold something.',
      ...ONE,
    ])
    expect(code).toBe(0)
    const { ledger, calls } = RunOutput(stdout)
    expectBalanced(ledger)
    expect(Array.isArray(calls)).toBe(true)
  })

  it('keeps to a schema', async () => {
    const schema = file(
      'schema.json',
      JSON.stringify({ type: 'object', properties: { ok: { type: 'boolean' } }, required: ['ok'] }),
    )
    const { stdout } = await kvfold([
      'run',
      '--json',
      '--model',
      model,
      '--schema',
      schema,
      '--max-tokens',
      '200',
      '-p',
      'Is it?',
      ...ONE,
    ])
    const { answer, finish } = RunOutput(stdout)
    if (finish === 'stop') expect(typeof (JSON.parse(answer) as { ok: unknown }).ok).toBe('boolean')
    else expect(answer).toMatch(/^\s*\{/)
  })

  it('says quickly that 5 MB do not fit', async () => {
    const input = 'All work and no play makes a long message. '.repeat(120_000)
    for (const outcome of await Promise.all([model, 'builtin'].map((name) => kvfold(['run', '--model', name], { input })))) {
      expectFailure(outcome, 1, /context.*\[context\/full\]$/)
      expect(outcome.milliseconds).toBeLessThan(30_000)
    }
  })

  it('survives a reader that closes the pipe', async () => {
    // The answer is so long that much is left when the reader stops.
    const endless = ['--grammar', file('endless.gbnf', 'root ::= [a-z ] root'), '--max-tokens', '3000']
    const { code, stderr } = await kvfold(['run', '--model', model, ...endless, '-p', 'Once', ...ONE], { hangUp: true })
    expect(stderr).toBe('')
    expect(code).toBe(0)
  })
})

describe('Ctrl-C in the middle of a prefill', () => {
  it('ends with 130, quickly and without a stack', async () => {
    const slow = await tinyModel({ layers: 12, embedding: 512, heads: 8, kvHeads: 8, feedForward: 2048, context: 32768 })
    const input = 'one two three four five six seven eight nine ten '.repeat(600)
    const outcome = await kvfold(['run', '--model', slow, ...ONE], { input, interruptAfter: 5000 })
    expectFailure(outcome, 130, /^kvfold: interrupted/)
    expect(outcome.milliseconds).toBeLessThan(3000)
  })
})

describe('model', () => {
  it('synth writes what info reads', async () => {
    const out = join(folder, 'made.gguf')
    const made = await kvfoldHere([
      'model',
      'synth',
      out,
      '--layers',
      '3',
      '--embedding',
      '96',
      '--heads',
      '6',
      '--kv-heads',
      '2',
      '--vocabulary',
      '500',
      '--context',
      '1024',
    ])
    expect(made).toMatchObject({ code: 0, stderr: '' })
    const [{ code, stdout }, { stdout: lines }] = await Promise.all([
      kvfoldHere(['model', 'info', out, '--json']),
      kvfoldHere(['model', 'info', out]),
    ])
    expect(code).toBe(0)
    expect(JSON.parse(stdout)).toMatchObject({
      architecture: 'llama',
      layers: 3,
      embedding: 96,
      heads: 6,
      kvHeads: 2,
      vocabulary: 500,
      trainedContext: 1024,
      edits: { exact: true },
      template: { kind: 'usable' },
      // the product: 3 layers x 2 heads x 16 wide x keys and values x 2 bytes
      cacheBytesPerToken: 384,
    })
    expect(lines).toMatch(/^edits exact +yes: /m)
    expect(lines).toMatch(/^KV cache +about 384 B a token/m)
  })

  it('synth refuses impossible shapes and places', async () => {
    const [shape, place] = await Promise.all([
      kvfoldHere(['model', 'synth', join(folder, 'x.gguf'), '--heads', '5']),
      kvfoldHere(['model', 'synth', join(folder, 'no', 'x.gguf')]),
    ])
    expectFailure(shape, 1, /not a multiple of 5 heads/)
    expectFailure(place, 2, /cannot be written \(ENOENT\)/)
  })
})

describe('chat through a pipe', () => {
  it('takes each line as a turn or a command', async () => {
    const saved = join(folder, 'talk.json')
    const input = [
      'Hello',
      '/ledger',
      '/messages',
      '/fragment 1 2',
      '/fold nothing',
      '/nonsense',
      `/save ${saved}`,
      'Again',
      '/ledger',
      '/exit',
      'never sent',
    ].join('\n')
    const { code, stdout, stderr } = await kvfold(['chat', '--no-tools', '--model', model, '--max-tokens', '8', ...ONE], {
      input,
    })
    expect(stderr).toBe('')
    expect(code).toBe(0)
    expect(stdout).toMatch(/tokens in context, 0 reused, 0 recomputed/)
    expect(stdout).toMatch(/step +kind +contract +shown/)
    expect(stdout).toMatch(/^ {2}1 {2}user .*5 characters/m)
    expect(stdout).toMatch(/2 fragments: f[0-9a-f]{5} f[0-9a-f]{5}/)
    expect(stdout).toContain('There is no fragment "nothing"')
    expect(stdout).toContain('There is no command /nonsense')
    const { conversation, ledger } = JSON.parse(readFileSync(saved, 'utf8')) as {
      conversation: { messages: { content: string }[] }
      ledger: LedgerEntry[]
    }
    expect(conversation.messages.map(({ content }) => content)[0]).toBe('Hello')
    expectBalanced(ledger)
    // The second turn reuses the first.
    expect(stdout).toMatch(/^ +0 +answer +exact +\d+ +0 .*\n +1 +answer +exact +\d+ +[1-9]/m)
    expect(stdout).not.toContain('never sent')
  })
})

describe('demo', () => {
  const short = ['--tokens', '7000', '--context', '2048', '--seed', '5']

  it('ends with one line of JSON: a conversation longer than the context, and what it took', async () => {
    const { code, stdout, stderr } = await kvfoldHere(['demo', ...short, '--json'])
    expect(stderr).toBe('')
    expect(code).toBe(0)
    const told = JSON.parse(stdout.trimEnd().split('\n').at(-1) ?? '') as DemoLine
    expect(Object.keys(told)).toEqual(['conversationTokens', 'cells', 'asked', 'right', 'computed', 'prefixCache', 'seconds'])
    const { conversationTokens, cells, asked, right, computed, prefixCache } = told
    expect(cells).toBe(2048)
    expect(conversationTokens).toBeGreaterThan(3 * cells)
    expect(asked).toBe(46)
    // A window this short does not have the last value of every key.
    expect(right).toBeGreaterThan(23)
    // Every token is computed about once; a prefix cache computes what is behind each fold again.
    expect(computed).toBeLessThan(1.2 * conversationTokens)
    expect(prefixCache.computed).toBeGreaterThan(1.4 * computed)
  })

  it('says in plain words what it showed', async () => {
    const { code, stdout } = await kvfold(['demo', ...short])
    expect(code).toBe(0)
    // eslint-disable-next-line no-control-regex -- no escape sequences at all
    expect(stdout).not.toMatch(/\u001b/)
    expect(stdout).toMatch(/^Sent at once it is refused: .*2048 cells/m)
    expect(stdout).toMatch(/^ +[\d,]+ +[\d,]+ +\d+ tokens, [\d.]+ m?s +[\d,]+ tokens, about [\d.]+ m?s$/m)
    expect(stdout).toMatch(/^The conversation has [\d,]+ tokens, 3\.\d times the context, and it went on\.$/m)
    expect(stdout).toMatch(/^\d+ folds computed \d+ tokens, .* a prefix cache computes [\d,]+ tokens/m)
    expect(stdout).toMatch(/None of its \d+ tokens was computed again/)
  })

  it.runIf(LONG)('under exact folds cost about what they cost a prefix cache', async () => {
    const { stdout } = await kvfoldHere(['demo', ...short, '--contract', 'exact', '--json'])
    const { computed, prefixCache } = JSON.parse(stdout) as DemoLine
    expect(computed).toBeLessThan(prefixCache.computed)
    expect(computed).toBeGreaterThan(0.8 * prefixCache.computed)
  })

  it('says so when the stream fits into the context', async () => {
    const { stdout } = await kvfoldHere(['demo', '--tokens', '600'])
    expect(stdout).toMatch(/This stream fits into the context/)
    expect(stdout).toMatch(/which the context holds/)
  })
})

interface DemoLine {
  readonly conversationTokens: number
  readonly cells: number
  readonly asked: number
  readonly right: number
  readonly computed: number
  readonly prefixCache: { readonly computed: number }
}

describe('the first words', () => {
  it('without a command are five things to do, and no error', async () => {
    const { code, stdout, stderr } = await kvfoldHere([])
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' })
    expect(stdout.match(/^ {2}kvfold \w+/gm)).toEqual(
      ['demo', 'chat', 'serve', 'plan', 'doctor'].map((name) => `  kvfold ${name}`),
    )
  })
})

describe.runIf(existsSync('/dev/full'))('output that a full disk takes', () => {
  it('ends with one line that says so', async () => {
    const command = [process.execPath, ...KVFOLD, 'help'].map((word) => `'${word}'`).join(' ')
    const failed = promisify(execFile)('sh', ['-c', `${command} > /dev/full`])
    await expect(failed).rejects.toMatchObject({
      code: 1,
      stderr: expect.stringMatching(/^kvfold cannot write its output: ENOSPC.*\n$/) as string,
    })
  })
})

describe('output that a slow reader takes', () => {
  /** Counts the bytes that a reader gets who waits after the first byte. A pipe of the shell holds less than one of Node's. */
  const counted = async (words: readonly string[], environment: Readonly<Record<string, string>> = {}) => {
    const command = [process.execPath, ...KVFOLD, ...words].map((word) => `'${word}'`).join(' ')
    const script = `${command} | (dd bs=1 count=1 2>/dev/null; sleep 1; cat) | wc -c`
    const { stdout } = await promisify(execFile)('sh', ['-c', script], { env: { ...process.env, ...environment } })
    const whole = await kvfoldHere(words, { environment })
    return { counted: Number(stdout), whole: Buffer.byteLength(whole.stdout) }
  }

  it('is whole in kvfold list', async () => {
    const models = join(folder, 'many')
    mkdirSync(models)
    for (let at = 0; at < 3000; at++) writeFileSync(join(models, `${'long-name-'.repeat(9)}${at}.gguf`), 'x')
    const list = await counted(['list'], { KVFOLD_MODELS: models })
    expect(list.whole).toBeGreaterThan(200_000)
    expect(list.counted).toBe(list.whole)
  })

  it('is whole in kvfold store export', async () => {
    const place = join(folder, 'large')
    const store = SqliteStore.open({ folder: place })
    for (let seed = 0; seed < 6; seed++) {
      const stored = { message: { role: 'user', content: 'long '.repeat(60_000) }, seen: 'same' } as const
      await store.create({ ...someThread(seed), messages: [stored] }, someCard(seed))
    }
    await store.close()
    const threads = await counted(['store', 'export', '--store', place])
    expect(threads.whole).toBeGreaterThan(1_500_000)
    expect(threads.counted).toBe(threads.whole)
  })
})

describe('store export', () => {
  it('leaves no file behind when it fails, and replaces none', async () => {
    const empty = join(folder, 'empty')
    mkdirSync(empty)
    const to = (path: string) => ['store', 'export', '--store', empty, '--out', path]
    const path = join(empty, 'threads.jsonl')
    for (let times = 0; times < 2; times++) await expectFailures(2, [[to(path), /There is no store in .*empty/]])
    expect(readdirSync(empty)).toEqual([])
    await expectFailures(2, [
      [to(file('there.jsonl', 'mine')), /There is a file .*there\.jsonl already; .*\[cli\/bad-usage\]$/],
      [to(join(empty, 'none', 'threads.jsonl')), /cannot be written \(ENOENT\).*\[cli\/bad-usage\]$/],
    ])
    expect(readFileSync(join(folder, 'there.jsonl'), 'utf8')).toBe('mine')
  })
})

describe('doctor', () => {
  it('says what is here, and what to do', async () => {
    const { code, stdout } = await kvfoldHere(['doctor', '--port', '9'])
    expect(code).toBe(0)
    for (const what of ['machine', 'addon', 'computes on', 'backends', 'git', 'cmake', 'built-in model', 'models', 'disk'])
      expect(stdout).toMatch(new RegExp(`^(ok|note) +${what} `, 'm'))
    expect(stdout).toMatch(/^ok +port 9 +free$/m)
  })

  it('finds the models that were pulled', async () => {
    const models = join(folder, 'models', 'acme', 'One-GGUF')
    mkdirSync(models, { recursive: true })
    writeFileSync(join(models, 'one-Q8_0.gguf'), 'x')
    const environment = { KVFOLD_MODELS: join(folder, 'models') }
    const { stdout } = await kvfoldHere(['doctor', '--port', '9'], { environment })
    expect(stdout).toMatch(/^ok +models .*one-Q8_0\.gguf/m)
  })

  it('is plain data for a program, and knows a taken port', async () => {
    const other = createServer().listen(0, '127.0.0.1')
    await once(other, 'listening')
    try {
      const { port } = other.address() as AddressInfo
      const { stdout } = await kvfoldHere(['doctor', '--json', '--port', String(port)])
      const { works, findings } = JSON.parse(stdout) as {
        works: boolean
        findings: { what: string; found: string; advice?: string }[]
      }
      expect(works).toBe(true)
      expect(findings.at(-1)).toMatchObject({
        what: `port ${port}`,
        found: 'another program listens there',
        advice: expect.stringContaining(`--port ${port + 1}`) as string,
      })
    } finally {
      other.close()
    }
  })
})
