/** Owns a model's trial: it is loaded and decodes a few tokens, in all the ways that serving will, so that what ends the process ends it here. */
import { KvfoldError } from '../core/errors.js'
import { seqId, type SeqId } from '../core/ids.js'
import { span } from '../core/span.js'
import type { ContextOptions, ModelOptions, Native, NativeContext, NativeModel } from '../native/types.js'
import { abilitiesOf, refusalOf } from './model-facts.js'
import { Embedder } from './embedder.js'

export interface TrialOptions extends Omit<ContextOptions, 'cells' | 'sequences' | 'embeddings' | 'attention'> {
  readonly model?: Pick<ModelOptions, 'gpuLayers' | 'mmap'>
  /** Whether attention will be looked at, in a context without flash attention. Default false. */
  readonly attention?: boolean
  /** `beside`: the model will make embeddings, too; `alone`: it will make nothing else. Default: none. */
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
export async function tryModel(native: Native, path: string, options: TrialOptions = {}): Promise<void> {
  const { model: modelOptions, attention = false, embeddings, keyType, valueType, ...rest } = options
  const model = await native.loadModel(path, modelOptions)
  try {
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
  const embedder = await Embedder.on(model, given({ threads, batchThreads }))
  try {
    await embedder.embed([sampleOf(model).slice(0, Math.min(PROMPT, embedder.tokens)), sampleOf(model).slice(0, 1)])
  } finally {
    await embedder.dispose()
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
