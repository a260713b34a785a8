/** Counts the tokens of a prompt. Takes the endpoint's counts if the endpoint gives any, else estimates. */
import { createHash } from 'node:crypto'
import type { ChatMessage, Edit, ToolDefinition } from '../../runtime/chat/message.js'
import type { ShownRow } from './remote-ledger.js'
import type { Endpoint } from './endpoint.js'
import type { Flavour } from './flavour.js'
import { countAt, integersIn, isRecord, listAt, textAt } from '../../runtime/core/json.js'
import { writeJson } from '../../runtime/core/written-json.js'
import { bodyOf, contentOf, editsByMessage } from './wire.js'

// The rows of a prompt: for every message, its text as shown and its weight in tokens.

/** Returns one row for each message. Tools precede the first message, so they are counted with it. */
export function rowsOf(
  messages: readonly ChatMessage[],
  tools: readonly ToolDefinition[],
  edits: readonly Edit[],
  counts: TextCounts,
): ShownRow[] {
  const before = toolsText(tools)
  const around = before === '' ? 0 : counts.of(before)
  return bodiesOf(messages, edits).map((body, index) => ({
    role: messages[index]?.role ?? '',
    text: index === 0 ? before + body : body,
    weight: counts.of(body) + (index === 0 ? around : 0) + AROUND,
  }))
}

/** Returns the text of one message's row under the given edits of the message. */
export function rowText(
  messages: readonly ChatMessage[],
  tools: readonly ToolDefinition[],
  index: number,
  edits: readonly Edit[],
): string {
  const message = messages[index]
  const body = message === undefined ? '' : bodyOf(message, contentOf(message, edits))
  return index === 0 ? toolsText(tools) + body : body
}

/** Returns the texts of a prompt that are counted one by one. */
export const textsOf = (messages: readonly ChatMessage[], tools: readonly ToolDefinition[], edits: readonly Edit[]): string[] => [
  ...bodiesOf(messages, edits),
  toolsText(tools),
]

/** Estimates the tokens of a prompt with these rows. */
export const weightOf = (rows: readonly ShownRow[]): number => rows.reduce((sum, { weight }) => sum + weight, AROUND)

/** Characters of a prompt with these rows. */
export const charactersOf = (rows: readonly ShownRow[]): number => rows.reduce((sum, { text }) => sum + text.length, 0)

const bodiesOf = (messages: readonly ChatMessage[], edits: readonly Edit[]): string[] => {
  const changes = editsByMessage(edits)
  return messages.map((message, index) => bodyOf(message, contentOf(message, changes.get(index) ?? [])))
}

const toolsText = (tools: readonly ToolDefinition[]): string => (tools.length === 0 ? '' : writeJson(tools))

// Counts of the tokens of texts. They are the endpoint's own counts if it gives any, else estimates.

/** How many counts are kept. Each takes some 150 bytes. */
const MOST = 20_000
/** Characters of a token, until a prompt's count gives a better figure. */
const FIRST_GUESS = 4
/** How many texts are counted at the same time. */
const AT_ONCE = 4
/** Tokens that templates put around a message; an estimate. */
export const AROUND = 4

export class TextCounts {
  /** The endpoint's counts by the hash of their text, in the order in which they were learned. */
  readonly #known = new Map<string, number>()
  #charactersPerToken = FIRST_GUESS

  constructor(
    private readonly endpoint: Endpoint,
    private readonly model: string,
    private readonly flavour: Flavour,
  ) {}

  /**
   * Returns the endpoint's count of the text, if the endpoint has counted it. Else returns an estimate by the characters per token of the
   * last prompt.
   */
  of(text: string): number {
    return this.#known.get(hashOf(text)) ?? Math.ceil(text.length / this.#charactersPerToken)
  }

  /** Learns the characters per token from a prompt that the endpoint counted. `messages`: the number of its messages. */
  observe(characters: number, tokens: number, messages: number): void {
    const inText = tokens - messages * AROUND
    if (characters > 100 && inText > 0) this.#charactersPerToken = Math.min(20, Math.max(0.5, characters / inText))
  }

  /** Asks the endpoint to count the texts, if it can. A text whose count fails keeps its estimate. */
  async learn(texts: readonly string[], signal: AbortSignal): Promise<void> {
    if (this.flavour.counts === null) return
    const unknown = [...new Set(texts)].filter((text) => text !== '' && !this.#known.has(hashOf(text)))
    const learnNext = async () => {
      for (let text = unknown.pop(); text !== undefined; text = unknown.pop()) {
        const asked = { content: text, prompt: text, model: this.model, add_special: false, add_special_tokens: false }
        const tokens = await this.#tokens(asked, signal)
        if (tokens !== null) this.#keep(text, tokens)
      }
    }
    await Promise.allSettled(Array.from({ length: AT_ONCE }, learnNext))
  }

  /**
   * Asks for the tokens of a whole prompt, as the endpoint would render it; null if the endpoint does not say. @throws KvfoldError remote/*
   */
  async ofPrompt(
    prompt: { readonly messages: readonly unknown[]; readonly tools?: readonly unknown[] },
    signal?: AbortSignal,
  ): Promise<number | null> {
    const { counts } = this.flavour
    if (counts === null || counts === 'texts') return null
    if (counts === 'messages') return this.#tokens({ model: this.model, ...prompt, add_generation_prompt: true }, signal)
    return (await this.tokensOfPrompt(prompt, null, signal))?.length ?? null
  }

  /**
   * Asks for the tokens of a whole prompt by the endpoint's template; null if the endpoint does not say. `count`: the tokens of the prompt
   * that the endpoint reported. The number shows whether the template writes the BOS token itself, which /tokenize would then add twice.
   * @throws KvfoldError remote/*
   */
  async tokensOfPrompt(
    prompt: { readonly messages: readonly unknown[]; readonly tools?: readonly unknown[] },
    count: number | null,
    signal?: AbortSignal,
  ): Promise<readonly number[] | null> {
    const text = textAt(await this.endpoint.post('/apply-template', { model: this.model, ...prompt }, signal), 'prompt')
    if (text === null) return null
    const ask = async (special: boolean) => {
      const asked = { model: this.model, content: text, add_special: special, parse_special: true }
      return integersIn(listAt(await this.endpoint.post('/tokenize', asked, signal), 'tokens'))
    }
    const tokens = await ask(true)
    return tokens === null || count === null || tokens.length === count ? tokens : ask(false)
  }

  async #tokens(body: object, signal?: AbortSignal): Promise<number | null> {
    const answer = await this.endpoint.post('/tokenize', body, signal)
    return (
      countAt(answer, 'count') ?? (isRecord(answer) && Array.isArray(answer['tokens']) ? listAt(answer, 'tokens').length : null)
    )
  }

  #keep(text: string, tokens: number): void {
    this.#known.set(hashOf(text), tokens)
    for (const oldest of this.#known.keys()) {
      if (this.#known.size <= MOST) break
      this.#known.delete(oldest)
    }
  }
}

const hashOf = (text: string): string => createHash('sha256').update(text).digest('base64')
