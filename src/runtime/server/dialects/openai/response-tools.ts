/**
 * Translates the tools of `/v1/responses`. The model sees each tool as a function, and its calls become items of the tool's own type. Tools
 * in `LEFT_OUT` are not shown; unknown types are refused.
 */
import type { ChatMessage, ToolCall, ToolDefinition } from '../../../chat/message.js'
import { definedFields, isRecord } from '../../../core/json.js'
import { writtenLike } from '../../../core/written-json.js'
import type { ToolSearchResult } from '../../ask.js'
import { FieldError, unsupported } from '../../problem.js'
import { SERVER_SEARCH } from '../../responses/place.js'
import { type DeferredTools, foundText, type ToolSearch } from '../../threads/server-tools.js'
import { argumentsOf, callOf, checkTools, LONGEST_NAME, NO_PARAMETERS } from '../tools.js'

/** Item type, name and namespace that the client uses for a function of the model. */
interface ItemForm {
  readonly kind: 'function' | 'custom' | 'local_shell' | 'tool_search'
  readonly name: string
  readonly namespace?: string
}

/** Tools of OpenAI's servers, and tools whose calls are no functions. The model does not see them, and `kvfold.ignored` lists them. */
export const LEFT_OUT =
  /^(web_search|file_search|code_interpreter|image_generation|mcp|computer|shell|apply_patch|programmatic_tool_calling)/

const LOCAL_SHELL: ToolDefinition = {
  name: 'local_shell',
  description: "Runs a command on the user's machine and returns its output.",
  parameters: {
    type: 'object',
    properties: {
      command: {
        type: 'array',
        items: { type: 'string' },
        minItems: 1,
        description: 'the program and its arguments, one entry each',
      },
      working_directory: { type: 'string' },
      timeout_ms: { type: 'integer', minimum: 1 },
    },
    required: ['command'],
    additionalProperties: false,
  },
}

const INPUT = {
  type: 'object',
  properties: { input: { type: 'string' } },
  required: ['input'],
  additionalProperties: false,
} as const

/** Returns the model's name for a tool in a namespace. */
export function flatName(name: string, namespace: unknown): string {
  if (typeof namespace !== 'string' || namespace === '') return name
  let end = namespace.length
  while (end > 0 && namespace[end - 1] === '_') end--
  return `${namespace.slice(0, end)}__${name}`
}

export class ResponseTools {
  /** Definitions of the tools that the model sees from the beginning. */
  readonly definitions: readonly ToolDefinition[]
  /** Tools that the model sees only after a search, and the searches; absent when there are none. */
  readonly deferred?: DeferredTools
  /** Tools that were left out, such as `tools[3]: web_search`. */
  readonly ignored: readonly string[]
  readonly #forms: Map<string, ItemForm>
  /** Deferred tools as the client sent them, by name, for the items of search results. */
  readonly #sent = new Map<string, unknown>()

