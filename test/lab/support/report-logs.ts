/** Makes logs in the form of `kvfold eval`. Answers are random, so that every kind of outcome, error and call occurs. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { Random } from '../../../src/runtime/core/random.js'
import type { AgentKind } from '../../../src/lab/agent.js'
import type { ErrorRecord, LogHeader, SampleRecord, RecordedConversation } from '../../../src/lab/log.js'

export type Line = LogHeader | SampleRecord | ErrorRecord

export const header = (over: Partial<LogHeader> = {}): LogHeader => ({
  kind: 'header',
  version: 1,
  kvfold: '0.1.0',
  commit: 'a3df6d9',
  date: '2026-11-20T10:00:00.000Z',
  command: 'kvfold eval pi-llm needles mrcr --agent all --samples 20 --seed 7 --log run.jsonl',
  machine: { cpu: 'Made-up CPU', cores: 2, memory: 8 * 2 ** 30, os: 'linux 6.1 x64', node: 'v20.19.0' },
  model: { name: 'kvfold-builtin', fingerprint: '0f'.repeat(32) },
  engine: { engine: 'llama', release: 'b9000', context: 32_768 },
  embedder: null,
  judge: null,
  seed: 7,
  sampling: {},
  contracts: ['exact'],
  tasks: [
    {
      ...{
        task: 'pi-llm',
        options: { samples: 5, seed: 7, updates: [4, 16, 64], order: 'shuffled', tail: 1 },
        title: 'PI-LLM',
        size: 15,
      },
      differs: ['Keys and values are our own words.', 'The <question> says what the original says in other "sentences" & marks.'],
    },
    {
      ...{ task: 'needles', options: { samples: 5, seed: 7, needles: [2, 5], lengths: [1000, 4000], depth: 40 }, size: 20 },
      ...{ title: 'NeedleBench, multi-needle reasoning', differs: [] },
    },
  ],
  agents: [
    { agent: 'plain', title: 'Plain', options: {}, trained: false, trainedTasks: ['pi-llm'] },
    { agent: 'sculptor', title: 'Sculptor', options: { calls: 20 }, trained: false, trainedTasks: ['pi-llm'] },
    { agent: 'memagent', title: 'MemAgent', options: { chunk: 5000 }, trained: false, trainedTasks: [] },
  ],
  ...over,
})

export const sample = (over: Partial<SampleRecord> = {}): SampleRecord => ({
  kind: 'sample',
  ...{ task: 0, agent: 'plain', contract: 'exact', index: 0, id: 'pi-llm-4-0', cell: { updates: 4 } },
  truth: { last: { fruit: 'apple' } },
  answer: 'The current value of fruit is apple.',
  end: 'stop',
  score: { points: 1, outcome: 'right', details: { asked: 46, correct: 46, missing: 0, older: 0, foreign: 0 } },
  calls: [],
  refusedCalls: 0,
  details: {},
  talks: [],
  tokens: { before: 1000, most: 1000, after: 1000 },
  work: { steps: 1, shown: 1000, reused: 0, submitted: 1000, generated: 100 },
  milliseconds: { cache: 0, prefill: 600, decode: 300, total: 1000 },
  ...over,
})

export const error = (over: Partial<ErrorRecord> = {}): ErrorRecord => ({
  kind: 'error',
  ...{ task: 0, agent: 'plain', contract: 'exact', index: 0, id: 'pi-llm-4-0', cell: { updates: 4 } },
  code: 'context/full',
  message: 'The prompt has 40,000 tokens | and the <context> 32,768 cells.',
  ...over,
})

export const jsonl = (lines: readonly Line[]): string => lines.map((line) => `${JSON.stringify(line)}\n`).join('')

export function writeLog(path: string, lines: readonly Line[]): string {
  mkdirSync(dirname(path), { recursive: true })
  writeFileSync(path, jsonl(lines))
  return path
}

const TALK: RecordedConversation = { messages: [{ role: 'user', content: 'Which value does fruit have?' }], steps: [] }

/** Returns a run of all agents of the header on all of its tasks; the same for the same seed. */
export function madeRun(about: LogHeader = header(), seed = 1): Line[] {
  const records = about.tasks.flatMap(({ task, options, size }, taskIndex) => {
    const cells = cellsOf(task, options)
    return Array.from({ length: size }, (_, index) => index).flatMap((index) =>
      about.agents.flatMap(({ agent }) =>
        (agent === 'sculptor' ? about.contracts : about.contracts.slice(0, 1)).map((contract, at) =>
          record({
            task,
            taskIndex,
            agent,
            contract,
            index,
            cell: cells[index % cells.length]!,
            nth: Math.floor(index / cells.length),
            seed: seed + at,
          }),
        ),
      ),
    )
  })
  return [about, ...records]
}

