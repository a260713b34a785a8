/**
 * Models of Transformers.js: vectors and scores by an ONNX model. The package is an optional peer of kvfold; it is imported when a model is
 * opened. Computes on the thread that calls; `onnx.ts` has a thread of its own for it.
 */
import { existsSync, statSync } from 'node:fs'
import { basename, dirname, join, resolve } from 'node:path'
import type { PreTrainedModel, PreTrainedTokenizer } from '@huggingface/transformers'
import { KvfoldError } from '../core/errors.js'

/** Texts per batch; each batch is padded to its longest text. */
export const BATCH = 16
/** The longest text of a model that sets no limit, in tokens. */
const LONGEST = 2048
const PREFIX = 'onnx:'

/**
 * Returns the ONNX model that a name of the command line means: `onnx:` and a folder or a name on the hub, or a folder with a
 * config.json. Null for other models.
 */
export function onnxNamed(model: string): string | null {
  if (model.startsWith(PREFIX)) return model.slice(PREFIX.length)
  const isFolder = statSync(model, { throwIfNoEntry: false })?.isDirectory() === true
  return isFolder && existsSync(join(model, 'config.json')) ? model : null
}

/** An ONNX model that is open. */
export interface OnnxModel {
  /** The model's name, and in brackets how its vectors or scores are made. */
  readonly name: string
  /** The most tokens of a text, with those at its ends. */
  readonly most: number
  /** Returns the number of tokens of a text, with those that are added at its ends. With `pair`, counts both texts. */
  readonly length: (text: string, pair?: string) => number
  readonly dispose: () => Promise<void>
}

export interface OnnxVectors extends OnnxModel {
  /** Returns one vector of length 1 for each text, of its first `most` tokens. @throws KvfoldError engine/cancelled */
  readonly embed: (texts: readonly string[], signal?: AbortSignal) => Promise<readonly Float32Array[]>
}

export interface OnnxScores extends OnnxModel {
  /** Returns the first output of the model's head for each document, read with the query. */
  readonly rank: (query: string, documents: readonly string[]) => Promise<readonly number[]>
}

const OPTIONS = { dtype: 'fp32', session_options: { intraOpNumThreads: 1, interOpNumThreads: 1 } } as const

/**
 * Opens a model that makes vectors: a folder with config.json, tokenizer.json and onnx/model.onnx, or a name on the hub, downloaded once.
 * The vectors are the mean of its last layer. If the model does not output that layer, they are the mean of another output, which its name
 * states.
 * @param tokens the longest text; the tokenizer's and the model's own limits also apply
 * @throws KvfoldError model/unsupported when Transformers.js is not installed; model/not-found when the model cannot be loaded
 */
export async function openVectors(model: string, tokens?: number): Promise<OnnxVectors> {
  const { tokenizer, encoder } = await opened(model, 'an ONNX embedder', async (library, { name, isLocal }) => ({
    tokenizer: await library.AutoTokenizer.from_pretrained(name, { local_files_only: isLocal }),
    encoder: await library.AutoModel.from_pretrained(name, { ...OPTIONS, local_files_only: isLocal }),
  }))
  const most = limitOf(tokenizer, encoder, tokens)
  return {
    name: `${titleOf(model)} (Transformers.js, mean of ${KINDS[outputOf(encoder)] ?? 'its first output'})`,
    most,
    length: (text) => tokenizer.encode(text).length,
    embed: async (texts, signal) => {
      const vectors: Float32Array[] = []
      for (let at = 0; at < texts.length; at += BATCH) {
        if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'The embedding was cancelled.')
        const inputs = tokenizer(texts.slice(at, at + BATCH), { padding: true, truncation: true, max_length: most }) as Inputs
        const outputs = (await encoder(inputs)) as Readonly<Record<string, Numbers>>
        const output = outputs[outputOf(encoder)] ?? Object.values(outputs).find(({ dims }) => dims.length === 3)
        if (output === undefined) throw new KvfoldError('model/unsupported', `${model} gives no vectors of tokens.`)
        vectors.push(...means(output, inputs.attention_mask))
      }
      return vectors
    },
    dispose: async () => {
      await encoder.dispose()
    },
  }
}

interface Numbers {
  readonly data: ArrayLike<number | bigint>
  readonly dims: readonly number[]
}

interface Inputs {
  readonly [name: string]: unknown
  readonly attention_mask: Numbers
}

/** Returns, for each text, the mean of its tokens' vectors, made length 1. @param values [text, token, width] @param mask [text, token] */
function means({ data, dims }: Numbers, mask: Numbers): readonly Float32Array[] {
  const [texts = 0, tokens = 0, width = 0] = dims
  return Array.from({ length: texts }, (_, text) => {
    const sums = new Float64Array(width)
    for (let token = 0; token < tokens; token++) {
      if (Number(mask.data[text * tokens + token]) === 0) continue
      const from = (text * tokens + token) * width
      for (let at = 0; at < width; at++) sums[at]! += Number(data[from + at])
    }
    const length = Math.sqrt(sums.reduce((sum, value) => sum + value * value, 0))
    return Float32Array.from(sums, (value) => (length === 0 ? 0 : value / length))
  })
}