  /** Sorts the request's tools into shown, deferred and left-out ones. @throws FieldError server/bad-request, server/unsupported */
  constructor(tools: readonly unknown[]) {
    const found: { readonly place: string; readonly tool: ToolDefinition; readonly form: ItemForm; readonly defers: boolean }[] =
      []
    const ignored: string[] = []
    const searches: ToolSearch[] = []
    const add = (tool: unknown, place: string, namespace?: ToolFields & { readonly name: string }): void => {
      if (!isRecord(tool)) throw new FieldError(place, `${place} must be an object.`)
      const type = textIn(tool, 'type', place)
      if (LEFT_OUT.test(type)) ignored.push(`${place}: ${type.slice(0, 40)}`)
      else if (type === 'local_shell')
        found.push({ place, tool: LOCAL_SHELL, form: { kind: type, name: LOCAL_SHELL.name }, defers: false })
      else if (type === 'tool_search' && tool['execution'] === 'client')
        found.push({
          place,
          tool: { name: CLIENT_SEARCH, ...clientSearch(tool) },
          form: { kind: type, name: type },
          defers: false,
        })
      else if (type === 'tool_search') searches.push({ name: SERVER_SEARCH, by: 'words' })
      else if (type === 'namespace' && namespace === undefined) {
        const within = { ...tool, name: textIn(tool, 'name', place) }
        if (within.name.length > LONGEST_NAME)
          throw new FieldError(`${place}.name`, `${place}.name has more than ${LONGEST_NAME} characters; shorten it.`)
        if (!Array.isArray(tool['tools'])) throw new FieldError(`${place}.tools`, `${place}.tools must be a list.`)
        tool['tools'].forEach((inner: unknown, index) => {
          add(inner, `${place}.tools[${index}]`, within)
        })
      } else if (type === 'function' || type === 'custom') {
        const name = textIn(tool, 'name', place)
        const more = type === 'custom' ? customTool(tool) : functionTool(tool)
        const form = { kind: type, name, ...definedFields({ namespace: namespace?.name }) } as const
        const flat = flatName(name, namespace?.name)
        const defers = tool['defer_loading'] === true || namespace?.['defer_loading'] === true
        if (defers) this.#sent.set(flat, namespace === undefined ? tool : { ...namespace, tools: [tool] })
        found.push({ place, tool: { name: flat, ...more }, form, defers })
      } else
        throw unsupported(
          `${place}.type`,
          `${place} is of type ${JSON.stringify(type.slice(0, 40))}; function, custom, namespace, local_shell and tool_search are supported.`,
        )
    }
    tools.forEach((tool, index) => {
      add(tool, `tools[${index}]`)
    })
    const all = found.map(({ tool }) => tool)
    const deferred = found.filter(({ defers }) => defers).map(({ tool }) => tool)
    checkTools(
      all,
      (index) => `${found[index]!.place}.name`,
      (index) => found[index]!.defers,
    )
    this.definitions = all.filter((tool) => !deferred.includes(tool))
    const isClients = all.some(({ name }) => name === CLIENT_SEARCH)
    if (deferred.length + searches.length > 0 || isClients)
      this.deferred = {
        tools: deferred,
        searches: deferred.length > 0 ? searches.slice(0, 1) : [],
        clientSearches: isClients ? [CLIENT_SEARCH] : [],
      }
    this.ignored = ignored
    this.#forms = new Map(found.map(({ tool, form }) => [tool.name, form]))
  }

