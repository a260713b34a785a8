/** One streamed completion over HTTP, as a client sees it: when each token came, and whether the stream was well formed. */

export interface StreamRequest {
  readonly url: string
  readonly prompt: readonly number[]
  /** Tokens to generate, no more and no less. */
  readonly tokens: number
  /** Ids of banned tokens, so that random weights do not end an answer early. */
  readonly banned: readonly number[]
  readonly model: string
}

export interface StreamResult {
  /** Milliseconds from the request to the first event with text. */
  readonly firstToken: number
  /** Milliseconds between events with text. */
  readonly gaps: readonly number[]
  readonly milliseconds: number
  readonly generated: number
  /** What was wrong with the stream; null for a complete one. */
  readonly fault: string | null
}

interface Chunk {
  readonly choices: readonly { readonly text?: string; readonly finish_reason?: string | null }[]
  readonly usage?: { readonly prompt_tokens: number; readonly completion_tokens: number } | null
}

/**
 * Requests a completion of a token list (`/v1/completions`, streamed, with usage) and reads it to the end. Never throws: an error becomes
 * the result's fault.
 */
export async function streamCompletion({ url, prompt, tokens, banned, model }: StreamRequest): Promise<StreamResult> {
  const begun = performance.now()
  const times: number[] = []
  let usage: Chunk['usage'] = null
  let finish: string | null = null
  let done = false
  const result = (fault: string | null): StreamResult => ({
    firstToken: times[0] ?? Number.NaN,
    gaps: times.slice(1).map((time, index) => time - times[index]!),
    milliseconds: performance.now() - begun,
    generated: usage?.completion_tokens ?? 0,
    fault,
  })
  try {
    const response = await fetch(`${url}/v1/completions`, {
      method: 'POST',
      // One connection per request. llama-server promises to keep connections but closes them after every stream, and the next request may
      // lose that race.
      headers: { 'content-type': 'application/json', connection: 'close' },
      body: JSON.stringify({
        model,
        prompt,
        max_tokens: tokens,
        temperature: 0,
        stream: true,
        stream_options: { include_usage: true },
        logit_bias: Object.fromEntries(banned.map((token) => [token, -100])),
      }),
    })
    if (!response.ok || response.body === null)
      return result(`status ${response.status}: ${(await response.text()).slice(0, 200)}`)
    for await (const data of eventsOf(response.body)) {
      if (done) return result('an event after [DONE]')
      if (data === '[DONE]') {
        done = true
        continue
      }
      const chunk = JSON.parse(data) as Chunk
      usage = chunk.usage ?? usage
      const [choice] = chunk.choices
      if (choice === undefined) continue
      if (finish !== null && (choice.text ?? '') !== '') return result('text after the finish reason')
      finish = choice.finish_reason ?? finish
      if ((choice.text ?? '') !== '') times.push(performance.now() - begun)
    }
  } catch (error) {
    return result(causesOf(error))
  }
  if (!done) return result('the stream ended without [DONE]')
  if (finish !== 'length') return result(`finish reason ${finish}`)
  if (usage?.completion_tokens !== tokens) return result(`${usage?.completion_tokens} of ${tokens} tokens`)
  if (usage.prompt_tokens !== prompt.length) return result(`${usage.prompt_tokens} prompt tokens of ${prompt.length}`)
  return result(null)
}

/** Returns the error's message with those of its causes, because `fetch failed` alone explains nothing. */
function causesOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return error.cause === undefined ? error.message : `${error.message}: ${causesOf(error.cause)}`
}

/** Yields the data of SSE events, and skips comments. */
export async function* eventsOf(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder('utf-8', { fatal: true })
  let rest = ''
  for await (const bytes of body) {
    rest += decoder.decode(bytes, { stream: true })
    const events = rest.split(/\r?\n\r?\n/)
    rest = events.pop()!
    for (const event of events) {
      const data = event.split(/\r?\n/).filter((line) => line.startsWith('data:'))
      if (data.length > 0) yield data.map((line) => line.slice(5).trimStart()).join('\n')
    }
  }
  if (rest.trim() !== '') throw new Error('the stream ended in the middle of an event')
}
