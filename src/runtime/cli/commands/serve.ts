/** `kvfold serve`: starts the server, and stops it after the last answer. */
import { definedFields } from '../../core/json.js'
import { networkInterfaces } from 'node:os'
import { once } from 'node:events'
import { existsSync, lstatSync, statSync } from 'node:fs'
import { chmod, unlink } from 'node:fs/promises'
import { connect, isIP } from 'node:net'
import { resolve } from 'node:path'
import type { Command } from 'commander'
import { KvfoldError } from '../../core/errors.js'
import { adaptersOf } from '../../engine/adapters.js'
import { SavedCells } from '../../engine/disk-tier-file.js'
import { Embedder, type TextVectors } from '../../engine/embedder.js'
import { OnnxEmbedder, OnnxReranker } from '../../engine/onnx.js'
import { onnxNamed } from '../../engine/onnx-model.js'
import { Reranker, type TextScores } from '../../engine/reranker.js'
import type { Address, Server, ServerOptions } from '../../server/app.js'
import { PUBLIC } from '../../server/ask.js'
import type { SideModelSource } from '../../server/side-model.js'
import type { ModelSource, ServedEngine } from '../../server/threads/models.js'
import { modelCalled, modelsFolder, modelsIn, pull } from '../../models/folder.js'
import { BUILTIN, builtinModel } from '../builtin.js'
import { keepRetention, openStore, retentionMs } from '../store-options.js'
import type { FitOptions } from '../../native/types.js'
import { cannotListen } from '../listening.js'
import { mcpServersOf, openMcpHost, toolsOf } from '../mcp-tools.js'
import { sampling, toolTextsOf, type ModelFlags, withoutDraftModel } from '../options.js'
import type { KvEventPublisher } from '../../../fleet/events/kv-events.js'
import { engineSource, isRemote } from '../remote-engines.js'
import { embedderOptions, loadEngine, loadReader, nativeLibrary, warnOfContract } from '../runtime.js'
import { addServeOptions, editsOfKeys, keysOf, kvEventsOf, named, type ServeFlags, tlsOf, withAliases } from '../serve-options.js'
import type { Shell } from '../shell.js'
import { printable } from '../terminal.js'

const MIB = 2 ** 20
/** How many milliseconds the server has for saving and closing, after the grace time for running answers. */
const LEEWAY = 10_000

export function addServe(program: Command, shell: Shell, version: string): void {
  const command = program
    .command('serve')
    .description('serve models to OpenAI and Anthropic clients, with folds that survive from request to request')
  addServeOptions(command)
    .argument('[model]', 'as --model')
    .action((model: string | undefined, flags: ServeFlags) =>
      serve(model === undefined ? flags : { ...flags, model: [model, ...(flags.model ?? [])] }, shell, version),
    )
}

