/** The port through which `chat` sees a vocabulary; a native model satisfies it as it is. */

export interface Tokenizer {
  readonly special: {
    readonly bos: number | null
    readonly eos: number | null
    readonly addBos: boolean
  }
  tokenize(text: string, options?: { readonly addSpecial?: boolean; readonly parseSpecial?: boolean }): Int32Array
  /** The bytes of one token as written out, control tokens included. */
  piece(token: number, special?: boolean): Uint8Array
  isControl(token: number): boolean
}
