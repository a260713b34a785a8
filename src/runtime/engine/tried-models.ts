/** Owns which model files have stood their trial on this machine, and the process that tries the others: an assertion in llama.cpp ends it, not us. */
import { fork } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdir, readFile, stat, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import Type from 'typebox'
import { type ErrorCode, KvfoldError } from '../core/errors.js'
import { seqId, type SeqId } from '../core/ids.js'
import { checked } from '../core/schema.js'
import { span } from '../core/span.js'
import { writeWhole } from '../core/whole-file.js'
import { poolingOf } from '../native/context-options.js'
import type { BackendInfo, ContextOptions, GpuChoice, ModelOptions, Native, NativeContext, NativeModel } from '../native/types.js'
import { cacheFolder } from './calibration.js'
import { Embedder } from './embedder.js'
import { abilitiesOf, refusalOf } from './model-facts.js'
import { Reranker } from './reranker.js'

export interface Trial {
  readonly path: string
  /** Of this process; a trial holds for its release and backend only. */
  readonly backend: Pick<BackendInfo, 'gpu' | 'release'>
  /** Of kvfold; as `release`. */
  readonly version: string
  /** What the model will be loaded with. */
  readonly options: ModelTrialOptions
  readonly signal?: AbortSignal
  /** The model was not tried before, and is now. */
  readonly onTrial?: () => void
}

/** What the process is told. */
export interface TrialOrder {
  readonly path: string
  readonly gpu: GpuChoice
  readonly options: ModelTrialOptions
}

export type TrialAnswer =
  { readonly kind: 'works' } | { readonly kind: 'refused'; readonly code: ErrorCode; readonly message: string }

/** Milliseconds: weights of 100 GB come from a slow disk in this time. */
const PATIENCE = 20 * 60_000
/** Trials that are remembered. */
const MOST = 500
/** Of what the process said on stderr. */
const WORDS = 4000

const Remembered = Type.Object({ tried: Type.Record(Type.String(), Type.String()) })

/** `tried-models.json` in kvfold's cache folder. */
export const triedModelsFile = (): string => join(cacheFolder(), 'tried-models.json')

/**
 * Returns once the model has been loaded and has decoded in a process of its own, now or earlier: same file (path, size, time of change), same
 * options, same release of llama.cpp and of kvfold. The process has ended by then. Where `file` cannot be written, nothing is remembered.
 * @throws KvfoldError model/bad-file with llama.cpp's last words where the process was ended by it; what loading the model throws; engine/cancelled
 */
export async function proveModel(trial: Trial, file: string = triedModelsFile()): Promise<void> {
  const key = await keyOf(trial)
  if (key !== null && Object.hasOwn(await readTried(file), key)) return
  const { path, backend, options, signal } = trial
  trial.onTrial?.()
  const outcome = await run({ path, gpu: backend.gpu, options }, signal)
  if (outcome.kind === 'refused') throw new KvfoldError(outcome.code, outcome.message)
  if (key !== null) await remember(file, key)
}

async function run(order: TrialOrder, signal?: AbortSignal): Promise<TrialAnswer> {
  refuseCancelled(order.path, signal)
  const source = import.meta.url.endsWith('.ts')
  const child = fork(new URL(source ? './trial-child.ts' : './trial-child.js', import.meta.url), {
    // From source it needs what translates it, whoever started us.
    execArgv: source ? ['--import', pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href] : [],
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
    // A backtrace would start a debugger where there is one.
    env: { ...process.env, GGML_NO_BACKTRACE: '1' },
  })
  let words = ''
  child.stderr!.on('data', (data: Buffer) => (words = (words + data.toString()).slice(-WORDS)))
  // Written by callbacks, which the compiler does not see.
  const heard: { answer: TrialAnswer | null; late: boolean } = { answer: null, late: false }
  child.on('message', (said) => (heard.answer = said as TrialAnswer))
  const clock = setTimeout(() => {
    heard.late = true
    child.kill('SIGKILL')
  }, PATIENCE)
  const stop = () => child.kill('SIGKILL')
  signal?.addEventListener('abort', stop, { once: true })
  try {
    const end = await new Promise<string>((resolve, reject) => {
      child.once('error', reject)
      child.once('close', (code, by) => {
        resolve(by ?? `exit code ${code}`)
      })
      child.send(order, (error) => {
        // Its end tells more than that it did not listen.
        if (error !== null) child.kill()
      })
    })
    refuseCancelled(order.path, signal)
    if (heard.answer !== null) return heard.answer
    return { kind: 'refused', code: 'model/bad-file', message: obituary(order.path, heard.late ? null : end, words) }
  } catch (error) {
    if (error instanceof KvfoldError) throw error
    throw new KvfoldError('native/failed', `No process could be started to try ${order.path} (${String(error)}).`, {
      cause: error,
    })
  } finally {
    clearTimeout(clock)
    signal?.removeEventListener('abort', stop)
  }
}

