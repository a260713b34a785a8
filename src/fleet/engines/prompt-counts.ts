/** Counts the tokens of a prompt: by the endpoint's tokenizer if it offers one, else by an estimate. */
import { createHash } from 'node:crypto'
import type { ChatMessage, Edit, ToolDefinition } from '../../runtime/chat/message.js'
import type { ShownRow } from './remote-ledger.js'
import type { Endpoint } from './endpoint.js'
import type { Flavour } from './flavour.js'
import { countAt, integersIn, isRecord, listAt, textAt } from '../../runtime/core/json.js'
import { writeJson } from '../../runtime/core/written-json.js'
import { bodyOf, contentOf, editsByMessage } from './wire.js'

// The functions below make the rows of a prompt: the shown text of each message, and its weight in tokens.

/** Returns one row per message. The tool definitions count as part of the first message, which they precede. */
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

/** Returns the row's text of the message at `index`, under the given edits of that message. */
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

/** Returns the strings of a prompt that the endpoint is asked to count: each message's body, and the tools. */
export const textsOf = (messages: readonly ChatMessage[], tools: readonly ToolDefinition[], edits: readonly Edit[]): string[] => [
  ...bodiesOf(messages, edits),
  toolsText(tools),
]

/** Estimates the tokens of a prompt that consists of these rows. */
export const weightOf = (rows: readonly ShownRow[]): number => rows.reduce((sum, { weight }) => sum + weight, AROUND)

export const charactersOf = (rows: readonly ShownRow[]): number => rows.reduce((sum, { text }) => sum + text.length, 0)

const bodiesOf = (messages: readonly ChatMessage[], edits: readonly Edit[]): string[] => {
  const changes = editsByMessage(edits)
  return messages.map((message, index) => bodyOf(message, contentOf(message, changes.get(index) ?? [])))
}

const toolsText = (tools: readonly ToolDefinition[]): string => (tools.length === 0 ? '' : writeJson(tools))

// `TextCounts` keeps the token counts of single texts: the endpoint's own where it gives them, else estimates.

/** How many counts are kept. Each takes about 150 bytes. */
const MOST = 20_000
/** Characters per token until the first prompt's count gives a better figure. */
const FIRST_GUESS = 4
/** How many texts are sent for counting at the same time. */
const AT_ONCE = 4
/** Tokens that a chat template adds around a message; an estimate. */
export const AROUND = 4

export class TextCounts {
  /** The endpoint's counts by the hash of the text, oldest first. */
  readonly #known = new Map<string, number>()
  #charactersPerToken = FIRST_GUESS

  constructor(
    private readonly endpoint: Endpoint,
    private readonly model: string,
    private readonly flavour: Flavour,
  ) {}

  /**
   * Returns the endpoint's count of the text. If the endpoint has not counted it: an estimate from the characters per token of the last
   * prompt.
   */
  of(text: string): number {
    return this.#known.get(hashOf(text)) ?? Math.ceil(text.length / this.#charactersPerToken)
  }

  /** Updates the characters per token from a prompt that the endpoint counted. `messages`: how many messages it had. */
  observe(characters: number, tokens: number, messages: number): void {
    const inText = tokens - messages * AROUND
    if (characters > 100 && inText > 0) this.#charactersPerToken = Math.min(20, Math.max(0.5, characters / inText))
  }

  /**
   * Asks the endpoint to count the texts that are not known yet. A text whose count fails keeps its estimate. Does nothing if the endpoint
   * cannot count.
   */
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
   * Asks for the number of tokens of a whole prompt, as the endpoint would render it; null if the endpoint does not say. @throws
   * KvfoldError remote/*
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
   * Asks for the token ids of a whole prompt, rendered by the endpoint's chat template; null if the endpoint does not say.
   * `count`: the prompt's token count that the endpoint reported. It shows whether the template already writes the BOS token, which
   * /tokenize would then add a second time.
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