async function serve(flags: ServeFlags, shell: Shell, version: string): Promise<void> {
  // Loaded here, so that other commands need not load these libraries.
  const [{ Server }, { ThreadService }] = await Promise.all([import('../../server/app.js'), import('../../server/service.js')])
  const { out, notes, interrupt } = shell
  if (flags.models !== undefined && isRemote(flags))
    throw new KvfoldError('cli/bad-usage', 'Beside --engine there are no models here to load; leave out --models.')
  if (flags.model !== undefined && isRemote(flags))
    throw new KvfoldError('cli/bad-usage', `Beside --engine there is no model here to load; leave out ${flags.model.join(', ')}.`)
  const keys = keysOf(flags)
  const tls = tlsOf(flags)
  refuseRemoteVectors(flags)
  const embeddings = typeof flags.embeddings === 'string' ? embedding(flags.embeddings, flags, shell) : null
  const reranker = flags.reranking === undefined ? null : ranking(flags.reranking, flags, shell)
  const toolServers = mcpServersOf(flags)
  const events = await openKvEvents(flags)
  const remote = await engineSource(flags, flags.slots, notes, interrupt.signal)
  const folder = remote === null ? folderOf(flags, shell, events) : undefined
  const models = withAliases(remote === null ? sourcesOf(flags, shell, events) : [remote], flags.alias, folder?.read)
  const tell = (line: string) => {
    notes.print(`store: ${printable(line)}`)
  }
  const cellFolders = [flags.diskCache, flags.sharedCache].filter((folder) => folder !== undefined)
  const cells = cellFolders.length === 0 ? undefined : new SavedCells(cellFolders)
  const kept = await openStore(flags, tell, definedFields({ cells, folder: flags.diskCache }))
  const told = kept?.store.notes().length ?? 0
  const mcp = toolServers.length === 0 ? null : await openMcpHost(toolServers, notes.print.bind(notes), interrupt.signal)
  const service = await ThreadService.open({
    models,
    queueLimit: flags.queue,
    defaults: {
      ...{ acm: flags.acm, memToolMode: flags.memtoolMode, overflow: flags.overflow, clientEdits: flags.clientEdits },
      ...definedFields({ clientEditsOf: editsOfKeys(flags, keys), toolTexts: toolTextsOf(flags) }),
    },
    costlyFolds: flags.costlyFolds,
    tell,
    ...definedFields({
      perTenant: flags.maxThreads,
      // A store that outlives the server deletes old threads itself (`keepRetention`).
      retentionMs: kept === null ? retentionMs(flags) : undefined,
      clock: kept === null ? undefined : () => kept.clock.now(),
      embeddings: embeddings ?? undefined,
      reranker: reranker ?? undefined,
      cells,
      store: kept?.store,
      responses: kept?.responses,
      savedToday: kept?.savedToday,
      timeoutMs: flags.timeout === undefined ? undefined : flags.timeout * 1000,
      folder: folder?.read,
      most: flags.modelsMax,
      keepAliveMs: flags.keepAlive === undefined ? undefined : flags.keepAlive * 1000,
      operatorTools: mcp ?? undefined,
    }),
  })
  const server = await Server.create({
    service,
    version,
    keys,
    corsOrigins: flags.corsOrigin ?? [],
    allowedHosts: flags.allowedHosts ?? [],
    bodyLimit: flags.bodyLimit * MIB,
    logLevel: flags.logLevel,
    logFormat: flags.logFormat === 'auto' ? (process.stderr.isTTY ? 'text' : 'json') : flags.logFormat,
    sampling: sampling(flags),
    unsupportedParts: flags.unsupported,
    ...definedFields({ tls, rateLimit: flags.rateLimit, pull: folder?.pull }),
  })
  const retention = kept === null ? null : keepRetention(kept, service, tell)
  try {
    // Load now, so that errors of the first model are reported here and not to the first client. A native call that never returns must not
    // keep the process alive.
    if (remote === null) (await nativeLibrary(flags.gpu)).endWithin(flags.grace * 1000 + LEEWAY)
    if (models.length > 0) await (remote === null ? service.load() : service.count(undefined, [], []))
    if (embeddings !== null) await service.embed({ tenant: PUBLIC, inputs: ['a'] })
    if (reranker !== null) await service.rerank({ tenant: PUBLIC, query: 'a', documents: ['a'] })
    // Threads of an earlier release were read only during the load. The notes about them are printed here.
    for (const line of kept?.store.notes().slice(told) ?? []) tell(line)
    if (interrupt.interrupted) return
    if (mcp !== null)
      notes.print(`${toolsOf(mcp)}; for ${flags.acm === 'memtool' ? 'all requests' : 'requests with acm: memtool'}.`)
    const where = await listen(server, flags)
    if (keys.length === 0 && flags.unixSocket === undefined && !isLocal(flags.host))
      notes.prose(
        `Everyone who can reach ${flags.host} can use this server; set --api-key to prevent that.`,
        notes.colours.yellow,
      )
    // From here on the server works for its clients. It goes on even if its terminal is closed.
    out.isOptional = true
    out.print(`kvfold serves ${listed(service.models().map(({ name }) => name))} at ${where}`)
    if (folder !== undefined)
      notes.prose(
        `Models of ${folder.path} are loaded when they are asked by name${flags.modelsMax === undefined ? '' : `, at most ${flags.modelsMax} at once`}.`,
        notes.colours.dim,
      )
    notes.prose(serveNotice({ ...flags, keys: [...new Set(keys.map(({ name }) => name))], where, models }))
    await aborted(interrupt.signal)
    notes.print(`Shutting down; running answers have ${flags.grace} s to end. Ctrl-C again ends at once.`)
  } finally {
    await retention?.stop()
    await server.close(flags.grace * 1000)
    await mcp?.close()
    await events?.close()
  }
  // The server was stopped on request, so the exit code must not be that of an interrupt.
  interrupt.renew()
}

/** Opens the publisher of KV events. Returns null when the flags ask for none. @throws KvfoldError cli/bad-usage */
async function openKvEvents(flags: ServeFlags): Promise<KvEventPublisher | null> {
  const options = kvEventsOf(flags)
  if (options === undefined) return null
  const { KvEventPublisher } = await import('../../../fleet/events/kv-events.js')
  return KvEventPublisher.open(options)
}