  /**
   * Adds the tools that the output of a client's search defines, and returns their definitions. Their calls then become items like those of
   * the request's tools.
   */
  told(tools: readonly unknown[]): readonly ToolDefinition[] {
    const other = new ResponseTools(tools)
    for (const [name, form] of other.#forms) this.#forms.set(name, form)
    return [...other.definitions, ...(other.deferred?.tools ?? [])]
  }

  /** Returns the two items of a search by the server: its call and its result. */
  searchItems(result: ToolSearchResult, id: (kind: 'tsc' | 'tso', at: number) => string): readonly [SearchCallItem, object] {
    const found = result.found.map((name) => this.#sent.get(name))
    return [callItem(id('tsc', 0), result.call, 'server', 'completed'), outputItem(id('tso', 1), result, found)]
  }

  /** Returns a call's item; while the call is in progress, without arguments. @param id makes the item's id from the prefix of its type */
  item(call: ToolCall, id: (kind: CallKind) => string, status: 'in_progress' | 'completed'): CallItem {
    const { kind, name, namespace } = this.#forms.get(call.name) ?? { kind: 'function', name: call.name }
    const isDone = status === 'completed'
    if (kind === 'tool_search') return callItem(id('tsc'), call, 'client', status)
    const head = { status, call_id: call.id }
    if (kind === 'local_shell')
      return { id: id('lsh'), type: 'local_shell_call', ...head, action: shellAction(isDone ? call.arguments : {}) }
    const named = { ...head, name, ...definedFields({ namespace }) }
    if (kind === 'function') return { id: id('fc'), type: 'function_call', ...named, arguments: isDone ? argumentsOf(call) : '' }
    const { input } = call.arguments
    return {
      ...{ id: id('ctc'), type: 'custom_tool_call', ...named },
      input: isDone ? (typeof input === 'string' ? input : argumentsOf(call)) : '',
    }
  }
}

/** Prefixes of item ids: function call, custom tool call, local shell call, tool search by the client. */
export type CallKind = 'fc' | 'ctc' | 'lsh' | 'tsc'

export type CallItem =
  | SearchCallItem
  | { readonly id: string; readonly type: 'function_call'; readonly name: string; readonly arguments: string }
  | { readonly id: string; readonly type: 'custom_tool_call'; readonly input: string }
  | { readonly id: string; readonly type: 'local_shell_call'; readonly action: object }

type ToolFields = Readonly<Record<string, unknown>>

function functionTool({ description, parameters, strict }: ToolFields): Omit<ToolDefinition, 'name'> {
  return {
    description: typeof description === 'string' ? description : '',
    parameters: isRecord(parameters) ? parameters : NO_PARAMETERS,
    ...(typeof strict === 'boolean' ? { strict } : {}),
  }
}

/** Returns a custom tool as a function with one text argument. The model sees the tool's grammar, but the server does not enforce it. */
function customTool({ description, format }: ToolFields): Omit<ToolDefinition, 'name'> {
  const grammar =
    isRecord(format) && format['type'] === 'grammar' && typeof format['definition'] === 'string'
      ? `The input keeps to this grammar (${String(format['syntax'])}):\n${format['definition']}`
      : ''
  const texts = [typeof description === 'string' ? description : '', grammar]
  return { description: texts.filter((text) => text !== '').join('\n\n'), parameters: INPUT }
}

function shellAction(given: ToolFields): object {
  const { command = [], working_directory = null, timeout_ms = null } = given
  return writtenLike({ type: 'exec', command, env: {}, working_directory, timeout_ms, user: null }, given)
}

function textIn(tool: ToolFields, key: string, place: string): string {
  const value = tool[key]
  if (typeof value !== 'string') throw new FieldError(`${place}.${key}`, `${place}.${key} must be a string.`)
  return value
}

// Tool search, by the server or by the client: its tools and its items.

/** The name of the client's tool search, as the model sees it. */
const CLIENT_SEARCH = 'client_tool_search'

const NO_QUERY = {
  type: 'object',
  properties: { query: { type: 'string', description: 'what the tool does, in a few words' } },
  required: ['query'],
}

/** Returns the client's tool search as a function for the model. */
const clientSearch = ({ description, parameters }: ToolFields): Omit<ToolDefinition, 'name'> => ({
  description:
    typeof description === 'string'
      ? description
      : 'Finds tools that are not shown yet; you can call those in the result from then on.',
  parameters: isRecord(parameters) ? parameters : NO_QUERY,
})

type SearchCallItem = { readonly id: string; readonly type: 'tool_search_call'; readonly arguments: unknown }

const callItem = (
  id: string,
  call: ToolCall,
  execution: 'client' | 'server',
  status: 'in_progress' | 'completed',
): SearchCallItem => ({
  ...{ id, type: 'tool_search_call', execution, call_id: call.id, status },
  arguments: status === 'completed' ? call.arguments : {},
})

/** Returns the item of a search result. @param tools the found tools, as the client sent them */
const outputItem = (id: string, { call }: ToolSearchResult, tools: readonly unknown[]): object => ({
  ...{ id, type: 'tool_search_output', execution: 'server', call_id: call.id, status: 'completed', tools },
})

/** Returns the call in a tool-search item. */
export function searchCall(item: ToolFields, place: string): ToolCall {
  const { arguments: given, execution } = item
  const name = execution === 'client' ? CLIENT_SEARCH : SERVER_SEARCH
  if (typeof given === 'string') return callOf(idIn(item), name, item, given)
  if (!isRecord(given ?? {})) throw new FieldError(`${place}.arguments`, `${place}.arguments must be an object.`)
  return { id: idIn(item), name, arguments: (given ?? {}) as ToolFields }
}

/** Returns the tool result for a search's output item: the definitions of the found tools. */
export function searchOutput(
  item: ToolFields,
  place: string,
  definitionsIn: (tools: readonly unknown[]) => readonly ToolDefinition[],
): ChatMessage {
  const { tools, execution } = item
  if (!Array.isArray(tools)) throw new FieldError(`${place}.tools`, `${place}.tools must be a list.`)
  const name = execution === 'client' ? CLIENT_SEARCH : SERVER_SEARCH
  return { role: 'tool', content: foundText(definitionsIn(tools)), toolCallId: idIn(item), name }
}

/** Returns the call id of a search item; items written by other servers may have none. */
const idIn = ({ call_id: id }: ToolFields): string => (typeof id === 'string' ? id : 'tool_search')
