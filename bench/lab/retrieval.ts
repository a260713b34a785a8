/**
 * Whether retrieval helps: a chain of facts in a long text, answered plainly, with tools, and from passages that BM25 or an embedder chose.
 * Also counts how many of the facts the answering step was shown. Each cell is `kvfold eval needles`. Intervals are bootstraps over
 * samples, or Wilson's if all samples have the same result.
 * `npm run --silent bench -- retrieval --embedder <GGUF> [--needles 2,4] [--length 8k] [--samples 16] [--seed 7] [--agent
 * plain,sculptor,rag-bm25,rag-dense] [--filler text] [--max-tokens 256] [--model path] [--chat-template file] [--json] [--write name]`. A
 * stopped run resumes.
 */
import { createHash } from 'node:crypto'
import { mkdirSync, readFileSync } from 'node:fs'
import { basename } from 'node:path'
import { parseArgs } from 'node:util'
import { fitted } from '../../src/lab/agent.js'
import { openNeedles, type NeedlesTruth } from '../../src/lab/tasks/needles.js'
import { percent } from '../../src/runtime/figures/numbers.js'
import { left, right, table, terminal } from '../../src/runtime/figures/table.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { evaluated } from './builtin.js'
import { computedBy } from './logs.js'
import { beginRecord, keep, modelNow, OPTIONS } from '../record.js'
import { mean, shareInterval, type Interval } from '../statistics.js'

/** `Header` and `Sample`: the fields that are read of a log's first line, and of its samples. */
interface Header {
  readonly tasks: readonly { readonly options: object }[]
}
interface Sample {
  readonly kind: string
  readonly agent: string
  readonly index: number
  readonly cell: { readonly needles: number; readonly length: number }
  readonly truth: NeedlesTruth
  readonly end: string
  readonly score: { readonly points: number; readonly outcome: string }
  readonly details: { readonly contextTokens?: number; readonly passageTokens?: number }
  readonly talks: readonly {
    readonly messages: readonly { readonly content: string }[]
    readonly steps: readonly { readonly ledger?: { readonly shown: number } }[]
  }[]
}

interface Row {
  readonly agent: string
  readonly needles: number
  readonly samples: number
  /** The share of right answers. */
  readonly right: number
  readonly rightInterval: Interval
  /** Number of answers that do not have the requested form. */
  readonly unparsed: number
  /** The share of the facts that the answering step's messages contain; null if the model itself folds and restores. */
  readonly facts: number | null
  readonly factsInterval: Interval | null
  /** The share of the text's tokens that the passages have; null if the whole text is shown. */
  readonly passages: number | null
  /** Mean number of tokens that the answering step was shown; null if all samples overflowed the context. */
  readonly shown: number | null
}

