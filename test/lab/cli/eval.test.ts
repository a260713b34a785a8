/** `kvfold eval` as a person and as a program run it: results, continuing a run, interrupts, bad usage, and how sizes become samples. */
import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { askedTasks, tokens } from '../../../src/lab/cli/eval/flags.js'
import { machineLine, tableLines } from '../../../src/lab/cli/eval/lines.js'
import { Follower } from '../../../src/lab/cli/eval/follow.js'
import { ProgressLine } from '../../../src/lab/cli/progress.js'
import { placeOf, sized } from '../../../src/lab/cli/eval/evaluate.js'
import { Terminal } from '../../../src/runtime/cli/terminal.js'
import { modelFingerprint } from '../../../src/runtime/engine/model-facts.js'
import { ScriptedEngine } from '../../support/scripted.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { span } from '../../../src/runtime/core/span.js'
import { runLog } from '../../../src/lab/log.js'
import { Recorder } from '../../../src/lab/recorder.js'
import { openRunLog } from '../../../src/lab/run/log-file.js'
import { endpointSaying } from '../support/endpoint.js'
import { readLog } from '../support/read-log.js'
import { run } from '../../../src/lab/run/runner.js'
import { openTask } from '../../../src/lab/tasks/open.js'
import { asker, headerFor, settings, sums } from '../support/run-fixture.js'
import { synthesizeEncoder } from '../../support/synthetic-encoder.js'
import { KVFOLD, kvfoldHere } from '../../runtime/cli/support/process.js'

let folder: string
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-eval-'))
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})

const lastLine = (text: string): Record<string, unknown> => JSON.parse(text.trim().split('\n').at(-1)!) as Record<string, unknown>

