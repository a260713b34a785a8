/** Owns log-probabilities as OpenAI's two completion routes write them. */
import type { NamedLogprob, TokenLogprob } from '../../../engine/engine.js'

interface Named {
  readonly token: string
  readonly logprob: number
  readonly bytes: readonly number[] | null
}

export interface ChatLogprobs {
  readonly content: readonly (Named & { readonly top_logprobs: readonly Named[] })[]
  readonly refusal: null
}

export function chatLogprobs(logprobs: readonly TokenLogprob[]): ChatLogprobs {
  return { content: logprobs.map((one) => ({ ...named(one), top_logprobs: one.top.map(named) })), refusal: null }
}

export interface TextLogprobs {
  readonly tokens: readonly string[]
  readonly token_logprobs: readonly number[]
  readonly top_logprobs: readonly Readonly<Record<string, number>>[]
  readonly text_offset: readonly number[]
}

/** @param from characters of the text that stand before the first of these tokens */
export function textLogprobs(logprobs: readonly TokenLogprob[], from = 0): TextLogprobs {
  let at = from
  return {
    tokens: logprobs.map(({ text }) => text),
    token_logprobs: logprobs.map(({ logprob }) => logprob),
    // Best first, so that of two tokens with one text the likelier stays.
    top_logprobs: logprobs.map(({ top }) => Object.fromEntries([...top].reverse().map(({ text, logprob }) => [text, logprob]))),
    text_offset: logprobs.map(({ text }) => (at += text.length) - text.length),
  }
}

/** A token that is part of a character has no text of its own, and no bytes where a remote engine does not say them. */
function named({ text, bytes, logprob }: NamedLogprob): Named {
  return { token: text, logprob, bytes: bytes ?? (text.includes('\ufffd') ? null : [...Buffer.from(text)]) }
}
