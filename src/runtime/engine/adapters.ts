/** The LoRA adapters of an engine: their files, which of them a request applies, and a conversation's sequences under each set of them. */
import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { basename } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { KvfoldError } from '../core/errors.js'
import { conversationId, type ConversationId } from '../core/ids.js'
import type { AppliedAdapter, NativeAdapter, NativeModel } from '../native/types.js'
import type { AdapterScale, EngineRequest } from './engine.js'

/** An adapter's file, and its scale (default 1) for requests that name no adapters. */
export interface AdapterFile {
  readonly path: string
  readonly scale?: number
}

/** An adapter of an engine or of a served model. */
export interface AdapterInfo {
  /** Index of the adapter in the engine's list, from 0. */
  readonly id: number
  /** The name of the adapter's file without `.gguf`. */
  readonly name: string
  readonly path: string
  /** The scale for requests that name no adapters. */
  readonly scale: number
}

/** The adapters that a step applies. */
export interface AdapterSet {
  /** Hash of the adapters' files and scales: 64 hexadecimal digits; empty for no adapters. Sets with equal keys compute the same. */
  readonly key: string
  readonly applied: readonly AppliedAdapter[]
}

export const NO_ADAPTERS: AdapterSet = { key: '', applied: [] }

/** The largest absolute value of a scale. */
export const LARGEST_SCALE = 1000

/** Gives the adapters ids and names. @throws KvfoldError engine/bad-request for a bad scale, and for two files of the same name */
export function adaptersOf(files: readonly AdapterFile[]): readonly AdapterInfo[] {
  const adapters = files.map(({ path, scale = 1 }, id) => ({ id, name: basename(path).replace(/\.gguf$/i, ''), path, scale }))
  for (const { id, name, path, scale } of adapters) {
    if (!(Math.abs(scale) <= LARGEST_SCALE))
      throw new KvfoldError(
        'engine/bad-request',
        `The scale of the adapter ${path} is ${scale}; give a number up to ${LARGEST_SCALE}.`,
      )
    const other = adapters.find((each) => each.id < id && each.name === name)
    if (other !== undefined)
      throw new KvfoldError(
        'engine/bad-request',
        `Two adapters are called ${name} (${other.path} and ${path}); give each file a name of its own.`,
      )
  }
  return adapters
}

/**
 * Checks a request's adapters. Returns them without those of scale 0.
 * @param adapters those of the engine
 * @throws KvfoldError engine/bad-request for an id that no adapter has, an id that is named twice, and a bad scale
 */
export function scalesOf(asked: readonly AdapterScale[], adapters: readonly AdapterInfo[]): readonly AdapterScale[] {
  const bad = (what: string) => new KvfoldError('engine/bad-request', what)
  for (const [at, { id, scale }] of asked.entries()) {
    if (!adapters.some((each) => each.id === id))
      throw bad(
        adapters.length === 0
          ? `lora[${at}] names the adapter ${id}, but the model has no adapters; load some with --lora.`
          : `lora[${at}] names the adapter ${id}, but the model has the adapters 0 to ${adapters.length - 1}.`,
      )
    if (asked.findIndex((other) => other.id === id) < at)
      throw bad(`lora[${at}] names the adapter ${id} a second time; name it once.`)
    if (!(Math.abs(scale) <= LARGEST_SCALE)) throw bad(`lora[${at}].scale is ${scale}; give a number up to ${LARGEST_SCALE}.`)
  }
  return asked.filter(({ scale }) => scale !== 0)
}

/** The adapters that an engine has loaded. */
export class Adapters {
  private constructor(
    readonly all: readonly AdapterInfo[],
    private readonly loaded: readonly { readonly adapter: NativeAdapter; readonly hash: string }[],
  ) {}

  /**
   * Loads the adapters, before the model's first context.
   * @throws KvfoldError engine/bad-request, and as NativeModel.loadAdapter
   */
  static async load(model: NativeModel, files: readonly AdapterFile[] = []): Promise<Adapters> {
    const all = adaptersOf(files)
    const loaded: { readonly adapter: NativeAdapter; readonly hash: string }[] = []
    for (const { path } of all) loaded.push({ adapter: await model.loadAdapter(path), hash: await hashOf(path) })
    return new Adapters(all, loaded)
  }

