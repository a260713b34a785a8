import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { asyncBufferFromFile, parquetReadObjects } from 'hyparquet'
import { describe, expect, it } from 'vitest'
import type { ChatMessage } from '../../../src/runtime/chat/message.js'
import { collect, type Collected, TrajectoryFile } from '../../../src/lab/collect/collect.js'
import type { Format, TrajectoryRecord } from '../../../src/lab/collect/formats.js'
import { deskSource, memToolSource, type TrajectorySource, taskSource } from '../../../src/lab/collect/sources.js'
import type { TrajectoryFacts } from '../../../src/lab/collect/trajectory.js'
import { World } from '../../../src/lab/memtool/companies.js'
import { wayNames } from '../../../src/lab/memtool/session.js'
import { deskScenarios } from '../../../src/lab/service/dialogue.js'
import { frameworkNames } from '../../../src/lab/service/frameworks.js'
import { piAnswer, type PiTruth } from '../../../src/lab/pi-llm.js'
import { openTask } from '../../../src/lab/tasks/open.js'
import type { ScriptedReply } from '../../../src/lab/taught-engine.js'
import { KvfoldError } from '../../../src/runtime/core/errors.js'
import { Catalogue } from '../../../src/runtime/tools/catalogue.js'
import { builtinTemplate, ruledFormat } from '../../support/chat-formats.js'
import { ScriptedEngine } from '../../support/scripted.js'
import { temporaryFolder } from '../../support/temporary-folder.js'

const { format, tokenizer } = ruledFormat(builtinTemplate, { words: /\w+|\s|[^\w\s]/gu })
const wording = { format, isEndOfGeneration: (token: number) => tokenizer.isControl(token) }
const info = { model: 'ruled', engine: 'none', release: 'none', context: 1 << 22 }
const acting = { teacher: 'script', model: { format, info } } as const
const model = { name: 'ruled', fingerprint: 'none' }
const folder = temporaryFolder('formats')

const streams = async (updates = [4, 16]): Promise<TrajectorySource> =>
  taskSource({ task: await openTask({ task: 'pi-llm', options: { updates, samples: 2, keys: 12 } }), agent: 'sculptor' })

async function made(source: TrajectorySource, format: Format, tokens: typeof wording | 'engine' = wording): Promise<Collected[]> {
  const all: Collected[] = []
  for await (const one of collect({ source, acting, format, tokens, model, rollouts: 1 })) all.push(one)
  return all
}

interface Shown {
  readonly role: string
  readonly content: string
  readonly loss?: boolean
  readonly tool_calls?: readonly {
    readonly id: string
    readonly function: { readonly name: string; readonly arguments: string }
  }[]
}
type MessagesRow = TrajectoryFacts & { readonly messages: readonly Shown[]; readonly tools: string }
type PromptRow = TrajectoryFacts & {
  readonly prompt: readonly Shown[]
  readonly completion: readonly Shown[]
  readonly tools: string
}

/** Returns a row's message in the form that the chat format takes. */
const message = ({ role, content, tool_calls: calls }: Shown): ChatMessage => ({
  role: role as ChatMessage['role'],
  content,
  ...(calls === undefined
    ? {}
    : {
        toolCalls: calls.map(({ id, function: { name, arguments: text } }) => ({
          id,
          name,
          arguments: JSON.parse(text) as object as Record<string, unknown>,
        })),
      }),
})

