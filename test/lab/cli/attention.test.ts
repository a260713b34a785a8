/** `kvfold attention` as a person runs it: results, continuing a run, interrupts, and errors before the work begins. */
import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { parseWatched } from '../../../src/lab/cli/attention/file.js'
import { KVFOLD, kvfoldHere } from '../../runtime/cli/support/process.js'

let folder: string
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-attention-'))
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

const lastLine = (text: string): Record<string, unknown> => JSON.parse(text.trim().split('\n').at(-1)!) as Record<string, unknown>
const small = ['attention', 'pi-llm', '--n', '8', '--keys', '6', '--context', '2048']

describe('kvfold attention heads', () => {
  const small = ['attention', 'heads', '--prompts', '2', '--keys', '8', '--context', '2048']

  it('scores every head, takes the best away, and leaves files that others read', async () => {
    const out = join(folder, 'heads')
    const run = await kvfoldHere([...small, '--without', '2', '--draws', '1', '--json', '--out', out])
    expect(run.stderr).toBe('')
    expect(run.code).toBe(0)
    const found = lastLine(run.stdout) as {
      heads: number
      best: Record<string, { head: string; score: number }[]>
      losses: { without: string; heads: string[]; losses: { of: string; more: number }[] }[]
    }
    expect(found.heads).toBe(18)
    expect(Object.keys(found.best)).toEqual(['sink', 'previous', 'induction', 'retrieval'])
    expect(found.losses.map(({ without }) => without)).toEqual(['none', '2 by retrieval', '2 at random'])
    const [, best] = found.losses
    expect(best!.heads).toEqual(found.best['retrieval']!.slice(0, 2).map(({ head }) => head))
    expect(best!.losses.map(({ of }) => of)).toEqual(['values', 'repeat', 'prose'])
    expect(best!.losses[0]!.more).toBeGreaterThan(0.3)
    for (const file of ['heads.parquet', 'heads.svg', 'summary.json', 'without-retrieval.gguf'])
      expect(existsSync(join(out, file)), file).toBe(true)

    // Heads that another study found; the file that this one wrote has the same form.
    const scores = join(out, 'head_score', 'kvfold-tiny.json')
    const again = await kvfoldHere([...small, '--without', '2', '--draws', '1', '--scores', scores, '--json', '--out', out])
    expect(again.code).toBe(0)
    expect((lastLine(again.stdout) as typeof found).losses[1]!.losses).toEqual(best!.losses)
  })

  it('refuses a file without scores, more heads than the model has, and heads away from an adapted model', async () => {
    const bad = join(folder, 'scores.json')
    writeFileSync(bad, '{"first": 1}')
    const refused = await kvfoldHere([...small, '--without', '1', '--scores', bad])
    expect([refused.code, refused.stderr]).toEqual([1, expect.stringContaining('has no scores')])
    const many = await kvfoldHere([...small, '--without', '10', '--out', join(folder, 'many')])
    expect([many.code, many.stderr]).toEqual([2, expect.stringContaining('The model has 18 heads, and --without 10 needs twice')])
    const adapted = await kvfoldHere([...small, '--without', '1', '--lora', 'there-is-none.gguf'])
    expect([adapted.code, adapted.stderr]).toEqual([2, expect.stringContaining('cannot measure a model with --lora')])
  })
})

