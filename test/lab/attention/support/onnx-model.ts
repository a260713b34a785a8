/** The second engine that patterns are compared with: an ONNX export (native-models/train/export_onnx.py) in Transformers.js, from disk. */
import { basename, dirname, join } from 'node:path'
import { AutoModelForCausalLM, AutoTokenizer, cat, DynamicCache, env, Tensor } from '@huggingface/transformers'
import type { Span } from '../../../../src/runtime/core/span.js'

env.allowRemoteModels = false

/** The outputs of one forward pass for each of its tokens. */
export interface OnnxPass {
  /** [token, vocabulary] */
  readonly logits: Float32Array
  /** For every layer [head, query, key], after the softmax; the past's keys come first. */
  readonly patterns: readonly Float32Array[]
  /** Keys and values of the past and the new tokens. */
  readonly past: Past
}

/** Keys and values by the names of the model's inputs, [1, head, token, width]. */
type Past = Readonly<Record<string, Tensor>>

type Forward = (inputs: Record<string, Tensor | DynamicCache>) => Promise<Record<string, Tensor>>

export class OnnxModel {
  private constructor(
    private readonly forward: Forward,
    readonly dispose: () => Promise<unknown>,
  ) {}

  /** Loads `folder`/onnx/model.onnx as its config.json says; one thread. */
  static async load(folder: string): Promise<OnnxModel> {
    env.localModelPath = join(dirname(folder), '/')
    const model = await AutoModelForCausalLM.from_pretrained(basename(folder), {
      dtype: 'fp32',
      local_files_only: true,
      session_options: { intraOpNumThreads: 1, interOpNumThreads: 1 },
    })
    return new OnnxModel(model, () => model.dispose())
  }

  /** Runs tokens after a past, at positions from `start` on. */
  async run(
    tokens: ArrayLike<number>,
    { past = {}, start = 0 }: { readonly past?: Past; readonly start?: number } = {},
  ): Promise<OnnxPass> {
    const before = Object.values(past)[0]?.dims[2] ?? 0
    const output = await this.forward({
      input_ids: row(tokens),
      attention_mask: row(new Uint8Array(before + tokens.length).fill(1)),
      position_ids: row(Array.from(tokens, (_, place) => start + place)),
      ...(before === 0 ? {} : { past_key_values: new DynamicCache(past) }),
    })
    const named = (prefix: string) => Object.entries(output).filter(([name]) => name.startsWith(prefix))
    return {
      logits: floats(output['logits']!),
      patterns: named('attentions.').map(([, tensor]) => floats(tensor)),
      past: Object.fromEntries(named('present.').map(([name, tensor]) => [name.replace('present', 'past_key_values'), tensor])),
    }
  }
}

/** Returns the past without some of its tokens. */
export function without(past: Past, { start, end }: Span): Past {
  const kept = (tensor: Tensor) =>
    cat([tensor.slice(null, null, [0, start], null), tensor.slice(null, null, [end, tensor.dims[2]!], null)], 2)
  return Object.fromEntries(Object.entries(past).map(([name, tensor]) => [name, kept(tensor)]))
}

/** Returns one past followed by the other. */
export function joined(first: Past, second: Past): Past {
  return Object.fromEntries(Object.entries(first).map(([name, tensor]) => [name, cat([tensor, second[name]!], 2)]))
}

/** Returns a function from text to ids that uses `folder`/tokenizer.json. */
export async function onnxTokenizer(folder: string): Promise<(text: string) => readonly number[]> {
  env.localModelPath = join(dirname(folder), '/')
  const tokenizer = await AutoTokenizer.from_pretrained(basename(folder), { local_files_only: true })
  return (text) => tokenizer.encode(text)
}

const row = (numbers: ArrayLike<number>) =>
  new Tensor('int64', BigInt64Array.from(Array.from(numbers, BigInt)), [1, numbers.length])

const floats = (tensor: Tensor) => tensor.data as Float32Array
