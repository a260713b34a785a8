/** Owns vectors of texts by an ONNX model in Transformers.js, which is loaded when it is first asked for. */
import { existsSync } from 'node:fs'
import { basename, dirname, resolve } from 'node:path'
import type { FeatureExtractionPipeline } from '@huggingface/transformers'
import { KvfoldError } from '../../core/errors.js'
import type { OwnedTextEmbedder } from './text-embedder.js'
import { embedWhole } from './whole-text.js'

export interface OnnxEmbedderOptions {
  /** How a text's vector is made of its tokens'; the model's card says. Default mean. */
  readonly pooling?: 'mean' | 'cls' | 'last_token'
  /** Weights to load. Default fp32. */
  readonly dtype?: 'fp32' | 'fp16' | 'q8' | 'q4'
  /** Default 1. */
  readonly threads?: number
  /** The longest text, in tokens; longer ones are embedded in parts. Default: what tokenizer and model set, at most 2048. */
  readonly tokens?: number
}

/** Texts computed at once; they are padded to the longest. */
const BATCH = 16
const DEFAULT_TOKENS = 2048

/**
 * `model`: a folder with config.json, tokenizer.json and onnx/model.onnx, else a name on the hub, downloaded once. Models without hidden states
 * among their outputs are used by what they have; the name says by what.
 * @throws KvfoldError eval/bad-agent when Transformers.js is not installed; model/not-found when the model cannot be loaded
 */
export async function onnxEmbedder(
  model: string,
  { pooling = 'mean', dtype = 'fp32', threads = 1, tokens = DEFAULT_TOKENS }: OnnxEmbedderOptions = {},
): Promise<OwnedTextEmbedder> {
  const { pipeline, env } = await transformers()
  const folder = resolve(model)
  const isLocal = existsSync(folder)
  if (isLocal) env.localModelPath = `${dirname(folder)}/`
  let extractor: FeatureExtractionPipeline
  try {
    extractor = await pipeline('feature-extraction', isLocal ? basename(folder) : model, {
      dtype,
      local_files_only: isLocal,
      session_options: { intraOpNumThreads: threads, interOpNumThreads: 1 },
    })
  } catch (error) {
    throw new KvfoldError(
      'model/not-found',
      `${model} cannot be loaded as an ONNX embedder (${reasonOf(error)}); give a folder with config.json, tokenizer.json and onnx/model.onnx.`,
      { cause: error },
    )
  }
  const most = Math.min(tokens, ...limitsOf(extractor))
  const length = (text: string) => extractor.tokenizer.encode(text).length
  const embedParts = async (parts: readonly string[], signal: AbortSignal | undefined): Promise<readonly Float32Array[]> => {
    const vectors: Float32Array[] = []
    for (let at = 0; at < parts.length; at += BATCH) {
      if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'The embedding was cancelled.')
      const made = await extractor(parts.slice(at, at + BATCH), { pooling, normalize: true })
      const [rows = 0, width = 0] = made.dims
      const numbers = Float32Array.from(made.data as ArrayLike<number>)
      for (let row = 0; row < rows; row++) vectors.push(numbers.slice(row * width, (row + 1) * width))
    }
    return vectors
  }
  return {
    name: `${isLocal ? basename(folder) : model} (Transformers.js, ${pooling} of ${outputOf(extractor)})`,
    embed: (texts, signal) => embedWhole(texts, { length, most, embed: (parts) => embedParts(parts, signal) }),
    dispose: async () => {
      await extractor.dispose()
    },
  }
}

async function transformers(): Promise<typeof import('@huggingface/transformers')> {
  try {
    return await import('@huggingface/transformers')
  } catch (error) {
    throw new KvfoldError(
      'eval/bad-agent',
      'ONNX embedders need Transformers.js, which is not installed: npm install @huggingface/transformers, or name a GGUF.',
      { cause: error },
    )
  }
}

/** Tokens that tokenizer and model set as the most, where they set any. */
function limitsOf({ tokenizer, model }: FeatureExtractionPipeline): readonly number[] {
  const limits = [tokenizer.model_max_length, (model.config as { max_position_embeddings?: unknown }).max_position_embeddings]
  // A tokenizer without a limit says 1e30.
  return limits.filter((limit): limit is number => typeof limit === 'number' && limit > 0 && limit < 1e9)
}

/** What the pipeline takes for the tokens' vectors: the first of these that the model has. */
function outputOf({ model }: FeatureExtractionPipeline): string {
  const sessions = Object.values(model.sessions as Record<string, { readonly outputNames?: readonly string[] }>)
  const names = sessions.flatMap(({ outputNames = [] }) => outputNames)
  if (names.includes('last_hidden_state')) return 'hidden states'
  return names.includes('logits') ? 'logits: the model has no hidden states' : 'token embeddings'
}

const reasonOf = (error: unknown): string => (error instanceof Error ? error.message.split('\n', 1)[0]! : String(error))
