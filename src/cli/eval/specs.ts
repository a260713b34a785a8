/** Owns what the tasks of `kvfold eval` are called, which options belong to which, and what they become for the task. */
import { KvfoldError } from '../../core/errors.js'
import type { TaskName, TaskSpec } from '../../eval/task.js'
import { given } from '../options.js'
import type { TaskFlags } from './flags.js'

/** A name of the command line: a task, or the generator or the loader of one. */
interface Called {
  readonly task: TaskName
  readonly about: string
  /** Whether samples come from a file that has to be named, from one that may be (else the hub's), or are generated. */
  readonly data: 'must' | 'may' | 'never'
  readonly takes: readonly (keyof TaskFlags)[]
}

const GENERATED = ['samples', 'sizes'] as const
const LOADED = ['data', 'limit'] as const

const names = {
  'pi-llm': {
    task: 'pi-llm',
    about: 'the last values of keys that were updated again and again',
    data: 'never',
    takes: [...GENERATED, 'n', 'keys', 'words', 'order', 'tail'],
  },
  needles: {
    task: 'needles',
    about: 'a chain of kinship sentences in a long text (NeedleBench M-RS)',
    data: 'never',
    takes: [...GENERATED, 'needles', 'length', 'depth', 'filler'],
  },
  similar: {
    task: 'mrcr',
    about: 'the k-th of several similar texts, generated (MRCR)',
    data: 'never',
    takes: [...GENERATED, 'needles', 'length'],
  },
  mrcr: { task: 'mrcr', about: 'MRCR from a file of the OpenAI form', data: 'must', takes: LOADED },
  'longbench-v2': { task: 'longbench-v2', about: 'LongBench v2', data: 'may', takes: LOADED },
  frames: { task: 'frames', about: 'FRAMES, judged by a model; needs --articles', data: 'may', takes: [...LOADED, 'articles'] },
  babilong: { task: 'babilong', about: 'BABILong, from files', data: 'must', takes: LOADED },
  'gsm-infinite': { task: 'gsm-infinite', about: 'GSM-Infinite, from a file', data: 'must', takes: LOADED },
} as const satisfies Record<string, Called>

export type CalledTask = keyof typeof names
export const calledTasks = Object.keys(names) as CalledTask[]

/** One line a task, for help. */
export const taskHelp = (): string => calledTasks.map((name) => `  ${name.padEnd(14)} ${names[name].about}`).join('\n')

/** A spec that may still lack what `sizes` come to. */
export interface AskedTask {
  readonly called: CalledTask
  readonly spec: TaskSpec
  /** Tokens of a prompt as the model counts them; empty where lengths are given otherwise. */
  readonly sizes: readonly number[]
}

/** @throws KvfoldError cli/bad-usage for unknown tasks, options that belong to none of them, and data that is missing */
export function askedTasks(words: readonly string[], flags: TaskFlags & { readonly seed: number }): AskedTask[] {
  const called = [...new Set(words)].map((word) => {
    if (Object.hasOwn(names, word)) return word as CalledTask
    throw new KvfoldError(
      'cli/bad-usage',
      `There is no task ${word}; the tasks are ${calledTasks.join(', ')}, and table for a whole table.`,
    )
  })
  refuseStrays(called, flags)
  const files = dataOf(called, flags.data ?? [])
  const further = namedOptions('--task-option', called, flags.taskOption ?? [])
  return called.map((name) => ({
    called: name,
    spec: { task: names[name].task, options: { ...optionsOf(name, flags, files.get(name)), ...further.get(name) } },
    sizes: flags.sizes ?? [],
  }))
}

const words: Readonly<Partial<Record<keyof TaskFlags, string>>> = { n: '--n', length: '--length' }
const option = (flag: keyof TaskFlags): string => words[flag] ?? `--${flag}`