/** `end`: what ended the process; null where it took too long. */
function obituary(path: string, end: string | null, words: string): string {
  const said = words.trim().split('\n').filter(Boolean).slice(-3).join(' / ')
  const last = said === '' ? '' : `; its last words: ${said}`
  if (end === null)
    return `${path} was tried in a process of its own, which did not decode a few tokens in ${PATIENCE / 60_000} minutes${last}.`
  return `${path} ended the process that tried it (${end})${last}. It is not loaded: it would end this one, too. Convert or download it again.`
}

function refuseCancelled(path: string, signal?: AbortSignal): void {
  if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', `The trial of ${path} was cancelled.`)
}

/** Null where the file cannot be looked at; loading it will say why. */
async function keyOf({ path, backend, version, options }: Trial): Promise<string | null> {
  try {
    const files = await Promise.all(partsOf(path).map((part) => stat(part)))
    const identity = files.map(({ size, mtimeMs, ino }) => [size, mtimeMs, ino])
    const settings = Object.entries(options).sort(([a], [b]) => (a < b ? -1 : 1))
    const subject = [path, identity, backend.release, backend.gpu, version, settings]
    return createHash('sha256').update(JSON.stringify(subject)).digest('hex')
  } catch {
    return null
  }
}

/** All files of a split model, by their names. */
function partsOf(path: string): string[] {
  const [, stem, count] = /^(.*)-00001-of-(\d{5})\.gguf$/.exec(path) ?? []
  if (stem === undefined || count === undefined) return [path]
  return Array.from({ length: Number(count) }, (_, index) => `${stem}-${String(index + 1).padStart(5, '0')}-of-${count}.gguf`)
}

/** By key: when. A file that cannot be read holds none. */
async function readTried(file: string): Promise<Readonly<Record<string, string>>> {
  try {
    const read = checked(Remembered, JSON.parse(await readFile(file, 'utf8')))
    return read.ok ? read.value.tried : {}
  } catch {
    return {}
  }
}

async function remember(file: string, key: string): Promise<void> {
  const before = Object.entries(await readTried(file)).filter(([other]) => other !== key)
  const tried = Object.fromEntries([...before.slice(-(MOST - 1)), [key, new Date().toISOString()]])
  try {
    await mkdir(dirname(file), { recursive: true })
    await writeWhole(file, (temporary) => writeFile(temporary, `${JSON.stringify({ tried }, null, 1)}\n`))
  } catch {
    // The model will be tried again: slower, and no less safe.
  }
}

// A model's trial: it is loaded and decodes a few tokens, in all the ways that serving will, so that what ends the process ends it here.

export interface ModelTrialOptions extends Omit<ContextOptions, 'cells' | 'sequences' | 'embeddings' | 'attention'> {
  readonly model?: Pick<ModelOptions, 'gpuLayers' | 'mmap'>
  /** `only`: the model will be looked at, and computes nothing. Default: it will be used. */
  readonly loads?: 'only'
  /** Whether attention will be looked at, in a context without flash attention. Default false. */
  readonly attention?: boolean
  /** `beside`: the model will make embeddings, too; `alone`: it will make nothing else, or score texts where it is a reranker. Default: none. */
  readonly embeddings?: 'beside' | 'alone'
}

/** Words, digits, other scripts, an emoji, and characters that no vocabulary holds as one. */
const SAMPLE = 'The 3 quick foxes said:\n\t"Grüße, 世界" — über\u0301 🦊\u0001 end. '.repeat(2)
const CELLS = 512
/** Tokens of the sample that are computed, and tokens after it. */
const PROMPT = 48
const ANSWER = 8

/**
 * Loads the model, uses it, and gives it back. What it asks is whether the process lives: an error that is thrown after loading is left to
 * whoever meets it in earnest.
 * @throws KvfoldError as loading; model/unsupported
 */