/**
 * Starts to listen. Replaces a UNIX socket that a dead server left behind. Returns the address. @throws KvfoldError cli/bad-usage; also
 * when the socket's path is that of another kind of file
 */
async function listen(server: Server, { host, port, unixSocket }: ServeFlags): Promise<string> {
  const address: Address = unixSocket === undefined ? { host, port } : { path: unixSocket }
  if (unixSocket !== undefined && lstatSync(unixSocket, { throwIfNoEntry: false })?.isSocket() === false)
    throw new KvfoldError('cli/bad-usage', `${unixSocket} exists and is no socket; choose another path with --unix-socket.`)
  try {
    if (unixSocket !== undefined && (await isDead(unixSocket))) await unlink(unixSocket)
    const where = await server.listen(address)
    if (unixSocket !== undefined) await chmod(unixSocket, 0o600)
    return where
  } catch (error) {
    throw unixSocket === undefined
      ? cannotListen(`${host}:${port}`, error)
      : cannotListen(unixSocket, error, 'another path with --unix-socket')
  }
}

/** Whether the socket file exists but no process listens on it. */
function isDead(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path)
    socket.once('connect', () => {
      socket.destroy()
      resolve(false)
    })
    socket.once('error', (error: NodeJS.ErrnoException) => {
      resolve(error.code === 'ECONNREFUSED')
    })
  })
}

/** How many model names the server prints at its start. A folder may have hundreds. */
const SHOWN = 8

const listed = (names: readonly string[]): string =>
  names.length === 0
    ? 'models of an empty folder'
    : names.slice(0, SHOWN).join(', ') + (names.length > SHOWN ? ` and ${names.length - SHOWN} more` : '')

/** Returns the sources of the models that `--model` names. @throws KvfoldError cli/bad-usage */
function sourcesOf(flags: ServeFlags, shell: Shell, events: KvEventPublisher | null): ModelSource[] {
  const models = (flags.model ?? (flags.models === undefined ? [BUILTIN] : [])).map(named)
  const twice = models.find(({ name }, at) => models.findIndex((other) => other.name === name) < at)
  if (twice !== undefined)
    throw new KvfoldError('cli/bad-usage', `Two models are called ${twice.name}; name them with --model name=file.`)
  if (models.length === 0 && flags.lora !== undefined)
    throw new KvfoldError('cli/bad-usage', '--lora belongs to the first --model; give that model, also beside --models.')
  if (models.length === 0 && flags.speculate.draft !== undefined)
    throw new KvfoldError('cli/bad-usage', 'A draft model belongs to the first --model; give that model, also beside --models.')
  const own = models[0] === undefined ? undefined : knownFile(models[0].model)?.parts[0]
  const base = flags.lora?.find(({ path }) => own !== undefined && resolve(path) === resolve(own))
  if (base !== undefined)
    throw new KvfoldError(
      'cli/bad-usage',
      `${base.path}, given to --lora, is the model itself and no adapter; give a LoRA adapter that was converted to GGUF.`,
    )
  return models.map(({ name, model }, at) => ({
    ...sourceOf(
      name,
      model,
      at === 0 ? flags : forOthers(flags),
      shell,
      events,
      models.length === 1 && flags.models === undefined,
    ),
    ...definedFields({ file: knownFile(model) }),
  }))
}

/** Removes adapters and the draft model from the flags: both belong to the first `--model` only. */
const forOthers = ({ lora: _, ...flags }: ServeFlags): ServeFlags => withoutDraftModel(flags)

