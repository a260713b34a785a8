/** Owns which tools an agent has, its caller's included, and carries their calls out. */
import type { ToolCall, ToolDefinition } from '../chat/message.js'
import type { Conversation } from '../context/conversation.js'
import { listed, quoted } from '../context/refusal.js'
import { failure, type ContextTool, type ToolOutcome } from '../context/tools.js'
import { KvfoldError } from '../core/errors.js'

/** A tool of the caller's own. */
export interface ClientTool {
  readonly definition: ToolDefinition
  /** What the model is told. An error it throws is told to the model too. */
  execute(args: Readonly<Record<string, unknown>>, signal?: AbortSignal): string | Promise<string>
}

/** Tools that somebody else carries out, who gets the calls as the end of a turn. */
export interface ExternalTools {
  readonly definitions: readonly ToolDefinition[]
  /** False: the model sees them, and is told not to call them now. Default true. */
  readonly allowed?: boolean
  /** Those that may be called without standing among the definitions, because the conversation shows them. Default: none. */
  readonly unlisted?: readonly ToolDefinition[]
}

/** Tools that come and go while the conversation goes on. */
export interface LoadedTools {
  /** Those that stand among the definitions of a request; others were shown in the conversation. */
  readonly rendered: readonly ToolDefinition[]
  /** Those that may be called without standing there. */
  readonly unlisted: readonly ToolDefinition[]
  /** What is said instead of carrying the call out; null when such a tool is there now. */
  refusal(name: string): string | null
  execute(call: Pick<ToolCall, 'name' | 'arguments'>, signal?: AbortSignal): string | Promise<string>
}

export class Toolbox {
  readonly #fixed: readonly ToolDefinition[]
  readonly #context: ReadonlyMap<string, ContextTool>
  readonly #client: ReadonlyMap<string, ClientTool>

  /** @throws KvfoldError engine/bad-request when two tools have one name */
  constructor(
    context: readonly ContextTool[],
    client: readonly ClientTool[] = [],
    private readonly external: ExternalTools = { definitions: [] },
    private readonly loaded: LoadedTools | null = null,
  ) {
    this.#fixed = [...[...context, ...client].map(({ definition }) => definition), ...external.definitions]
    const names = this.#fixed.map(({ name }) => name)
    const twice = names.find((name, at) => names.indexOf(name) < at)
    if (twice !== undefined)
      throw new KvfoldError(
        'engine/bad-request',
        `Two tools are called ${twice}; give yours a name that is not among ${listed(names)}.`,
      )
    this.#context = new Map(context.map((tool) => [tool.definition.name, tool]))
    this.#client = new Map(client.map((tool) => [tool.definition.name, tool]))
  }

  /** Of a request: those that stay first, so that what comes and goes leaves them in the cache. */
  get definitions(): readonly ToolDefinition[] {
    return this.loaded === null ? this.#fixed : [...this.#fixed, ...this.loaded.rendered]
  }

  /** What may be called besides. */
  get unlisted(): readonly ToolDefinition[] {
    const { allowed = true, unlisted = [] } = this.external
    return [...(this.loaded?.unlisted ?? []), ...(allowed ? unlisted : [])]
  }

  /** Whether the call is for somebody else: of a tool of theirs, or, where no tools are ours, of whatever name. */
  isExternal({ name }: Pick<ToolCall, 'name'>): boolean {
    const { definitions, allowed = true, unlisted = [] } = this.external
    if (!allowed || this.#context.has(name) || this.#client.has(name)) return false
    const noneOfOurs = this.#context.size + this.#client.size === 0
    return (noneOfOurs && definitions.length > 0) || [...definitions, ...unlisted].some((tool) => tool.name === name)
  }

  /**
   * Carries a call out; whatever is wrong with it is told to the model.
   * @throws KvfoldError what the engine throws while it writes a summary
   */
  async run(conversation: Conversation, call: ToolCall, signal?: AbortSignal): Promise<ToolOutcome> {
    const { name, arguments: args, malformed } = call
    if (malformed !== undefined)
      return failure(`the arguments of ${name} are not a JSON object: ${quoted(malformed)}. Write the call again.`)
    const own = this.#context.get(name)
    if (own !== undefined) return own.run(conversation, args, signal)
    const client = this.#client.get(name)
    if (client === undefined && this.external.definitions.some((tool) => tool.name === name))
      return failure(`${name} is not to be called now. Answer in words.`)
    if (client === undefined && this.loaded !== null) return this.#runLoaded(this.loaded, call, signal)
    if (client === undefined)
      return failure(`there is no tool ${quoted(name, 40)}. The tools are ${listed(this.definitions.map((tool) => tool.name))}.`)
    return tried(name, () => client.execute(args, signal))
  }

  #runLoaded(loaded: LoadedTools, call: ToolCall, signal?: AbortSignal): ToolOutcome | Promise<ToolOutcome> {
    const refusal = loaded.refusal(call.name)
    return refusal === null ? tried(call.name, () => loaded.execute(call, signal)) : failure(refusal)
  }
}

async function tried(name: string, execute: () => string | Promise<string>): Promise<ToolOutcome> {
  try {
    return { text: await execute(), modifies: false, failed: false, ledger: [] }
  } catch (error) {
    return failure(`${name} failed: ${error instanceof Error ? error.message : String(error)}`)
  }
}
