/** Makes GGUFs of a given shape with random weights, for tests and benchmarks: speed does not depend on the weights. */
import { KvfoldError } from '../core/errors.js'
import { writeGguf, type MetadataValue, type TensorPlan } from './gguf-writer.js'

export interface SyntheticShape {
  readonly architecture: 'llama' | 'qwen2' | 'mamba'
  readonly layers: number
  readonly embedding: number
  /** Ignored for mamba. */
  readonly heads: number
  readonly kvHeads: number
  readonly feedForward: number
  /** At least 400: bytes, merged pairs, control tokens; the rest are names that no text contains. */
  readonly vocabulary: number
  readonly context: number
  /** Default 10000. */
  readonly ropeBase?: number
  /** Type of the matrices; norms and biases are f32. Default f16. */
  readonly type?: 'f32' | 'f16'
  /** Same seed, same file. Default 1. */
  readonly seed?: number
  /** Default: ChatML with Hermes tool calls. null: none. */
  readonly chatTemplate?: string | null
}

/** ChatML with tools listed by name and parameters, calls in Hermes syntax. */
export const defaultChatTemplate = [
  "{%- set first = messages[0] if messages and messages[0].role == 'system' else none -%}",
  "{%- if first or tools -%}{{ '<|im_start|>system\\n' }}{{ first.content if first else '' }}",
  "{%- if tools -%}{{ '\\n\\n# Tools' }}{%- for tool in tools -%}{{ '\\n' + tool.function.name }}{%- endfor -%}{%- endif -%}{{ '<|im_end|>\\n' }}{%- endif -%}",
  "{%- for message in messages -%}{%- if not (loop.first and message.role == 'system') -%}",
  "{{ '<|im_start|>' + message.role + '\\n' }}{{ message.content if message.content else '' }}",
  '{%- if message.tool_calls -%}{%- for call in message.tool_calls -%}',
  "{{ '\\n' if message.content or not loop.first else '' }}{{ '<tool_call>\\n{\"name\": ' }}{{ call.function.name | tojson }}{{ ', \"arguments\": ' }}",
  "{{ call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}",
  "{%- endfor -%}{%- endif -%}{{ '<|im_end|>\\n' }}{%- endif -%}{%- endfor -%}",
  "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}",
].join('')

/** Frequent English pairs and words, so that token borders are not everywhere. */
const MERGES =
  'Ġ t,h e,Ġt he,i n,e r,a n,o n,r e,Ġ a,Ġ s,a t,e n,Ġ w,o r,e s,i s,Ġ o,i t,Ġ c,an d,Ġ f,Ġa nd,in g,o u,Ġ b,e d,Ġ m,Ġ p,a r,a l,Ġo f,Ġ in,s t,o l,Ċ Ċ,l e,e l,d e,f o,l d,fo ld,s s,ss age'.split(',')

/**
 * Writes the model to `path`. The file depends on the shape alone.
 * @throws KvfoldError native/bad-argument when the shape is not one llama.cpp can load.
 */
export function synthesizeModel(path: string, shape: SyntheticShape): Promise<void> {
  checkShape(shape)
  const { architecture, seed = 1, type = 'f16' } = shape
  const random = new Weights(seed)
  const tensors = architecture === 'mamba' ? mambaTensors(shape, type, random) : attentionTensors(shape, type, random)
  writeGguf(path, metadata(shape), tensors)
  return Promise.resolve()
}

function checkShape({ architecture, layers, embedding, heads, kvHeads, feedForward, vocabulary, context }: SyntheticShape): void {
  const refuse = (what: string): never => {
    throw new KvfoldError('native/bad-argument', `This shape cannot be built: ${what}.`)
  }
  for (const [name, value] of Object.entries({ layers, embedding, heads, kvHeads, feedForward, vocabulary, context }))
    if (!Number.isInteger(value) || value < 1) refuse(`${name} is ${value}, not a whole number above 0`)
  if (vocabulary < 400) refuse(`a vocabulary of ${vocabulary} has no room for bytes and control tokens; 400 is the least`)
  if (architecture === 'mamba') return
  if (embedding % heads !== 0 || (embedding / heads) % 2 !== 0) refuse(`${embedding} does not divide into ${heads} heads of even size`)
  if (heads % kvHeads !== 0) refuse(`${heads} heads do not share ${kvHeads} key/value heads evenly`)
}