function sourceOf(
  name: string,
  model: string,
  flags: ServeFlags,
  { notes, interrupt }: Shell,
  events: KvEventPublisher | null,
  isAlone = false,
): ModelSource {
  let cells: number | undefined
  const ownFlags = () => ({ ...flags, model, ...definedFields({ context: cells ?? flags.context }) })
  const uses = { attention: flags.attention === 'on', ...(flags.embeddings === true ? { embeddings: 'beside' as const } : {}) }
  const trial = flags.trial === 'on' ? uses : 'off'
  const { slots, lora = [] } = flags
  const more = definedFields({ maxGap: flags.maxGap, blocks: events?.outlet(name) })
  const say = (doing: string) => {
    notes.print(`${doing} ...`)
  }
  return {
    name,
    slots,
    adapters: adaptersOf(lora),
    load: async () => {
      const sizes = isAlone && cells === undefined ? { fits: fitOf(flags) } : {}
      const engine = await loadEngine(ownFlags(), notes, interrupt.signal, { slots, ...more, ...sizes, trial, say })
      // Later loads, and the engine that captures attention, use the same number of cells, whatever memory is free then.
      if (isAlone) cells = engine.info.context
      for (const contract of new Set([flags.contract, flags.clientEdits]))
        await warnOfContract(contract, engine, ownFlags(), notes)
      return engine
    },
    ...(flags.attention === 'on'
      ? {
          loadForAttention: () => loadEngine(lookingFlags(ownFlags()), notes, interrupt.signal, LOOKING),
        }
      : {}),
    ...(flags.embeddings === true ? { embedder: (engine: ServedEngine) => embedderOn(engine, { ...flags, model }) } : {}),
  }
}

/** Says how the number of cells is fitted to free memory. It does not grow if other models will need memory later. */
const fitOf = ({ attention, embeddings, reranking }: ServeFlags): FitOptions => ({
  grows: embeddings === undefined && reranking === undefined,
  copies: attention === 'on',
})

/** Returns the file of a model that is already on this machine; undefined when it must be downloaded. */
function knownFile(model: string): ModelSource['file'] {
  const path = model === BUILTIN ? builtinModel() : model
  const known = modelCalled(model, existsSync(path) ? [] : modelsIn(modelsFolder()))
  if (known !== null || !existsSync(path)) return known ?? undefined
  const { size, mtimeMs } = statSync(path)
  return { parts: [resolve(path)], size, modified: mtimeMs }
}

interface ServedFolder {
  readonly path: string
  /** Returns the models in the folder at the moment (`ModelsOptions.folder`). */
  readonly read: () => readonly ModelSource[]
  readonly pull: NonNullable<ServerOptions['pull']>
}

/** Returns the folder of models to serve; undefined without `--models`. @throws KvfoldError cli/bad-usage when the path is no folder */
function folderOf(flags: ServeFlags, shell: Shell, events: KvEventPublisher | null): ServedFolder | undefined {
  const { models: given, alias = [] } = flags
  if (given === undefined) return undefined
  const path = given === true ? modelsFolder() : resolve(given)
  if (given !== true && statSync(path, { throwIfNoEntry: false })?.isDirectory() !== true)
    throw new KvfoldError('cli/bad-usage', `${path}, given to --models, is no folder; give one with GGUF files.`)
  const known = new Map<string, ModelSource>()
  const aliasesOf = (name: string) =>
    alias.filter((text) => text.endsWith(`=${name}`)).map((text) => text.slice(0, -name.length - 1))
  const read = () =>
    modelsIn(path).map((file) => {
      const key = JSON.stringify([file.path, file.size, file.modified, file.name, file.aliases])
      const source = known.get(key) ?? {
        ...sourceOf(file.name, file.path, forOthers(flags), shell, events),
        ...{ file, aliases: [...file.aliases, ...aliasesOf(file.name)] },
      }
      known.set(key, source)
      return source
    })
  return { path, read, pull: (name, options) => pull(name, { ...options, folder: path }) }
}

/**
 * Settings of the engine that captures attention. It answers one request at a time. It needs no trial, because the trial before serving
 * covered attention.
 */
const LOOKING = { slots: 1, attention: true, trial: 'off' } as const

/**
 * Returns the flags for the engine that captures attention of the same model. Without flash attention the V cache cannot be quantised. This
 * engine saves no cells.
 */
function lookingFlags({ diskCache: _, sharedCache: _s, sharedCacheSecret: _t, cacheTypeV, ...rest }: ModelFlags): ModelFlags {
  const isQuantised = cacheTypeV !== undefined && !/^b?f\d/.test(cacheTypeV)
  return {
    ...withoutDraftModel(rest),
    flashAttention: 'off',
    hostCache: 0,
    ...(cacheTypeV === undefined || isQuantised ? {} : { cacheTypeV }),
  }
}

/** Returns the source of a separate embedding model, for `--embeddings MODEL`. */
function embedding(given: string, flags: ServeFlags, { notes, interrupt }: Shell): SideModelSource<TextVectors> {
  const { name, model } = sideName(given)
  const onnx = onnxNamed(model)
  const { embeddingTokens: tokens } = flags
  return {
    name,
    load: () =>
      onnx === null
        ? loadReader(Embedder, { ...flags, model }, notes, interrupt.signal, flags.trial === 'on', definedFields({ tokens }))
        : OnnxEmbedder.load(onnx, tokens),
  }
}

