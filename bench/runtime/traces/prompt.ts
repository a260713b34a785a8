/** What a prompt of a replay looks like to the model: text of words that are one token each, in the template beside this file. */
import { fileURLToPath } from 'node:url'
import type { NativeModel } from '../../../src/runtime/native/types.js'
import type { ScriptMessage } from './script.js'

/** The chat template of all servers. It writes what `promptOf` returns. */
export const TEMPLATE = fileURLToPath(new URL('chat.jinja', import.meta.url))

export const promptOf = (messages: readonly ScriptMessage[]): string =>
  `${messages.map(({ role, content }) => `<|im_start|>${role}\n${content}<|im_end|>\n`).join('')}<|im_start|>assistant\n`

/** How many words texts are made of, at most. */
const WORDS = 4096

/** Returns words with a space before them that are one token each, alone and in a row. */
export function wordsOf(vocabulary: Pick<NativeModel, 'info' | 'tokenize' | 'detokenize'>): string[] {
  const words: string[] = []
  for (let token = 0; token < vocabulary.info.vocabulary && words.length < WORDS; token++) {
    const word = vocabulary.detokenize([token])
    if (/^ [a-z]{2,8}$/.test(word) && vocabulary.tokenize(word).length === 1) words.push(word)
  }
  return words
}