function metadata(shape: SyntheticShape): Map<string, MetadataValue> {
  const { architecture, layers, embedding, heads, kvHeads, feedForward, vocabulary, context, ropeBase = 10_000 } = shape
  const u32 = (value: number): MetadataValue => ({ type: 'u32', value })
  const f32 = (value: number): MetadataValue => ({ type: 'f32', value })
  const string = (value: string): MetadataValue => ({ type: 'string', value })
  const own = (name: string) => `${architecture}.${name}`
  const { tokens, types, control } = tokenTable(vocabulary)
  const entries: [string, MetadataValue][] = [
    ['general.architecture', string(architecture)],
    ['general.name', string(`synthetic ${architecture} ${layers}x${embedding}`)],
    [own('context_length'), u32(context)],
    [own('embedding_length'), u32(embedding)],
    [own('block_count'), u32(layers)],
    [own('feed_forward_length'), u32(architecture === 'mamba' ? 0 : feedForward)],
    [own('attention.head_count'), u32(architecture === 'mamba' ? 0 : heads)],
    [own('attention.head_count_kv'), u32(architecture === 'mamba' ? 0 : kvHeads)],
    [own('attention.layer_norm_rms_epsilon'), f32(1e-5)],
    [own('vocab_size'), u32(vocabulary)],
  ]
  if (architecture === 'mamba')
    entries.push(
      [own('ssm.conv_kernel'), u32(4)],
      [own('ssm.inner_size'), u32(2 * embedding)],
      [own('ssm.state_size'), u32(16)],
      [own('ssm.time_step_rank'), u32(Math.max(1, embedding / 16))],
    )
  else entries.push([own('rope.freq_base'), f32(ropeBase)], [own('rope.dimension_count'), u32(embedding / heads)])
  entries.push(
    ['tokenizer.ggml.model', string('gpt2')],
    ['tokenizer.ggml.pre', string('gpt-2')],
    ['tokenizer.ggml.tokens', { type: 'strings', value: tokens }],
    ['tokenizer.ggml.token_type', { type: 'i32s', value: types }],
    ['tokenizer.ggml.merges', { type: 'strings', value: MERGES }],
    ['tokenizer.ggml.bos_token_id', u32(control.start)],
    ['tokenizer.ggml.eos_token_id', u32(control.end)],
    ['tokenizer.ggml.add_bos_token', { type: 'bool', value: false }],
  )
  const { chatTemplate = defaultChatTemplate } = shape
  if (chatTemplate !== null) entries.push(['tokenizer.chat_template', string(chatTemplate)])
  return new Map(entries)
}

/** 256 byte-level tokens, the merged ones, two control tokens, fillers. */
function tokenTable(vocabulary: number): { tokens: string[]; types: number[]; control: { start: number; end: number } } {
  const [NORMAL, CONTROL, UNUSED] = [1, 3, 5]
  const tokens = [...byteAlphabet(), ...MERGES.map((merge) => merge.replace(' ', ''))]
  const types = tokens.map(() => NORMAL)
  const control = { start: tokens.length, end: tokens.length + 1 }
  tokens.push('<|im_start|>', '<|im_end|>')
  types.push(CONTROL, CONTROL)
  while (tokens.length < vocabulary) {
    tokens.push(`<filler ${tokens.length}>`)
    types.push(UNUSED)
  }
  return { tokens, types, control }
}

/** GPT-2's printable stand-ins for the 256 bytes: printable Latin-1 stands for itself, the others are moved to U+0100 and up. */
function byteAlphabet(): string[] {
  let moved = 0
  return Array.from({ length: 256 }, (_, byte) => {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174
    return String.fromCodePoint(printable ? byte : 256 + moved++)
  })
}

function attentionTensors(shape: SyntheticShape, type: 'f32' | 'f16', random: Weights): TensorPlan[] {
  const { architecture, layers, embedding, heads, kvHeads, feedForward, vocabulary } = shape
  const kv = (embedding / heads) * kvHeads
  const matrix = (name: string, from: number, to: number, gain = 1) => random.matrix(name, [from, to], type, gain / Math.sqrt(from))
  const tensors = [random.matrix('token_embd.weight', [embedding, vocabulary], type, 1)]
  for (let layer = 0; layer < layers; layer++) {
    const block = (name: string) => `blk.${layer}.${name}`
    tensors.push(
      random.ones(block('attn_norm.weight'), embedding),
      matrix(block('attn_q.weight'), embedding, embedding, 2),
      matrix(block('attn_k.weight'), embedding, kv, 2),
      matrix(block('attn_v.weight'), embedding, kv),
      matrix(block('attn_output.weight'), embedding, embedding),
      random.ones(block('ffn_norm.weight'), embedding),
      matrix(block('ffn_gate.weight'), embedding, feedForward),
      matrix(block('ffn_up.weight'), embedding, feedForward),
      matrix(block('ffn_down.weight'), feedForward, embedding),
    )
    if (architecture === 'qwen2')
      for (const [name, size] of [['q', embedding], ['k', kv], ['v', kv]] as const) tensors.push(random.matrix(block(`attn_${name}.bias`), [size], 'f32', 0.1))
  }
  tensors.push(random.ones('output_norm.weight', embedding), matrix('output.weight', embedding, vocabulary, 3))
  return tensors
}

