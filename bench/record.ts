/** Owns what the benches that keep records share: options, and what a record says of where it comes from (command, commit, machine, its load, the model). */
import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { cpus, homedir, loadavg } from 'node:os'
import { basename } from 'node:path'
import * as prettier from 'prettier'
import { BUILTIN, builtinModel } from '../src/runtime/cli/builtin.js'

/** For `parseArgs`; each bench has its own beside these. */
export const OPTIONS = {
  json: { type: 'boolean', default: false },
  model: { type: 'string', default: builtinModel() },
  /** Name of a record in results/. */
  write: { type: 'string' },
} as const

export const SEED = { seed: { type: 'string', default: '2026' } } as const

export interface Origin {
  readonly command: string
  /** `+changes`: the checkout had some that were not committed, other than of records. */
  readonly commit: string
  /** ISO 8601. */
  readonly date: string
  readonly machine: {
    readonly cpu: string
    readonly cores: number
    /** Threads llama.cpp ran on; left out: its default. */
    readonly threads?: number
    readonly node: string
    readonly llamaCpp: string
    /** Mean number of processes that wanted a core: the minute before the run, and its last minute. This bench is one of them. */
    readonly load: { readonly before: number; readonly after: number }
  }
  readonly model: { readonly name: string; readonly sha256: string }
}

/** Notes what is so at the beginning (others may commit meanwhile); the result is called at the end. `args`: of `npm run bench --`. */
export function beginRecord(args: readonly string[], model: string, llamaCpp: string, threads?: number): () => Origin {
  const begun = { commit: commitNow(), date: new Date().toISOString() }
  const before = loadNow()
  return () => ({
    // A record is everybody's: where the home folder lies here is nobody's business.
    command: `npm run --silent bench -- ${args.join(' ')}`.replaceAll(homedir(), '~'),
    ...begun,
    machine: {
      cpu: cpus()[0]?.model ?? 'unknown',
      cores: cpus().length,
      ...(threads === undefined ? {} : { threads }),
      node: process.version,
      llamaCpp,
      load: { before, after: loadNow() },
    },
    model: modelNow(model),
  })
}

function commitNow(): string {
  const git = (...args: string[]) => execFileSync('git', args, { encoding: 'utf8' }).trim()
  return (
    git('rev-parse', 'HEAD') +
    (git('status', '--porcelain', '--untracked-files=no', '--', ':!bench/results') === '' ? '' : '+changes')
  )
}

const loadNow = (): number => Number(loadavg()[0]!.toFixed(2))

/** Where a model lies that may be called `builtin`, as commands have it. */
export const fileOf = (model: string): string => (model === BUILTIN ? builtinModel() : model)

export const modelNow = (path: string): Origin['model'] => ({
  name: basename(path, '.gguf'),
  sha256: createHash('sha256').update(readFileSync(path)).digest('hex'),
})

/** A record as its file has it: numbers with four significant digits, more than any of these measurements has; from a thousand on, where means of counts are, with one decimal. */
export const written = (record: object): Promise<string> => {
  const text = JSON.stringify(record, (_, value: unknown) =>
    typeof value === 'number' && !Number.isInteger(value)
      ? Number(Math.abs(value) < 1000 ? value.toPrecision(4) : value.toFixed(1))
      : value,
  )
  return prettier.format(text, { parser: 'json', printWidth: 130 })
}

/** As `--write` asks: nothing without a name. */
export async function keep(name: string | undefined, record: object): Promise<void> {
  if (name !== undefined) writeFileSync(new URL(`results/${name}.json`, import.meta.url), await written(record))
}

const WANTED = {
  model: ['sha256', 'fingerprint'],
  commit: ['commit'],
  load: ['load'],
  processor: ['cpu'],
} as const

/** What a record does not say of where it comes from: `model` (its hash), `commit`, `load`, `processor`. */
export const lacking = (record: unknown): string[] =>
  Object.entries(WANTED).flatMap(([what, names]) => (names.some((name) => valuesOf(record, name).length > 0) ? [] : [what]))

/** Every value that stands under a name, at any depth. */
export function valuesOf(record: unknown, name: string): unknown[] {
  if (typeof record !== 'object' || record === null) return []
  return Object.entries(record).flatMap(([key, value]: [string, unknown]) => (key === name ? [value] : valuesOf(value, name)))
}