function cellsOf(task: string, options: Readonly<Record<string, unknown>>): Record<string, number>[] {
  if (task === 'pi-llm') return (options['updates'] as number[]).map((updates) => ({ updates }))
  const lengths = options['lengths'] as number[]
  return (options['needles'] as number[]).flatMap((needles) => lengths.map((length) => ({ needles, length })))
}

interface Drawn {
  readonly task: string
  readonly taskIndex: number
  readonly agent: AgentKind
  readonly contract: string
  readonly index: number
  readonly cell: Record<string, number>
  readonly nth: number
  readonly seed: number
}

const SKILL: Readonly<Record<AgentKind, number>> = {
  plain: 0.5,
  sculptor: 0.93,
  'rag-bm25': 0.3,
  'rag-dense': 0.25,
  memagent: 0.2,
  mem0: 0.15,
  policy: 0.6,
  summary: 0.4,
  archive: 0.7,
  files: 0.55,
  'edit-text': 0.35,
}
const FLOW: readonly string[] = [
  'fragment_context',
  'fold_fragment',
  'fold_fragment',
  'search_context',
  'restore_fragment',
  'get_search_detail',
]

function record({ task, taskIndex, agent, contract, index, cell, nth, seed }: Drawn): SampleRecord | ErrorRecord {
  const random = new Random(seed, taskIndex, index, agent.length, contract.length)
  const chance = (): number => random.below(1000) / 1000
  const size = task === 'pi-llm' ? cell['updates']! * 250 : cell['length']!
  const identity = { task: taskIndex, agent, contract, index, id: `${task}-${Object.values(cell).join('-')}-${nth}`, cell }
  if (chance() < 0.04) return error({ ...identity, ...(chance() < 0.5 ? {} : { code: 'engine/failed', message: 'It failed.' }) })
  const skill = Math.max(0.03, SKILL[agent] - (agent === 'plain' ? size / 20_000 : 0))
  const correct = Array.from({ length: 46 }, () => Number(chance() < skill)).reduce((sum, one) => sum + one, 0)
  const right = chance() < skill
  const calls =
    agent === 'sculptor'
      ? FLOW.slice(0, 2 + random.below(5)).map((name, step) => ({
          step,
          name,
          failed: chance() < 0.1,
          modifies: name.includes('f'),
        }))
      : []
  const after = agent === 'sculptor' ? Math.round(size / 4) + 300 : size + 300
  const shown = (size + 300) * (calls.length + 1)
  const reused = agent === 'sculptor' ? Math.round(shown * 0.7) : 0
  const total = shown / 2 + 400 * chance()
  return sample({
    ...identity,
    truth: { name: `${task} ${index}` },
    end: chance() < 0.05 ? 'length' : 'stop',
    score:
      task === 'pi-llm'
        ? {
            points: correct / 46,
            outcome: correct === 46 ? 'right' : correct === 0 ? 'wrong' : 'partial',
            details: { asked: 46, correct, missing: 1, older: Math.max(0, 40 - correct), foreign: 2 },
          }
        : { points: Number(right), outcome: right ? 'right' : chance() < 0.3 ? 'unparsed' : 'wrong', details: {} },
    calls,
    refusedCalls: calls.length > 5 ? 2 : 0,
    details: agent === 'memagent' ? { chunks: Math.ceil(size / 5000) } : {},
    talks: [TALK],
    tokens: { before: size + 300, most: size + 400, after },
    work: { steps: calls.length + 1, shown, reused, submitted: shown - reused, generated: 200 },
    milliseconds: { cache: 5 * calls.length, prefill: 0.5 * total, decode: 0.4 * total, total },
  })
}