function mambaTensors({ layers, embedding, vocabulary }: SyntheticShape, type: 'f32' | 'f16', random: Weights): TensorPlan[] {
  const [inner, state, rank] = [2 * embedding, 16, Math.max(1, embedding / 16)]
  const matrix = (name: string, from: number, to: number, gain = 1) => random.matrix(name, [from, to], type, gain / Math.sqrt(from))
  const tensors = [random.matrix('token_embd.weight', [embedding, vocabulary], type, 1)]
  for (let layer = 0; layer < layers; layer++) {
    const block = (name: string) => `blk.${layer}.${name}`
    tensors.push(
      random.ones(block('attn_norm.weight'), embedding),
      matrix(block('ssm_in.weight'), embedding, 2 * inner),
      random.matrix(block('ssm_conv1d.weight'), [4, inner], 'f32', 0.5),
      random.matrix(block('ssm_conv1d.bias'), [inner], 'f32', 0.1),
      matrix(block('ssm_x.weight'), inner, rank + 2 * state),
      matrix(block('ssm_dt.weight'), rank, inner),
      random.matrix(block('ssm_dt.bias'), [inner], 'f32', 0.1),
      random.constant(block('ssm_a'), [state, inner], -1),
      random.constant(block('ssm_d'), [inner], 1),
      matrix(block('ssm_out.weight'), inner, embedding),
    )
  }
  tensors.push(random.ones('output_norm.weight', embedding), matrix('output.weight', embedding, vocabulary, 3))
  return tensors
}

/** A stream of values near a normal distribution, drawn from a table so that large models are written at the disk's speed. */
class Weights {
  static readonly #SIZE = 4096
  #state: number

  constructor(seed: number) {
    this.#state = (Math.imul(seed, 0x9e3779b1) ^ 0x5bd1e995) >>> 0 || 1
  }

  matrix(name: string, shape: readonly number[], type: 'f32' | 'f16', deviation: number): TensorPlan {
    // Sum of four uniforms: mean 0, and the deviation asked for.
    const table = Float32Array.from({ length: Weights.#SIZE }, () => {
      let sum = 0
      for (let draw = 0; draw < 4; draw++) sum += this.#next() / 2 ** 32 - 0.5
      return sum * Math.sqrt(3) * deviation
    })
    const values = type === 'f32' ? table : Uint16Array.from(table, half)
    return {
      name,
      shape,
      type,
      fill: (target) => {
        for (let index = 0; index < target.length; index++) target[index] = values[this.#next() >>> 20]!
      },
    }
  }

  constant(name: string, shape: readonly number[], value: number): TensorPlan {
    return {
      name,
      shape,
      type: 'f32',
      fill: (target) => {
        target.fill(value)
      },
    }
  }

  ones(name: string, size: number): TensorPlan {
    return this.constant(name, [size], 1)
  }

  /** xorshift32 */
  #next(): number {
    let state = this.#state
    state ^= state << 13
    state ^= state >>> 17
    state ^= state << 5
    return (this.#state = state >>> 0)
  }
}

/** IEEE half precision of a number well within its range, rounded to nearest. */
function half(value: number): number {
  const sign = value < 0 ? 0x8000 : 0
  const magnitude = Math.abs(value)
  if (magnitude < 2 ** -24) return sign
  const exponent = Math.max(-14, Math.floor(Math.log2(magnitude)))
  // A mantissa that rounds up to 2048 carries into the exponent by plain addition.
  const mantissa = Math.round(magnitude * 2 ** (10 - exponent))
  return sign + (exponent === -14 && mantissa < 1024 ? mantissa : ((exponent + 15) << 10) + mantissa - 1024)
}
