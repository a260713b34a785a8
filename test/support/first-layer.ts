/** Computes the attention of a Llama GGUF's first layer independently of llama.cpp. Its keys depend only on token and position. */
import { readFileSync } from 'node:fs'

interface Tensor {
  readonly shape: readonly number[]
  readonly data: Float64Array
}

const SCALARS: Readonly<Record<number, number>> = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 }
const [STRING, ARRAY, F32] = [8, 9, 6]
/** ggml_type */
const [FLOAT, HALF] = [0, 1]

export class FirstLayer {
  readonly heads: number
  readonly #kvHeads: number
  readonly #width: number
  readonly #base: number
  readonly #epsilon: number
  readonly #embedding: Tensor
  readonly #norm: Tensor
  readonly #query: Tensor
  readonly #key: Tensor
  readonly #queryBias: Tensor | null
  readonly #keyBias: Tensor | null

  constructor(path: string) {
    const { numbers, tensor } = readGguf(path)
    const number = (name: string) => numbers.get(`llama.${name}`)!
    this.heads = number('attention.head_count')
    this.#kvHeads = number('attention.head_count_kv')
    this.#width = number('rope.dimension_count')
    this.#base = number('rope.freq_base')
    this.#epsilon = number('attention.layer_norm_rms_epsilon')
    this.#embedding = tensor('token_embd.weight')!
    this.#norm = tensor('blk.0.attn_norm.weight')!
    this.#query = tensor('blk.0.attn_q.weight')!
    this.#key = tensor('blk.0.attn_k.weight')!
    this.#queryBias = tensor('blk.0.attn_q.bias')
    this.#keyBias = tensor('blk.0.attn_k.bias')
  }

  /** Returns a head's weights for a query over the places up to it. `tokens` and `positions` describe the tokens seen. */
  row(head: number, query: number, tokens: Int32Array, positions: ArrayLike<number>): Float64Array {
    const kvHead = Math.floor(head / (this.heads / this.#kvHeads))
    const looking = this.#turned(this.#query, this.#queryBias, head, tokens[query]!, positions[query]!)
    const scores = Float64Array.from({ length: query + 1 }, (_, place) => {
      const seen = this.#turned(this.#key, this.#keyBias, kvHead, tokens[place]!, positions[place]!)
      return looking.reduce((sum, value, at) => sum + value * seen[at]!, 0) / Math.sqrt(this.#width)
    })
    const most = scores.reduce((a, b) => Math.max(a, b))
    const weights = scores.map((score) => Math.exp(score - most))
    const sum = weights.reduce((a, b) => a + b)
    return weights.map((weight) => weight / sum)
  }

  /** Applies RMSNorm, one head's projection and its bias, and rotary positions over neighbouring pairs. */
  #turned(weights: Tensor, bias: Tensor | null, head: number, token: number, position: number): Float64Array {
    const size = this.#norm.data.length
    const embedded = this.#embedding.data.subarray(token * size, (token + 1) * size)
    const scale = 1 / Math.sqrt(embedded.reduce((sum, value) => sum + value * value, 0) / size + this.#epsilon)
    const normed = embedded.map((value, at) => value * scale * this.#norm.data[at]!)
    const width = this.#width
    const projected = Float64Array.from({ length: width }, (_, row) => {
      const from = (head * width + row) * size
      const start = bias?.data[head * width + row] ?? 0
      return normed.reduce((sum, value, at) => sum + value * weights.data[from + at]!, start)
    })
    for (let pair = 0; pair < width; pair += 2) {
      const angle = position * this.#base ** (-pair / width)
      const [a, b] = [projected[pair]!, projected[pair + 1]!]
      projected[pair] = a * Math.cos(angle) - b * Math.sin(angle)
      projected[pair + 1] = a * Math.sin(angle) + b * Math.cos(angle)
    }
    return projected
  }
}

/** Reads the metadata's numbers, and tensors in f32 or f16. */
function readGguf(path: string) {
  const file = readFileSync(path)
  let at = 8
  const u32 = () => file.readUInt32LE((at += 4) - 4)
  const u64 = () => Number(file.readBigUInt64LE((at += 8) - 8))
  const text = () => {
    const size = u64()
    return file.toString('utf8', at, (at += size))
  }
  const skip = (type: number): void => {
    if (type === STRING) text()
    else if (type === ARRAY) for (let of = u32(), left = u64(); left > 0; left--) skip(of)
    else at += SCALARS[type]!
  }
  const count = u64()
  const numbers = new Map<string, number>()
  for (let left = u64(); left > 0; left--) {
    const key = text()
    const type = u32()
    if (type === 4) numbers.set(key, file.readUInt32LE(at))
    if (type === F32) numbers.set(key, file.readFloatLE(at))
    skip(type)
  }
  const table = Array.from({ length: count }, () => {
    const name = text()
    const shape = Array.from({ length: u32() }, u64)
    return { name, shape, type: u32(), offset: u64() }
  })
  const start = Math.ceil(at / 32) * 32
  const tensor = (name: string): Tensor | null => {
    const entry = table.find((each) => each.name === name)
    if (entry === undefined) return null
    if (entry.type !== FLOAT && entry.type !== HALF) throw new Error(`tensor ${name} is not in f32 or f16`)
    const { shape, type, offset } = entry
    const data = Float64Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, index) =>
      type === FLOAT ? file.readFloatLE(start + offset + 4 * index) : half(file.readUInt16LE(start + offset + 2 * index)),
    )
    return { shape, data }
  }
  return { numbers, tensor }
}

function half(bits: number): number {
  const [sign, exponent, fraction] = [bits >> 15 === 0 ? 1 : -1, (bits >> 10) & 31, bits & 1023]
  return exponent === 0 ? sign * 2 ** -14 * (fraction / 1024) : sign * 2 ** (exponent - 15) * (1 + fraction / 1024)
}