export async function retrieval(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      ...OPTIONS,
      seed: { type: 'string', default: '7' },
      embedder: { type: 'string' },
      needles: { type: 'string', default: '2,4' },
      length: { type: 'string', default: '8k' },
      samples: { type: 'string', default: '16' },
      agent: { type: 'string', default: 'plain,sculptor,rag-bm25,rag-dense' },
      filler: { type: 'string' },
      'max-tokens': { type: 'string', default: '256' },
      'chat-template': { type: 'string' },
    },
  })
  const { model, embedder, filler, 'chat-template': template } = values
  if (embedder === undefined) throw new Error('--embedder: name a GGUF, such as the one that npm run models:real makes.')
  const said = args.map((arg) => (arg === embedder || arg === model || arg === filler || arg === template ? basename(arg) : arg))
  const origin = beginRecord(['retrieval', ...said], model, (await openNative({ gpu: 'cpu' })).backend.release, 1)
  const folder = 'build/retrieval'
  mkdirSync(folder, { recursive: true })
  const log = `${folder}/${createHash('sha256')
    .update(args.filter((arg) => arg !== '--json').join(' '))
    .digest('hex')
    .slice(0, 12)}.jsonl`
  await evaluated([
    ...['eval', 'needles', '--agent', values.agent, '--needles', values.needles, '--length', values.length],
    ...['--samples', values.samples, '--seed', values.seed, '--max-tokens', values['max-tokens'], '--embedder', embedder],
    ...['--model', model, '--threads', '1', '--slots', '1', '--log', log, '--json'],
    ...(filler === undefined ? [] : ['--filler', filler]),
    ...(template === undefined ? [] : ['--chat-template', template]),
  ])
  const [header, ...lines] = readFileSync(log, 'utf8').trim().split('\n')
  const { tasks } = JSON.parse(header!) as Header
  const task = await openNeedles({ task: 'needles', options: tasks[0]!.options as Record<string, never> })
  const samples = new Map<string, Sample>()
  for (const one of lines.map((line) => JSON.parse(line) as Sample))
    if (one.kind === 'sample') samples.set(`${one.agent} ${one.index}`, one)
  const seen = await Promise.all(
    [...samples.values()].map(async (one) => ({ ...one, facts: factsShown(one, (await task.sample(one.index)).context) })),
  )
  const names = [...new Set(seen.map(nameOf))]
  const rows = names.map((name) => rowOf(seen.filter((one) => nameOf(one) === name)))
  const result = {
    ...origin(),
    computed: computedBy([log]),
    embedder: modelNow(embedder),
    ...(filler === undefined ? {} : { text: modelNow(filler) }),
    ...{ length: values.length, seed: Number(values.seed), rows },
  }
  await keep(values.write, result)
  console.log(values.json ? JSON.stringify(result) : terminal(tableOf(rows)).join('\n'))
}

const nameOf = ({ agent, cell }: Sample): string => `${agent} ${cell.needles}`

/** Returns the share of the chain's sentences that the answering step was shown; null for `sculptor`, which folds by itself. */
function factsShown({ truth: { chain }, agent, talks }: Sample, context: string): number | null {
  if (agent === 'sculptor') return null
  const facts = context
    .split('\n')
    .filter((line) => chain.some((elder, at) => line.includes(elder) && line.includes(chain[at + 1] ?? elder + context)))
  if (facts.length !== chain.length - 1) throw new Error(`The text has ${facts.length} sentences of a chain of ${chain.length}.`)
  const shown = (talks.at(-1)?.messages ?? []).map(({ content }) => content).join('\n')
  return facts.filter((fact) => shown.includes(fact)).length / facts.length
}

function rowOf(of: readonly (Sample & { readonly facts: number | null })[]): Row {
  const { agent, cell } = of[0]!
  const points = of.map(({ score }) => score.points)
  const facts = of.flatMap((one) => one.facts ?? [])
  const passages = of.flatMap(({ details }) =>
    details.passageTokens === undefined ? [] : [details.passageTokens / (details.contextTokens ?? Number.NaN)],
  )
  const shown = of.filter(fitted).map(({ talks }) => talks.at(-1)?.steps.at(-1)?.ledger?.shown ?? 0)
  return {
    agent,
    needles: cell.needles,
    samples: of.length,
    right: mean(points),
    rightInterval: shareInterval(points),
    unparsed: of.filter(({ score }) => score.outcome === 'unparsed').length,
    facts: facts.length === 0 ? null : mean(facts),
    factsInterval: facts.length === 0 ? null : shareInterval(facts),
    passages: passages.length === 0 ? null : mean(passages),
    shown: shown.length === 0 ? null : Math.round(mean(shown)),
  }
}

function tableOf(rows: readonly Row[]) {
  const share = (value: number | null, interval: Interval | null): string =>
    value === null
      ? ''
      : `${percent(value, 0)}${interval === null ? '' : ` (${interval.map((end) => percent(end, 0)).join(' to ')})`}`
  return table(
    [
      left('who'),
      ...['facts in the text', 'facts shown', 'of the text', 'right', 'without an answer', 'tokens shown'].map(right),
    ],
    rows.map((row) => [
      ...[row.agent, String(row.needles), share(row.facts, row.factsInterval), share(row.passages, null)],
      ...[share(row.right, row.rightInterval), `${row.unparsed} of ${row.samples}`, row.shown === null ? '' : String(row.shown)],
    ]),
  )
}
