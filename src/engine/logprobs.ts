/** Owns the step from raw logits to the log-probabilities a caller asked for. */
import type { TokenLogprob } from './engine.js'

/**
 * Natural-log probabilities under the model's own distribution (before sampling changes it): of `token`, and of the `count` likeliest
 * tokens, best first. `piece`: a token's bytes.
 */
export function tokenLogprob(
  logits: Float32Array,
  token: number,
  count: number,
  piece: (token: number) => Uint8Array,
): TokenLogprob {
  let max = -Infinity
  for (const logit of logits) if (logit > max) max = logit
  let sum = 0
  for (const logit of logits) sum += Math.exp(logit - max)
  const offset = max + Math.log(sum)
  const named = (id: number) => ({ token: id, ...written(piece(id)), logprob: (logits[id] ?? -Infinity) - offset })
  return { ...named(token), top: largest(logits, count).map(named) }
}

const decoder = new TextDecoder('utf-8', { ignoreBOM: true })

/** The text of these bytes, and the bytes where they are no whole characters. */
function written(bytes: Uint8Array): { readonly text: string; readonly bytes?: readonly number[] } {
  const text = decoder.decode(bytes)
  return text.includes('\ufffd') ? { text, bytes: [...bytes] } : { text }
}

/** Indices of the `count` largest values, largest first; ties by lower index. */
function largest(values: Float32Array, count: number): number[] {
  const best: number[] = []
  for (let index = 0; index < values.length; index++) {
    const value = values[index]!
    const last = best.at(-1)
    if (best.length === count && (last === undefined || value <= values[last]!)) continue
    const place = best.findIndex((other) => value > values[other]!)
    best.splice(place < 0 ? best.length : place, 0, index)
    if (best.length > count) best.pop()
  }
  return best
}
