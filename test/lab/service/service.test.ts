import { mkdtemp, readFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { makeStory } from '../../../src/lab/service/customer.js'
import { carryOut, POLICY } from '../../../src/lab/service/desk.js'
import { type DeskCells, deskScenarios, ServiceEnvironment } from '../../../src/lab/service/dialogue.js'
import { frameworkNames } from '../../../src/lab/service/frameworks.js'
import { publishService } from '../../../src/lab/service/report.js'
import { rowsOf, type ServiceRunOptions } from '../../../src/lab/service/run.js'
import { scriptedEngine, scriptedRun } from './support/scripted-run.js'

const run = ({
  agent = 'taught',
  turns = [12],
  fields = [0],
  samples = 1,
  ...more
}: Partial<ServiceRunOptions & DeskCells> = {}) => scriptedRun(deskScenarios({ agent, turns, fields, samples, seed: 1 }), more)

describe('the story', () => {
  it('is the same for the same seed, and its right actions can be carried out', () => {
    fc.assert(
      fc.property(fc.nat(1000), fc.integer({ min: 1, max: 25 }), (seed, turns) => {
        const { desk, goals } = makeStory({ seed, turns })
        expect(goals).toHaveLength(turns)
        expect(makeStory({ seed, turns })).toEqual({ desk, goals })
        for (const goal of goals) {
          // The tools return the facts of a goal at the time of that goal.
          for (const { call, yields } of goal.lookups) {
            const result = carryOut(desk, call)
            for (const words of yields) expect(JSON.stringify(result)).toContain(words)
          }
          for (const act of goal.acts) expect(carryOut(desk, act)).toMatchObject({ ok: true })
        }
      }),
      { numRuns: 20 },
    )
  })
})

describe('the order desk', () => {
  it('has rules that ask for what an answer must contain, and for when to exchange', () => {
    expect(POLICY).toContain('name the ids of the orders and items that you speak of')
    expect(POLICY).toContain('exchange only when told to')
    for (let seed = 0; seed < 20; seed++) {
      const { desk, goals } = makeStory({ seed, turns: 20 })
      const variants = desk.products.flatMap((product) => product.variants.map(({ item_id }) => item_id))
      const known = new Set<string>([...desk.orders.map(({ order_id }) => order_id), ...variants])
      for (const { says, told, acts } of goals) {
        // What is no id is asked for, given by the customer, or the reason of a refusal.
        const others = told.filter((words) => !known.has(words) && !says.includes(words) && words !== 'shipped')
        if (others.length > 0) expect(says).toMatch(/Where is my order|What did I pay|What was the tracking number/u)
        if (says.includes('can I have it in')) expect(acts).toEqual([])
        if (acts.some(({ name }) => name === 'exchange_item')) expect(says).toContain('please exchange it')
      }
    }
  })

  it('scores an agent that does not look, and one that does not remember, below one that does both', async () => {
    const rewards = async (agent: DeskCells['agent']) => {
      const [row] = rowsOf(await run({ agent, samples: 2 }))
      return [row?.reward, row?.turnsRight]
    }
    expect(await rewards('taught')).toEqual([1, 1])
    for (const agent of ['careless', 'forgetful'] as const) {
      const [reward, turns] = await rewards(agent)
      expect(reward).toBe(0)
      expect(turns).toBeGreaterThan(0)
      expect(turns).toBeLessThan(0.9)
    }
  })

  it.each(frameworkNames)('can be completed by %s, which shows or can find all needed facts', async (name) => {
    const [row] = rowsOf(await run({ frameworks: [name], fields: [2] }))
    expect(row).toMatchObject({ name, reward: 1, overflowed: 0 })
    if (name === 'u-fold') expect(row!.folds).toBeGreaterThan(0)
  })

  it.each(frameworkNames)(
    'records calls of %s with the steps that made them, those of a turn that did not fit, too',
    async (name) => {
      const [fits] = await run({ frameworks: [name], turns: [4] })
      for (const { calls, work } of fits!.turns) {
        const steps = calls.map(({ step }) => step)
        expect(steps).toEqual([...steps].sort((a, b) => a - b))
        expect(new Set(steps).size).toBe(steps.length)
        expect(steps.length).toBeLessThan(work.steps)
      }
      expect(fits!.turns.flatMap(({ calls }) => calls)[0]!.step).toBe(0)
      const [full] = await run({ frameworks: [name], turns: [1], fields: [3000], window: 4000 })
      expect(full!.turns[0]!).toMatchObject({ details: { overflowed: 1 }, calls: { 0: { step: 0, failed: false } } })
    },
  )

  it('shows less at the end under an agent that folds than under one that appends', async () => {
    const [react, fold] = rowsOf(await run({ frameworks: ['react', 'u-fold'], fields: [6] }))
    expect(fold).toMatchObject({ reward: 1, overflowed: 0 })
    expect(fold!.contextLast!).toBeLessThan(react!.contextLast!)
  })

  it('says how large the context was by the turns that fitted', async () => {
    const [played] = await run({ turns: [3] })
    const { turns } = played!
    const full = { ...turns[2]!, details: { overflowed: 1 }, tokens: { before: 0, most: 0, after: 0 } }
    const last = { ...played!, turns: [turns[0]!, turns[1]!, full] }
    const [row] = rowsOf([last])
    expect(row).toMatchObject({ contextLast: turns[1]!.tokens.after, overflowed: 1 })
    const never = { ...played!, turns: [full] }
    expect(rowsOf([never])[0]!.contextLast).toBeNull()
    expect(rowsOf([last, never])[0]!.contextLast).toBe(turns[1]!.tokens.after)
    const folder = await mkdtemp(join(tmpdir(), 'service-'))
    publishService(folder, { rows: [row!], dialogues: [last], command: 'test', about: 'test' })
    const drawn = await readFile(join(folder, 'context-3-0.svg'), 'utf8')
    expect([1, 2, 3].filter((turn) => drawn.includes(`react, turn ${turn}: `))).toEqual([1, 2])
  })

  it.each([
    ...frameworkNames.map((framework) => [framework, {}] as const),
    ['react', { window: 1600 }],
    ['u-fold', { folder: true }],
  ] as const)(
    'continues %s at the turn where it was stopped, with the same result and cost (%o)',
    async (framework, { window, folder }: { window?: number; folder?: boolean }) => {
      const options = () => ({
        ...{ frameworks: [framework], turns: [8], fields: [2], contract: 'exact' as const },
        ...(window === undefined ? {} : { window }),
        // A separate engine for the helpers has a cache of its own, which a new process begins empty.
        ...(folder === true ? { folder: scriptedEngine() } : {}),
      })
      const [whole] = await run(options())
      const said = (turns: typeof whole) =>
        turns!.turns.map(({ answer, score, work, details }) => ({ answer, score, work, details }))
      for (const stopAt of [2, 4, 6]) {
        const log = await mkdtemp(join(tmpdir(), 'service-'))
        const stop = new AbortController()
        const onTurn: ServiceRunOptions['onTurn'] = (_, __, turn) => {
          if (turn === stopAt) stop.abort()
        }
        const stopped = run({ ...options(), log, signal: stop.signal, onTurn })
        await expect(stopped).rejects.toMatchObject({ code: 'engine/cancelled' })
        const resumed: [string, number][] = []
        const onResumed = (path: string, turns: number) => resumed.push([path, turns])
        const [again] = await run({ ...options(), log, onResumed })
        expect(resumed).toEqual([[again!.path, stopAt]])
        expect(said(again)).toEqual(said(whole))
        expect((await readFile(again!.path, 'utf8')).trim().split('\n')).toHaveLength(10)
      }
    },
  )

  it.each(frameworkNames)('names in the system message of %s no tool that the agent does not have', async (name) => {
    const engine = scriptedEngine()
    await run({ frameworks: [name], turns: [1], engine })
    const { messages, tools = [] } = engine.requests[0]!
    expect(messages[0]!.role).toBe('system')
    const named = messages[0]!.content.match(/\b[a-z]+_[a-z_]+\b/gu) ?? []
    const known = tools.map((tool) => tool.name)
    expect(named.filter((word) => !known.includes(word))).toEqual([])
  })

  it('plays a dialogue anew with other settings of the engine', async () => {
    const log = await mkdtemp(join(tmpdir(), 'service-'))
    const [first] = await run({ log, turns: [2] })
    const [other] = await run({ log, turns: [2], settings: { cacheTypeK: 'q4_0' } })
    expect(other!.path).not.toBe(first!.path)
  })

  it('adds the configured number of irrelevant fields to a tool result', async () => {
    const result = async (fields: number) => {
      const environment = new ServiceEnvironment({ seed: 3, turns: 4, fields })
      environment.ask()
      const { call } = environment.goal.lookups[0]!
      const tool = environment.tools.find(({ definition }) => definition.name === call.name)!
      return JSON.parse(await tool.execute(call.arguments)) as object
    }
    expect(Object.keys(await result(7))).toHaveLength(Object.keys(await result(0)).length + 7)
  })
})
