/** Owns token counts as OpenAI's routes write them; all come from the ledger. */
import type { Usage } from '../../ask.js'

/** Several answers to one prompt: the prompt counts once, what was generated counts in all. */
export function summed(usages: readonly Usage[]): Usage {
  const [first] = usages
  const sum = (key: 'completionTokens' | 'reasoningTokens') => usages.reduce((total, usage) => total + usage[key], 0)
  return {
    promptTokens: first?.promptTokens ?? 0,
    cachedTokens: first?.cachedTokens ?? 0,
    completionTokens: sum('completionTokens'),
    reasoningTokens: sum('reasoningTokens'),
  }
}

/** `cached_tokens`: those of the prompt that were not computed. */
export function chatUsage({ promptTokens, cachedTokens, completionTokens, reasoningTokens }: Usage): object {
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    prompt_tokens_details: { cached_tokens: cachedTokens },
    completion_tokens_details: { reasoning_tokens: reasoningTokens },
  }
}

export function responseUsage({ promptTokens, cachedTokens, completionTokens, reasoningTokens }: Usage): object {
  return {
    input_tokens: promptTokens,
    input_tokens_details: { cached_tokens: cachedTokens },
    output_tokens: completionTokens,
    output_tokens_details: { reasoning_tokens: reasoningTokens },
    total_tokens: promptTokens + completionTokens,
  }
}
