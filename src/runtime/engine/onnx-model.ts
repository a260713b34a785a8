/**
 * Opens ONNX models with Transformers.js, for vectors and scores. The package is an optional peer dependency and is imported when a model
 * is opened. Computes on the calling thread; `onnx.ts` provides a separate one.
 */
import { existsSync, statSync } from 'node:fs'
import { basename, dirname, join, resolve } from 'node:path'
import type { PreTrainedModel, PreTrainedTokenizer } from '@huggingface/transformers'
import { KvfoldError } from '../core/errors.js'

/** Texts per batch. Each batch is padded to its longest text. */
export const BATCH = 16
/** The most tokens of a text if the model sets no limit. */
const LONGEST = 2048
const PREFIX = 'onnx:'

/**
 * Returns the ONNX model that a command-line argument names: `onnx:` with a folder or a name on the hub, or a folder with a config.json.
 * Null for other models.
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
  /** The most tokens of a text, special tokens at its ends included. */
  readonly most: number
  /** Returns the number of tokens of a text, special tokens at its ends included; with `pair`, of both texts together. */
  readonly length: (text: string, pair?: string) => number
  readonly dispose: () => Promise<void>
}

export interface OnnxVectors extends OnnxModel {
  /** Returns one vector of length 1 for each text, computed from its first `most` tokens. @throws KvfoldError engine/cancelled */
  readonly embed: (texts: readonly string[], signal?: AbortSignal) => Promise<readonly Float32Array[]>
}

export interface OnnxScores extends OnnxModel {
  /** Returns the score of each document for the query: the first output of the model's head. */
  readonly rank: (query: string, documents: readonly string[]) => Promise<readonly number[]>
}

const OPTIONS = { dtype: 'fp32', session_options: { intraOpNumThreads: 1, interOpNumThreads: 1 } } as const

/**
 * Opens a model that makes vectors: a folder with config.json, tokenizer.json and onnx/model.onnx, or a name on the hub, downloaded once. A
 * vector is the mean over the tokens of the model's last layer. If the model does not output that layer, another output is used, and the
 * model's `name` says which.
 * @param tokens the longest text; the limits of tokenizer and model also apply
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

/** Returns, for each text, the mean of its tokens' vectors, scaled to length 1. `values` are [text, token, width], `mask` [text, token]. */
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

/** Names of outputs that may be the tokens' vectors, the best first, and what the user is told about each. */
const KINDS: Readonly<Record<string, string>> = {
  last_hidden_state: 'hidden states',
  logits: 'logits: the model has no hidden states',
  token_embeddings: 'token embeddings',
}

/** Returns the name of the output with the tokens' vectors; empty if no output has a known name. */
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

/** The files that a model's folder must have. */
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
  // For a local folder, forbid the hub: otherwise a missing file would be searched there.
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

/** Returns the smallest of the token limits of the caller, the tokenizer and the model. */
function limitOf(tokenizer: PreTrainedTokenizer, { config }: PreTrainedModel, tokens: number | undefined): number {
  const { max_position_embeddings: positions } = config as { readonly max_position_embeddings?: unknown }
  // A tokenizer without a limit reports 1e30.
  const limits = [tokenizer.model_max_length as unknown, positions].filter(
    (limit): limit is number => typeof limit === 'number' && limit > 0 && limit < 1e9,
  )
  return Math.min(tokens ?? (limits.length === 0 ? LONGEST : Infinity), ...limits)
}

const reasonOf = (error: unknown): string => (error instanceof Error ? error.message.split('\n', 1)[0]! : String(error))