describe('the forms of a trajectory', () => {
  it('agree: messages and tools render to the tokens of the other form, and the same parts are learned', async () => {
    const [tokens, messages, prompts] = await Promise.all(
      (['tokens', 'messages', 'prompt-completion'] as const).map(async (form) =>
        (await made(await streams(), form)).flatMap(({ rows }) => rows),
      ),
    )
    expect(tokens).toHaveLength(10)
    for (const [at, row] of (tokens as TrajectoryRecord[]).entries()) {
      const { messages: shown, tools: text, ...facts } = messages![at] as MessagesRow
      const tools = (
        JSON.parse(text) as { function: { name: string; description: string; parameters: Record<string, unknown> } }[]
      ).map((tool) => tool.function)
      const { tokens: again } = format.render({ messages: shown.map(message), tools, generationPrompt: false })
      // The template continues with a line feed after the end of turn.
      expect([...again.subarray(0, row.tokens.length)]).toEqual(row.tokens)
      const spans = shown.flatMap(({ loss }, index) => {
        if (loss !== true) return []
        const { tokens: before } = format.render({ messages: shown.slice(0, index).map(message), tools })
        const { tokens: after } = format.render({
          messages: shown.slice(0, index + 1).map(message),
          tools,
          generationPrompt: false,
        })
        return [[before.length, after.length - 1]]
      })
      expect(spans).toEqual(row.loss)
      expect(facts).toMatchObject({ id: row.id, snapshot: row.snapshot, steps: row.steps, outcomes: row.outcomes })
      const { prompt, completion } = prompts![at] as PromptRow
      const bare = shown.map(({ loss: _, ...rest }) => rest)
      expect([...prompt, ...completion]).toEqual(bare)
      expect(completion.filter(({ role }) => role === 'assistant')).toHaveLength(row.loss.length)
    }
  })

  it('have the same snapshots as messages when the engine reports no tokens', async () => {
    const facts = (all: Collected[]) =>
      all.flatMap(({ rows }) => rows as TrajectoryFacts[]).map(({ id, snapshot, steps }) => [id, snapshot, steps])
    const counted = await made(await streams(), 'messages', 'engine')
    expect(facts(counted)).toEqual(facts(await made(await streams(), 'messages')))
    expect(counted.map(({ tokens }) => tokens)).toEqual(counted.map(() => 0))
    await expect(made(await streams(), 'tokens', 'engine')).rejects.toThrow(/does not report the tokens of step 1/u)
  })

  it('as Parquet has labels and a mask from the spans of loss, and the columns that verl needs', async () => {
    const path = join(folder, 'rows.parquet')
    const source = await streams([16])
    const terms = { source, rollouts: 1, acting, model, format: 'verl' } as const
    const file = await TrajectoryFile.open(path, terms)
    const all = await made(source, 'verl')
    await file.add(all[0]!)
    await file.close()
    // As after a stop in the middle of the second trajectory.
    writeFileSync(`${path}.jsonl`, readFileSync(`${path}.jsonl`, 'utf8') + JSON.stringify(all[1]!.rows[0]))
    const again = await TrajectoryFile.open(path, terms)
    expect(again.begun).toBe(1)
    await again.add(all[1]!)
    await again.finish()
    expect(existsSync(`${path}.jsonl`)).toBe(false)
    await expect(TrajectoryFile.open(path, terms)).rejects.toThrow(/cannot be continued/u)
    const rows = await parquetReadObjects({ file: await asyncBufferFromFile(path) })
    const expected = all.flatMap((one) => one.rows as (TrajectoryRecord & { prompt: Shown[] })[])
    expect(rows).toHaveLength(expected.length)
    for (const [at, { tokens, loss, id, group, reward, prompt }] of expected.entries()) {
      const row = rows[at]!
      const isLearned = tokens.map((_, place) => loss.some(([start, end]) => start <= place && place < end))
      expect(row).toMatchObject({
        input_ids: tokens,
        labels: tokens.map((token, place) => (isLearned[place] === true ? token : -100)),
        loss_mask: isLearned.map(Number),
        old_log_probs: undefined,
        ...{ data_source: 'kvfold/pi-llm', uid: group, reward, snapshot: expected[at]!.snapshot },
        extra_info: { index: at, id, group },
      })
      expect((row['prompt'] as Shown[]).map(({ role, content }) => [role, content])).toEqual(
        prompt.map(({ role, content }) => [role, content]),
      )
    }
  })

  it('as Parquet have no probabilities beside tokens that are not those of the model that acted', async () => {
    const own = await streams([4])
    const source: TrajectorySource = {
      ...own,
      play: async (...args) => {
        const played = await own.play(...args)
        return { ...played, steps: played.steps.map((step) => ({ ...step, logprobs: [-1], pieces: ['The'] })) }
      },
    }
    for (const one of await made(source, 'verl')) for (const row of one.rows) expect(row).not.toHaveProperty('logprobs')
    for (const one of await made(source, 'messages')) for (const row of one.rows) expect(row).toHaveProperty('logprobs')
  })

  it('refuses a file of another form', async () => {
    const path = join(folder, 'messages.jsonl')
    const source = await streams()
    const terms = { source, rollouts: 1, acting, model, format: 'messages' } as const
    const file = await TrajectoryFile.open(path, terms)
    await file.add((await made(source, 'messages'))[0]!)
    await file.close()
    const again = await TrajectoryFile.open(path, terms)
    expect(again.begun).toBe(1)
    await again.close()
    await expect(TrajectoryFile.open(path, { ...terms, format: 'tokens' })).rejects.toThrow(/in the messages format/u)
    const spliced = { ...model, settings: { contract: 'splice' } }
    await expect(TrajectoryFile.open(path, { ...terms, model: spliced })).rejects.toThrow(/of another contract/u)
  })
})

