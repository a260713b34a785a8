/** The runner on a scripted engine: the order of the work, stopping and continuing at any place, errors, and refusals. */
import { mkdtempSync, rmSync } from 'node:fs'
import { readFile, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import { agentKinds, type EvalAgent } from '../../../src/lab/agent.js'
import { openAgent } from '../../../src/lab/agents/open.js'
import { CONTRACTS } from '../../../src/runtime/core/contract.js'
import { ScriptedEngine } from '../../support/scripted.js'
import type { LogRecord } from '../../../src/lab/log.js'
import { Cells, Pace } from '../../../src/lab/run/loop.js'
import { MOST_ERRORS, type RunProgress, run } from '../../../src/lab/run/runner.js'
import { latest, nameOf, openRunLog } from '../../../src/lab/run/log-file.js'
import { edits, itemsOf } from '../../../src/lab/run/plan.js'
import type { Task } from '../../../src/lab/task.js'
import { readLog } from '../support/read-log.js'
import { adder, asker, headerFor, settings, sums } from '../support/run-fixture.js'

let folder: string
let count = 0
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-run-'))
})
afterAll(() => {
  rmSync(folder, { recursive: true })
})
const place = (): string => join(folder, `log-${count++}.jsonl`)

const pausing = () => adder(() => new Promise((resolve) => setImmediate(resolve)))

/** Runs on the log, on two engines, until `stopAfter` samples are done, or to the end. */
async function runOn(
  path: string,
  tasks: readonly Task[],
  agents: readonly EvalAgent[],
  stopAfter = Infinity,
  slots = 2,
  engines = 2,
) {
  const log = await openRunLog(path, await headerFor(tasks, agents))
  const stop = new AbortController()
  let done = 0
  try {
    return await run({
      ...settings(tasks, agents, log),
      slots,
      engines: Array.from({ length: engines }, pausing),
      signal: stop.signal,
      onProgress: ({ last }: RunProgress) => {
        if (last !== null && ++done >= stopAfter) stop.abort()
      },
    })
  } finally {
    await log.close()
  }
}

/** Returns each record as text without its times, sorted by name. */
const said = (records: readonly LogRecord[]): string[] =>
  latest(records)
    .sort((a, b) => (nameOf(a) < nameOf(b) ? -1 : 1))
    .map((record) =>
      JSON.stringify(record, (key, value: unknown) => (key === 'milliseconds' || key === 'timing' ? undefined : value)),
    )

describe('the plan', () => {
  it('has every sample once for each agent, and is balanced wherever it is cut', () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 1, max: 30 }), { minLength: 1, maxLength: 4 }),
        fc.subarray([...agentKinds], { minLength: 1 }),
        fc.subarray([...CONTRACTS], { minLength: 1 }),
        (sizes, agents, contracts) => {
          const items = itemsOf({ sizes, agents, contracts })
          const each = agents.reduce((sum, agent) => sum + (edits(agent) ? contracts.length : 1), 0)
          expect(items.length).toBe(each * sizes.reduce((sum, size) => sum + size, 0))
          expect(new Set(items.map(nameOf)).size).toBe(items.length)
          const done = sizes.map(() => 0)
          for (const { task } of items) {
            done[task]!++
            const shares = done.map((some, at) => some / (sizes[at]! * each))
            // No task is ahead of another by more than one sample of either.
            for (const [one, share] of shares.entries())
              for (const [other, theirs] of shares.entries())
                expect(share - theirs).toBeLessThanOrEqual(1 / sizes[one]! + 1 / sizes[other]! + 1e-9)
          }
        },
      ),
    )
  })
})

