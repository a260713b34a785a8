/**
 * Records which model files have passed a trial on this machine, and tries the rest in a separate process. An assertion in llama.cpp then
 * ends that process instead of ours.
 */
import { fork } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdir, readFile, stat, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import Type from 'typebox'
import { forSources } from '../core/processes.js'
import { type ErrorCode, KvfoldError } from '../core/errors.js'
import { seqId, type SeqId } from '../core/ids.js'
import { checked } from '../core/schema.js'
import { span } from '../core/span.js'
import { writeWhole } from '../core/whole-file.js'
import { poolingOf } from '../native/context-options.js'
import type {
  BackendInfo,
  ContextOptions,
  GpuChoice,
  ModelOptions,
  Native,
  NativeAdapter,
  NativeContext,
  NativeModel,
} from '../native/types.js'
import { cacheFolder } from './calibration.js'
import { Embedder } from './embedder.js'
import { abilitiesOf, partsOf, refusalOf } from './model-facts.js'
import { Reranker } from './reranker.js'

export interface Trial {
  readonly path: string
  /** This process's backend. A trial is valid only for its release and kind. */
  readonly backend: Pick<BackendInfo, 'gpu' | 'release'>
  /** The version of kvfold. A trial is valid only for this version. */
  readonly version: string
  /** The options that the model will be loaded with. */
  readonly options: ModelTrialOptions
  readonly signal?: AbortSignal
  /** Called when the model has no earlier trial, so that one begins. */
  readonly onTrial?: () => void
}

/** The message to the process of the trial. */
export interface TrialOrder {
  readonly path: string
  readonly gpu: GpuChoice
  readonly options: ModelTrialOptions
}

export type TrialAnswer =
  { readonly kind: 'works' } | { readonly kind: 'refused'; readonly code: ErrorCode; readonly message: string }

/** The most milliseconds of a trial. Even a slow disk can read 100 GB of weights in this time. */
const PATIENCE = 20 * 60_000
/** The most trials that the file remembers. */
const MOST = 500
/** How many characters of the trial's stderr are kept, from its end. */
const WORDS = 4000

const Remembered = Type.Object({ tried: Type.Record(Type.String(), Type.String()) })

/** Returns the path of `tried-models.json` in kvfold's cache folder. */
export const triedModelsFile = (): string => join(cacheFolder(), 'tried-models.json')

/**
 * Returns once the model has passed a trial, now or earlier: a separate process has loaded it and decoded with it. An earlier trial counts
 * if it had the same files (path, size, inode, time of change), options, llama.cpp release, backend and version of kvfold. If `file` cannot
 * be written, the trial is not remembered.
 * @throws KvfoldError model/bad-file with llama.cpp's last output if the process died; the error of loading the model; engine/cancelled
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
    // From TypeScript sources the child needs tsx, however this process was started.
    execArgv: source ? forSources() : [],
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
    // To print a backtrace, llama.cpp would start a debugger if one is installed.
    env: { ...process.env, GGML_NO_BACKTRACE: '1' },
  })
  let words = ''
  child.stderr!.on('data', (data: Buffer) => (words = (words + data.toString()).slice(-WORDS)))
  // An object, because only callbacks write these fields: for plain variables the compiler would assume the first value.
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
        // Ignore this error: the way in which the process ends says more.
        if (error !== null) child.kill()
      })
    })
    refuseCancelled(order.path, signal)
    if (heard.answer !== null) return heard.answer
    return obituary(order, heard.late ? null : end, words)
  } catch (error) {
    if (error instanceof KvfoldError) throw error
    throw new KvfoldError('native/failed', `The trial of ${order.path} could not start a process (${String(error)}).`, {
      cause: error,
    })
  } finally {
    clearTimeout(clock)
    signal?.removeEventListener('abort', stop)
  }
}

/** CUDA's errors for a library without code for the device, or with code that the driver refuses. The model is not the cause. */
const CANNOT_COMPUTE =
  /the provided PTX was compiled with an unsupported toolchain|no kernel image is available|invalid device function|CUDA driver version is insufficient/

/** Returns the answer for a trial whose process died. `end`: its exit code or signal; null if it took too long. `words`: its stderr. */
export function obituary(
  { path: model, gpu, options: { lora = [] } = {} }: Pick<TrialOrder, 'path' | 'gpu'> & Partial<Pick<TrialOrder, 'options'>>,
  end: string | null,
  words: string,
): TrialAnswer & { readonly kind: 'refused' } {
  const [cannot] = gpu === 'cuda' ? (CANNOT_COMPUTE.exec(words) ?? []) : []
  if (cannot !== undefined)
    return {
      kind: 'refused',
      code: 'native/library-mismatch',
      message: `The CUDA library lists a device but cannot compute on it (${cannot}). Update the GPU's driver, or use --gpu vulkan or --gpu cpu.`,
    }
  const said = words.trim().split('\n').filter(Boolean).slice(-3).join(' / ')
  const last = said === '' ? '' : `; its last output: ${said}`
  const path =
    lora.length === 0 ? model : `${model} with ${lora.length === 1 ? 'the adapter' : 'the adapters'} ${lora.join(', ')}`
  const message =
    end === null
      ? `The trial of ${path} did not decode a few tokens within ${PATIENCE / 60_000} minutes${last}.`
      : `${path} ended the process that tried it (${end})${last}. kvfold does not load it, because it would end this process, too. Convert or download it again.`
  return { kind: 'refused', code: 'model/bad-file', message }
}

