/**
 * Records the report of a `kvfold` command: `npm run --silent bench -- kvfold <its words> --write name`, without `--json`, which this
 * benchmark adds. If the command writes a summary beside its report, the record contains that too. For fields that both have (command,
 * commit, machine, model), the record's value wins; fields that only the command has are added.
 */
import { existsSync, readFileSync } from 'node:fs'
import { basename, dirname, isAbsolute, join } from 'node:path'
import { BUILTIN } from '../../src/runtime/cli/builtin.js'
import { openNative } from '../../src/runtime/native/binding.js'
import { saidBy } from '../lab/builtin.js'
import { computedBy } from '../lab/logs.js'
import { beginRecord, fileOf, keep } from '../record.js'

export async function kvfold(args: readonly string[]): Promise<void> {
  const [words, name] = taken(args, '--write')
  const [, model = BUILTIN] = taken(words, '--model')
  const [, threads] = taken(words, '--threads')
  const { release } = (await openNative({ gpu: 'cpu' })).backend
  // Paths of this machine must not be in a record, neither in the command nor in its report.
  const paths = args.filter((word) => isAbsolute(word))
  const told = (text: string) => paths.reduce((shown, path) => shown.replaceAll(path, basename(path)), text)
  const origin = beginRecord(
    ['kvfold', ...args.map(told)],
    fileOf(model),
    release,
    threads === undefined ? undefined : Number(threads),
  )
  const line = (await saidBy([...words, '--json'])) as Record<string, unknown>
  const said = summaryBeside(line['report']) ?? line
  const of = origin()
  const logs = [line['log'], line['logs']].flat().filter((path) => typeof path === 'string')
  await keep(name, {
    ...of,
    ...(JSON.parse(told(JSON.stringify(said))) as object),
    // They are paths of this machine.
    logs: undefined,
    ...(logs.length === 0 ? {} : { computed: computedBy(logs) }),
    ...{ command: of.command, commit: of.commit, date: of.date },
    machine: { ...objectOf(said['machine']), ...of.machine },
    model: { ...objectOf(said['model']), ...of.model },
  })
  console.log(JSON.stringify(said))
}

/** Returns the summary beside a report, which has all numbers; the printed line has only some. Null if there is none. */
function summaryBeside(report: unknown): Record<string, unknown> | null {
  const path = typeof report === 'string' ? join(dirname(report), 'summary.json') : null
  return path === null || !existsSync(path) ? null : (JSON.parse(readFileSync(path, 'utf8')) as Record<string, unknown>)
}

/** Returns the words without a flag and its value, and the value. */
function taken(words: readonly string[], flag: string): readonly [readonly string[], string | undefined] {
  const at = words.indexOf(flag)
  return at < 0 ? [words, undefined] : [words.toSpliced(at, 2), words[at + 1]]
}

const objectOf = (value: unknown): object => (typeof value === 'object' && value !== null ? value : {})
