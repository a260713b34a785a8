/**
 * How well the built-in model does the tasks for which it was made: the cells of its model card, each by its own `kvfold eval`.
 * `npm run --silent bench -- builtin [--samples 20] [--seed 7] [--model path] [--beside path] [--write [--as builtin]]`. A stopped run
 * resumes. Prints the rows of the card's table. With `--write` all figures go to results/builtin.json, or to another record (`--as`), each
 * with its command. `--beside`: other weights that get the same samples.
 */
import { spawn } from 'node:child_process'
import { mkdirSync, readFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { BUILTIN } from '../../src/runtime/cli/builtin.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { fitted } from '../../src/lab/agent.js'
import { beginRecord, fileOf, keep, modelNow } from '../record.js'
import { mean } from '../statistics.js'
import { computedBy } from './logs.js'

const BOTH = '--agent plain,sculptor'
const UNSEEN = '--words native-models/unseen-words.json'
const COMMANDS = [
  `pi-llm ${BOTH} --n 4,8,16,32,64`,
  ...[10, 20, 30].map((share) => `pi-llm --agent plain --n 64 --tail ${share}%`),
  `pi-llm ${BOTH} --n 16 ${UNSEEN}`,
  `pi-llm ${BOTH} --n 16 --order middle-last`,
  `pi-llm ${BOTH} --n 16 --order start-last`,
  `needles ${BOTH} --needles 5 --length 8k`,
  `needles ${BOTH} --needles 2,3,4,5 --length 1k`,
  `similar ${BOTH} --needles 8 --length 8k`,
  `similar --agent sculptor --needles 2,4 --length 1k,4k`,
]
const MAIN = new URL('../../src/cli/main.ts', import.meta.url)

/** One cell, as `kvfold eval --json` prints it. */
export interface Cell {
  readonly task: string
  readonly agent: string
  readonly contract: string
  readonly cell: Readonly<Record<string, number | string>>
  readonly samples: number
  readonly errors: number
  readonly accuracy: number
  readonly interval: readonly [number, number]
  readonly tokensBefore: number
  /** Null if no sample was answered within the context. */
  readonly tokensAfter: number | null
  readonly tokensComputed: number
  readonly calls: number
}

/** The fields that benchmarks read of a sample in a log. */
export interface LoggedSample {
  readonly kind: string
  readonly agent: string
  readonly contract: string
  readonly cell: Cell['cell']
  readonly end: string
  readonly details: Readonly<Record<string, number>>
  readonly score: { readonly details: Readonly<Record<string, number>> }
  readonly calls: readonly { readonly failed: boolean }[]
  readonly talks: readonly {
    readonly steps: readonly {
      readonly ledger?: { readonly shown: number }
      readonly timing?: { readonly generatedTokens: number }
    }[]
  }[]
}

export async function builtin(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      samples: { type: 'string', default: '20' },
      seed: { type: 'string', default: '7' },
      model: { type: 'string', default: BUILTIN },
      beside: { type: 'string' },
      write: { type: 'boolean', default: false },
      as: { type: 'string', default: 'builtin' },
    },
  })
  const origin = beginRecord(['builtin', ...args], fileOf(values.model), (await openNative({ gpu: 'cpu' })).backend.release, 1)
  const options = `--samples ${values.samples} --seed ${values.seed} --threads 1`
  const rows: object[] = []
  const logs: string[] = []
  const asked = rowsBy(values.model, options, logs)
  const askedBeside = values.beside === undefined ? null : rowsBy(values.beside, options, logs)
  for (const [index, words] of COMMANDS.entries()) {
    const others = await askedBeside?.(words, index)
    for (const [n, { name, ...row }] of (await asked(words, index)).entries()) {
      const other = others?.[n]
      rows.push({
        command: `kvfold eval ${words} ${options}`,
        ...row,
        ...(other && { beside: { accuracy: other.accuracy, interval: other.interval, cutOff: other.cutOff } }),
      })
      console.log(`| ${words} | ${row.agent} | ${name} | ${percent(row)} |${other ? ` ${percent(other)} |` : ''} ${shown(row)} |`)
    }
  }
  const beside = values.beside === undefined ? {} : { beside: modelNow(values.beside) }
  if (values.write) await keep(values.as, { ...origin(), computed: computedBy(logs), ...beside, rows })
}