  /** Sentences for the user about adapters that llama.cpp applies only in part. */
  get notes(): readonly string[] {
    return this.loaded.flatMap(({ adapter: { path, ignored } }) =>
      ignored === 0 ? [] : [`The adapter ${path} also changes ${ignored} norms, which llama.cpp does not apply.`],
    )
  }

  /** The adapters that requests apply by default, as words for the model's name: `name`, or `0.5 name` with a scale. */
  get applied(): readonly string[] {
    return this.all.filter(({ scale }) => scale !== 0).map(({ name, scale }) => (scale === 1 ? name : `${scale} ${name}`))
  }

  /** Returns the set of adapters that a request asks for. Default: every adapter at its own scale. @throws KvfoldError as scalesOf */
  set(asked: readonly AdapterScale[] = this.all): AdapterSet {
    const scales = scalesOf(asked, this.all)
    if (scales.length === 0) return NO_ADAPTERS
    // Sort by id: llama.cpp then adds the adapters in the same order, however a request orders them, so the sums round equally.
    const applied = [...scales]
      .sort((a, b) => a.id - b.id)
      .map(({ id, scale }) => ({ ...this.loaded[id]!, scale: Math.fround(scale) }))
    const parts = applied.map(({ hash, scale }) => `${hash} ${scale}`).sort()
    return { key: createHash('sha256').update(parts.join('\n')).digest('hex'), applied }
  }
}

/** Returns SHA-256 of the whole file. Samples would not do: two adapters of one training may differ only a little. */
async function hashOf(path: string): Promise<string> {
  const hash = createHash('sha256')
  await pipeline(createReadStream(path), hash)
  return hash.digest('hex')
}

// Different adapters make different cells. So a conversation has a sequence for each set of adapters that it uses, as if it were several
// conversations. When it returns to a set, it finds that set's cells again.

const NAMED = ' (lora '

/** Returns the name under which the cache knows the conversation while it uses this set of adapters. */
const nameUnder = (conversation: ConversationId, set: AdapterSet): ConversationId => conversationId(conversation + endOf(set))

const endOf = ({ key }: AdapterSet): string => (key === '' ? '' : `${NAMED}${key.slice(0, 32)})`)

/** Conversations that have used adapters. The cache knows all others by their own id. */
export class AdaptedConversations {
  readonly #latest = new Map<ConversationId, ConversationId>()
  /** By name in the cache: the set of adapters that the name stands for. */
  readonly #sets = new Map<ConversationId, AdapterSet>()
  readonly #names = new Map<ConversationId, Set<ConversationId>>()

  /**
   * @param stored returns the names of conversations with cells in lower tiers, also from earlier processes
   * @param usual the set for requests that name none, and for conversations that were not used since the engine was loaded
   */
  constructor(
    private readonly stored: () => readonly ConversationId[],
    private readonly usual: AdapterSet,
  ) {}

  /** Returns the request with the cache's name of its conversation. Records the set as the conversation's latest. */
  entered<Request extends Pick<EngineRequest, 'conversation' | 'parent'>>(request: Request, set: AdapterSet): Request {
    const { conversation, parent } = request
    const name = nameUnder(conversation, set)
    if (set === NO_ADAPTERS && this.usual === NO_ADAPTERS && !this.#names.has(conversation)) return request
    this.#latest.set(conversation, name)
    this.#sets.set(name, set)
    this.#names.set(conversation, (this.#names.get(conversation) ?? new Set()).add(name))
    return { ...request, conversation: name, ...(parent === undefined ? {} : { parent: nameUnder(parent, set) }) }
  }

  /** Returns the conversation's name in the cache under the adapters that it used last. */
  latest(conversation: ConversationId): ConversationId {
    return this.#latest.get(conversation) ?? nameUnder(conversation, this.usual)
  }

  /** Returns all names that the conversation has in the cache. */
  names(conversation: ConversationId): readonly ConversationId[] {
    const before = this.stored().filter((name) => name.startsWith(`${conversation}${NAMED}`))
    return [...new Set([conversation, ...(this.#names.get(conversation) ?? []), ...before])]
  }

  /** Returns the set of adapters for which this name in the cache stands. */
  setOf(name: ConversationId): AdapterSet {
    return this.#sets.get(name) ?? (name.endsWith(endOf(this.usual)) ? this.usual : NO_ADAPTERS)
  }

  forget(conversation: ConversationId): void {
    for (const name of this.#names.get(conversation) ?? []) this.#sets.delete(name)
    this.#names.delete(conversation)
    this.#latest.delete(conversation)
  }
}