describe('kvfold attention pi-llm', () => {
  it('ends with one line of JSON, and continues an earlier run', async () => {
    const out = join(folder, 'run')
    const words = [...small, '--contract', 'exact,splice', '--updates', '2,8', '--episode', '--json', '--out', out]
    const first = await kvfoldHere([...words, '--seeds', '1'])
    expect(first.stderr).toBe('')
    expect(first.code).toBe(0)
    const found = lastLine(first.stdout)
    for (const name of ['pairs', 'improved', 'meanChange', 'medianChange', 'r2', 'p'])
      expect(found[name], name).toBeTypeOf('number')
    expect(found['pairs']).toBeGreaterThan(0)
    expect(found['report']).toBe(join(out, 'report.html'))
    const records = () => readFileSync(join(out, 'records.jsonl'), 'utf8').trim().split('\n')
    const before = records()
    const names = (of: readonly string[]) =>
      of.map((line) => JSON.parse(line) as Record<string, unknown>).map(({ part, n, seed }) => [part, n, seed])
    expect(names(before)).toEqual([
      ['prompt', 8, 2026],
      ['heat-map', 8, 2026],
      ['episode', 8, 2026],
      ['prompt', 2, 2026],
    ])
    for (const file of [
      'summary.json',
      'pairs.parquet',
      'heads.parquet',
      'interference.parquet',
      'episode.parquet',
      'report.html',
    ])
      expect(existsSync(join(out, file)), file).toBe(true)

    // One more seed: the earlier seed is not measured again.
    const second = await kvfoldHere([...words, '--seeds', '2'])
    expect(second.code).toBe(0)
    expect(records().slice(0, before.length)).toEqual(before)
    expect(names(records()).slice(before.length)).toEqual([
      ['prompt', 8, 2027],
      ['prompt', 2, 2027],
    ])
    expect(lastLine(second.stdout)['pairs']).toBeGreaterThan(found['pairs'] as number)

    const other = await kvfoldHere([...words, '--seeds', '1', '--mode', 'generated'])
    expect(other.code).toBe(1)
    expect(other.stderr).toMatch(/mode: "given" there, "generated" now.*\[eval\/other-run\]/)

    const template = join(folder, 'template.jinja')
    writeFileSync(template, '{% for message in messages %}{{ message.content }}{% endfor %}')
    const told = await kvfoldHere([...words, '--seeds', '1', '--chat-template', template])
    expect([told.code, told.stderr]).toEqual([1, expect.stringMatching(/chatTemplate: nothing there, "[0-9a-f]{64}" now/)])
  }, 240_000)

  it('keeps finished work when it is interrupted', async () => {
    const out = join(folder, 'cut')
    const words = [...KVFOLD, ...small, '--seeds', '5000', '--out', out]
    const child = spawn(process.execPath, words, {
      cwd: join(import.meta.dirname, '../../..'),
      stdio: ['ignore', 'ignore', 'pipe'],
    })
    let said = ''
    let asked = false
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      said += text
      // One prompt is finished and the next one is running.
      if (!asked && /^1 of /mu.test(said)) asked = child.kill('SIGINT')
    })
    const code = await new Promise((resolve) => child.on('close', resolve))
    expect(code).toBe(130)
    expect(said).toMatch(/the same command continues the run/)
    expect(said).toMatch(/interrupted/)
    const lines = readFileSync(join(out, 'records.jsonl'), 'utf8').trim().split('\n')
    expect((JSON.parse(lines[0]!) as { seed: number }).seed).toBe(2026)
  }, 120_000)

  it.each([
    [['--layers', '9'], 1, /The model has no layer 9; it has 3, from 0 to 2/],
    [['--n', '60', '--keys', '46'], 1, /A prompt with 60 updates .* need \d+ tokens, but the context has 2048 cells/],
    [['--n', '400', '--keys', '46'], 1, /A prompt with 400 updates and its answer need \d+ tokens/],
    [['--contract', 'exact,guess'], 2, /one or several of exact, splice, blend/],
    [['--flash-attention', 'on'], 2, /Flash attention does not compute the weights/],
  ])('refuses %j before it begins', async (words, code, message) => {
    const out = join(folder, 'refused')
    const outcome = await kvfoldHere([...small, '--seeds', '1', '--out', out, ...words])
    expect(outcome.stderr).toMatch(message)
    expect(outcome.code).toBe(code)
    expect(existsSync(out)).toBe(false)
  })
})

