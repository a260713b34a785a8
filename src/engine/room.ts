/** Owns the quick answer to a text that cannot fit: said before all of it is tokenized, which takes minutes for megabytes. */
import { PromptTooLong } from '../core/errors.js'
import type { NativeModel } from '../native/types.js'

/** Characters a cell from which on a text is looked at; ordinary text has 3 to 5 characters a token. */
const LONG = 8

/**
 * Refuses a text of which the beginning alone has twice as many tokens as the context has cells; tokens at the cut may differ from those of
 * the whole text, half of them cannot. Whether other texts fit is for the engine to say.
 * @throws KvfoldError context/full
 */
export function refuseHopeless(model: NativeModel, cells: number, text: string): void {
  for (let length = LONG * cells; length < text.length; length *= 2) {
    const tokens = model.tokenize(text.slice(0, length)).length
    if (tokens >= 2 * cells)
      throw new PromptTooLong(
        { tokens, atLeast: true, context: cells },
        `The text has ${text.length} characters, of which the first ${length} alone are ${tokens} tokens, and the context has ${cells} cells; ` +
          'shorten it, or load a model with a larger context.',
      )
  }
}
