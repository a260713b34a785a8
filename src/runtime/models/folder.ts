/** The folder of models: its GGUF files, their names, and downloads into it. */
import { existsSync, readdirSync, statSync } from 'node:fs'
import { rm, stat } from 'node:fs/promises'
import { basename, dirname, join, relative, resolve, sep } from 'node:path'
import { KvfoldError } from '../core/errors.js'
import { cacheFolder } from '../engine/calibration.js'
import { download, type DownloadOptions, fileAt, type RemoteFile } from './download.js'
import { digestOf } from './facts.js'
import { filesOnHub, type HubOptions, quantOf } from './hub.js'
import { folderOf, hubNameOf, isFileUrl, isModelUri, pathOfUrl } from './names.js'

/** Returns the folder of models: `KVFOLD_MODELS`, by default `models` in the cache folder. */
export const modelsFolder = (environment: NodeJS.ProcessEnv = process.env): string => {
  const given = environment['KVFOLD_MODELS']
  return given === undefined || given === '' ? join(cacheFolder(environment), 'models') : resolve(given)
}

export interface ModelFile {
  /**
   * The file name without `.gguf`. When several files have it, one directly in the folder keeps it, else the oldest; the others' names
   * include their folders.
   */
  readonly name: string
  /**
   * Hub names of the model: `owner/repository:quant`, and `owner/repository` if the folder has no other model of that repository. For a
   * revision other than `main` both end in `#revision`.
   */
  readonly aliases: readonly string[]
  /** The file, or the first part of a split model. */
  readonly path: string
  /** All files of the model: one, or all parts of a split model in order. */
  readonly parts: readonly string[]
  /** Bytes of all files together. */
  readonly size: number
  /** When one of the files was last changed, in Unix milliseconds. */
  readonly modified: number
}

/** How many levels of subfolders are searched. */
const DEEPEST = 4
const SPLIT = /-(\d{5})-of-(\d{5})\.gguf$/i
const ASIDE = /(?:^|[-_.])(?:mmproj|imatrix)(?=[-_.])/i

/** Returns the models of a folder, sorted by name; none when the folder does not exist. Leaves out split models with missing parts. */
export function modelsIn(folder: string): readonly ModelFile[] {
  const paths = ggufsIn(folder, DEEPEST)
  const all = new Set(paths)
  const found = paths.flatMap((path) => {
    const [end, number, count] = SPLIT.exec(path) ?? []
    if (end !== undefined && number !== '00001') return []
    const parts =
      end === undefined
        ? [path]
        : Array.from({ length: Number(count) }, (_, at) =>
            path.replace(SPLIT, `-${String(at + 1).padStart(5, '0')}-of-${count}.gguf`),
          )
    if (!parts.every((part) => all.has(part))) return []
    const stem = (end === undefined ? path : path.replace(SPLIT, '.gguf')).replace(/\.gguf$/i, '')
    try {
      const states = parts.map((part) => statSync(part))
      const size = states.reduce((sum, state) => sum + state.size, 0)
      // The age of the file's folder tells when the model was first pulled; a new pull replaces the file itself.
      const since = statSync(dirname(path)).birthtimeMs
      return [{ path, parts, stem, size, since, modified: Math.max(...states.map(({ mtimeMs }) => mtimeMs)) }]
    } catch {
      // The file was deleted after the folder was listed.
      return []
    }
  })
  const whole = (stem: string) => relative(folder, stem).split(sep).join('/')
  const isInner = ({ stem }: { readonly stem: string }) => whole(stem) !== basename(stem)
  // Sorted so that the file that keeps the short name comes last and wins in the map.
  const short = new Map(
    found
      .toSorted(
        (a, b) =>
          Number(isInner(b)) - Number(isInner(a)) || b.since - a.since || b.modified - a.modified || (a.stem < b.stem ? 1 : -1),
      )
      .map(({ stem }) => [basename(stem), stem]),
  )
  const repositoryOf = (path: string) => relative(folder, path).split(sep).slice(0, 2).join('/')
  return found
    .map(({ stem, path, parts, size, modified }) => {
      const name = short.get(basename(stem)) === stem ? basename(stem) : whole(stem)
      return { name, aliases: [] as string[], path, parts, size, modified }
    })
    .map((model, _, models) => {
      if (relative(folder, model.path).split(sep).length < 3) return model
      const repository = repositoryOf(model.path)
      const quant = quantOf(model.path)
      const isOnly = models.filter(({ path }) => repositoryOf(path) === repository).length === 1
      const aliases = [...(quant === null ? [] : [withQuant(repository, quant)]), ...(isOnly ? [repository] : [])]
      return { ...model, aliases }
    })
    .sort((a, b) => (a.name < b.name ? -1 : 1))
}