describe('kvfold attention file', () => {
  const transcript = {
    messages: [
      {
        role: 'user',
        content:
          'herb: noblefield; boat: ivorymoor; herb: velvetbrook; boat: clearhelm; herb: amberarch; boat: oakshade; What is the current value of herb?',
      },
    ],
    folds: [{ message: 0, from: 'herb: noblefield', to: 'clearhelm;' }],
    spans: ['amberarch', 'velvetbrook', { name: 'question', message: 0, from: 'What is', to: 'herb?' }],
  }
  const run = (change: object, ...words: string[]) =>
    kvfoldHere(['attention', 'file', '-', '--contract', 'exact', '--context', '1024', ...words], {
      input: JSON.stringify({ ...transcript, ...change }),
      folder,
    })

  it('compares the spans, from an answer given or generated', async () => {
    const out = join(folder, 'file')
    const given = await run({}, '--answer', 'The current value of herb is amberarch.', '--json', '--out', out)
    expect(given.stderr).toBe('')
    const { pairs, spans, report, answers } = lastLine(given.stdout) as {
      pairs: number
      report: string
      spans: { name: string; complete: number; folded: number | null; said: object | null }[]
      answers: { answer: string }[]
    }
    expect(pairs).toBe(2)
    expect(spans.map(({ name, folded, said }) => [name, folded !== null, said !== null])).toEqual([
      ['amberarch', true, true],
      ['velvetbrook', false, false],
      ['question', true, false],
    ])
    expect(answers.map(({ answer }) => answer)).toEqual(new Array(2).fill('The current value of herb is amberarch.'))
    expect(existsSync(report)).toBe(true)
    expect(existsSync(join(out, 'spans.parquet'))).toBe(true)

    const generated = await run({}, '--max-tokens', '16')
    expect(generated.code).toBe(0)
    expect(generated.stdout).toMatch(/velvetbrook +exact +\d+ +[\d.e-]+ +not shown/)
    expect(generated.stdout).toContain(`Report: ${join('kvfold-spans', 'report.html')}`)
    for (const file of ['report.html', 'spans.parquet', 'summary.json'])
      expect(existsSync(join(folder, 'kvfold-spans', file)), file).toBe(true)
  })

  it('takes what an export has folded, and refuses one with forgotten text', async () => {
    const content = transcript.messages[0]!.content
    const span = { start: 0, end: content.indexOf('herb: amberarch') - 1 }
    const exported = (forget: object) => ({
      ...{ format: 'kvfold-thread/1', id: 't', folds: undefined },
      messages: [{ message: { role: 'user', content }, seen: 'same' }],
      edits: {
        fragments: [{ id: 'f12345', message: 0, span, state: { kind: 'folded', ...forget } }],
        ...{ searches: [], ids: 1 },
      },
    })
    const { stdout } = await run(exported({}), '--answer', 'The current value of herb is amberarch.')
    expect(stdout).toMatch(/velvetbrook +exact +\d+ +[\d.e-]+ +not shown/)
    const { code, stderr } = await run(exported({ forget: true }), '--answer', 'x')
    expect([code, stderr]).toEqual([1, expect.stringContaining('has text that was to be forgotten')])
  })

  it.each([
    [['nowhere'], /spans\.0: no message contains "nowhere"/],
    [[{ message: 3 }], /spans\.0: message 3 does not exist before the answer; the first is 0, the last 0/],
    [[{ message: 0, from: 'herb', to: 'nowhere' }], /message 0 does not contain "nowhere" after the beginning of the span/],
    [[], /spans: /],
    [['boat', 'boat'], /two spans have the name "boat"/],
  ])('refuses to watch %j', (spans, message) => {
    const messages = transcript.messages.map(({ content }) => ({ role: 'user', content }) as const)
    expect(() => parseWatched(JSON.stringify({ ...transcript, spans }), 'it', messages)).toThrow(message)
  })

  it.each([
    [['--answer', ' '], /The answer is empty/],
    [['--layers', '9'], /The model has no layer 9/],
    [['--max-tokens', '4000'], /need \d+ tokens, but the context has 1024 cells/],
  ])('refuses %j before it begins', async (words, message) => {
    const { code, stderr } = await run({}, ...words)
    expect(stderr).toMatch(message)
    expect(code).toBe(1)
  })
})
