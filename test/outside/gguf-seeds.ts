/** Owns the sound models that damage is done to: one of every architecture that kvfold writes, other vocabularies, and the built-in model. */
import { mkdir, readFile } from 'node:fs/promises'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { builtinModel } from '../../src/runtime/cli/builtin.js'
import { synthesizeEncoder } from '../support/synthetic-encoder.js'
import { synthesizeOther } from '../support/synthetic-others.js'
import { synthesizeModel } from '../../src/runtime/native/synthetic.js'
import { TINY } from '../support/models.js'
import {
  ARRAY,
  BOOL,
  F32,
  f32,
  I32,
  list,
  parseGguf,
  readStrings,
  STRING,
  strings,
  text,
  U32,
  u32,
  type Gguf,
} from './gguf-edit.js'

export interface SeedModel {
  readonly name: string
  readonly gguf: Gguf
}

/** Made in `folder` once, and read from there afterwards. */
export async function seedModels(folder: string): Promise<SeedModel[]> {
  await mkdir(folder, { recursive: true })
  const made: SeedModel[] = []
  const seed = async (name: string, write: (path: string) => Promise<void>) => {
    const path = join(folder, `${name}.gguf`)
    if (!existsSync(path)) await write(path)
    made.push({ name, gguf: parseGguf(await readFile(path)) })
  }
  for (const architecture of ['llama', 'qwen2'] as const)
    await seed(architecture, (path) => synthesizeModel(path, { ...TINY, architecture }))
  for (const architecture of ['gemma3', 'qwen2vl', 'mamba', 'jamba', 'lfm2'] as const)
    await seed(architecture, (path) => synthesizeOther(path, architecture))
  for (const architecture of ['bert', 'nomic-bert'] as const)
    await seed(architecture, (path) => synthesizeEncoder(path, { architecture }))
  const [llama] = made
  for (const vocabulary of ['spm', 'wpm', 'ugm'] as const)
    made.push({ name: `llama-${vocabulary}`, gguf: withVocabulary(llama!.gguf, vocabulary) })
  made.push({ name: 'builtin', gguf: parseGguf(await readFile(builtinModel())) })
  return made
}

const MODELS = { spm: 'llama', wpm: 'bert', ugm: 't5' } as const
const [NORMAL, UNKNOWN, CONTROL, BYTE] = [1, 2, 3, 6]

/** The same model over another kind of vocabulary of as many tokens. */
function withVocabulary({ entries, ...rest }: Gguf, kind: keyof typeof MODELS): Gguf {
  const before = entries.find(({ key }) => key === 'tokenizer.ggml.tokens')!
  const count = readStrings(before.value).length
  const mark = kind === 'wpm' ? '[UNK]' : '<unk>'
  const bytes = Array.from({ length: 256 }, (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`)
  const words = Array.from(
    { length: count - 259 },
    (_, index) => `\u2581${String.fromCharCode(97 + (index % 26))}${index < 26 ? '' : index}`,
  )
  const tokens = [mark, '<s>', '</s>', ...bytes, ...words]
  const types = [UNKNOWN, CONTROL, CONTROL, ...bytes.map(() => (kind === 'wpm' ? NORMAL : BYTE)), ...words.map(() => NORMAL)]
  const template = entries.find(({ key }) => key === 'tokenizer.chat_template')!
  const u32s = { bos_token_id: 1, eos_token_id: 2, unknown_token_id: 0, ...(kind === 'wpm' ? { seperator_token_id: 2 } : {}) }
  return {
    ...rest,
    entries: [
      ...entries.filter(({ key }) => !key.startsWith('tokenizer.')),
      { key: 'tokenizer.ggml.model', type: STRING, value: text(MODELS[kind]) },
      { key: 'tokenizer.ggml.pre', type: STRING, value: text('default') },
      { key: 'tokenizer.ggml.tokens', type: ARRAY, value: strings(tokens) },
      { key: 'tokenizer.ggml.token_type', type: ARRAY, value: list(I32, Buffer.concat(types.map(u32))) },
      { key: 'tokenizer.ggml.scores', type: ARRAY, value: list(F32, Buffer.concat(tokens.map((_, index) => f32(-index)))) },
      ...Object.entries(u32s).map(([key, value]) => ({ key: `tokenizer.ggml.${key}`, type: U32, value: u32(value) })),
      { key: 'tokenizer.ggml.add_bos_token', type: BOOL, value: Buffer.from([1]) },
      template,
    ],
  }
}