/** The names of outputs that may be the tokens' vectors, the best first, and what the user is told about each. */
const KINDS: Readonly<Record<string, string>> = {
  last_hidden_state: 'hidden states',
  logits: 'logits: the model has no hidden states',
  token_embeddings: 'token embeddings',
}

/** Returns the name of the output that is the tokens' vectors; empty if no output has a known name. */
function outputOf({ sessions }: PreTrainedModel): string {
  const all = Object.values(sessions as Record<string, { readonly outputNames?: readonly string[] }>)
  const names = all.flatMap(({ outputNames = [] }) => outputNames)
  return Object.keys(KINDS).find((name) => names.includes(name)) ?? ''
}

/** Opens a reranker. @throws as openVectors */
export async function openScores(model: string): Promise<OnnxScores> {
  const { tokenizer, head } = await opened(model, 'an ONNX reranker', async (library, { name, isLocal }) => ({
    tokenizer: await library.AutoTokenizer.from_pretrained(name, { local_files_only: isLocal }),
    head: await library.AutoModelForSequenceClassification.from_pretrained(name, { ...OPTIONS, local_files_only: isLocal }),
  }))
  return {
    name: `${titleOf(model)} (Transformers.js)`,
    most: limitOf(tokenizer, head, undefined),
    length: (text, pair) => tokenizer.encode(text, pair === undefined ? {} : { text_pair: pair }).length,
    rank: async (query, documents) => {
      const scores: number[] = []
      for (let at = 0; at < documents.length; at += BATCH) {
        const some = documents.slice(at, at + BATCH)
        const inputs = tokenizer(
          some.map(() => query),
          { text_pair: some, padding: true },
        ) as Record<string, unknown>
        const { logits } = (await head(inputs)) as {
          readonly logits: { readonly data: ArrayLike<number>; readonly dims: number[] }
        }
        const labels = logits.dims.at(-1) ?? 1
        scores.push(...some.map((_, row) => Number(logits.data[row * labels])))
      }
      return scores
    },
    dispose: async () => {
      await head.dispose()
    },
  }
}

/** The files of a model. */
const FILES = ['config.json', 'tokenizer.json', 'onnx/model.onnx']

interface Place {
  readonly name: string
  readonly isLocal: boolean
}

async function opened<T>(model: string, what: string, open: (library: Library, place: Place) => Promise<T>): Promise<T> {
  const library = await transformers()
  const folder = resolve(model)
  const isLocal = existsSync(folder)
  const missing = isLocal ? FILES.find((file) => !existsSync(join(folder, file))) : undefined
  if (missing !== undefined)
    throw new KvfoldError('model/not-found', `${model} has no ${missing}; ${what} is a folder with ${FILES.join(', ')}.`)
  if (isLocal) library.env.localModelPath = `${dirname(folder)}/`
  // Otherwise a folder that lacks a file would be looked for on the hub.
  library.env.allowRemoteModels = !isLocal
  try {
    return await open(library, { name: isLocal ? basename(folder) : model, isLocal })
  } catch (error) {
    throw new KvfoldError(
      'model/not-found',
      `${model} cannot be loaded as ${what} (${reasonOf(error)}); give a folder with ${FILES.join(', ')}, or a name on the hub.`,
      { cause: error },
    )
  }
}

type Library = typeof import('@huggingface/transformers')

async function transformers(): Promise<Library> {
  try {
    return await import('@huggingface/transformers')
  } catch (error) {
    throw new KvfoldError(
      'model/unsupported',
      'ONNX models need Transformers.js, which is not installed: npm install @huggingface/transformers, or name a GGUF.',
      { cause: error },
    )
  }
}

const titleOf = (model: string): string => (existsSync(model) ? basename(resolve(model)) : model)

/** The least of the limits of tokens that the caller, the tokenizer and the model set. */
function limitOf(tokenizer: PreTrainedTokenizer, { config }: PreTrainedModel, tokens: number | undefined): number {
  const { max_position_embeddings: positions } = config as { readonly max_position_embeddings?: unknown }
  // A tokenizer without a limit reports 1e30.
  const limits = [tokenizer.model_max_length as unknown, positions].filter(
    (limit): limit is number => typeof limit === 'number' && limit > 0 && limit < 1e9,
  )
  return Math.min(tokens ?? (limits.length === 0 ? LONGEST : Infinity), ...limits)
}

const reasonOf = (error: unknown): string => (error instanceof Error ? error.message.split('\n', 1)[0]! : String(error))