describe('a run', () => {
  const tasks = [sums(3, 4), sums(2, 3, { second: true })]
  const agents = [asker('plain'), asker('sculptor', 2)]
  const all = tasks.reduce((sum, { size }) => sum + size, 0) * 3

  it('records every sample with its messages, its cost and its score', async () => {
    const path = place()
    const results = await runOn(path, tasks, agents)
    const { header, records, resumed } = await readLog(path)
    expect(records).toHaveLength(all)
    expect(results).toHaveLength(all)
    expect(resumed).toEqual([])
    expect(header.tasks.map(({ size }) => size)).toEqual([12, 6])
    for (const record of records) {
      if (record.kind !== 'sample') throw new Error(record.message)
      const steps = record.agent === 'sculptor' ? 3 : 1
      expect(record.talks).toHaveLength(1)
      expect(record.talks[0]!.steps).toHaveLength(steps)
      expect(record.work.steps).toBe(steps)
      const sum = record.truth as number
      expect(record.answer).toBe(String(sum % 3 === 0 ? sum + 1 : sum))
      expect(record.score.points).toBe(sum % 3 === 0 ? 0 : 1)
      expect(record.tokens.after).toBeGreaterThan(0)
    }
    // Only an agent that edits runs under the second contract.
    expect(new Set(records.map(({ agent, contract }) => `${agent} ${contract}`))).toEqual(
      new Set(['plain exact', 'sculptor exact', 'sculptor splice']),
    )
  })

  it('gives the same result when it is stopped anywhere and any number of times', async () => {
    const whole = place()
    await runOn(whole, tasks, agents)
    const expected = said((await readLog(whole)).records)
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.record({ after: fc.integer({ min: 1, max: 12 }), cut: fc.double({ min: 0, max: 1, noNaN: true }) }), {
          maxLength: 4,
        }),
        fc.integer({ min: 1, max: 4 }),
        async (stops, slots) => {
          const path = place()
          for (const { after, cut } of stops) {
            await runOn(path, tasks, agents, after, slots)
            // A crash of the machine can end the last line anywhere.
            const text = await readFile(path)
            const last = text.lastIndexOf(0x0a, text.length - 2) + 1
            await writeFile(path, text.subarray(0, last + Math.round(cut * (text.length - last))))
          }
          const results = await runOn(path, tasks, agents, Infinity, slots)
          const { records } = await readLog(path)
          expect(said(records)).toEqual(expected)
          // No finished sample was done twice.
          expect(records).toHaveLength(all)
          expect(results).toHaveLength(all)
        },
      ),
      { numRuns: 25 },
    )
  }, 120_000)

  it('records where it continued, and does nothing when all samples are there', async () => {
    const path = place()
    await runOn(path, tasks, agents, 5)
    await runOn(path, tasks, agents)
    const text = await readFile(path, 'utf8')
    expect((await readLog(path)).resumed).toHaveLength(1)
    await runOn(path, tasks, agents)
    expect(await readFile(path, 'utf8')).toBe(text)
  })

  it('records errors separately and tries them again', async () => {
    const path = place()
    let broken = true
    const failing = asker('plain', 0, (name) => {
      if (broken && name.endsWith('.3')) throw new KvfoldError('context/full', 'It does not fit.')
      if (broken && name.endsWith('.4')) throw new TypeError('odd')
    })
    const first = await runOn(path, [tasks[0]!], [failing])
    expect(first.filter(({ kind }) => kind === 'error')).toMatchObject([
      { index: 3, id: 'sum-3', cell: { numbers: 1 }, code: 'context/full', message: 'It does not fit.' },
      { index: 4, id: 'sum-4', code: 'unexpected', message: 'odd' },
    ])
    broken = false
    const second = await runOn(path, [tasks[0]!], [failing])
    expect(second.every(({ kind }) => kind === 'sample')).toBe(true)
    const { records } = await readLog(path)
    expect(records).toHaveLength(14)
    expect(latest(records).filter(({ kind }) => kind === 'error')).toEqual([])
  })

  it('records samples that cannot even be made', async () => {
    const task: Task = {
      ...sums(1, 3),
      sample: (index) =>
        index === 1 ? Promise.reject(new KvfoldError('eval/bad-data', 'Row 2 is odd.')) : sums(1, 3).sample(index),
    }
    const results = await runOn(place(), [task], [asker('plain')])
    expect(results.map(({ kind }) => kind)).toEqual(['sample', 'error', 'sample'])
    expect(results[1]).toMatchObject({ code: 'eval/bad-data', message: 'Row 2 is odd.', cell: {} })
  })

  it('stops when one sample after another fails, and keeps finished samples', async () => {
    const path = place()
    const failing = asker('plain', 0, (name) => {
      if (Number(name.split('.').at(-1)) >= 2) throw new KvfoldError('remote/failed', 'The server is ill.')
    })
    await expect(runOn(path, [sums(2, 20)], [failing], Infinity, 1, 1)).rejects.toThrow(/10 samples in a row.*The server is ill/)
    const { records } = await readLog(path)
    expect(records.map(({ kind }) => kind)).toEqual(['sample', 'sample', ...Array<string>(MOST_ERRORS).fill('error')])
  })

  it('stops when the log cannot be written', async () => {
    const log = { before: [], add: () => Promise.reject(new KvfoldError('eval/bad-log', 'No room.')) }
    await expect(run(settings(tasks, agents, log))).rejects.toThrow('No room.')
  })

  it('gives every agent the same seed for a sample, and shares no cells between samples', async () => {
    const log = { before: [], add: () => Promise.resolve() }
    const options = settings([sums(2, 2)], agents, log)
    const engine = adder()
    const seeds = new Map<string, Set<number>>()
    const watching = agents.map((agent): EvalAgent => ({
      ...agent,
      answer: (setting) => {
        seeds.set(setting.sample.id, (seeds.get(setting.sample.id) ?? new Set()).add(setting.seed))
        return agent.answer(setting)
      },
    }))
    await run({ ...options, engines: [engine], agents: watching })
    expect([...seeds.values()].map(({ size }) => size)).toEqual([1, 1, 1, 1])
    expect(new Set([...seeds.values()].map((set) => [...set][0])).size).toBe(4)
    const tenants = new Map(engine.requests.map(({ conversation, tenant }) => [conversation, tenant]))
    expect(new Set(tenants.values()).size).toBe(tenants.size)
    expect([...tenants.values()]).not.toContain(undefined)
  })

  it('has the named model judge answers where the task says so, and records its reply', async () => {
    const task: Task = {
      ...sums(1, 3),
      score: ({ truth }, answer, verdict) => ({
        points: verdict === true ? 1 : 0,
        outcome: verdict === null ? 'unparsed' : verdict === true ? 'right' : 'wrong',
        details: { same: answer === String(truth) ? 1 : 0 },
      }),
      judging: ({ truth }, answer) => ({
        prompt: `Is ${answer} the same as ${String(truth)}?`,
        verdict: (said) => (said === 'yes' ? true : said === 'no' ? false : null),
      }),
    }
    const asked: string[] = []
    const judge = new ScriptedEngine(({ messages }) => {
      const question = messages.at(-1)!.content
      asked.push(question)
      const [answer, truth] = [...question.matchAll(/\d+/g)].map(([number]) => number)
      return { content: truth === '14' ? 'perhaps' : answer === truth ? 'yes' : 'no' }
    })
    const path = place()
    const log = await openRunLog(path, await headerFor([task], [asker('plain')]))
    await run({ ...settings([task], [asker('plain')], log), judge: { name: 'script', engine: judge } })
    await log.close()
    const records = latest((await readLog(path)).records).sort((a, b) => a.index - b.index)
    expect(records).toMatchObject([
      // The answer to 0 is 1, the answer to 7 is 7, and about 14 the judge says neither.
      { score: { outcome: 'wrong' }, judgement: { said: 'no', verdict: false } },
      { score: { outcome: 'right' }, judgement: { said: 'yes', verdict: true } },
      { score: { outcome: 'unparsed', details: { same: 1 } }, judgement: { said: 'perhaps', verdict: null } },
    ])
    expect(asked).toHaveLength(3)
    // The judge's cost does not count for the agent.
    for (const record of records) expect(record.kind === 'sample' && record.work.steps).toBe(1)
  })

  it('counts it as a failure of the agent, not as an error, when the agent fills a context that its first step fitted into', async () => {
    const filling: EvalAgent = {
      ...asker('plain'),
      answer: async (setting) => {
        if (setting.sample.id === 'sum-1') throw new KvfoldError('context/full', 'The sample itself does not fit.')
        await asker('plain').answer(setting)
        if (setting.sample.id === 'sum-2') throw new KvfoldError('context/full', 'It said too much.')
        return asker('plain').answer(setting)
      },
    }
    const results = await runOn(place(), [sums(1, 4)], [filling])
    expect(results.map(({ kind }) => kind)).toEqual(['sample', 'error', 'sample', 'sample'])
    expect(results[2]).toMatchObject({ end: 'length', score: { points: 0 }, details: { overflowed: 1 }, work: { steps: 1 } })
  })

  it('keeps the calls of an agent that filled the context', async () => {
    const search = { name: 'search_context', arguments: { query: 'Add' } }
    const engine = new ScriptedEngine((_, step) => {
      if (step > 0) throw new KvfoldError('context/full', 'The results take all room.')
      return { calls: [search, { name: 'fold_fragment' }, search] }
    })
    const log = { before: [], add: () => Promise.resolve() }
    const agents = [openAgent('sculptor', { maxCalls: 2 })]
    const [result] = await run({ ...settings([sums(1, 1)], agents, log), contracts: ['exact'], engines: [engine] })
    expect(result).toMatchObject({
      ...{ kind: 'sample', end: 'length', refusedCalls: 1, details: { overflowed: 1 }, work: { steps: 1 } },
      calls: [
        { step: 0, name: 'search_context', failed: false },
        { step: 0, name: 'fold_fragment', failed: true },
      ],
    })
  })

  it("reads an agent's files once, and continues a log only with the same texts", async () => {
    const [system, path] = [join(folder, 'system.txt'), place()]
    const open = async (words: string): Promise<EvalAgent> => {
      await writeFile(system, words)
      return openAgent('sculptor', { system })
    }
    const task = sums(1, 2)
    const agent = await open('Be brief.')
    await writeFile(system, 'Be long.')
    const engine = new ScriptedEngine(() => ({ content: '1' }))
    const stop = new AbortController()
    const log = await openRunLog(path, await headerFor([task], [agent]))
    const onProgress = ({ last }: RunProgress) => {
      if (last !== null) stop.abort()
    }
    const one = { contracts: ['exact'] as const, engines: [engine], slots: 1, signal: stop.signal, onProgress }
    await run({ ...settings([task], [agent], log), ...one }).catch(() => undefined)
    await log.close()
    expect(engine.requests[0]!.messages[0]).toMatchObject({ role: 'system', content: 'Be brief.' })
    const again = async (words: string) => openRunLog(path, await headerFor([task], [await open(words)]))
    await expect(again('Be long.')).rejects.toMatchObject({ code: 'eval/other-run' })
    await (await again('Be brief.')).close()
  })

  it('repeats a sample alone when other samples had filled the cache', async () => {
    let tries = 0
    const crowded = asker('plain', 0, (name) => {
      if (!name.endsWith('.alone') && tries++ === 0) throw new KvfoldError('context/full', 'No room beside the others.')
    })
    const log = { before: [], add: () => Promise.resolve() }
    const results = await run({ ...settings([sums(1, 3)], [crowded], log), cells: 10_000 })
    expect(results.every(({ kind }) => kind === 'sample')).toBe(true)
    expect(tries).toBe(3)
  })

  it('repeats a sample alone when other samples ended its answer early, but not when its own limit did', async () => {
    const engine = new ScriptedEngine(({ conversation }) => {
      if (conversation.includes('.0/')) return { content: '1 or', finish: 'length' }
      return conversation.includes('.1/') ? { content: '7 '.repeat(16), finish: 'length' } : { content: '1' }
    })
    const log = { before: [], add: () => Promise.resolve() }
    const results = await run({ ...settings([sums(1, 3)], [asker('plain')], log), engines: [engine], cells: 10_000 })
    expect(results.map(({ kind }) => kind)).toEqual(['sample', 'sample', 'sample'])
    const asked = engine.requests.map(({ conversation }) => conversation.replace(/^[^.]*\.0\.plain\.exact\./u, ''))
    expect(asked.sort()).toEqual(['0.alone/turn', '0/turn', '1/turn', '2/turn'])
  })
})