describe('a model that fills the context', () => {
  const full = () => new KvfoldError('context/full', 'There is no room.')
  /** Collects one stream from a model that says `replies`. After them its context is full. */
  const acted = async (replies: readonly ScriptedReply[], stumble = false) => {
    const task = await openTask({ task: 'pi-llm', options: { updates: [4], samples: 2, keys: 6 } })
    const left = [...replies, null, ...replies, null]
    const engine = new ScriptedEngine(() => {
      const next = left.shift()
      if (next == null) throw full()
      return next
    })
    const taught = { teacher: 'model', engine, sampling: { temperature: 1 }, model: { format, info } } as const
    const source = taskSource({ task, agent: 'sculptor', stumble, maxCalls: 2 })
    const rows: TrajectoryFacts[][] = []
    const options = { source, acting: taught, format: 'messages', tokens: 'engine', model, rollouts: 1 } as const
    for await (const one of collect(options)) rows.push(one.rows as TrajectoryFacts[])
    return rows
  }
  const search = { name: 'search_context', arguments: { query: 'a' } }

  it('leaves its steps so far as a trajectory of reward -1, and the next sample is collected', async () => {
    const trajectories = await acted([{ calls: [search, { name: 'fold_fragment' }, search] }])
    expect(trajectories.map((rows) => rows.map(({ id, steps }) => [id, steps]))).toEqual([
      [['pi-llm-4-0', [0]]],
      [['pi-llm-4-1', [0]]],
    ])
    expect(trajectories[0]![0]).toMatchObject({
      ...{ points: 0, reward: -1, calls: { search_context: 2, fold_fragment: 1 } },
      parts: { right: false, cutOff: true, failed: 1, recovered: 0, refused: 1 },
      outcomes: [[{ outcome: 'done' }, { outcome: 'failed' }, { outcome: 'failed' }]],
    })
    expect(trajectories[0]![0]!.context).toBeGreaterThan(0)
  })

  it('does not count a call in its place as its own', async () => {
    const [[row]] = (await acted([{ calls: [search] }], true)) as [[TrajectoryFacts]]
    expect(row).toMatchObject({ reward: -1, steps: [0], parts: { failed: 0, cutOff: true, stumbled: false } })
  })

  it('is an error where the first prompt does not fit, in sessions, too', async () => {
    await expect(acted([])).rejects.toMatchObject({ code: 'context/full' })
    const engine = new ScriptedEngine(() => {
      throw full()
    })
    const scenarios = deskScenarios({ turns: [2], fields: [0], samples: 1, seed: 2, agent: 'model' })
    const source = deskSource({ scenarios, framework: 'react', maxTokens: 512 })
    const { signal } = new AbortController()
    const playing = source.play(0, { teacher: 'model', engine, sampling: {} }, 'full', signal)
    await expect(playing).rejects.toMatchObject({ code: 'context/full' })
  })
})

it('a model that makes more calls than allowed earns -1, though failed calls beside a failed one are free', async () => {
  const task = await openTask({ task: 'pi-llm', options: { updates: [4], samples: 1, keys: 6 } })
  const sample = await task.sample(0)
  const search = { name: 'search_context', arguments: { query: 'a' } }
  const last = (sample.truth as PiTruth).last
  const content = piAnswer(Object.keys(last), new Map(Object.entries(last)))
  const play = (failures: number) => {
    const calls = Array.from({ length: failures }, () => ({ name: 'search_context' }))
    const engine = new ScriptedEngine([{ calls }, { calls: [search] }, { content }])
    const source = taskSource({ task, agent: 'sculptor', maxCalls: 5 })
    return source.play(0, { teacher: 'model', engine, sampling: {} }, 'many', new AbortController().signal)
  }
  expect((await play(4)).parts).toMatchObject({ right: true, failed: 4, recovered: 4, refused: 0 })
  expect((await play(9)).parts).toMatchObject({ right: true, failed: 9, recovered: 9, refused: 5 })
})

