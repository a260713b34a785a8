/** Owns how long an answer took, by llama-server's names. */
import type { AnyAnswer } from '../ask.js'

/** Milliseconds, and tokens a second; the time to the first token is the prompt's. */
export function timings({ timing, usage }: Pick<AnyAnswer, 'timing' | 'usage'>): object {
  const { firstToken, total, prefillTokens, generatedTokens } = timing
  const generating = Math.max(0, total - firstToken)
  const each = (milliseconds: number, tokens: number) => (tokens === 0 ? 0 : milliseconds / tokens)
  const pace = (milliseconds: number, tokens: number) => (milliseconds === 0 ? 0 : (1000 * tokens) / milliseconds)
  return {
    cache_n: usage.cachedTokens,
    prompt_n: prefillTokens,
    prompt_ms: firstToken,
    prompt_per_token_ms: each(firstToken, prefillTokens),
    prompt_per_second: pace(firstToken, prefillTokens),
    predicted_n: generatedTokens,
    predicted_ms: generating,
    predicted_per_token_ms: each(generating, generatedTokens),
    predicted_per_second: pace(generating, generatedTokens),
  }
}