function refuseCancelled(path: string, signal?: AbortSignal): void {
  if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', `The trial of ${path} was cancelled.`)
}

/** Returns the key of the trial in the file; null if a model file cannot be inspected, because loading it will say why. */
async function keyOf({ path, backend, version, options }: Trial): Promise<string | null> {
  try {
    const files = await Promise.all([...partsOf(path), ...(options.lora ?? [])].map((part) => stat(part)))
    const identity = files.map(({ size, mtimeMs, ino }) => [size, mtimeMs, ino])
    const settings = Object.entries(options).sort(([a], [b]) => (a < b ? -1 : 1))
    const subject = [path, identity, backend.release, backend.gpu, version, settings]
    return createHash('sha256').update(JSON.stringify(subject)).digest('hex')
  } catch {
    return null
  }
}

/** Returns the time of each remembered trial, by its key; empty if the file cannot be read. */
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
    // Ignore it: the model will then be tried again, which is slower but no less safe.
  }
}

// The trial: load the model and decode a few tokens in every way in which it will be used, so that a crash happens here.

export interface ModelTrialOptions extends Omit<ContextOptions, 'cells' | 'sequences' | 'embeddings' | 'attention'> {
  readonly model?: Pick<ModelOptions, 'gpuLayers' | 'mmap'>
  /** Paths of the LoRA adapters that will be loaded with it. Default: none. */
  readonly lora?: readonly string[]
  /** `only`: the model will only be inspected, without computing. Default: it will compute. */
  readonly loads?: 'only'
  /** Whether attention will be captured, in a context without flash attention. Default false. */
  readonly attention?: boolean
  /**
   * `beside`: the model will also make embeddings. `alone`: it will only make embeddings or, if it is a reranker, scores. Default: neither.
   */
  readonly embeddings?: 'beside' | 'alone'
}

/** Text for the trial: words, digits, another script, an emoji, and characters that no vocabulary has as one token. */
const SAMPLE = 'The 3 quick foxes said:\n\t"Grüße, 世界" — über\u0301 🦊\u0001 end. '.repeat(2)
const CELLS = 512
/** How many tokens of the sample are decoded as a prompt, and (next constant) how many are generated after it. */
const PROMPT = 48
const ANSWER = 8

/**
 * Loads the model, uses it, and disposes it. The trial only shows that the process survives. Errors thrown after loading are ignored,
 * because the real use will throw them too.
 * @throws KvfoldError as loading; model/unsupported
 */
export async function tryModel(native: Native, path: string, options: ModelTrialOptions = {}): Promise<void> {
  const { model: modelOptions, lora = [], loads, attention = false, embeddings, keyType, valueType, ...rest } = options
  const model = await native.loadModel(path, modelOptions)
  try {
    if (loads === 'only') {
      sampleOf(model)
      return
    }
    if (embeddings !== 'alone') {
      const refusal = refusalOf(model.info)
      if (refusal !== null) throw new KvfoldError('model/unsupported', refusal)
      const adapters: NativeAdapter[] = []
      for (const file of lora) adapters.push(await model.loadAdapter(file))
      const { slidingWindow, recurrent } = model.info
      const fullSlidingWindow = abilitiesOf(model.info, given({ keyType })).edits === 'tags' && slidingWindow > 0
      const settings = { ...rest, cells: CELLS, sequences: 2, fullSlidingWindow }
      await survived(tryContext(model, { ...settings, ...given({ keyType, valueType }) }))
      if (adapters.length > 0) await survived(tryContext(model, { ...settings, ...given({ keyType, valueType }) }, adapters))
      // Capturing attention turns flash attention off, and quantised values need it. So the value type is left at its default.
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

/**
 * Decodes a prompt and an answer. Then edits the cache: copies a sequence, removes tokens from it, closes a gap, saves and loads a state.
 */
async function tryContext(model: NativeModel, options: ContextOptions, adapters: readonly NativeAdapter[] = []): Promise<void> {
  const context = await model.createContext({ ...options, batch: options.ubatch ?? PROMPT, ubatch: options.ubatch ?? PROMPT })
  context.useAdapters(adapters.map((adapter) => ({ adapter, scale: 1 })))
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

/** Returns the first tokens of the sample; for a model without a vocabulary, the first token ids. */
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
