/** Owns reading the options of a task: everything checked before the first sample, with a sentence for whoever wrote them. */
import { z } from 'zod'
import { KvfoldError } from '../../core/errors.js'
import type { TaskSpec } from '../task.js'

/** The options with defaults filled in. @throws KvfoldError eval/bad-data that names every wrong option */
export function readOptions<T extends z.ZodType>(schema: T, { task, options }: TaskSpec): z.output<T> {
  const read = schema.safeParse(options)
  if (read.success) return read.data
  const wrong = read.error.issues.map(({ path, message }) => `${path.length === 0 ? 'options' : path.join('.')}: ${message}`)
  throw new KvfoldError('eval/bad-data', `${task} cannot be opened with these options: ${wrong.join('; ')}.`)
}

/** Whole numbers, each once: the values of one axis. */
export const Axis = (least: number, most: number, fallback: readonly number[]) =>
  z
    .array(z.int().min(least).max(most))
    .nonempty()
    .refine((values) => new Set(values).size === values.length, 'every value may be there once')
    .default([...fallback])

/** What generated tasks share. */
export const generation = {
  /** Samples of every cell. */
  samples: z.int().min(1).max(100_000).default(20),
  seed: z.int().default(0),
} as const

/** Characters that count as one token where lengths are given in tokens: tasks know no tokenizer. */
export const charsPerToken = z.number().min(0.5).max(16).default(4)

/** What a row of a file holds. @throws KvfoldError eval/bad-data that says where it stands and which fields are wrong */
export function readFields<T extends z.ZodType>(schema: T, row: unknown, where: string): z.output<T> {
  const read = schema.safeParse(row)
  if (read.success) return read.data
  const wrong = read.error.issues.map(({ path, message }) => `${path.length === 0 ? 'row' : path.join('.')}: ${message}`)
  throw new KvfoldError('eval/bad-data', `${where} is not a row of this task: ${wrong.join('; ')}.`)
}
