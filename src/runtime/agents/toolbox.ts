/** All tools of an agent, and the code that carries out their calls. Some tools come from the caller. */
import type { ToolCall, ToolDefinition } from '../chat/message.js'
import type { Conversation } from '../context/conversation.js'
import type { CostlyFolds } from '../context/fragment.js'
import { listed, quoted } from '../context/refusal.js'
import { failure, type ContextTool, type ToolOutcome } from '../context/tools.js'
import { KvfoldError } from '../core/errors.js'

/** A tool that the caller of the library supplies and that runs in this process. */
export interface ClientTool {
  readonly definition: ToolDefinition
  /** Returns the text that the model gets. If it throws, the model gets the error as the result. */
  execute(args: Readonly<Record<string, unknown>>, signal?: AbortSignal): string | Promise<string>
}

/** Tools that the client of the server carries out. A turn ends when the model calls one, and the client adds the result. */
export interface ExternalTools {
  readonly definitions: readonly ToolDefinition[]
  /** Whether the model may call them. False: the prompt still has their definitions, but calls get an error. Default true. */
  readonly allowed?: boolean
  /** Tools that may be called although the request's list does not define them: the conversation shows their definitions. Default: none. */
  readonly unlisted?: readonly ToolDefinition[]
}

/** The tools that are loaded at the moment, from a catalogue. */
export interface LoadedTools {
  /** Loaded tools that the request's list defines. The conversation shows the definitions of the other loaded tools. */
  readonly rendered: readonly ToolDefinition[]
  /** Tools that may be called although the request's list does not define them. */
  readonly unlisted: readonly ToolDefinition[]
  /** Returns the error for a call of a tool that is not loaded; null when it is loaded. */
  refusal(name: string): string | null
  execute(call: Pick<ToolCall, 'name' | 'arguments'>, signal?: AbortSignal): string | Promise<string>
}

export class Toolbox {
  readonly #fixed: readonly ToolDefinition[]
  readonly #context: ReadonlyMap<string, ContextTool>
  readonly #client: ReadonlyMap<string, ClientTool>

  /** Makes the toolbox of an agent. @throws KvfoldError engine/bad-request when two tools have the same name */
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

  /** The definitions for a request. Fixed tools come first, so their cells stay valid when later ones are loaded or removed. */
  get definitions(): readonly ToolDefinition[] {
    return this.loaded === null ? this.#fixed : [...this.#fixed, ...this.loaded.rendered]
  }

  /** Tools that may be called although the request's list does not define them. */
  get unlisted(): readonly ToolDefinition[] {
    const { allowed = true, unlisted = [] } = this.external
    return [...(this.loaded?.unlisted ?? []), ...(allowed ? unlisted : [])]
  }

  /** Whether a call ends its step, because later calls need the ids in its result. */
  endsStep({ name }: Pick<ToolCall, 'name'>): boolean {
    return this.#context.get(name)?.givesIds === true
  }

  /**
   * Returns what the context tools can do now. `hopeless`: names of tools of which no call could succeed. `definitions`: for other tools,
   * a definition with the ids that are valid now.
   */
  narrowed(conversation: Conversation): {
    readonly hopeless: readonly string[]
    readonly definitions: readonly ToolDefinition[]
  } {
    const narrow = [...this.#context.values()].flatMap(({ definition: { name }, narrowed }) =>
      narrowed === undefined ? [] : [{ name, definition: narrowed(conversation) }],
    )
    return {
      hopeless: narrow.filter(({ definition }) => definition === null).map(({ name }) => name),
      definitions: narrow.flatMap(({ definition }) => definition ?? []),
    }
  }

  /**
   * Whether the client carries out this call. True for external tools; true for any name if the agent has no tools of its own but
   * external ones.
   */
  isExternal({ name }: Pick<ToolCall, 'name'>): boolean {
    const { definitions, allowed = true, unlisted = [] } = this.external
    if (!allowed || this.#context.has(name) || this.#client.has(name)) return false
    const noneOfOurs = this.#context.size + this.#client.size === 0
    return (noneOfOurs && definitions.length > 0) || [...definitions, ...unlisted].some((tool) => tool.name === name)
  }

  /**
   * Carries out a call. A bad call or a failing tool gives the model a failed outcome. `costly`: whether a fold that saves no tokens is
   * refused.
   * @throws KvfoldError what the engine throws while it writes a summary
   */
  async run(conversation: Conversation, call: ToolCall, signal?: AbortSignal, costly?: CostlyFolds): Promise<ToolOutcome> {
    const { name, arguments: args, malformed } = call
    if (malformed !== undefined)
      return failure(`the arguments of ${name} are not a JSON object: ${quoted(malformed)}. Write the call again.`)
    const own = this.#context.get(name)
    if (own !== undefined) return own.run(conversation, args, signal, costly)
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

/** Runs a tool. If it throws, returns a failed outcome with the error's message. */
export async function tried(name: string, execute: () => string | Promise<string>): Promise<ToolOutcome> {
  try {
    return { text: await execute(), modifies: false, failed: false, ledger: [] }
  } catch (error) {
    return failure(`${name} failed: ${error instanceof Error ? error.message : String(error)}`)
  }
}