describe('cells', () => {
  it('are never given out twice, and are given out in the order of the requests', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(fc.integer({ min: 1, max: 15 }), { maxLength: 20 }), async (wanted) => {
        const cells = new Cells(10)
        const { signal } = new AbortController()
        let taken = 0
        const order: number[] = []
        await Promise.all(
          wanted.map(async (count, index) => {
            const giveBack = await cells.take(count, signal)
            order.push(index)
            taken += Math.min(count, 10)
            expect(taken).toBeLessThanOrEqual(10)
            await Promise.resolve()
            taken -= Math.min(count, 10)
            giveBack()
          }),
        )
        expect(order).toEqual(wanted.map((_, index) => index))
      }),
    )
  })

  it('are refused to waiting samples when the run is over', async () => {
    const cells = new Cells(10)
    const stop = new AbortController()
    const giveBack = await cells.take(10, stop.signal)
    const waiting = cells.take(5, stop.signal)
    stop.abort(new Error('over'))
    await expect(waiting).rejects.toThrow('over')
    giveBack()
    await expect(cells.take(10, new AbortController().signal)).resolves.toBeTypeOf('function')
  })
})

describe('the time left', () => {
  it('is the time that samples of the same kind took, divided by the number that run at once', () => {
    const slow = { task: 0, agent: 'mem0', contract: 'exact' }
    const fast = { task: 0, agent: 'plain', contract: 'exact' }
    const pace = new Pace([slow, slow, fast, fast], 1, 0)
    expect(pace.left(0)).toBeNull()
    pace.done(slow, 1000)
    expect(pace.left(1000)).toBe(1000 + 2 * 1000)
    pace.done(fast, 10)
    expect(pace.left(1010)).toBe(1000 + 10)
  })
})