function refuseStrays(called: readonly CalledTask[], flags: TaskFlags): void {
  const all = new Set<keyof TaskFlags>(calledTasks.flatMap((name) => names[name].takes))
  for (const flag of all) {
    if (flags[flag] === undefined || called.some((name) => takes(name, flag))) continue
    const owners = calledTasks.filter((name) => takes(name, flag))
    throw new KvfoldError(
      'cli/bad-usage',
      `${option(flag)} belongs to ${owners.join(', ')}, and ${called.join(', ')} is asked for.`,
    )
  }
  if (called.includes('frames') && flags.articles === undefined)
    throw new KvfoldError(
      'cli/bad-usage',
      'frames asks about articles that are not part of it; give them with --articles: a folder of text files, or rows with title and text.',
    )
  for (const other of ['n', 'length'] as const)
    if (flags.sizes !== undefined && flags[other] !== undefined)
      throw new KvfoldError('cli/bad-usage', `--sizes and ${option(other)} both say how long prompts are; give one of them.`)
}

const takes = (name: CalledTask, flag: keyof TaskFlags): boolean => (names[name].takes as readonly string[]).includes(flag)

/** Each task's file. */
function dataOf(called: readonly CalledTask[], texts: readonly string[]): ReadonlyMap<CalledTask, string> {
  const loaded = called.filter((name) => names[name].data !== 'never')
  const files = new Map<CalledTask, string>()
  for (const text of texts) {
    const [, name, path] = /^([a-z0-9-]+)=(.+)$/.exec(text) ?? []
    if (name !== undefined && path !== undefined && Object.hasOwn(names, name)) {
      if (!loaded.includes(name as CalledTask))
        throw new KvfoldError('cli/bad-usage', `--data names a file for ${name}, which is not asked for or takes none.`)
      files.set(name as CalledTask, path)
    } else if (loaded.length > 1)
      throw new KvfoldError(
        'cli/bad-usage',
        `--data ${text} does not say whose file it is; write ${loaded.map((one) => `--data ${one}=FILE`).join(' ')}.`,
      )
    else files.set(loaded[0]!, text)
  }
  const missing = loaded.find((name) => names[name].data === 'must' && !files.has(name))
  if (missing !== undefined)
    throw new KvfoldError(
      'cli/bad-usage',
      `${missing} needs its file: --data PATH or --data hf:datasets/owner/name/file${missing === 'mrcr' ? '; generated texts of its form are the task similar' : ''}.`,
    )
  return files
}

/** Options by the names that tasks and agents have for them: `owner.option=value`, the value JSON or plain text. @throws KvfoldError cli/bad-usage */
export function namedOptions<Owner extends string>(
  flag: string,
  owners: readonly Owner[],
  texts: readonly string[],
): ReadonlyMap<Owner, Readonly<Record<string, unknown>>> {
  const found = new Map<Owner, Record<string, unknown>>()
  for (const text of texts) {
    const [, name = '', option = '', value = ''] = /^([\w-]+)\.(\w+)=(.*)$/s.exec(text) ?? []
    const owner = owners.find((one) => one === name)
    if (owner === undefined)
      throw new KvfoldError(
        'cli/bad-usage',
        `${flag} ${text} is not of the form ${owners[0]!}.option=value, with one of ${owners.join(', ')}.`,
      )
    found.set(owner, { ...found.get(owner), [option]: plainOrJson(value) })
  }
  return found
}

function plainOrJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

function optionsOf(
  name: CalledTask,
  flags: TaskFlags & { readonly seed: number },
  data: string | undefined,
): TaskSpec['options'] {
  const { samples, limit, n, keys, words, order, tail, needles, length, depth, filler, articles } = flags
  const common = names[name].data === 'never' ? { samples, seed: flags.seed } : { data, limit }
  switch (name) {
    case 'pi-llm':
      return given({ ...common, updates: n, keys, words, order, tail })
    case 'needles':
      return given({ ...common, needles, lengths: length, depth, filler })
    case 'similar':
      return given({ ...common, needles, lengths: length })
    case 'frames':
      return given({ ...common, articles })
    case 'mrcr':
    case 'longbench-v2':
    case 'babilong':
    case 'gsm-infinite':
      return given(common)
  }
}
