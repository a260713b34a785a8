/** Options that all benchmarks with records share, and the origin in each record: command, commit, machine, load, model. */
import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { cpus, homedir, loadavg } from 'node:os'
import { basename } from 'node:path'
import * as prettier from 'prettier'
import { BUILTIN, builtinModel } from '../src/runtime/cli/builtin.js'

export const RESULTS = new URL('results/', import.meta.url)

/** Options for `parseArgs`, to which each benchmark adds its own. */
export const OPTIONS = {
  json: { type: 'boolean', default: false },
  model: { type: 'string', default: builtinModel() },
  /** The name of a record in results/. */
  write: { type: 'string' },
} as const

export const SEED = { seed: { type: 'string', default: '2026' } } as const

/** Returns the option's value if it is one of the names. @throws Error that lists the names */
export function oneOf<Name extends string>(option: string, names: readonly Name[], text: string): Name {
  const name = names.find((each) => each === text)
  if (name === undefined) throw new Error(`--${option} must be ${names.join(' or ')}; it is ${JSON.stringify(text)}.`)
  return name
}

/** Returns the option's value as a number. @throws Error if it is not a whole number above 0 */
export function whole(option: string, text: string): number {
  if (!/^[1-9]\d*$/.test(text)) throw new Error(`--${option} must be a whole number above 0; it is ${JSON.stringify(text)}.`)
  return Number(text)
}

export interface Origin {
  readonly command: string
  /** The git commit. The suffix `+changes` means that the checkout had uncommitted changes other than records. */
  readonly commit: string
  /** The date in ISO 8601. */
  readonly date: string
  readonly machine: {
    readonly cpu: string
    readonly cores: number
    /** The threads of llama.cpp; absent for its default. */
    readonly threads?: number
    readonly node: string
    readonly llamaCpp: string
    /**
     * Load average: the mean number of processes that wanted a core, in the minute before the run and in its last minute. The benchmark
     * itself is one of them.
     */
    readonly load: { readonly before: number; readonly after: number }
  }
  readonly model: { readonly name: string; readonly sha256: string }
}

/**
 * Records the state at the beginning, because someone may commit during the run. Call the returned function at the end. `args`: the
 * arguments of `npm run bench --`.
 */
export function beginRecord(args: readonly string[], model: string, llamaCpp: string, threads?: number): () => Origin {
  const begun = { commit: commitNow(), date: new Date().toISOString() }
  const before = loadNow()
  return () => ({
    // A record is published, so it must not show this machine's home folder.
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

/** Returns a model's path. `builtin` names the built-in model, as in commands. */
export const fileOf = (model: string): string => (model === BUILTIN ? builtinModel() : model)

export const modelNow = (path: string): Origin['model'] => ({
  name: basename(path, '.gguf'),
  sha256: createHash('sha256').update(readFileSync(path)).digest('hex'),
})

/**
 * Returns a record's text for its file. Numbers have four significant digits, more than these measurements are worth. From 1,000 on they
 * have one decimal, because those are means of counts.
 */
export const written = (record: object): Promise<string> => {
  const text = JSON.stringify(record, (_, value: unknown) =>
    typeof value === 'number' && !Number.isInteger(value)
      ? Number(Math.abs(value) < 1000 ? value.toPrecision(4) : value.toFixed(1))
      : value,
  )
  return prettier.format(text, { parser: 'json', printWidth: 130 })
}

/** Writes the record if `--write` gave a name. */
export async function keep(name: string | undefined, record: object): Promise<void> {
  if (name !== undefined) writeFileSync(new URL(`${name}.json`, RESULTS), await written(record))
}

const WANTED = {
  model: ['sha256', 'fingerprint'],
  commit: ['commit'],
  load: ['load'],
  processor: ['cpu'],
} as const

/** Returns what a record lacks of its origin: `model` (its hash), `commit`, `load`, `processor`. */
export const lacking = (record: unknown): string[] =>
  Object.entries(WANTED).flatMap(([what, names]) => (names.some((name) => valuesOf(record, name).length > 0) ? [] : [what]))

/** Returns all values under this key, at any depth. */
export function valuesOf(record: unknown, name: string): unknown[] {
  if (typeof record !== 'object' || record === null) return []
  return Object.entries(record).flatMap(([key, value]: [string, unknown]) => (key === name ? [value] : valuesOf(value, name)))
}
