/** Small tokenizers made of rules, for tests of the rooms above a vocabulary. */
import type { Tokenizer } from '../../src/runtime/chat/tokens/encoder.js'

const encoder = new TextEncoder()

interface Rules {
  /** Texts that are control tokens; the first is BOS, the last EOS. */
  readonly controls: readonly string[]
  readonly addBos?: boolean
  /** How plain text is divided; without it, tokens are bytes. */
  readonly words?: RegExp
}

/** Returns the texts in a template that look like control tokens. */
export function controlTexts(source: string): string[] {
  const found = source.match(/<\|[^|<>\s{}]{1,40}\|>|<｜[^｜<>\s{}]{1,40}｜>|\[\/?[A-Z_]{3,}\]|<(?:start|end)_of_turn>/g) ?? []
  return ['<s>', ...new Set(found), '</s>']
}

/** Ids below 256 are bytes; then come the control tokens; then words in the order in which they first appear. */
export class RuleTokenizer implements Tokenizer {
  readonly special: Tokenizer['special']
  readonly #words = new Map<string, number>()
  readonly #pieces: Uint8Array[]

  constructor(private readonly rules: Rules) {
    const { controls } = rules
    this.#pieces = [
      ...Array.from({ length: 256 }, (_, byte) => Uint8Array.of(byte)),
      ...controls.map((text) => encoder.encode(text)),
    ]
    this.special = { bos: 256, eos: 255 + controls.length, addBos: rules.addBos ?? false }
  }

  tokenize(text: string, { parseSpecial = false }: { readonly parseSpecial?: boolean } = {}): Int32Array {
    const { controls } = this.rules
    const tokens: number[] = []
    let plain = 0
    const flush = (end: number) => {
      this.#plain(text.slice(plain, end), tokens)
    }
    for (let at = 0; parseSpecial && at < text.length;) {
      let best = -1
      controls.forEach((control, index) => {
        if (text.startsWith(control, at) && control.length > (controls[best]?.length ?? 0)) best = index
      })
      if (best === -1) at++
      else {
        flush(at)
        tokens.push(256 + best)
        at += controls[best]?.length ?? 0
        plain = at
      }
    }
    flush(text.length)
    return Int32Array.from(tokens)
  }

  piece(token: number): Uint8Array {
    return this.#pieces[token] ?? new Uint8Array()
  }

  isControl(token: number): boolean {
    return token >= 256 && token < 256 + this.rules.controls.length
  }

  /** Returns the text of these tokens. */
  text(tokens: Int32Array | readonly number[]): string {
    return Buffer.concat(Array.from(tokens, (token) => this.piece(token))).toString('utf8')
  }

  #plain(text: string, tokens: number[]): void {
    const { words } = this.rules
    if (words === undefined) {
      for (const byte of encoder.encode(text)) tokens.push(byte)
      return
    }
    for (const [word] of text.matchAll(words)) {
      let id = this.#words.get(word)
      if (id === undefined) {
        this.#words.set(word, (id = this.#pieces.length))
        this.#pieces.push(encoder.encode(word))
      }
      tokens.push(id)
    }
  }
}

/** Words with the space before them, runs of newlines, and single other characters: such tokens cross the borders of a content. */
export const WORDS = / ?[A-Za-z]{1,6}|\n+|[^]/gu
