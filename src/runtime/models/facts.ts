/**
 * Facts of model files that take time to find: SHA-256, parameter count, header. A worker thread finds them once per file, and the cache
 * folder keeps them.
 */
import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { mkdir, readFile, stat, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { Piscina } from 'piscina'
import Type from 'typebox'
import { Value } from 'typebox/value'
import { openThreads } from '../core/threads.js'
import { writeWhole } from '../core/whole-file.js'
import { cacheFolder } from '../engine/calibration.js'
import { readHeader } from '../native/gguf-reader.js'

const Facts = Type.Object({
  architecture: Type.String(),
  /** Number of weights of the model. */
  parameters: Type.Number(),
  /** Quantisation, such as `Q4_K_M`; empty when the file does not name a known one. */
  quantization: Type.String(),
  /** Chat template (Jinja); empty when the file has none. */
  template: Type.String(),
  /** Numbers and short texts of the GGUF header; of a list only its length, under `<key>.length`. */
  metadata: Type.Record(Type.String(), Type.Union([Type.String(), Type.Number()])),
})

export type FileFacts = Type.Static<typeof Facts>

type Order =
  { readonly task: 'digest'; readonly paths: readonly string[] } | { readonly task: 'facts'; readonly paths: readonly string[] }

/** Returns the SHA-256 in hex over the bytes of all files in order. Cached in the cache folder, except for partial downloads. */
export const digestOf = (paths: readonly string[]): Promise<string> => {
  const isKept = paths.every((path) => !path.endsWith('.part'))
  const run = () => (turn = turn.then(done, done).then(() => onThread({ task: 'digest', paths }) as Promise<string>))
  // One file at a time, so that reading a header does not have to wait for the disk.
  return isKept ? kept('digest', paths, run, (value) => typeof value === 'string') : run()
}

let turn: Promise<string> = Promise.resolve('')
const done = () => ''

/** Returns the facts in the header of a model's files. @throws KvfoldError model/bad-file, model/not-found */
export const factsOf = (paths: readonly string[]): Promise<FileFacts> =>
  kept(
    'facts',
    paths,
    () => onThread({ task: 'facts', paths }) as Promise<FileFacts>,
    (value) => Value.Check(Facts, value),
  )

/** Facts found by this process. The key is a hash of task, paths, sizes and times of change. */
const found = new Map<string, Promise<unknown>>()

async function kept<T>(
  task: Order['task'],
  paths: readonly string[],
  run: () => Promise<T>,
  isRight: (value: unknown) => boolean,
): Promise<T> {
  const states = await Promise.all(paths.map((path) => stat(path)))
  const key = createHash('sha256')
    .update(JSON.stringify([task, paths, states.map(({ size, mtimeMs }) => [size, mtimeMs])]))
    .digest('hex')
  const known =
    (found.get(key) as Promise<T> | undefined) ?? readOr(join(cacheFolder(), 'model-files', `${key}.json`), run, isRight)
  found.set(key, known)
  known.catch(() => found.delete(key))
  return known
}

async function readOr<T>(file: string, run: () => Promise<T>, isRight: (value: unknown) => boolean): Promise<T> {
  try {
    const value: unknown = JSON.parse(await readFile(file, 'utf8'))
    if (isRight(value)) return value as T
  } catch {
    // The cache folder has no valid value yet.
  }
  const value = await run()
  await mkdir(dirname(file), { recursive: true })
    .then(() => writeWhole(file, (temporary) => writeFile(temporary, JSON.stringify(value))))
    .catch(() => undefined)
  return value
}

/** Seconds after which an idle worker thread ends. */
const IDLE = 10

let pool: Promise<Piscina<Order, unknown>> | null = null

async function onThread(order: Order): Promise<unknown> {
  pool ??= openThreads(import.meta.url, { minThreads: 0, maxThreads: 2, idleTimeout: IDLE * 1000 })
  return (await pool).run(order)
}

/** The task of the worker thread: reads headers or hashes files. @public */
export default async function work({ task, paths }: Order): Promise<unknown> {
  if (task === 'facts') return headerFacts(paths)
  const hash = createHash('sha256')
  for (const path of paths)
    for await (const chunk of createReadStream(path, { highWaterMark: 2 ** 20 })) hash.update(chunk as Buffer)
  return hash.digest('hex')
}

/** Texts with more characters than this, such as templates, are left out of `metadata`. */
const MOST_TEXT = 512

function headerFacts(paths: readonly string[]): FileFacts {
  const headers = paths.map(readHeader)
  const first = headers[0]!.metadata
  const template = first.get('tokenizer.chat_template')
  const metadata: Record<string, string | number> = {}
  for (const [key, entry] of first)
    if (entry.kind === 'number') metadata[key] = entry.value
    else if (entry.kind === 'text' && entry.value.length <= MOST_TEXT) metadata[key] = entry.value
    else if (entry.kind === 'list') metadata[`${key}.length`] = entry.count
  const tensors = headers.flatMap((header) => header.tensors)
  return {
    architecture: String(metadata['general.architecture'] ?? ''),
    parameters: tensors.reduce((sum, { shape }) => sum + shape.reduce((product, length) => product * length, 1), 0),
    quantization: fileTypeOf(metadata['general.file_type']),
    template: template?.kind === 'text' ? template.value : '',
    metadata,
  }
}

/** Returns the quantisation, such as `Q4_K_M`, for a header's `general.file_type`; empty when unknown. */
export const fileTypeOf = (type: string | number | undefined): string => FILE_TYPES[Number(type)] ?? ''

/** Names by the numbers of llama_ftype (llama.h). */
const FILE_TYPES: Readonly<Record<number, string>> = {
  ...{ 0: 'F32', 1: 'F16', 2: 'Q4_0', 3: 'Q4_1', 7: 'Q8_0', 8: 'Q5_0', 9: 'Q5_1', 10: 'Q2_K', 11: 'Q3_K_S', 12: 'Q3_K_M' },
  ...{ 13: 'Q3_K_L', 14: 'Q4_K_S', 15: 'Q4_K_M', 16: 'Q5_K_S', 17: 'Q5_K_M', 18: 'Q6_K', 19: 'IQ2_XXS', 20: 'IQ2_XS' },
  ...{ 21: 'Q2_K_S', 22: 'IQ3_XS', 23: 'IQ3_XXS', 24: 'IQ1_S', 25: 'IQ4_NL', 26: 'IQ3_S', 27: 'IQ3_M', 28: 'IQ2_S', 29: 'IQ2_M' },
  ...{ 30: 'IQ4_XS', 31: 'IQ1_M', 32: 'BF16', 36: 'TQ1_0', 37: 'TQ2_0', 38: 'MXFP4' },
}