describe('sessions of many turns', () => {
  const once = (all: Collected[]) => {
    for (const { rows } of all) {
      const steps = (rows as TrajectoryRecord[]).flatMap((row) => row.steps)
      expect(steps).toEqual(steps.map((_, at) => at))
      for (const { loss, tokens, outcomes, steps: own } of rows as TrajectoryRecord[]) {
        expect(loss.at(-1)?.[1]).toBe(tokens.length)
        expect(outcomes).toHaveLength(own.length)
      }
    }
  }

  it.each(wayNames)(
    'of tools that come and go (%s) are one trajectory each, in which every completion is learned once',
    async (way) => {
      const world = new World({ seed: 3, tools: 60, arguments: true })
      const catalogue = await Catalogue.of(world.tools, {})
      const source = memToolSource({ world, catalogue, way, turns: 4, relation: 'mixed', samples: 2, seed: 5 })
      const all = await made(source, 'tokens')
      once(all)
      expect(all.map(({ points }) => points)).toEqual([1, 1])
      expect((all[0]!.rows[0] as TrajectoryRecord).parts).toMatchObject({ right: true, failed: 0, refused: 0 })
      expect((all[0]!.rows[0] as TrajectoryFacts).group).not.toBe((all[1]!.rows[0] as TrajectoryFacts).group)
      const calls = Object.keys((all[0]!.rows[0] as TrajectoryRecord).calls)
      expect(calls.some((name) => world.tools.some((tool) => tool.name === name))).toBe(true)
      catalogue.close()
    },
  )

  it.each(frameworkNames)(
    'at the order desk (%s) are one trajectory each, in which every completion is learned once',
    async (framework) => {
      const scenarios = deskScenarios({ turns: [5], fields: [0], samples: 1, seed: 2, agent: 'taught' })
      const all = await made(deskSource({ scenarios, framework, maxTokens: 512 }), 'tokens')
      once(all)
      expect(all.map(({ points }) => points)).toEqual([1])
      const rows = all[0]!.rows as TrajectoryRecord[]
      expect(Object.values(rows[0]!.calls).reduce((sum, count) => sum + count, 0)).toBeGreaterThan(3)
    },
  )

  it('earn fewer points when the agent does not look things up', async () => {
    const scenarios = deskScenarios({ turns: [12], fields: [0], samples: 1, seed: 1, agent: 'careless' })
    const [one] = await made(deskSource({ scenarios, framework: 'react', maxTokens: 512 }), 'tokens')
    expect(one!.points).toBeLessThan(1)
    const rows = one!.rows as TrajectoryRecord[]
    expect(rows[0]!.parts.right).toBe(false)
    // The desk refuses calls with invented ids.
    const refused = rows.flatMap(({ outcomes }) => outcomes!.flat()).filter(({ outcome }) => outcome === 'failed')
    expect(refused.length).toBeGreaterThan(0)
    expect(rows[0]!.parts.failed).toBe(refused.length)
  })

  it('run under the contract that was asked for', async () => {
    const contracts = async (source: TrajectorySource) => {
      const engine = new ScriptedEngine(() => ({ content: 'I do not know.' }))
      await source.play(0, { teacher: 'model', engine, sampling: {} }, 'contract', new AbortController().signal)
      return new Set(engine.requests.map(({ contract }) => contract))
    }
    const world = new World({ seed: 3, tools: 60, arguments: true })
    const catalogue = await Catalogue.of(world.tools, {})
    const options = { world, catalogue, way: 'autonomous', turns: 2, relation: 'mixed', samples: 1, seed: 5 } as const
    expect(await contracts(memToolSource({ ...options, contract: 'splice' }))).toEqual(new Set(['splice']))
    expect(await contracts(memToolSource(options))).toEqual(new Set(['exact']))
    catalogue.close()
    const scenarios = deskScenarios({ turns: [2], fields: [0], samples: 1, seed: 2, agent: 'model' })
    const desk = deskSource({ scenarios, framework: 'sculptor', maxTokens: 512, contract: 'splice' })
    expect(await contracts(desk)).toEqual(new Set(['splice']))
  })

  it('count a call without the argument that its tool wants as failed', () => {
    const world = new World({ seed: 3, tools: 60, arguments: true })
    const { name } = world.tools.find((tool) => tool.name.endsWith('_revenue'))!
    expect(() => world.answer({ name, arguments: {} })).toThrow('it wants the argument year')
  })
})