export async function tryModel(native: Native, path: string, options: ModelTrialOptions = {}): Promise<void> {
  const { model: modelOptions, loads, attention = false, embeddings, keyType, valueType, ...rest } = options
  const model = await native.loadModel(path, modelOptions)
  try {
    if (loads === 'only') {
      sampleOf(model)
      return
    }
    if (embeddings !== 'alone') {
      const refusal = refusalOf(model.info)
      if (refusal !== null) throw new KvfoldError('model/unsupported', refusal)
      const { slidingWindow, recurrent } = model.info
      const fullSlidingWindow = abilitiesOf(model.info, given({ keyType })).edits === 'tags' && slidingWindow > 0
      const settings = { ...rest, cells: CELLS, sequences: 2, fullSlidingWindow }
      await survived(tryContext(model, { ...settings, ...given({ keyType, valueType }) }))
      // What looks at attention keeps no quantised values (flash attention is off).
      if (attention && !recurrent)
        await survived(tryContext(model, { ...settings, ...given({ keyType }), flashAttention: 'off', attention }))
    }
    if (embeddings !== undefined) await survived(tryEmbedding(model, rest))
  } finally {
    await model.dispose()
  }
}

async function survived(use: Promise<void>): Promise<void> {
  try {
    await use
  } catch (error) {
    if (!(error instanceof KvfoldError)) throw error
  }
}

/** A prompt, an answer, and what edits do to a cache: a copy of a sequence, tokens taken out of it, a gap closed, a state saved and loaded. */
async function tryContext(model: NativeModel, options: ContextOptions): Promise<void> {
  const context = await model.createContext({ ...options, batch: options.ubatch ?? PROMPT, ubatch: options.ubatch ?? PROMPT })
  const [first, second] = [seqId(0), seqId(1)]
  try {
    const prompt = sampleOf(model)
    for (let start = 0; start < prompt.length; start += context.batch)
      await decode(context, prompt.slice(start, start + context.batch), start, first)
    let length = prompt.length
    const sampler = model.createSampler({ temperature: 0 })
    for (let left = ANSWER; left > 0; left--) {
      const token = sampler.sample(context, left === ANSWER ? (prompt.length - 1) % context.batch : 0)
      model.piece(token)
      await decode(context, Int32Array.of(token), length++, first)
    }
    sampler.dispose()
    const { recurrent, hybrid } = model.info
    const state = context.saveSequence(first)
    if (!recurrent && !hybrid) {
      context.tag(first, second, span(0, length))
      context.untag(first, span(2, 4))
      if (context.canShift) {
        context.shift(first, span(4, length), -2)
        length -= 2
      }
      await decode(context, prompt.slice(0, 1), length, first)
    }
    context.clear()
    context.loadSequence(second, state)
    await decode(context, prompt.slice(0, 1), prompt.length + ANSWER, second)
  } finally {
    await context.dispose()
  }
}

async function decode(context: NativeContext, tokens: Int32Array, start: number, sequence: SeqId): Promise<void> {
  const status = await context.decode({
    tokens,
    positions: Int32Array.from(tokens, (_, index) => start + index),
    sequences: new Int32Array(tokens.length).fill(sequence),
    outputs: Uint8Array.from(tokens, (_, index) => (index === tokens.length - 1 ? 1 : 0)),
  })
  if (status !== 'done')
    throw new KvfoldError('native/failed', `The model's trial could not decode ${tokens.length} tokens (${status}).`)
}

async function tryEmbedding(model: NativeModel, { threads, batchThreads }: ContextOptions): Promise<void> {
  const options = given({ threads, batchThreads })
  const isReranker = poolingOf(model.info) === 'rank'
  const reader = isReranker ? await Reranker.on(model, options) : await Embedder.on(model, options)
  try {
    if (reader instanceof Reranker) await reader.rank('quick fox', [SAMPLE.slice(0, PROMPT), 'fox'])
    else await reader.embed([sampleOf(model).slice(0, Math.min(PROMPT, reader.tokens)), sampleOf(model).slice(0, 1)])
  } finally {
    await reader.dispose()
  }
}

/** Some tokens of the sample, from both its ends; without a vocabulary the first ones there are. */
function sampleOf(model: NativeModel): Int32Array {
  const { vocabulary, vocabType } = model.info
  const ids = Int32Array.from({ length: PROMPT }, (_, index) => index % Math.max(1, vocabulary))
  if (vocabType === 'none') return ids
  const { addBos, bos, addEos, eos } = model.special
  const named = (!addBos || bos !== null) && (!addEos || eos !== null)
  const tokens = model.tokenize(SAMPLE, { addSpecial: named, parseSpecial: true })
  model.detokenize(tokens)
  return tokens.length === 0 ? ids : tokens.slice(0, PROMPT)
}

const given = <T extends object>(fields: T): { [K in keyof T]?: Exclude<T[K], undefined> } =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as never