/**
 * Returns a function that runs one command on one model and returns its rows, one per cell. A row's `name` tells the command's cells apart.
 * `index` names the log, whose path is added to `logs`.
 */
function rowsBy(model: string, options: string, logs: string[]) {
  const folder = `build/builtin/${modelNow(fileOf(model)).sha256.slice(0, 12)}`
  mkdirSync(folder, { recursive: true })
  return async (words: string, index: number) => {
    const log = `${folder}/${index}${options.replaceAll(/[^0-9]+/gu, '-')}.jsonl`
    const cells = await evaluated(['eval', ...words.split(' '), ...options.split(' '), '--model', model, '--log', log, '--json'])
    logs.push(log)
    const logged = samplesIn(log)
    return cells.map((cell) => ({
      name: Object.values(cell.cell).join(', '),
      ...rowOf(cell, words),
      ...details(ofCell(logged, cell)),
    }))
  }
}

/** Returns the samples in a log of `kvfold eval`. */
export const samplesIn = (log: string): readonly LoggedSample[] =>
  readFileSync(log, 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as LoggedSample)
    .filter(({ kind }) => kind === 'sample')

/** Returns the samples of the cell. */
export const ofCell = (logged: readonly LoggedSample[], { agent, contract, cell }: Cell): readonly LoggedSample[] =>
  logged.filter((one) => one.agent === agent && one.contract === contract && JSON.stringify(one.cell) === JSON.stringify(cell))

/** Returns the sums of the scores' details over the samples. */
export function sumsOf(samples: readonly LoggedSample[]): Record<string, number> {
  const sums: Record<string, number> = {}
  for (const { score } of samples)
    for (const [name, value] of Object.entries(score.details)) sums[name] = rounded((sums[name] ?? 0) + value, 4)
  return sums
}

/** Runs one `kvfold eval` and returns its cells. Its progress goes to the terminal. */
export const evaluated = async (args: readonly string[]): Promise<readonly Cell[]> =>
  ((await saidBy(args)) as { readonly cells: readonly Cell[] }).cells

/** Runs a `kvfold` command and returns its last line, parsed as JSON. Its progress goes to the terminal. */
export function saidBy(args: readonly string[]): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, ['--import', 'tsx', MAIN.pathname, ...args], {
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    let out = ''
    child.stdout.setEncoding('utf8').on('data', (text: string) => (out += text))
    child.on('error', reject)
    child.on('close', (code) => {
      const last = out.trim().split('\n').at(-1) ?? ''
      if (code === 0) resolve(JSON.parse(last))
      else reject(new Error(`kvfold ${args.join(' ')} ended with ${code}: ${last}`))
    })
  })
}

function rowOf(
  { task, agent, cell, samples, errors, accuracy, interval: [low, high], tokensBefore, tokensAfter, calls }: Cell,
  words: string,
) {
  return {
    task,
    agent,
    ...cell,
    ...(words.includes(UNSEEN) && { words: 'unseen' }),
    samples,
    errors,
    accuracy: rounded(accuracy, 4),
    interval: [rounded(low, 4), rounded(high, 4)] as const,
    tokensBefore: Math.round(tokensBefore),
    tokensAfter: tokensAfter === null ? null : Math.round(tokensAfter),
    calls: rounded(calls, 1),
  }
}

/**
 * Returns, for a cell's samples: the mean prompt tokens of the answering step, the number of answers that were cut off, and the sums.
 * Samples that overflowed the context have no answering step.
 */
function details(samples: readonly LoggedSample[]) {
  const last = samples.filter(fitted).map((one) => one.talks.at(-1)?.steps.at(-1))
  const prompts = last.map((step) => (step?.ledger?.shown ?? 0) - (step?.timing?.generatedTokens ?? 0))
  return {
    tokensAnswered: prompts.length === 0 ? null : Math.round(mean(prompts)),
    cutOff: samples.filter(({ end }) => end === 'length').length,
    details: sumsOf(samples),
  }
}

const rounded = (value: number, digits: number): number => Number(value.toFixed(digits))
const percent = ({ accuracy, interval: [low, high] }: Pick<Cell, 'accuracy' | 'interval'>): string => {
  const [middle, from, to] = [accuracy, low, high].map((share) => rounded(100 * share, 1))
  return `${middle} % (${from} to ${to})`
}
const shown = (row: ReturnType<typeof details>): string =>
  `${row.tokensAnswered} tokens | ${row.cutOff} cut off | ${JSON.stringify(row.details)}`
