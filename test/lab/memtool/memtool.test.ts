import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { ContractChoice } from '../../../src/runtime/core/contract.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import type { Checkpoint } from '../../../src/lab/episode/episode.js'
import type { TurnRecord } from '../../../src/lab/log.js'
import { answerOf, Companies, requestsOf, says, World } from '../../../src/lab/memtool/companies.js'
import { intervalsOf, measuresOf, tokensOf } from '../../../src/lab/memtool/measures.js'
import { lookupsIn, queriesOf, recallOf } from '../../../src/lab/memtool/retrieval.js'
import { memToolPage } from '../../../src/lab/memtool/report.js'
import { type MemToolRun, memToolSession, wayNames } from '../../../src/lab/memtool/session.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { synthesizeModel } from '../../../src/runtime/native/synthetic.js'
import { Catalogue } from '../../../src/runtime/tools/catalogue.js'

const world = new World({ seed: 1, tools: 200, arguments: true })
let folder: string
let engine: LlamaEngine
let load: () => Promise<LlamaEngine>
let catalogue: Catalogue

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'kvfold-memtool-'))
  const path = join(folder, 'model.gguf')
  const shape = { layers: 1, embedding: 64, heads: 2, kvHeads: 2, feedForward: 64, vocabulary: 4096, context: 32_768 }
  await synthesizeModel(path, { architecture: 'llama', ...shape, seed: 1 })
  const native = await openNative({ gpu: 'cpu' })
  load = () => LlamaEngine.load(native, path, { threads: 1, batchThreads: 1, slots: 1, cells: 32_768 })
  engine = await load()
  catalogue = await Catalogue.of(world.tools)
})
afterAll(async () => {
  catalogue.close()
  await engine.dispose()
  await rm(folder, { recursive: true, force: true })
})

const base = {
  agent: 'taught',
  way: 'hybrid',
  contract: 'splice',
  seed: 1,
  turns: 4,
  relation: 'mixed',
} as const satisfies MemToolRun
const session = (run: Partial<MemToolRun>, more: object = {}) =>
  memToolSession({ ...base, ...run }, { engine, world, catalogue, ...more })

test('the session is the same for the same seed, and asks for five calls a turn on average', () => {
  const requests = requestsOf(world, { ...base, turns: 100 })
  expect(requests).toEqual(requestsOf(new World(world.options), { ...base, turns: 100 }))
  expect(requests.reduce((sum, { figures }) => sum + figures.length, 0) / 100).toBe(5)
  expect(Math.max(...requests.map(({ figures }) => figures.length))).toBe(10)
  expect(new Set(world.tools.map(({ name }) => name)).size).toBe(200)
})

test('a value is said by its digits, whatever the spelling of its unit', () => {
  for (const [value, right, wrong] of [
    [
      '352.118 dollars',
      ['352.118 dollars.', 'It is $352.118.', 'US$ **352.118**', 'USD 352.118, and', '352.118', '(in dollars) 352.118;123456'],
      ['352.11 dollars', '1352.118 dollars', '352.1182 dollars', '352.118 million dollars', '$352.118M', '7.352.118'],
    ],
    [
      '3521.18 million dollars',
      ['3521.18 million dollars', '$3,521.18 million', '3,521.18M USD', '**$3521.18** mn', 'USD 3521.18 Million'],
      ['3521.18 dollars', '$3521.18', '$3521.18 billion', '13521.18 million', '3521.187 million', '3521.18 men'],
    ],
    [
      '123456',
      ['123456 employees', '123,456.', 'It has **123,456** people', '123456,654321', '654321,123456', '$352.118, 123,456'],
      ['1234567', '9123456', '1,123,456', '123,456,789', '123456.5', '0.123456', '123456 thousand', '12345'],
    ],
  ] as const) {
    for (const answer of right) expect(says(answer, value), answer).toBe(true)
    for (const answer of wrong) expect(says(answer, value), answer).toBe(false)
  }
})

test('a turn whose answer has every value in the spelling of a model is right', () => {
  const environment = new Companies(world, { ...base, turns: 14 })
  for (const { figures } of requestsOf(world, { ...base, turns: 14 })) {
    const answer = answerOf(world, figures).replaceAll(/(\d\.\d+)( million)? dollars/gu, '$1$2 USD')
    environment.ask()
    expect(environment.score({ answer })).toMatchObject({ points: 1, details: { valuesSaid: figures.length } })
  }
})

test('on a real model, folding late definitions computes only new tokens; a list at the top is computed again and again', async () => {
  const of = async (placement: 'late' | 'list', contract: ContractChoice) => (await session({ placement, contract })).tokens
  const [splice, exact, list] = [await of('late', 'splice'), await of('late', 'exact'), await of('list', 'exact')]
  expect(splice.computed / splice.new).toBeLessThan(1.15)
  expect(exact.computed).toBeGreaterThan(splice.computed)
  expect(list.computed).toBeGreaterThan(exact.computed)
  expect(exact.approximate).toBe(0)
  for (const { shown, reused, computed } of [splice, exact, list]) expect(computed).toBeGreaterThanOrEqual(shown - reused)
})

