/** llama-server's timing fields, for finished and for running answers. */
import type { AnyAnswer, AskEvent } from '../../ask.js'

/**
 * Returns timings in milliseconds and tokens per second. The time up to the first token counts as prompt time; without a token all of it
 * does.
 */
export function timings({ timing, usage }: Pick<AnyAnswer, 'timing' | 'usage'>): object {
  const { total, prefillTokens, generatedTokens } = timing
  const firstToken = generatedTokens === 0 ? total : timing.firstToken
  return {
    ...written(usage.cachedTokens, prefillTokens, firstToken, generatedTokens, Math.max(0, total - firstToken)),
    ...(usage.drafts === undefined ? {} : { draft_n: usage.drafts.drafted, draft_n_accepted: usage.drafts.accepted }),
  }
}

function written(cached: number, prompt: number, promptTime: number, predicted: number, predictedTime: number): object {
  const each = (milliseconds: number, tokens: number) => (tokens === 0 ? 0 : milliseconds / tokens)
  const pace = (milliseconds: number, tokens: number) => (milliseconds === 0 ? 0 : (1000 * tokens) / milliseconds)
  return {
    cache_n: cached,
    prompt_n: prompt,
    prompt_ms: promptTime,
    prompt_per_token_ms: each(promptTime, prompt),
    prompt_per_second: pace(promptTime, prompt),
    predicted_n: predicted,
    predicted_ms: predictedTime,
    predicted_per_token_ms: each(predictedTime, predicted),
    predicted_per_second: pace(predictedTime, predicted),
  }
}

/** Follows the events of an answer to report its timings while it runs. */
export class RunningTimings {
  #started: number | null = null
  #first: number | null = null
  #shown = 0
  #cached = 0
  /** Tokens that an earlier plan of the same step computed, before its prompt waited for cells. */
  #before = 0
  #done = 0
  #step: number | null = null
  #predicted = 0

  on(event: AskEvent): void {
    if (event.type === 'plan' && event.step === this.#step) {
      const cached = Math.min(this.#cached, event.reused)
      ;[this.#cached, this.#before, this.#done] = [cached, event.reused - cached, event.reused - cached]
    } else if (event.type === 'plan') {
      this.#started = performance.now()
      this.#first = null
      this.#step = event.step
      ;[this.#shown, this.#cached, this.#before, this.#done, this.#predicted] = [event.shown, event.reused, 0, 0, 0]
    }
    if (event.type === 'progress') this.#done = this.#before + event.done
    if (event.type === 'tokens' && event.tokens.length > 0) {
      this.#first ??= performance.now()
      this.#predicted += event.tokens.length
    }
  }

  /** The timings so far. */
  get timings(): object {
    const now = performance.now()
    const [started, first] = [this.#started ?? now, this.#first ?? now]
    return written(this.#cached, this.#done, first - started, this.#predicted, now - first)
  }

  /** How many tokens the prompt has. */
  get prompted(): number {
    return this.#shown
  }

  /** How many tokens were generated so far. */
  get predicted(): number {
    return this.#predicted
  }

  /** Progress of the prompt: tokens cached and computed so far, and milliseconds since it began. */
  get progress(): object {
    return {
      total: this.#shown,
      cache: this.#cached,
      // A fully cached prompt still computes its last token, so cached plus computed may exceed the prompt by one.
      processed: Math.min(this.#shown, this.#cached + this.#done),
      time_ms: Math.round(performance.now() - (this.#started ?? performance.now())),
    }
  }
}