/** Returns the source of a separate reranking model. */
function ranking(given: string, flags: ServeFlags, { notes, interrupt }: Shell): SideModelSource<TextScores> {
  const { name, model } = sideName(given)
  const onnx = onnxNamed(model)
  return {
    name,
    load: () =>
      onnx === null
        ? loadReader(Reranker, { ...flags, model }, notes, interrupt.signal, flags.trial === 'on')
        : OnnxReranker.load(onnx),
  }
}

/** Splits `name=model`. The prefix `onnx:` may stand before the model or before the whole text. It is not part of the name. */
function sideName(given: string): { readonly name: string; readonly model: string } {
  const { name, model } = named(given)
  return { name: name.replace(/^onnx:/, ''), model }
}

/** Refuses `--embeddings` without a model if the served models run on other servers. @throws KvfoldError cli/bad-usage */
function refuseRemoteVectors(flags: ServeFlags): void {
  if (flags.embeddings === true && isRemote(flags))
    throw new KvfoldError(
      'cli/bad-usage',
      'Beside --engine, --embeddings needs a model: another server computes the served one. Give it a GGUF file.',
    )
}

function embedderOn({ model }: ServedEngine, flags: ModelFlags & Pick<ServeFlags, 'embeddingTokens'>): Promise<Embedder> {
  if (model === undefined)
    throw new KvfoldError(
      'model/unsupported',
      'Another server computes this model, so it makes no embeddings here; give --embeddings a GGUF file.',
    )
  return Embedder.on(model, { ...embedderOptions(flags), ...definedFields({ tokens: flags.embeddingTokens }) })
}

const isLocal = (host: string): boolean => host === 'localhost' || host === '::1' || (isIP(host) === 4 && host.startsWith('127.'))

const aborted = async (signal: AbortSignal): Promise<void> => {
  if (!signal.aborted) await once(signal, 'abort')
}

// The notice at the start of the server: its address, whether it needs a key, names of models, and defaults of requests.

interface Served {
  readonly host: string
  readonly unixSocket?: string
  /** The address that the server listens on. */
  readonly where: string
  /** Names of the accepted keys. Empty: no key is needed. */
  readonly keys: readonly string[]
  readonly models: readonly {
    readonly name: string
    readonly aliases?: readonly string[]
    readonly adapters?: readonly { readonly name: string }[]
  }[]
  readonly contract: string
  readonly acm: string
  readonly overflow: string
  readonly clientEdits: string
}

/** Returns the notice as one paragraph. */
function serveNotice(served: Served): string {
  const { contract, acm, overflow, clientEdits } = served
  const usual = `Defaults of requests: contract ${contract}, acm ${acm}, overflow ${overflow}, client edits ${clientEdits}.`
  return [reached(served), asked(served), ...called(served), usual].join(' ')
}

function reached({ host, unixSocket, where }: Served): string {
  if (unixSocket !== undefined) return 'Clients reach it only by its socket.'
  const others = host === '0.0.0.0' || host === '::' ? addresses(where) : []
  const here = `Programs use ${where}/v1, and a browser opens ${where}/ for the dashboard.`
  return others.length === 0 ? here : `${here} Other machines reach it at ${others.join(', ')}.`
}

/** Returns the addresses at which other machines reach this server. */
function addresses(where: string): readonly string[] {
  const { protocol, port } = new URL(where)
  return Object.values(networkInterfaces())
    .flatMap((each) => each ?? [])
    .filter(({ internal, family }) => !internal && family === 'IPv4')
    .map(({ address }) => `${protocol}//${address}${port === '' ? '' : `:${port}`}`)
}

const asked = ({ keys }: Served): string =>
  keys.length === 0
    ? 'It needs no API key, and all clients share their threads.'
    : `It needs an API key, and each of the ${keys.length} sees its own threads.`

function called({ models }: Served): readonly string[] {
  return models.flatMap(({ name, aliases = [], adapters = [] }) => {
    const others = aliases.filter((alias) => alias !== '*')
    return [
      ...(adapters.length === 0
        ? []
        : [`Names of models that are ${name} with one adapter: ${adapters.map((adapter) => adapter.name).join(', ')}.`]),
      ...(others.length === 0 ? [] : [`${name} is also called ${others.join(', ')}.`]),
      ...(aliases.includes('*') ? [`Every other model name means ${name}.`] : []),
    ]
  })
}
