/** Owns the reading of an endpoint's own figures, whichever names its engine gives them. */
import { countAt, fieldOf, numberAt } from './json.js'

/** What an endpoint says a step took, in tokens; null: it does not say. */
export interface Usage {
  readonly prompt: number
  /** Of the prompt, not computed in this step. */
  readonly cached: number | null
  readonly generated: number
  /** Milliseconds; llama-server alone says so. */
  readonly milliseconds: { readonly prefill: number; readonly decode: number } | null
}

/**
 * The figures of a chunk or a whole answer, null when it has none.
 *
 * Cached tokens: `usage.prompt_tokens_details.cached_tokens` (OpenAI, llama-server, kvfold, vLLM with --enable-prompt-tokens-details, SGLang
 * with --enable-cache-report), `usage.prompt_cache_hit_tokens` (DeepSeek), `usage.cached_tokens` (Moonshot), `timings.cache_n` (llama-server).
 * llama-server's `tokens_cached` is what its slot holds afterwards, generated tokens included, so it is not looked at.
 */
export function usageIn(chunk: unknown): Usage | null {
  const usage = fieldOf(chunk, 'usage')
  const timings = fieldOf(chunk, 'timings')
  const cached =
    countAt(fieldOf(usage, 'prompt_tokens_details'), 'cached_tokens') ??
    countAt(usage, 'prompt_cache_hit_tokens') ??
    countAt(usage, 'cached_tokens') ??
    countAt(timings, 'cache_n')
  const computed = countAt(timings, 'prompt_n')
  const prompt = countAt(usage, 'prompt_tokens') ?? (computed === null ? null : computed + (cached ?? 0))
  if (prompt === null) return null
  const prefill = numberAt(timings, 'prompt_ms')
  const decode = numberAt(timings, 'predicted_ms')
  return {
    prompt,
    cached: cached === null ? null : Math.min(cached, prompt),
    generated: countAt(usage, 'completion_tokens') ?? countAt(timings, 'predicted_n') ?? 0,
    milliseconds: prefill === null || decode === null ? null : { prefill, decode },
  }
}