describe('kvfold eval on the built-in model', () => {
  it('ends with one line of JSON, writes a self-contained log, and continues in it', async () => {
    const log = join(folder, 'run.jsonl')
    const words = ['eval', 'pi-llm', '--n', '4', '--keys', '8', '--samples', '2', '--seed', '7', '--log', log]
    const first = await kvfoldHere([...words, '--agent', 'sculptor', '--json'])
    expect(first.stderr).toBe('')
    expect(first.code).toBe(0)
    expect(first.stdout.trim().split('\n')).toHaveLength(1)
    const found = lastLine(first.stdout)
    expect(found['samples']).toBe(2)
    expect(found['accuracy']).toBeGreaterThanOrEqual(0)
    expect(found['accuracy']).toBeLessThanOrEqual(1)
    const [low, high] = found['interval'] as [number, number]
    expect(low).toBeLessThanOrEqual(found['accuracy'] as number)
    expect(high).toBeGreaterThanOrEqual(found['accuracy'] as number)
    expect(found['tokensBefore']).toBeGreaterThan(100)
    expect(found['tokensAfter']).toBeGreaterThan(100)
    expect(found['errors']).toBe(0)

    const { header, records } = await readLog(log)
    expect(header.model.fingerprint).toMatch(/^[0-9a-f]{64}$/)
    expect(header.agents).toMatchObject([{ agent: 'sculptor', trained: true, trainedTasks: ['pi-llm'] }])
    expect(records).toHaveLength(2)
    for (const record of records) {
      if (record.kind !== 'sample') throw new Error(record.message)
      const steps = record.talks.flatMap((talk) => talk.steps)
      expect(steps.length).toBe(record.work.steps)
      expect(record.work.submitted).toBe(steps.reduce((sum, { ledger }) => sum + ledger.submitted, 0))
      expect(record.calls.length).toBeGreaterThan(0)
      expect(record.tokens.before).toBe(steps[0]!.ledger.shown)
      expect(record.tokens.after).toBe(steps.at(-1)!.ledger.shown)
    }

    // All samples are there, so the table comes from the log alone.
    const text = readFileSync(log, 'utf8')
    const second = await kvfoldHere([...words, '--agent', 'sculptor'])
    expect(second.code).toBe(0)
    expect(second.stderr).toMatch(/already has all samples of this run/)
    expect(second.stdout).toMatch(/PI-LLM +updates 4 +sculptor +\d/)
    expect(second.stdout).toContain(`Log: ${log}`)
    expect(readFileSync(log, 'utf8')).toBe(text)

    const other = await kvfoldHere([...words, '--agent', 'plain', '--json'])
    expect(other.code).toBe(1)
    expect(other.stderr).toMatch(/agents\[0\]\.agent: "sculptor" there, "plain" now.*\[eval\/other-run\]/)

    // Options of the engine that change answers make another run.
    const template = join(folder, 'template.jinja')
    writeFileSync(template, '{% for message in messages %}{{ message.content }}{% endfor %}')
    for (const [options, settings] of [
      [['--bare-calls', 'off'], /engine\.settings: nothing there, \{"bareCalls":"off"\} now/],
      [['--chat-template', template], /engine\.settings: nothing there, \{"chatTemplate":"[0-9a-f]+/],
    ] as const)
      expect((await kvfoldHere([...words, '--agent', 'sculptor', ...options])).stderr).toMatch(settings)
  }, 480_000)

  it('takes several tasks, agents and slots, and marks agents that the model was not trained for', async () => {
    const log = join(folder, 'several.jsonl')
    const words = ['eval', 'pi-llm', 'needles', '--agent', 'plain,rag-bm25', '--sizes', '700', '--needles', '2', '--samples', '2']
    const { code, stdout, stderr } = await kvfoldHere([...words, '--max-tokens', '60', '--slots', '3', '--log', log, '--json'])
    expect([code, stderr]).toEqual([0, ''])
    const found = lastLine(stdout)
    expect([found['accuracy'], found['samples']]).toEqual([null, 8])
    const cells = found['cells'] as { task: string; agent: string; samples: number; tokensMost: number; cell: object }[]
    expect(cells.map(({ task, agent, samples }) => [task, agent, samples])).toEqual([
      ['pi-llm', 'plain', 2],
      ['pi-llm', 'rag-bm25', 2],
      ['needles', 'plain', 2],
      ['needles', 'rag-bm25', 2],
    ])
    for (const { tokensMost } of cells.filter(({ agent }) => agent === 'plain')) {
      expect(tokensMost).toBeGreaterThan(500)
      expect(tokensMost).toBeLessThanOrEqual(760)
    }
    const { header, records } = await readLog(log)
    expect(header.agents.map(({ trained, trainedTasks }) => [trained, trainedTasks])).toEqual([
      [true, ['pi-llm', 'needles']],
      [false, []],
    ])
    const table = tableLines(header, records, '-').join('\n')
    expect(table).toMatch(/ plain /)
    expect(table).not.toMatch(/ plain\* /)
    expect(table).toMatch(/ rag-bm25\* /)
  }, 480_000)

  it('plays a logbook with agents that fold by rule, under each contract, and a report counts outdated answers', async () => {
    const log = join(folder, 'logbook.jsonl')
    const words = ['eval', 'logbook', '--agent', 'plain,policy,summary', '--contract', 'exact,splice', '--sizes', '2k']
    const only = ['--samples', '1', '--task-option', 'logbook.kinds=["stale"]', '--task-option', 'logbook.places=["late"]']
    const { code, stdout } = await kvfoldHere([...words, ...only, '--max-tokens', '16', '--log', log, '--json'])
    expect(code).toBe(0)
    const cells = lastLine(stdout)['cells'] as Record<string, unknown>[]
    expect(cells.map(({ task, agent, contract }) => [task, agent, contract])).toEqual([
      ['logbook', 'plain', 'exact'],
      ['logbook', 'policy', 'exact'],
      ['logbook', 'policy', 'splice'],
      ['logbook', 'summary', 'exact'],
    ])
    const [plain, exact, splice, summary] = cells as unknown as {
      tokensBefore: number
      tokensAfter: number
      tokensComputed: number
    }[]
    expect(plain!.tokensBefore).toBeGreaterThan(1800)
    expect(plain!.tokensBefore).toBeLessThanOrEqual(2000)
    for (const { tokensBefore, tokensAfter } of [exact!, splice!, summary!]) expect(tokensAfter).toBeLessThan(tokensBefore)
    expect(splice!.tokensComputed).toBeLessThan(exact!.tokensComputed)
    const out = join(folder, 'logbook-report')
    expect((await kvfoldHere(['report', log, '--out', out])).code).toBe(0)
    const counts = readdirSync(out, { recursive: true, encoding: 'utf8' }).find(
      (name) => basename(name) === 'counts-logbook.csv',
    )!
    expect(readFileSync(join(out, counts), 'utf8')).toMatch(/,correct,outdated,foreign/)
  }, 480_000)

  it('prints every message, call and cost as it happens with --follow, and the log of a killed run has its steps', async () => {
    const log = join(folder, 'followed.jsonl')
    const words = ['eval', 'pi-llm', '--n', '16', '--keys', '8', '--samples', '1', '--agent', 'sculptor', '--log', log, '--json']
    const { code, stderr, stdout } = await kvfoldHere([...words, '--follow'])
    expect(code).toBe(0)
    const lines = readFileSync(log, 'utf8').trim().split('\n')
    const [sample] = (await readLog(log)).records
    if (sample?.kind !== 'sample') throw new Error('There is no sample.')
    // One line for every step; together they cost what the sample cost.
    const steps = lines
      .map((line) => runLog.read(JSON.parse(line)))
      .flatMap((read) => (read.ok && read.value.kind === 'step' ? [read.value.step] : []))
    expect(steps.map(({ place }) => place)).toEqual(Array.from({ length: sample.work.steps }, (_, at) => at))
    expect(steps.reduce((sum, { ledger }) => sum + ledger.submitted, 0)).toBe(sample.work.submitted)
    expect(stderr).toMatch(/^PI-LLM updates 16, pi-llm-16-0, sculptor, exact$/m)
    expect(stderr).toMatch(/^ {2}user: /m)
    expect(stderr).toMatch(/^ {2}assistant: fragment_context\(/m)
    expect(stderr.match(/^ {2}step \d+: [\d,]+ tokens shown; /gm)).toHaveLength(sample.work.steps)
    // A kill leaves the steps without the sample. The same command does the sample, and answers the same.
    writeFileSync(log, `${lines.slice(0, -1).join('\n')}\n`)
    const again = await kvfoldHere(words)
    expect([again.code, again.stderr]).toEqual([0, ''])
    expect({ ...lastLine(again.stdout), milliseconds: 0, cells: [] }).toEqual({ ...lastLine(stdout), milliseconds: 0, cells: [] })
    expect((await kvfoldHere(['report', log, '--out', join(folder, 'followed')])).code).toBe(0)
  }, 480_000)

  it('keeps finished work when it is interrupted, and the same command finishes the rest', async () => {
    const log = join(folder, 'cut.jsonl')
    const words = ['eval', 'pi-llm', '--n', '2', '--keys', '4', '--samples', '30', '--agent', 'plain', '--log', log]
    const child = spawn(process.execPath, [...KVFOLD, ...words], {
      cwd: join(import.meta.dirname, '../../..'),
      stdio: ['ignore', 'ignore', 'pipe'],
    })
    let said = ''
    child.stderr.setEncoding('utf8').on('data', (text: string) => (said += text))
    const lines = () => (existsSync(log) ? readFileSync(log, 'utf8').split('\n').length - 1 : 0)
    const watch = setInterval(() => {
      if (lines() < 2) return
      clearInterval(watch)
      child.kill('SIGINT')
    }, 5)
    const code = await new Promise((resolve) => child.on('close', resolve))
    clearInterval(watch)
    expect(code).toBe(130)
    expect(said).toContain(`${log} has the finished samples; the same command continues the run.`)
    const kept = (await readLog(log)).records.length
    expect(kept).toBeGreaterThan(0)
    expect(kept).toBeLessThan(30)
    const { code: end, stderr } = await kvfoldHere(words)
    expect(end).toBe(0)
    expect(stderr).toContain(`The run continues in ${log}, which has ${kept} of 30 samples.`)
    const { records, resumed } = await readLog(log)
    expect(new Set(records.map(({ index }) => index)).size).toBe(30)
    expect(records).toHaveLength(30)
    expect(resumed).toHaveLength(1)
  }, 480_000)
})

describe('bad usage', () => {
  const flags = { seed: 1 }
  it.each([
    [['riddles'], {}, /riddles is not a task; the tasks are pi-llm, /],
    [['needles'], { n: [4] }, /--n is an option of pi-llm, but you named needles/],
    [['pi-llm'], { sizes: [1000], n: [4] }, /--sizes and --n both set/],
    [['mrcr'], {}, /mrcr needs its file: .*; the task similar generates texts of this form/],
    [
      ['mrcr', 'babilong'],
      { data: ['x.jsonl'] },
      /does not name the task of the file; write --data mrcr=FILE --data babilong=FILE/,
    ],
    [['frames'], {}, /frames asks about articles .* --articles/],
    [['pi-llm'], { prompts: 'original' }, /--prompts original .* Without --words, name the checkout: --prompts <folder>/],
    [['similar'], { prompts: 'somewhere' }, /--prompts is an option of pi-llm/],
    [['pi-llm'], { taskOption: ['needles.depth=3'] }, /--task-option needles\.depth=3 is wrong; write pi-llm\.option=value/],
  ])('gets an error message: %j %j', (words, given, said) => {
    expect(() => askedTasks(words, { ...flags, ...given })).toThrow(said)
  })

  it('ends with exit code 2 before a model is loaded', async () => {
    const { code, stderr } = await kvfoldHere(['eval', 'table', 'pi-llm', '--model', 'there-is-none.gguf'])
    expect([code, stderr.trim()]).toEqual([
      2,
      'kvfold: The table is a list of tasks itself; name only the table, or only tasks. [cli/bad-usage]',
    ])
    const agent = await kvfoldHere(['eval', 'pi-llm', '--agent', 'plain,sculpture'])
    expect(agent.code).toBe(2)
    expect(agent.stderr).toMatch(/sculpture is not allowed; give one or several of plain, sculptor/)
  }, 60_000)

  it('includes a missing judge where a model must judge the answers', async () => {
    const data = join(folder, 'frames.tsv')
    writeFileSync(data, 'Prompt\tAnswer\twiki_links\treasoning_types\nWho?\tAda\t[]\tnone\n')
    const words = ['eval', 'frames', '--data', data, '--articles', folder, '--limit', '1', '--log', join(folder, 'f.jsonl')]
    const { code, stderr } = await kvfoldHere(words)
    expect([code, stderr]).toEqual([
      2,
      expect.stringMatching(/A model must judge the answers of FRAMES; name it with --judge <url>\. With --judge self/),
    ])
    const named = await kvfoldHere([...words, '--judge', 'self', '--judge-model', 'x'])
    expect([named.code, named.stderr]).toEqual([2, expect.stringMatching(/--judge-model needs --judge/)])
  }, 60_000)

  it('includes wrong task options, which are named', async () => {
    const [asked] = askedTasks(['pi-llm'], { ...flags, taskOption: ['pi-llm.order=sideways'] })
    await expect(openTask(asked!.spec)).rejects.toMatchObject({ code: 'eval/bad-data' })
  })
})

describe('tasks of the command line', () => {
  it('become specs; --data names the file of a task that needs one', () => {
    const file = join(folder, 'rows.jsonl')
    writeFileSync(file, '')
    const checkout = askedTasks(['pi-llm'], { seed: 3, words: '/a/testing_data/w.json', prompts: 'original' })
    expect(checkout[0]!.spec.options).toMatchObject({ words: '/a/testing_data/w.json', prompts: '/a' })
    const given = { seed: 3, samples: 5, length: [8000], needles: [5], data: [`mrcr=${file}`], limit: 2 }
    expect(askedTasks(['needles', 'similar', 'mrcr'], given).map(({ spec }) => spec)).toEqual([
      { task: 'needles', options: { samples: 5, seed: 3, needles: [5], lengths: [8000] } },
      { task: 'mrcr', options: { samples: 5, seed: 3, needles: [5], lengths: [8000] } },
      { task: 'mrcr', options: { data: file, limit: 2 } },
    ])
    const [further] = askedTasks(['needles'], { seed: 1, taskOption: ['needles.step=5', 'needles.filler=a b'] })
    expect(further!.spec.options).toEqual({ seed: 1, step: 5, filler: 'a b' })
  })

  it('can have lengths as people write them', () => {
    expect(tokens('8k,500, 2.5k,8K')).toEqual([500, 2500, 8000])
    for (const text of ['', '8g', '-1', '0', '1.5']) expect(() => tokens(text)).toThrow()
  })

  it('of a size are as long as that size allows', async () => {
    const engine = new ScriptedEngine([])
    const count = async (task: 'pi-llm' | 'needles', options: object) => {
      const opened = await openTask({ task, options: { ...options, samples: 1 } })
      const lengths = await Promise.all(Array.from({ length: opened.size }, (_, index) => opened.sample(index)))
      return lengths.map(({ messages }) => engine.count(messages, []))
    }
    const [stream] = askedTasks(['pi-llm'], { seed: 1, keys: 10, sizes: [200, 400] })
    const { options } = await sized(stream!, engine, openTask)
    const updates = options['updates'] as number[]
    const [short, long] = await count('pi-llm', options)
    const [shortNext, longNext] = await count('pi-llm', { ...options, updates: updates.map((n) => n + 1) })
    expect([short! <= 200, shortNext! > 200, long! <= 400, longNext! > 400]).toEqual([true, true, true, true])

    const [chain] = askedTasks(['needles'], { seed: 1, needles: [3], sizes: [1000, 3000] })
    const spec = await sized(chain!, engine, openTask)
    expect(spec.options['lengths']).toEqual([1000, 3000])
    for (const [at, counted] of (await count('needles', spec.options)).entries()) {
      expect(counted).toBeLessThanOrEqual([1000, 3000][at]! * 1.02)
      expect(counted).toBeGreaterThan([1000, 3000][at]! * 0.85)
    }
    const [small] = askedTasks(['pi-llm'], { seed: 1, sizes: [20] })
    await expect(sized(small!, engine, openTask)).rejects.toThrow(/--sizes 20 is too small/)
  })
})

describe('the output of a run', () => {
  const tasks = [sums(2, 3)]
  const agents = [asker('plain'), asker('mem0')]
  const runTo = async (path: string, total = Infinity) => {
    const log = await openRunLog(path, await headerFor(tasks, agents))
    const stop = new AbortController()
    let done = 0
    const options = { ...settings(tasks, agents, log), slots: 1, signal: stop.signal }
    const results = await run({
      ...options,
      onProgress: ({ last }) => {
        if (last !== null && ++done >= total) stop.abort()
      },
    })
    await log.close()
    return results
  }

  it('has its own log: the same run continues an unfinished log, and begins a new one after a finished log', async () => {
    const header = await headerFor(tasks, agents)
    const where = join(folder, 'logs')
    const first = await placeOf(header, 12, where)
    await runTo(first, 5)
    expect(await placeOf({ ...header, date: 'later', commit: null }, 12, where)).toBe(first)
    await runTo(first)
    const second = await placeOf(header, 12, where)
    expect(second).toBe(first.replace('.jsonl', '-2.jsonl'))
    // While another process writes there, too.
    const taken = await openRunLog(second, header)
    expect(await placeOf(header, 12, where)).toBe(first.replace('.jsonl', '-3.jsonl'))
    await taken.close()
    expect(await placeOf(await headerFor(tasks, agents, 9), 12, where)).not.toContain(first.replace('.jsonl', ''))
  })

  it('for programs reports one agent, or several as cells', async () => {
    const results = await runTo(join(folder, 'machine.jsonl'))
    const header = await headerFor(tasks, agents)
    expect(machineLine(header, results, 'x')).toMatchObject({ accuracy: null, interval: null, samples: 12, errors: 0 })
    const alone = results.filter(({ agent }) => agent === 'plain')
    const line = machineLine(header, alone, 'x') as { accuracy: number; cells: { accuracy: number; samples: number }[] }
    expect(line.cells).toHaveLength(2)
    expect(line.accuracy).toBeCloseTo((line.cells[0]!.accuracy + line.cells[1]!.accuracy) / 2)
  })

  it('under --follow is each message once, and each fold when it comes and goes', async () => {
    let written = ''
    const follower = new Follower(new Terminal({ write: (text: string) => (written += text) }, {}))
    const recorder = new Recorder(new ScriptedEngine(() => ({ content: 'Yes.' })), { onStep: follower.of('Sums, 1') })
    const messages = [{ role: 'user', content: 'Long talk. And?' }] as const
    const next = [...messages, { role: 'assistant', content: 'Yes.' }, { role: 'user', content: 'More?' }] as const
    const conversation = conversationId('a')
    await recorder.respond({ conversation, messages }).reply
    await recorder.respond({ conversation, messages: next, edits: [{ message: 0, span: span(0, 10), replacement: '[1]' }] }).reply
    await recorder.respond({ conversation, messages: next }).reply
    const lines = written.trimEnd().split('\n')
    expect(lines.filter((line) => !line.startsWith('  step '))).toEqual([
      'Sums, 1',
      ...['  user: Long talk. And?', '  assistant: Yes.'],
      ...['  user: More?', '  folded: message 1, 10 characters, as [1]', '  assistant: Yes.'],
      ...['  shown again: message 1, 10 characters', '  assistant: Yes.'],
    ])
    const costs = lines.filter((line) => line.startsWith('  step '))
    expect(costs).toHaveLength(3)
    for (const [at, { reply }] of recorder.done.entries())
      expect(costs[at]).toMatch(
        new RegExp(`^ {2}step ${at + 1}: ${reply.ledger.shown} tokens shown; ${reply.ledger.reused} reused, `),
      )
  })

  it('shows a progress line now and then, with the time left', () => {
    let written = ''
    const notes = new Terminal({ write: (text: string) => (written += text) }, {})
    let now = 0
    const line = new ProgressLine(notes, false, () => now)
    line.say(0, 100, { left: null })
    now = 1000
    line.say(1, 100)
    line.say(2, 100)
    now = 15_000
    line.say(3, 100, { errors: 1, left: 90_000, what: 'Sums' })
    now = 30_000
    line.say(20, 100)
    line.say(100, 100)
    expect(written.trim().split('\n')).toEqual([
      '0 of 100 (0 %)',
      '1 of 100 (1 %), about 1 min 39 s left',
      '3 of 100 (3 %), about 1 min 30 s left, 1 error: Sums',
      // 20 parts in 30 s.
      '20 of 100 (20 %), about 2 min 0 s left',
      '100 of 100 (100 %)',
    ])
  })
})

describe('kvfold eval memtool --retrieval', () => {
  it('looks tools up by words, by vectors and by both; the next run reads its vectors from the file', async () => {
    const embedder = join(folder, 'encoder.gguf')
    await synthesizeEncoder(embedder, { architecture: 'bert' })
    const words = ['eval', 'memtool', '--retrieval', '--tools', '20', '--embedder', embedder, '--threads', '1']
    const first = await kvfoldHere(words)
    expect(first.stderr).toContain('20 of 20 (100 %)')
    expect(first.code).toBe(0)
    const [, file = ''] = /(kvfold-eval\/vectors-[0-9a-f]{8}\.db) keeps/.exec(first.stderr) ?? []
    const kept = join(import.meta.dirname, '../../..', file)
    expect(existsSync(kept)).toBe(true)
    const again = await kvfoldHere([...words, '--json'])
    expect(again.stderr).toBe('')
    const found = lastLine(again.stdout)['recall'] as readonly { wording: string; ranking: string; at5: number }[]
    expect(found.map(({ wording, ranking }) => `${wording} ${ranking}`)).toEqual(
      ['exact', 'loose'].flatMap((wording) => ['bm25', 'embeddings', 'fused'].map((ranking) => `${wording} ${ranking}`)),
    )
    expect(found[0]!.at5).toBe(1)
    rmSync(kept)
  })
})

describe('kvfold eval memtool --sessions', () => {
  it('keeps finished sessions while others are missing, and plays none again when all are finished', async () => {
    const logs = join(import.meta.dirname, '../../../kvfold-eval')
    const headerOf = (name: string) =>
      JSON.parse(readFileSync(join(logs, name), 'utf8').split('\n')[0]!) as {
        date: string
        about: { seed: number; weights: string | null }
      }
    const sessions = () =>
      (existsSync(logs) ? readdirSync(logs) : [])
        .filter((name) => /^memtool-hybrid-.*\.jsonl$/u.test(name) && [4071, 4072].includes(headerOf(name).about.seed))
        .flatMap((name) => [name, `${name}.checkpoint`])
    const forget = (names: readonly string[]) => {
      for (const name of names) rmSync(join(logs, name), { force: true })
    }
    const play = () =>
      kvfoldHere([
        'eval',
        'memtool',
        '--sessions',
        '2',
        '--turns',
        '1',
        '--tools',
        '50',
        '--seed',
        '4071',
        '--threads',
        '1',
        '--json',
      ])
    forget(sessions())
    expect((await play()).code).toBe(0)
    const made = sessions()
    const begun = () => [made[0]!, made[2]!].map((name) => headerOf(name).date)
    expect(made).toHaveLength(4)
    // A session that began with other weights of the same name is another session.
    expect(headerOf(made[0]!).about.weights).toBe((await modelFingerprint(builtinModel())).toString('hex'))
    const first = begun()
    forget(made.slice(2))
    const again = await play()
    expect(lastLine(again.stdout)['each']).toBe(2)
    expect(lastLine(again.stdout)['logs']).toHaveLength(2)
    const second = begun()
    expect(second.map((date, at) => date === first[at])).toEqual([true, false])
    const kept = () => [made[0]!, made[2]!].map((name) => readFileSync(join(logs, name), 'utf8'))
    const before = kept()
    const third = await play()
    expect(third.code).toBe(0)
    expect(lastLine(third.stdout)).toEqual(lastLine(again.stdout))
    expect(kept()).toEqual(before)
    forget(made)
  })

  it.each(['--engine', '--engines'])('lets the model speak that %s names', async (option) => {
    const { url, close } = await endpointSaying('I do not know.')
    const file = join(folder, 'engines.json')
    writeFileSync(file, JSON.stringify({ engines: [{ url }] }))
    const log = join(folder, `far${option}.jsonl`)
    const words = ['eval', 'memtool', '--turns', '1', '--tools', '50', '--engine-context', '8192', '--out', log]
    const { code, stdout } = await kvfoldHere([...words, option, option === '--engine' ? url : file])
    close()
    expect([code, stdout]).toEqual([0, expect.not.stringContaining('A script spoke')])
    expect(JSON.parse(readFileSync(log, 'utf8').split('\n')[0]!)).toMatchObject({ about: { agent: 'model', model: 'far' } })
  })

  it('refuses the finished log of another run, and leaves it unchanged', async () => {
    const log = join(folder, 'session.jsonl')
    const play = (...more: string[]) =>
      kvfoldHere(['eval', 'memtool', '--turns', '1', '--tools', '50', '--threads', '1', '--out', log, ...more])
    expect((await play()).code).toBe(0)
    const text = readFileSync(log, 'utf8')
    const other = await play('--contract', 'splice')
    expect([other.code, other.stderr]).toEqual([
      1,
      expect.stringMatching(/contract: "exact" there, "splice" now.*\[eval\/other-run\]/),
    ])
    expect((await play('--context', '32768')).stderr).toMatch(/context: nothing there, 32768 now/)
    expect((await play('--cache-type-k', 'f32')).stderr).toMatch(/cacheTypeK: nothing there, "f32" now/)
    expect(readFileSync(log, 'utf8')).toBe(text)
  })
})
