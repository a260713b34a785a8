/** Owns what every record of a bench says of where it comes from: command, commit, machine, its load, and the model. */
import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { cpus, loadavg } from 'node:os'
import { basename } from 'node:path'
import * as prettier from 'prettier'

export interface Origin {
  readonly command: string
  /** `+changes`: the checkout had some that were not committed. */
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
    command: `npm run --silent bench -- ${args.join(' ')}`,
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
  return git('rev-parse', 'HEAD') + (git('status', '--porcelain', '--untracked-files=no') === '' ? '' : '+changes')
}

const loadNow = (): number => Number(loadavg()[0]!.toFixed(2))

export const modelNow = (path: string): Origin['model'] => ({
  name: basename(path, '.gguf'),
  sha256: createHash('sha256').update(readFileSync(path)).digest('hex'),
})

/** A record as its file has it: numbers with four significant digits, more than any of these measurements has. */
export const written = (record: object): Promise<string> => {
  const text = JSON.stringify(record, (_, value: unknown) =>
    typeof value === 'number' && !Number.isInteger(value) ? Number(value.toPrecision(4)) : value,
  )
  return prettier.format(text, { parser: 'json', printWidth: 130 })
}