function ggufsIn(folder: string, depth: number): readonly string[] {
  let entries
  try {
    entries = readdirSync(folder, { withFileTypes: true })
  } catch {
    return []
  }
  return entries.flatMap((entry) => {
    const path = join(folder, entry.name)
    if (entry.isDirectory()) return depth > 0 && !entry.name.startsWith('.') ? ggufsIn(path, depth - 1) : []
    return /\.gguf$/i.test(entry.name) && !ASIDE.test(entry.name) ? [path] : []
  })
}

/** Adds a quantisation to a repository's name: `owner/repository:quant`, or `owner/repository:quant#revision`. */
const withQuant = (repository: string, quant: string): string => repository.replace(/(?=#|$)/, `:${quant}`)

/**
 * Returns the model with this name, else with this alias, else with either in another letter case; null when there is none.
 * @throws KvfoldError cli/bad-usage when several models match equally
 */
export function modelCalled(name: string, models: readonly ModelFile[]): ModelFile | null {
  const plain = hubNameIn(name) ?? name
  const small = plain.toLowerCase()
  const ways: readonly ((model: ModelFile) => boolean)[] = [
    (model) => model.name === plain,
    (model) => model.aliases.includes(plain),
    (model) => [model.name, ...model.aliases].some((each) => each.toLowerCase() === small),
  ]
  const called = ways.map((way) => models.filter(way)).find((found) => found.length > 0) ?? []
  if (called.length > 1)
    throw new KvfoldError(
      'cli/bad-usage',
      `${JSON.stringify(name)} is the name of several models; give one of these names: ${called.map((model) => model.name).join(', ')}.`,
    )
  return called[0] ?? null
}

/** Returns the alias form (`owner/repository[:quant]`) of a hub name without a file; null for other names. */
function hubNameIn(name: string): string | null {
  const hub = hubNameOf(name)
  if (hub?.file !== null) return null
  return hub.quant === null ? folderOf(hub) : withQuant(folderOf(hub), hub.quant)
}

export interface PullOptions extends HubOptions, Omit<DownloadOptions, 'onProgress' | 'onCheck'> {
  /** The folder to download to. Default: `modelsFolder()`. */
  readonly folder?: string
  readonly onProgress?: (progress: PullProgress) => void
}

export type PullProgress =
  | { readonly kind: 'looking' }
  /** `digest`: SHA-256 of the file in download. `done`, `total`: bytes. `digest` and `total` are null when unknown. */
  | {
      readonly kind: 'downloading'
      readonly file: string
      readonly digest: string | null
      readonly done: number
      readonly total: number | null
    }
  | { readonly kind: 'checking'; readonly file: string }

/**
 * Returns the path of a model's (first) file, after downloading what the folder lacks.
 * @param name `hf:owner/repository[:quant]`, `hf:owner/repository/file.gguf`, `owner/repository[:quant]`, or the address of a GGUF file
 * @throws KvfoldError as filesOnHub, fileAt and download; cli/bad-usage for another name
 */
export async function pull(name: string, { folder = modelsFolder(), onProgress, ...options }: PullOptions = {}): Promise<string> {
  const hub = isFileUrl(name) ? null : hubNameOf(name, true)!
  const path = hub === null ? pathOfUrl(name) : hub.file === null ? null : `${folderOf(hub)}/${hub.file}`
  const exact = path === null ? null : join(folder, ...path.split('/'))
  // If the name gives the exact file and it is in the folder, with all parts of a split model, no server is asked.
  if (exact !== null && hub !== null && SPLIT.test(exact)) {
    const model = modelsIn(folder).find(({ parts }) => parts.includes(exact))
    if (model !== undefined) return model.path
  } else if (exact !== null && (await isFile(exact))) return exact
  onProgress?.({ kind: 'looking' })
  const files = hub === null ? [await fileAt(name, options.signal)] : await filesOnHub(hub, options)
  for (const file of files) await one(file, join(folder, ...file.path.split('/')), options, onProgress)
  return join(folder, ...files[0]!.path.split('/'))
}

export interface ResolveOptions {
  /** The folder to download to. Default: `KVFOLD_MODELS`, else `models` in the cache folder. */
  readonly folder?: string
  /** Cancels a download. The next call continues it. */
  readonly signal?: AbortSignal
  /** Called with the bytes of a file so far, and its total bytes; null when unknown. */
  readonly onProgress?: (downloaded: number, total: number | null) => void
}

/**
 * Returns the absolute path of a GGUF file. A path stays as it is; a hub name or an address is downloaded unless the folder of models has
 * it.
 * @throws KvfoldError model/not-found when there is no such file; model/download-failed; engine/cancelled on `signal`
 */
export async function resolveModel(uriOrPath: string, { onProgress, ...options }: ResolveOptions = {}): Promise<string> {
  if (isModelUri(uriOrPath))
    return pull(uriOrPath, {
      ...options,
      onProgress: (progress) => {
        if (progress.kind === 'downloading') onProgress?.(progress.done, progress.total)
      },
    })
  const path = resolve(uriOrPath)
  if (existsSync(path)) return path
  throw new KvfoldError(
    'model/not-found',
    `There is no file ${path}; give the path of a GGUF file, or hf:owner/repository:quant.`,
  )
}

async function one(file: RemoteFile, to: string, options: DownloadOptions, onProgress: PullOptions['onProgress']): Promise<void> {
  const name = basename(to)
  const known = await stat(to).catch(() => null)
  if (known?.isFile() === true && (file.size === null || known.size === file.size)) {
    if (file.sha256 === null) return
    onProgress?.({ kind: 'checking', file: name })
    if ((await digestOf([to])) === file.sha256) return
  }
  const progress = (done: number) => {
    onProgress?.({ kind: 'downloading', file: name, digest: file.sha256, done, total: file.size })
  }
  progress(0)
  await download(file, to, {
    ...options,
    onProgress: progress,
    onCheck: () => {
      onProgress?.({ kind: 'checking', file: name })
    },
  })
}

const isFile = async (path: string): Promise<boolean> => (await stat(path).catch(() => null))?.isFile() === true

/** Deletes a model's files, and the folders that are empty afterwards. @throws KvfoldError model/not-found, or as modelCalled */
export async function removeModel(name: string, folder: string = modelsFolder()): Promise<ModelFile> {
  const models = modelsIn(folder)
  const model = modelCalled(name, models)
  if (model === null) throw new KvfoldError('model/not-found', noModel(name, models, folder))
  for (const part of model.parts) await rm(part, { force: true })
  for (let inner = dirname(model.path); inner !== folder && inner.startsWith(folder + sep); inner = dirname(inner)) {
    if (readdirSync(inner).length > 0) break
    await rm(inner, { recursive: true, force: true })
  }
  return model
}

/** Returns the error sentence for a name that no model in the folder has. */
export const noModel = (name: string, models: readonly ModelFile[], folder: string): string =>
  `There is no model ${JSON.stringify(name)} in ${folder}; ${
    models.length === 0
      ? 'it is empty. `kvfold pull hf:owner/repository` gets one'
      : `it has ${models.map((model) => model.name).join(', ')}`
  }.`
