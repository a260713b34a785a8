/** Owns the unlikely keys, names and values that damaged GGUF files are given. */
import type { Random } from '../../src/runtime/core/random.js'
import { ARRAY, BOOL, F32, f32, I32, list, SCALARS, STRING, strings, U32, u32, u64, type Entry } from './gguf-edit.js'

export const INTEGERS = [
  0n,
  1n,
  2n,
  3n,
  5n,
  7n,
  8n,
  31n,
  255n,
  256n,
  257n,
  1000n,
  65_535n,
  2n ** 31n - 1n,
  2n ** 31n,
  2n ** 32n - 1n,
  2n ** 63n,
]
const FLOATS = [0, -0, 1, -1, 1e-30, 1e30, -1e30, 0.5, 1e6, Infinity, -Infinity, NaN]
export const ARCHITECTURES = [
  'llama',
  'qwen2',
  'bert',
  'nomic-bert',
  'mamba',
  'jamba',
  'lfm2',
  'gemma3',
  'qwen2vl',
  'qwen3',
  'gemma2',
  'phi3',
]
export const TEXTS = [
  '',
  'none',
  'linear',
  'yarn',
  'longrope',
  'nonsense',
  '\u0000',
  'a'.repeat(70_000),
  'gpt2',
  'llama',
  'bert',
  't5',
  'rwkv',
]
/** Values that only some files give; below the architecture's name. */
export const OPTIONAL: readonly (readonly [key: string, type: number])[] = [
  ...(
    [
      ...['vocab_size', 'embedding_length_out', 'leading_dense_block_count', 'expert_feed_forward_length', 'expert_count'],
      ...['expert_used_count', 'expert_shared_count', 'expert_group_count', 'expert_group_used_count', 'expert_gating_func'],
      ...['moe_every_n_layers', 'nextn_predict_layers', 'pooling_type', 'attention.key_length', 'attention.value_length'],
      ...['attention.head_count_kv', 'attention.sliding_window', 'attention.sliding_window_pattern', 'attention.key_length_swa'],
      ...[
        'attention.value_length_swa',
        'rope.dimension_count',
        'rope.dimension_count_swa',
        'rope.scaling.original_context_length',
      ],
      ...['ssm.group_count', 'ssm.conv_kernel', 'shortconv.l_cache', 'dense_2_feat_in', 'dense_2_feat_out', 'dense_3_feat_in'],
      ...['dense_3_feat_out', 'attention.temperature_length', 'attention.shared_kv_layers', 'n_deepstack_layers'],
    ] as const
  ).map((key) => [key, U32] as const),
  ...(
    [
      ...['expert_weights_scale', 'logit_scale', 'attn_logit_softcapping', 'final_logit_softcapping', 'residual_scale'],
      ...['embedding_scale', 'attention.max_alibi_bias', 'attention.clamp_kqv', 'attention.scale', 'rope.freq_base'],
      ...['rope.freq_base_swa', 'rope.scaling.factor', 'rope.scale_linear', 'rope.scaling.attn_factor', 'rope.scaling.alpha'],
      ...['rope.scaling.yarn_log_multiplier', 'rope.scaling.yarn_ext_factor', 'rope.scaling.yarn_beta_fast'],
    ] as const
  ).map((key) => [key, F32] as const),
  ...(['attention.causal', 'expert_weights_norm', 'rope.scaling.finetuned', 'ssm.dt_b_c_rms'] as const).map(
    (key) => [key, BOOL] as const,
  ),
  ['rope.scaling.type', STRING],
  ['hidden_activation', STRING],
]
export const TOKEN_KEYS = [
  'bos',
  'eos',
  'eot',
  'eom',
  'unknown',
  'seperator',
  'padding',
  'cls',
  'mask',
  'fim_pre',
  'fim_suf',
  'fim_mid',
  'fim_pad',
]
export const ADDS = ['add_bos_token', 'add_eos_token', 'add_sep_token', 'add_space_prefix', 'remove_extra_whitespaces']
/** Tensors that only some files hold; `#` is a layer. */
export const EXTRA_TENSORS = [
  ...[
    'output.bias',
    'rope_freqs.weight',
    'output.weight',
    'token_types.weight',
    'position_embd.weight',
    'dense_2.weight',
    'cls.weight',
  ],
  ...['output_norm.bias', 'token_embd_norm.bias', 'output.scale', 'cls.output.weight', 'cls.norm.weight'],
  ...['q', 'k', 'v', 'output', 'qkv'].flatMap((part) => [`blk.#.attn_${part}.bias`, `blk.#.attn_${part}.scale`]),
  ...[
    'blk.#.attn_qkv.weight',
    'blk.#.attn_q_norm.weight',
    'blk.#.attn_q_norm.bias',
    'blk.#.attn_k_norm.weight',
    'blk.#.rope_freqs.weight',
  ],
  ...['gate', 'up', 'down'].flatMap((part) => [
    `blk.#.ffn_${part}.bias`,
    `blk.#.ffn_${part}.scale`,
    `blk.#.ffn_${part}_exps.weight`,
  ]),
  ...[
    'blk.#.ffn_gate_inp.weight',
    'blk.#.ffn_gate.weight',
    'blk.#.attn_norm_2.weight',
    'blk.#.attn_norm.bias',
    'blk.#.ffn_norm.bias',
  ],
]

/** Bytes of an unlikely value; near `before` where that is given. */
export function scalar(type: number, random: Random, before?: Buffer): Buffer {
  const size = SCALARS[type] ?? 4
  if (type === F32) return f32(pick(FLOATS, random))
  if (type === 12) {
    const bytes = Buffer.alloc(8)
    bytes.writeDoubleLE(pick(FLOATS, random))
    return bytes
  }
  if (type === BOOL) return Buffer.from([pick([0, 1, 1, 0, 2, 255], random)])
  const old =
    before === undefined || before.length < size
      ? 4n
      : before.length >= 8 && size === 8
        ? before.readBigUInt64LE()
        : BigInt(before.readUIntLE(0, Math.min(size, 4)))
  const near = [old + 1n, old - 1n, old * 2n, old / 2n, old * 3n, old + 2n]
  return u64(pick(random.below(2) === 0 ? near : [...INTEGERS, -1n, -2n], random)).subarray(0, size)
}

export function array(random: Random): Buffer {
  const type = pick([U32, I32, F32, BOOL, STRING, ARRAY, 0, 10], random)
  if (type === STRING) return strings(['a', 'b c', 'd'].slice(0, random.below(4)))
  if (type === ARRAY) return Buffer.concat([u32(ARRAY), u64(1n), u32(U32), u64(1n), u32(1)])
  return list(type, Buffer.concat(Array.from({ length: random.below(5) }, () => scalar(type, random))))
}

export function show({ type, value }: Entry): string {
  if (type === F32) return String(value.readFloatLE())
  if (type === I32 && value.length === 4) return String(value.readInt32LE())
  if (type === STRING) return JSON.stringify(value.subarray(8, 48).toString())
  if (type === ARRAY) return `[${value.subarray(0, 40).toString('hex')}]`
  return value.length <= 4 && value.length > 0 ? String(value.readUIntLE(0, value.length)) : value.toString('hex').slice(0, 60)
}

export const pick = <T>(items: readonly T[], random: Random): T => items[random.below(items.length)]!
