/**
 * Runs sessions of many clients at the same time, where each sends its whole conversation every turn, and collects the reuse that servers
 * report per step.
 */
import { Random } from '../../../src/runtime/core/random.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { words } from '../../runtime/client-edits/clients.js'

export interface SessionsOptions {
  readonly clients: number
  readonly turns: number
  /** Characters of each client message. The first one has three times as many. */
  readonly characters: number
  readonly seed: number
  /** Default: the server's model. */
  readonly model?: string
  /** Further fields of every request. */
  readonly fields?: object
}

/** Token counts, as the server reports them. */
export interface Reuse {
  readonly prompt: number
  readonly cached: number
}

/** One turn of one client. */
export interface Step extends Reuse {
  readonly client: number
  /** The index of the turn, from 0. */
  readonly turn: number
  /**
   * Tokens at the beginning of this prompt that the client's previous turn left in its engine's cache: that turn's prompt and answer,
   * without the last sampled token.
   */
  readonly left: number
  /** The engine that computed the step, as the server reports it; null if it does not. */
  readonly engine: string | null
  /** Seconds from sending the request to the end of the answer. */
  readonly seconds: number
}

export interface Played extends Reuse {
  readonly steps: readonly Step[]
}

/** Tokens of an answer. */
export const ANSWER = 8
/** The only token of every answer, so that all prompts are the same, whichever engine answers. */
export const WORD = ' the'

/** Returns the request fields that make a model answer with this word only. */
export async function oneWord(model: string): Promise<object> {
  const vocabulary = await (await openNative({ gpu: 'cpu' })).loadModel(model, { vocabOnly: true })
  const [token] = vocabulary.tokenize(WORD)
  await vocabulary.dispose()
  return { logit_bias: { [token!]: 100 } }
}

/** The system message, which all clients of a seed share, as in an application. */
export const systemOf = (seed: number): Message => ({
  role: 'system',
  content: `You are asked about a text. ${words(seed, 400)}`,
})

interface Message {
  readonly role: 'system' | 'user' | 'assistant'
  readonly content: string
}

/** Returns a client's messages, one per turn. Clients stop after different numbers of turns. */
export function saidBy(
  client: number,
  { turns, characters, seed }: Pick<SessionsOptions, 'turns' | 'characters' | 'seed'>,
): string[] {
  const random = new Random(seed, client)
  const last = Math.ceil(turns / 2) + random.below(Math.floor(turns / 2) + 1)
  return Array.from({ length: last }, (_, turn) => words(seed + 1000 * client + turn, turn === 0 ? 3 * characters : characters))
}

/**
 * Lets all clients talk at the same time. A client begins its next turn when the previous one is answered. @throws Error if an answer is
 * missing
 */
export async function play(url: string, options: SessionsOptions): Promise<Played> {
  const steps: Step[] = []
  const talk = async (client: number) => {
    const messages = [systemOf(options.seed)]
    let left = 0
    for (const [turn, said] of saidBy(client, options).entries()) {
      messages.push({ role: 'user', content: said })
      const since = performance.now()
      const { content, prompt, cached, generated, engine } = await ask(url, messages, options)
      const seconds = (performance.now() - since) / 1000
      messages.push({ role: 'assistant', content })
      steps.push({ client, turn, prompt, cached, left, engine, seconds })
      left = prompt + generated - 1
    }
  }
  await Promise.all(Array.from({ length: options.clients }, (_, client) => talk(client)))
  return { steps, prompt: sumOf(steps, 'prompt'), cached: sumOf(steps, 'cached') }
}

/**
 * Returns how many tokens a conversation shares with all others: the reuse that the server reports for a new client after all have talked.
 */
export async function common(url: string, options: SessionsOptions): Promise<number> {
  const messages: Message[] = [systemOf(options.seed), { role: 'user', content: words(options.seed - 1, options.characters) }]
  return (await ask(url, messages, options)).cached
}

export const sumOf = (steps: readonly Step[], part: 'prompt' | 'cached' | 'left'): number =>
  steps.reduce((sum, step) => sum + step[part], 0)

interface Completion {
  readonly choices: readonly { readonly message: { readonly content: string | null } }[]
  readonly usage: {
    readonly prompt_tokens: number
    readonly completion_tokens: number
    readonly prompt_tokens_details?: { readonly cached_tokens?: number }
  }
  readonly kvfold?: { readonly ledger?: readonly { readonly engine?: { readonly name: string } }[] }
}

async function ask(url: string, messages: readonly Message[], { model, fields }: SessionsOptions) {
  const named = model === undefined ? {} : { model }
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ ...named, messages, max_tokens: ANSWER, temperature: 0, kvfold: { ledger: true }, ...fields }),
  })
  const text = await response.text()
  if (!response.ok) throw new Error(`${url} answered ${response.status}: ${text}`)
  const { choices, usage, kvfold } = JSON.parse(text) as Completion
  return {
    content: choices[0]?.message.content ?? '',
    prompt: usage.prompt_tokens,
    generated: usage.completion_tokens,
    cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
    engine: kvfold?.ledger?.at(-1)?.engine?.name ?? null,
  }
}
