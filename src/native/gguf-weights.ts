/** Owns which number formats a model's tensors may have: what llama.cpp's CPU operators compute with, by what a tensor is for. */
import { KvfoldError } from '../core/errors.js'
import type { GgufHeader, GgufTensorInfo } from './gguf-reader.js'

const F32 = 0
/** ggml_type of all formats with a dot product and a way back to f32 (ggml-cpu.c, ops.cpp: get_rows), and their names. */
const WEIGHTS: Readonly<Record<number, string>> = {
  ...{ 0: 'f32', 1: 'f16', 30: 'bf16', 2: 'q4_0', 3: 'q4_1', 6: 'q5_0', 7: 'q5_1', 8: 'q8_0' },
  ...{ 10: 'q2_K', 11: 'q3_K', 12: 'q4_K', 13: 'q5_K', 14: 'q6_K' },
  ...{
    16: 'iq2_xxs',
    17: 'iq2_xs',
    18: 'iq3_xxs',
    19: 'iq1_s',
    20: 'iq4_nl',
    21: 'iq3_s',
    22: 'iq2_s',
    23: 'iq4_xs',
    29: 'iq1_m',
  },
  ...{ 34: 'tq1_0', 35: 'tq2_0', 39: 'mxfp4', 40: 'nvfp4', 41: 'q1_0', 42: 'q2_0' },
}
const OTHERS: Readonly<Record<number, string>> = { 9: 'q8_1', 15: 'q8_K', 24: 'i8', 25: 'i16', 26: 'i32', 27: 'i64', 28: 'f64' }

/**
 * Added to or multiplied with activations, which are f32: binary operators take nothing else beside them (binary-ops.cpp). The rest: factors
 * of rotary positions (ggml_rope_ext), states and kernels of recurrent layers (ggml_ssm_scan, ggml_ssm_conv), the row of token types that
 * encoders add, and attention sinks (ggml_soft_max_add_sinks).
 */
const EXACT: readonly RegExp[] = [
  /\.(?:bias|scale|input_scale)$|_scale\.weight$/,
  /norm\d?(?:_\w+)?\.weight$/,
  /^rope_(?:freqs|factors_long|factors_short)\.weight$|\.rope_(?:freqs|factors_long|factors_short)\.weight$/,
  /\.ssm_(?:a|d|conv1d\.weight)$/,
  /\.shortconv\.conv\.weight$/,
  /^token_types\.weight$/,
  /\.attn_sinks\.weight$/,
]

/** Architectures of llama.cpp v0.5.0 that look numbers up in tensors of integers, which are no weights. */
const INTEGER_TABLES: readonly string[] = ['deepseek4', 'qwen4exp']

/** @throws KvfoldError model/bad-file naming the tensor */
export function checkWeights(headers: readonly GgufHeader[]): void {
  const architecture = headers[0]?.metadata.get('general.architecture')
  const tables = architecture?.kind === 'text' && INTEGER_TABLES.includes(architecture.value)
  for (const { path, tensors } of headers)
    for (const tensor of tensors) {
      const refusal = refusalOf(tensor, tables)
      if (refusal === null) continue
      const name = WEIGHTS[tensor.type] ?? OTHERS[tensor.type] ?? `type ${tensor.type}`
      throw new KvfoldError(
        'model/bad-file',
        `${path}: the tensor ${tensor.name} is of ${name}, and llama.cpp computes ${refusal}; convert the model again.`,
      )
    }
}

function refusalOf({ name, type }: GgufTensorInfo, tables: boolean): string | null {
  if (EXACT.some((pattern) => pattern.test(name))) return type === F32 ? null : 'with f32 alone there'
  if (WEIGHTS[type] !== undefined || (tables && type >= 24 && type <= 27)) return null
  return 'with floats and quantised numbers alone (f32, f16, bf16, q4_0, q8_0, q4_K, ...)'
}