/** Runs a session. Returns its result, and what another session needs to continue after the first `turns` turns. */
async function stoppedAfter(turns: number, run: Partial<MemToolRun>) {
  const before: TurnRecord[] = []
  let start: { before: readonly TurnRecord[]; checkpoint: Checkpoint } | null = null
  const onTurn = (turn: TurnRecord, checkpoint: Checkpoint) => {
    before.push(turn)
    if (before.length === turns) start = { before: [...before], checkpoint: JSON.parse(JSON.stringify(checkpoint)) as Checkpoint }
  }
  return { whole: await session(run, { onTurn }), start }
}

test('the script makes no mistake in any mode', async () => {
  for (const way of ['autonomous', 'workflow'] as const) {
    const { measures } = await session({ way, turns: 2 })
    expect(measures).toMatchObject({ toolCorrectness: 1, callCorrectness: 1, taskCompletion: 1, ghosts: 0, recall: 1 })
  }
  const whole = await session({})
  expect(memToolPage({ command: 'test', date: 'today', model: 'm', agent: 'taught', tools: 200, results: [whole] })).toContain(
    'A script speaks for the model',
  )
})

test.each([
  ['hybrid', 'exact'],
  ['hybrid', 'splice'],
  ['lru', 'exact'],
  ['oracle', 'exact'],
] as const)('an interrupted session of %s under %s ends and costs like one that ran through', async (way, contract) => {
  const run = { way, contract, turns: 3 } as const
  const { whole, start } = await stoppedAfter(2, run)
  // The process that resumes has nothing in its cache.
  await engine.dispose()
  engine = await load()
  const resumed = await session(run, { start })
  expect(resumed.measures).toEqual(whole.measures)
  const costs = ({ sessions: [turns] }: typeof whole) =>
    turns!.map(({ work, details: { newTokens } }) => ({ ...work, newTokens }))
  expect(costs(resumed)).toEqual(costs(whole))
})

test('a resumed session does not count the tools that it began with as new again', async () => {
  const run = { way: 'always', contract: 'exact', turns: 2 } as const
  const { whole, start } = await stoppedAfter(1, run)
  expect((await session(run, { start })).tokens.new).toBe(whole.tokens.new)
})

test('each way tells the model who removes tools and where their definitions are', async () => {
  const removed = 'Tools that are no longer needed are removed for you before every request.'
  for (const way of wayNames)
    for (const placement of ['late', 'list'] as const) {
      const { recorder } = await session({ way, placement, turns: 1, contract: 'exact' })
      const { messages, tools } = recorder.done.find(({ request }) => request.kind === 'answer')!.request
      const said = messages[0]!.content
      const byRule = ['hybrid', 'unused', 'lru'].includes(way)
      expect(said.includes(removed), way).toBe(byRule)
      expect(said.includes('remove_tools'), way).toBe(tools.some(({ name }) => name === 'remove_tools'))
      expect(said.includes('The result of a search shows the definitions'), placement).toBe(placement === 'late')
      const { description } = tools.find(({ name }) => name === 'search_tools')!
      expect(description.includes('The result shows the definitions'), placement).toBe(placement === 'late')
    }
})

test('the comparisons run, too: rules, always all tools, an oracle', async () => {
  for (const way of wayNames.filter((name) => !['autonomous', 'workflow', 'hybrid'].includes(name))) {
    const { measures } = await session({ way, turns: 1, contract: 'exact' })
    expect(measures.turns, way).toBe(1)
    if (way === 'oracle') expect(measures.useless).toBe(0)
    if (way === 'always') expect(measures.meanTools).toBe(128)
  }
})

test('measures: the formulas as printed, and the cases where they break', () => {
  const turn = (tools: number, added: number, removed: number): TurnRecord =>
    ({ score: { points: 1, details: {} }, details: { tools, added, removed } }) as unknown as TurnRecord
  const measures = measuresOf([turn(5, 5, 0), turn(8, 5, 2), turn(2, 0, 6), turn(2, 0, 0), turn(2, 0, 0), turn(2, 0, 0)])
  expect(measures.removalRatio).toBe(0.8)
  // Windows 8/10, 8/5, 6/0 and 0/0: the first counts as it is, the second is clipped, and the others are undefined.
  expect(measures.avgRemovalRatio3T).toBeCloseTo(0.9)
  expect(measures.avgRemovalRatio3TUnclipped).toBeCloseTo(1.2)
  expect(measures).toMatchObject({ windowsLeftOut: 2, peaks: 1, avgResidual: 2, toolCorrectness: null })
})

