/** How a prompt of a replay is written: text of words that are one token each, in the chat template beside this file. */
import { fileURLToPath } from 'node:url'
import type { NativeModel } from '../../../src/runtime/native/types.js'
import type { ScriptMessage } from './script.js'

/** The chat template of all servers. It writes the same as `promptOf`. */
export const TEMPLATE = fileURLToPath(new URL('chat.jinja', import.meta.url))

export const promptOf = (messages: readonly ScriptMessage[]): string =>
  `${messages.map(({ role, content }) => `<|im_start|>${role}\n${content}<|im_end|>\n`).join('')}<|im_start|>assistant\n`

/** The most words of which texts are made. */
const WORDS = 4096

/** Returns words with a leading space that are one token each, alone and in a row. */
export function wordsOf(vocabulary: Pick<NativeModel, 'info' | 'tokenize' | 'detokenize'>): string[] {
  const words: string[] = []
  for (let token = 0; token < vocabulary.info.vocabulary && words.length < WORDS; token++) {
    const word = vocabulary.detokenize([token])
    if (/^ [a-z]{2,8}$/.test(word) && vocabulary.tokenize(word).length === 1) words.push(word)
  }
  return words
}
