/** Owns which vocabularies a model may have: what llama.cpp v0.5.0 asserts on while it reads one (llama-vocab.cpp). */
import { KvfoldError } from '../core/errors.js'
import { TYPE, type GgufHeader } from './gguf-reader.js'

const TOKENS = 'tokenizer.ggml.tokens'
/** llama_token_type of a byte. */
const BYTE = 6
/** Where a WordPiece vocabulary has the tokens at either end of a text, if its file does not say. */
const WORD_PIECE = { bos: 101, seperator: 102 } as const

/** @throws KvfoldError model/bad-file naming the token */
export function checkVocabulary({ path, metadata }: GgufHeader): void {
  const refuse = (what: string): never => {
    throw new KvfoldError('model/bad-file', `${path} has a damaged vocabulary: ${what}; download or convert it again.`)
  }
  const model = metadata.get('tokenizer.ggml.model')
  const kind = model?.kind === 'text' ? model.value.split('\0')[0] : undefined
  const list = metadata.get(TOKENS)
  if (list?.kind !== 'list' || list.item !== TYPE.string || kind === 'none' || kind === 'no_vocab') return
  const tokens = textsOf(list.items ?? [])
  refuseTwins(tokens, refuse)
  if (kind === 'bert') checkWordPiece(metadata, tokens.length, refuse)
  if (kind === 'rwkv') checkBytes(tokens, refuse)
}

/** As llama.cpp reads them: up to the first NUL, and a name of its own for an empty one. */
const textsOf = (items: readonly (number | string)[]): string[] =>
  items.map((item, index) => String(item).split('\0')[0] || `[EMPTY_${index}]`)

function refuseTwins(tokens: readonly string[], refuse: (what: string) => never): void {
  const seen = new Set<string>()
  tokens.forEach((text, token) => {
    if (seen.has(text)) refuse(`it names token ${token} (${JSON.stringify(text.slice(0, 60))}) twice`)
    seen.add(text)
  })
}

/** WordPiece has no bytes, and puts a token at either end of every text. */
function checkWordPiece(metadata: GgufHeader['metadata'], count: number, refuse: (what: string) => never): void {
  const types = metadata.get('tokenizer.ggml.token_type')
  const byte = types?.kind === 'list' ? (types.items?.indexOf(BYTE) ?? -1) : -1
  if (byte !== -1) refuse(`token ${byte} is of type 6 (byte), which WordPiece vocabularies do not have`)
  for (const [name, usual] of Object.entries(WORD_PIECE)) {
    const key = `tokenizer.ggml.${name}_token_id`
    const entry = metadata.get(key)
    const given = entry?.kind === 'number' && entry.type === TYPE.u32 ? entry.value : usual
    if (given >= count && usual >= count) refuse(`${key} is ${given}, expected is one of its ${count} tokens`)
  }
}

/** Where a text's next byte begins tokens and is none itself, llama.cpp looks for it for ever. */
function checkBytes(tokens: readonly string[], refuse: (what: string) => never): void {
  const single = new Set(tokens.map(unescaped).filter(({ length }) => length === 1))
  if (single.size < 256) refuse(`an RWKV vocabulary with tokens for ${single.size} of the 256 bytes`)
}

/** Escapes of RWKV tokens: \t, \n, \r, \x and two digits, and any other character after a backslash for itself. */
const unescaped = (text: string): string =>
  text.replaceAll(/\\(x[0-9a-fA-F]{2}|.)/gs, (_, escape: string) => {
    if (escape.length === 3) return String.fromCharCode(Number.parseInt(escape.slice(1), 16))
    return { t: '\t', n: '\n', r: '\r' }[escape] ?? escape
  })