test('measures: a call of a tool that is not loaded is a wrong call', () => {
  const details = { called: 1, namesRight: 1, callsRight: 1, expected: 1 }
  const turn = { score: { points: 1, details }, details: { ghosts: 9 } } as unknown as TurnRecord
  expect(measuresOf([turn])).toMatchObject({ ghosts: 9, toolCorrectness: 0.1, callCorrectness: 0.1, callRecall: 1 })
})

test('the last prompt of a session is that of the last turn that fitted', () => {
  const work = { shown: 0, reused: 0, submitted: 0, approximate: 0 }
  const turn = (after: number, overflowed: number): TurnRecord =>
    ({ tokens: { after }, work, score: { points: 0, details: {} }, details: { overflowed, tools: 1 } }) as unknown as TurnRecord
  expect(tokensOf([[turn(100, 0), turn(0, 1)], [turn(50, 0)]]).last).toBe(100)
  expect(tokensOf([[turn(0, 1)]]).last).toBeNull()
  const sessions = [[turn(100, 0), turn(0, 1)]]
  const result = { way: 'hybrid', placement: 'late', contract: 'exact', sessions } as const
  const measured = { ...result, measures: measuresOf(...sessions), intervals: intervalsOf(sessions), tokens: tokensOf(sessions) }
  const page = memToolPage({ command: '', date: '', model: 'm', agent: 'model', tools: 1, results: [measured] })
  expect(page).toContain('Tokens of the last prompt of each turn that fitted')
})

test('measures of several sessions: no window and no peak spans two sessions, and intervals are over sessions', () => {
  const turn = (tools: number, added: number, removed: number, points: number): TurnRecord =>
    ({ score: { points, details: {} }, details: { tools, added, removed } }) as unknown as TurnRecord
  const sessions = [
    [turn(4, 4, 0, 1), turn(4, 2, 2, 1), turn(4, 2, 2, 1)],
    [turn(9, 9, 0, 0), turn(9, 0, 0, 1), turn(9, 0, 0, 0)],
  ]
  expect(measuresOf(...sessions)).toMatchObject({
    turns: 6,
    removalRatio: 4 / 17,
    windowsLeftOut: 0,
    peaks: 0,
    taskCompletion: 4 / 6,
  })
  // Each session has its own window: 4/8 and 0/9.
  expect(measuresOf(...sessions).avgRemovalRatio3T).toBeCloseTo(0.25)
  const { taskCompletion, recall } = intervalsOf(sessions)
  expect(taskCompletion).toEqual([1 / 3, 1])
  expect(recall).toBeNull()
  expect(intervalsOf(sessions.slice(0, 1)).taskCompletion).toBeNull()
})

test('tools are found by their names; catalogues of other projects are read in their forms', async () => {
  const [bm25] = await recallOf(catalogue, queriesOf(world, 'exact', 40, 1))
  expect(bm25).toMatchObject({ ranking: 'bm25', queries: 40, at5: 1 })
  const tool = { name: 'read', description: 'Reads', inputSchema: { type: 'object' } }
  const forms = [[tool], { tools: [tool] }, [{ name: 'files', tools: { files: { tools: [tool] }, disk: { tools: [tool] } } }]]
  expect(forms.map((form) => lookupsIn(JSON.stringify(form), 'file').tools.map(({ name }) => name))).toEqual([
    ['read'],
    ['read'],
    ['read', 'disk_read'],
  ])
  expect(lookupsIn(JSON.stringify([tool]), 'file').queries).toEqual([{ words: 'Reads', tools: ['read'] }])
  expect(() => lookupsIn('{"a": 1}', 'x.json')).toThrow('x.json is not a catalogue of tools')
  expect(() => lookupsIn('{"a": 1}\n{', 'x.json')).toThrow('x.json is not JSON')
})

test("ToolRet's rows: tools of labels and of documentation appear once each; recall counts all tools of a query", async () => {
  const doc = (name: string) => ({ name, description: `The ${name} of a town` })
  const rows = [
    {
      id: 'q1',
      query: 'mayor and weather',
      labels: [
        { id: 't1', doc: doc('mayor'), relevance: 1 },
        { id: 't2', doc: doc('weather') },
      ],
    },
    { id: 'q2', query: 'river of Oslo', labels: JSON.stringify([{ id: 't3', doc: JSON.stringify(doc('altitude')) }]) },
    { id: 't1', documentation: JSON.stringify(doc('mayor')) },
    { id: 't4', documentation: doc('river') },
  ]
  const { tools, queries } = lookupsIn(rows.map((row) => JSON.stringify(row)).join('\n'), 'file')
  expect(tools.map(({ name }) => name)).toEqual(['t1', 't2', 't3', 't4'])
  expect(queries.map(({ tools: about }) => about)).toEqual([['t1', 't2'], ['t3']])
  const own = await Catalogue.of(tools.slice(0, 2).concat(tools[3]!))
  const [bm25] = await recallOf(own, queries)
  own.close()
  // It finds both tools of the first query; the second query's tool is not in the catalogue.
  expect(bm25).toMatchObject({ at1: 0.5, at5: 0.5 })
})
