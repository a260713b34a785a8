import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { asyncBufferFromFile, parquetReadObjects } from 'hyparquet'
import { afterAll, describe, expect, it } from 'vitest'
import { invariant } from '../../../src/runtime/core/errors.js'
import { checked } from '../../../src/runtime/core/schema.js'
import { TrajectoryRecord } from '../../../src/lab/collect/formats.js'
import { endpointSaying } from '../support/endpoint.js'
import { kvfoldHere } from '../../runtime/cli/support/process.js'

const folder = mkdtempSync(join(tmpdir(), 'kvfold-collect-'))
afterAll(() => {
  rmSync(folder, { recursive: true })
})

const linesOf = (path: string) => readFileSync(path, 'utf8').trimEnd().split('\n')
const recordsIn = (path: string) =>
  linesOf(path).map((line) => {
    const read = checked(TrajectoryRecord, JSON.parse(line))
    invariant(read.ok, line)
    return read.value
  })
const collect = (path: string, ...more: string[]) =>
  kvfoldHere(['collect', 'pi-llm', '--n', '4,16', '--samples', '2', '--threads', '1', '--out', path, '--json', ...more])

describe('kvfold collect', () => {
  const path = join(folder, 'all.jsonl')

  it('writes whole trajectories of the teacher, with loss on each completion once', async () => {
    const { code, stdout } = await collect(path)
    expect(code).toBe(0)
    const records = recordsIn(path)
    expect(JSON.parse(stdout)).toMatchObject({ trajectories: 4, snapshots: records.length, points: 1 })
    for (const id of ['pi-llm-4-0', 'pi-llm-16-1']) {
      const own = records.filter((record) => record.id === id)
      const steps = own.flatMap(({ steps }) => steps)
      expect(steps).toEqual(steps.map((_, at) => at))
      expect(own.map(({ snapshot }) => snapshot)).toEqual(own.map((_, at) => at))
      for (const { tokens, loss, snapshots, reward } of own) {
        expect([snapshots, reward]).toEqual([own.length, 1])
        expect(loss.at(-1)?.[1]).toBe(tokens.length)
      }
    }
    // The cutting step shows all of the stream, the answering step only the rest of it.
    const long = records.filter(({ id }) => id === 'pi-llm-16-0').map(({ tokens }) => tokens.length)
    expect(long.at(-1)).toBeLessThan(long[0]! * 0.8)
  }, 120_000)

  it('continues a file that was cut off, and ends with the same file', async () => {
    const cut = join(folder, 'cut.jsonl')
    const lines = linesOf(path)
    writeFileSync(cut, `${lines.slice(0, 3).join('\n')}\n${lines[3]!.slice(0, 40)}`)
    expect((await collect(cut)).code).toBe(0)
    expect(linesOf(cut)).toHaveLength(lines.length)
    const plain = (at: string) => recordsIn(at).map(({ id, snapshot, loss }) => ({ id, snapshot, loss }))
    expect(plain(cut)).toEqual(plain(path))
  }, 120_000)

  it('refuses a file of another run', async () => {
    const other = await collect(path, '--teacher', 'model')
    expect(other.code).not.toBe(0)
    expect(other.stderr).toContain('another teacher')
    const stumbling = await collect(path, '--stumble')
    expect(stumbling.code).not.toBe(0)
    expect(stumbling.stderr).toContain('another run')
    const plain = await collect(path, '--agent', 'plain')
    expect(plain.code).not.toBe(0)
    expect(plain.stderr).toContain('another agent')
    const order = await collect(path, '--order', 'start-last')
    expect(order.code).not.toBe(0)
    expect(order.stderr).toContain('another run')
    for (const limit of ['--max-calls', '--max-tokens']) {
      const limited = await collect(path, limit, '7')
      expect([limited.code, limited.stderr]).toEqual([1, expect.stringMatching(/another .*limit of tokens or calls/u)])
    }
  }, 120_000)

  it('refuses a file whose answers another endpoint gave, in the tokens of the same model', async () => {
    let served = 'one'
    const { url, close } = await endpointSaying('None.', () => served)
    const out = join(folder, 'remote.jsonl')
    const collectFrom = () =>
      kvfoldHere([
        ...['collect', 'pi-llm', '--agent', 'plain', '--n', '4', '--samples', '1', '--threads', '1', '--out', out],
        ...['--engine', url, '--tokenizer', 'builtin'],
      ])
    expect((await collectFrom()).code).toBe(0)
    expect(recordsIn(out)[0]!.model.settings).toMatchObject({ endpoint: { model: 'one' } })
    expect((await collectFrom()).code).toBe(0)
    served = 'two'
    const other = await collectFrom()
    close()
    expect([other.code, other.stderr]).toEqual([1, expect.stringMatching(/another .*endpoint/u)])
  }, 120_000)

  it('with a model as teacher: writes probabilities of all its tokens, its sampling, and the tries at one prompt as a group', async () => {
    const out = join(folder, 'model.jsonl')
    const asked = ['--n', '4', '--keys', '6', '--samples', '2', '--rollouts', '2', '--threads', '1', '--out', out, '--json']
    const { code } = await kvfoldHere(['collect', 'pi-llm', '--teacher', 'model', '--temperature', '1', '--seed', '9', ...asked])
    expect(code).toBe(0)
    const records = recordsIn(out)
    for (const { loss, logprobs, sampling, rollout, id, calls, parts, reward } of records) {
      expect(logprobs?.map(({ length }) => length)).toEqual(loss.map(([start, end]) => end - start))
      expect(logprobs?.flat().every((each) => each <= 0 && each > -30)).toBe(true)
      expect(sampling).toMatchObject({ temperature: 1, topP: 1, seed: 9 + rollout + (id === 'pi-llm-4-1' ? 2 : 0) })
      expect(calls['fragment_context']).toBeGreaterThan(0)
      if (parts.failed === parts.recovered && !parts.cutOff) expect(reward).toBe(parts.right ? 1 : 0)
    }
    // One group for each of the two prompts.
    expect(new Set(records.map(({ group }) => group)).size).toBe(2)
    expect(new Set(records.map(({ group, id }) => `${group} ${id}`)).size).toBe(2)
    // Tries at another temperature would not be tries of the same policy.
    const cooler = await kvfoldHere(['collect', 'pi-llm', '--teacher', 'model', '--temperature', '0.5', '--seed', '9', ...asked])
    expect(cooler.stderr).toContain('another temperature or seed')
  }, 120_000)

  it('begins with a failing call under --stumble, and that call is not learned', async () => {
    const out = join(folder, 'stumbled.jsonl')
    const { code } = await collect(out, '--stumble', '--max-calls', '4')
    expect(code).toBe(0)
    for (const { snapshot, steps, loss, parts, reward } of recordsIn(out)) {
      expect({ parts, reward }).toMatchObject({ parts: { stumbled: true, failed: 0, refused: 0 }, reward: 1 })
      expect([steps[0], loss.length]).toEqual([snapshot, 1])
    }
  }, 120_000)

  it.each([
    // The keys that count are in the quarter before the newest.
    { order: 'middle-last', n: '24', steps: 4 },
    // They are in the first of three parts, and a few of them in the second.
    { order: 'start-last', n: '16', steps: 5 },
  ])(
    'restores the part that has the keys in a stream of the order $order, with a snapshot at every step',
    async ({ order, n, steps }) => {
      const out = join(folder, `${order}.jsonl`)
      const { code, stdout } = await kvfoldHere(
        ['collect', 'pi-llm', '--order', order, '--n', n, '--samples', '2', '--threads', '1', '--out', out, '--json'], // prettier-ignore
      )
      expect(code).toBe(0)
      expect(JSON.parse(stdout)).toMatchObject({ trajectories: 2, snapshots: 2 * steps, points: 1 })
      for (const record of recordsIn(out)) {
        expect(record).toMatchObject({ cell: { updates: Number(n), order }, steps: [record.snapshot], reward: 1 })
        expect(record.loss.at(-1)?.[1]).toBe(record.tokens.length)
      }
    },
    120_000,
  )

  it.each([
    // A search for each person in a chain of three, and the answer.
    { task: 'needles', options: ['--needles', '2'], steps: [0, 1, 2, 3] },
    // A search for the title, the text, and the answer.
    { task: 'similar', options: ['--needles', '2'], steps: [0, 1, 2] },
    { task: 'similar', options: ['--needles', '2', '--agent', 'plain'], steps: [0] },
  ])(
    'shows how to do $task with $options',
    async ({ task, options, steps }) => {
      const out = join(folder, `${task}-${steps.length}.jsonl`)
      const { code, stdout } = await kvfoldHere(
        ['collect', task, ...options, '--length', '500', '--samples', '3', '--threads', '1', '--out', out, '--json'], // prettier-ignore
      )
      expect(code).toBe(0)
      expect(JSON.parse(stdout)).toMatchObject({ trajectories: 3, points: 1 })
      for (const record of recordsIn(out)) {
        expect(record).toMatchObject({ steps, snapshots: 1, reward: 1 })
        expect(record.loss.at(-1)?.[1]).toBe(record.tokens.length)
      }
    },
    120_000,
  )

  describe('of chats', () => {
    const data = join(folder, 'chats.jsonl')
    const said = 'The sun is a star.'
    const chats = [
      [{ role: 'user', content: 'What is the sun?' }, { role: 'assistant', content: said }],
      [
        { role: 'system', content: 'Answer briefly.' },
        { role: 'user', content: 'Hello' },
        { role: 'assistant', content: 'Hello!' },
        { role: 'user', content: 'What is the sun?' },
        { role: 'assistant', content: said },
      ],
    ] // prettier-ignore
    const chat = (out: string, ...more: string[]) =>
      kvfoldHere(['collect', 'chat', '--data', data, '--threads', '1', '--format', 'prompt-completion', '--out', out, ...more])
    const rowsIn = (path: string) =>
      linesOf(path).map((line) => JSON.parse(line) as { readonly prompt: typeof chats[number]; readonly completion: unknown; readonly tools: string }) // prettier-ignore

    it('learns only the answer of the row, with the context tools in the prompt', async () => {
      writeFileSync(data, chats.map((messages) => JSON.stringify({ messages })).join('\n'))
      const out = join(folder, 'chat.jsonl')
      expect((await chat(out)).code).toBe(0)
      const rows = rowsIn(out)
      expect(rows.map(({ completion }) => completion)).toEqual([
        [{ role: 'assistant', content: said }],
        [{ role: 'assistant', content: said }],
      ])
      expect(rows[1]!.prompt).toEqual(chats[1]!.slice(0, -1))
      expect(rows[0]!.prompt.map(({ role }) => role)).toEqual(['system', 'user'])
      expect(rows.every(({ tools }) => tools.includes('fold_fragment'))).toBe(true)
      const bare = join(folder, 'chat-none.jsonl')
      expect((await chat(bare, '--system-prompt', 'none')).code).toBe(0)
      expect(rowsIn(bare).map(({ prompt }) => prompt[0]!.role)).toEqual(['user', 'system'])
    }, 120_000)

    it("learns a model's own answer without an end where the answer was cut off", async () => {
      const out = join(folder, 'chat-model.jsonl')
      expect((await chat(out, '--teacher', 'model', '--max-tokens', '1', '--limit', '1')).code).toBe(0)
      const [row] = rowsIn(out)
      expect(row).toMatchObject({ teacher: 'model', parts: { cutOff: true, failed: 0 }, reward: -1 })
    }, 120_000)

    it('refuses a chat without an answer', async () => {
      writeFileSync(data, JSON.stringify({ messages: chats[0]!.slice(0, 1) }))
      const { code, stderr } = await chat(join(folder, 'none.jsonl'))
      expect([code, stderr]).toEqual([1, expect.stringContaining('line 1: The last message is not an answer')])
    }, 120_000)
  })

  it.each([
    ['memtool', '--max-calls', '4'],
    ['memtool', '--max-tokens', '64'],
    ['memtool', '--agent', 'plain'],
    ['memtool', '--framework', 'react'],
    ['service', '--stumble'],
    ['service', '--system-prompt', 'general'],
    ['service', '--n', '4'],
    ['service', '--data', 'x.jsonl'],
    ['chat', '--turns', '3'],
    ['pi-llm', '--way', 'hybrid'],
  ])('refuses for %s the option %s, which would do nothing', async (task, ...options) => {
    const { code, stderr } = await kvfoldHere(['collect', task, ...options, '--model', 'there-is-none.gguf'])
    const said = `kvfold: ${options[0]!} does nothing in trajectories of ${task}; leave it out. [cli/bad-usage]`
    expect([code, stderr.trim()]).toEqual([2, said])
  })

  it('writes Parquet of sessions, and refuses contradictory options', async () => {
    const out = join(folder, 'sessions.parquet')
    const session = ['collect', 'memtool', '--turns', '2', '--samples', '2', '--tools', '50', '--format', 'verl', '--out', out]
    const { code, stdout } = await kvfoldHere([...session, '--threads', '1', '--json'])
    expect(code).toBe(0)
    const rows = await parquetReadObjects({ file: await asyncBufferFromFile(out) })
    expect(JSON.parse(stdout)).toMatchObject({ trajectories: 2, snapshots: rows.length, points: 1 })
    expect(new Set(rows.map((row) => String(row['trajectory']))).size).toBe(2)
    const remote = await kvfoldHere(['collect', 'pi-llm', '--engine', 'http://127.0.0.1:9', '--teacher', 'script'])
    expect([remote.code, remote.stderr]).toEqual([2, expect.stringContaining('leave out --engine') as string])
  }, 120_000)
})
