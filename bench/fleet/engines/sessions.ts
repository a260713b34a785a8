/** Owns sessions of many clients at once, each a conversation that is sent whole every turn, and what servers say that they reused of each step. */
import { Random } from '../../../src/runtime/core/random.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { words } from '../../runtime/client-edits/clients.js'

export interface SessionsOptions {
  readonly clients: number
  readonly turns: number
  /** Of each message of a client's; the first is three times as long. */
  readonly characters: number
  readonly seed: number
  /** Default: the server's. */
  readonly model?: string
  /** More fields of every request. */
  readonly fields?: object
}

/** Tokens, as the server reports them. */
export interface Reuse {
  readonly prompt: number
  readonly cached: number
}

/** One turn of one client. */
export interface Step extends Reuse {
  readonly client: number
  /** From 0. */
  readonly turn: number
  /** Tokens that the client's turn before left in the cache of its engine and that this prompt begins with: its prompt and answer, but for the last token sampled. */
  readonly left: number
  /** Who computed it, as the server tells; null: it does not. */
  readonly engine: string | null
  /** From when it was sent to its whole answer. */
  readonly seconds: number
}

export interface Played extends Reuse {
  readonly steps: readonly Step[]
}

/** Tokens of an answer. */
export const ANSWER = 8
/** Of every answer's tokens the only one, so that all prompts are the same whoever answers. */
export const WORD = ' the'

/** Fields of requests that a model answers so. */
export async function oneWord(model: string): Promise<object> {
  const vocabulary = await (await openNative({ gpu: 'cpu' })).loadModel(model, { vocabOnly: true })
  const [token] = vocabulary.tokenize(WORD)
  await vocabulary.dispose()
  return { logit_bias: { [token!]: 100 } }
}

/** The same for all clients of a seed, as an application's is. */
export const systemOf = (seed: number): Message => ({
  role: 'system',
  content: `You are asked about a text. ${words(seed, 400)}`,
})

interface Message {
  readonly role: 'system' | 'user' | 'assistant'
  readonly content: string
}

/** What a client says, one text a turn: clients stop after different numbers of turns. */
export function saidBy(
  client: number,
  { turns, characters, seed }: Pick<SessionsOptions, 'turns' | 'characters' | 'seed'>,
): string[] {
  const random = new Random(seed, client)
  const last = Math.ceil(turns / 2) + random.below(Math.floor(turns / 2) + 1)
  return Array.from({ length: last }, (_, turn) => words(seed + 1000 * client + turn, turn === 0 ? 3 * characters : characters))
}

/** Has all clients talk at once, each turn after the answer of the one before; clients stop after different numbers of turns. @throws Error where an answer is none */
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

/** Tokens that a conversation has in common with all others: what a newcomer is said to reuse, once all have talked. */
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
