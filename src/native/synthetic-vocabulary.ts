/** Owns the tokenizer of synthetic models: byte-level BPE over any text, made of letter pairs, with ChatML's control tokens. */
import type { GgufValue } from './gguf-writer.js'

/** llama_token_type */
const NORMAL = 1
const CONTROL = 3
const USER_DEFINED = 4

const SPECIAL = [
  { text: '<|endoftext|>', type: CONTROL },
  { text: '<|im_start|>', type: CONTROL },
  { text: '<|im_end|>', type: CONTROL },
  { text: '<tool_call>', type: USER_DEFINED },
  { text: '</tool_call>', type: USER_DEFINED },
] as const

/** 256 bytes and the control tokens: what any text needs. */
export const SMALLEST_VOCABULARY = 256 + SPECIAL.length

/** Letters from common to rare (English), the space among them, so that small vocabularies already merge ordinary text. */
const LETTERS = Array.from(' etaoinshrdlcumwfgypbvkjxqz')

/**
 * The stand-in characters of byte-level BPE: printable Latin-1 bytes stand for themselves, the others for the characters from U+0100 on.
 * Source: the byte alphabet that GPT-2's tokenizer defined and llama.cpp's gpt2 vocabularies expect (unicode.cpp).
 */
export function byteAlphabet(): readonly string[] {
  const itself = (byte: number) => (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae
  let next = 0x100
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(itself(byte) ? byte : next++))
}

/**
 * Metadata of a vocabulary of exactly `size` tokens: bytes, merged pairs, pairs of pairs, then the control tokens at the end.
 * Precondition: size >= SMALLEST_VOCABULARY. The largest that letters can fill is about 400,000; the rest are unused tokens.
 */
export function vocabularyMetadata(size: number): Map<string, GgufValue> {
  const alphabet = byteAlphabet()
  const tokens = [...alphabet]
  const merges: string[] = []
  for (const [left, right] of pairs(alphabet)) {
    if (tokens.length + SPECIAL.length >= size) break
    merges.push(`${left} ${right}`)
    tokens.push(left + right)
  }
  for (let index = 0; tokens.length + SPECIAL.length < size; index++) tokens.push(`[unused${index}]`)
  const types = [...tokens.map(() => NORMAL), ...SPECIAL.map(({ type }) => type)]
  const ids = new Map(SPECIAL.map(({ text }, index) => [text, tokens.length + index]))
  return new Map<string, GgufValue>([
    ['tokenizer.ggml.model', { string: 'gpt2' }],
    ['tokenizer.ggml.pre', { string: 'qwen2' }],
    ['tokenizer.ggml.tokens', { strings: [...tokens, ...ids.keys()] }],
    ['tokenizer.ggml.token_type', { i32s: types }],
    ['tokenizer.ggml.merges', { strings: merges }],
    ['tokenizer.ggml.bos_token_id', { u32: ids.get('<|endoftext|>') ?? 0 }],
    ['tokenizer.ggml.eos_token_id', { u32: ids.get('<|im_end|>') ?? 0 }],
    ['tokenizer.ggml.padding_token_id', { u32: ids.get('<|endoftext|>') ?? 0 }],
    ['tokenizer.ggml.add_bos_token', { bool: false }],
  ])
}

/** Merges in rank order: two letters, then two of those; a space only begins a word. */
function* pairs(alphabet: readonly string[]): Generator<readonly [left: string, right: string]> {
  const letters = LETTERS.map((letter) => alphabet[letter.charCodeAt(0)] ?? letter)
  const words = letters.slice(1)
  const two = [...crossed(letters, words)]
  yield* two
  yield* crossed(
    two.map(([left, right]) => left + right),
    two.filter(([left]) => left !== letters[0]).map(([left, right]) => left + right),
  )
}

/** All pairs, those of small indexes first. */
function* crossed(lefts: readonly string[], rights: readonly string[]): Generator<readonly [left: string, right: string]> {
  for (let sum = 0; sum < lefts.length + rights.length - 1; sum++)
    for (let index = Math.max(0, sum - rights.length + 1); index <= Math.min(sum, lefts.length - 1); index++) {
      const [left, right] = [lefts[index], rights[sum - index]]
      if (left !== undefined && right !== undefined) yield [left, right]
    }
}
