/** Owns how the name of a data file becomes a file: a path stays a path, a file of the hub is downloaded once, beside the models. */
import { createWriteStream } from 'node:fs'
import { mkdir, rename, rm, stat } from 'node:fs/promises'
import { homedir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { KvfoldError } from '../../core/errors.js'

export interface SourceOptions {
  /** Where downloads are kept. Default: where models are. */
  readonly folder?: string
  /** Default: HF_ENDPOINT, else https://huggingface.co. */
  readonly endpoint?: string
  readonly signal?: AbortSignal
}

/** A file of a data set on the hub. */
interface HubFile {
  readonly repository: string
  readonly path: string
  readonly revision: string
}

const FORM = 'hf:datasets/owner/name/path/of/file.parquet'
const SCHEME = /^(?:hf|huggingface):/iu

/** node-llama-cpp's folder for models, which `hf:` names of models are kept in, too. */
const downloads = (): string => join(homedir(), '.node-llama-cpp', 'models')

/**
 * The path of a file that can be read. `hf:datasets/owner/name/path#revision` is downloaded unless it is there; HF_TOKEN opens what is not public.
 * @throws KvfoldError eval/bad-data when there is no such file, the hub has none or cannot be reached; engine/cancelled on `signal`
 */
export async function fileOf(source: string, options: SourceOptions = {}): Promise<string> {
  const hub = hubFile(source)
  const path = hub === null ? resolve(source) : keptAt(hub, options.folder ?? downloads())
  const found = await stat(path).catch(() => null)
  if (found?.isFile() === true) return path
  if (hub === null) throw new KvfoldError('eval/bad-data', `There is no file ${path}; give the path of a data file or ${FORM}.`)
  try {
    await download(hub, path, options)
  } catch (cause) {
    if (options.signal?.aborted === true)
      throw new KvfoldError('engine/cancelled', `The download of ${source} was cancelled.`, { cause })
    const reason = cause instanceof Error ? cause.message.split('\n', 1)[0] : String(cause)
    throw new KvfoldError(
      'eval/bad-data',
      `${source} could not be downloaded (${reason}); check the name and the network, or give the path of a file.`,
      { cause },
    )
  }
  return path
}

function hubFile(source: string): HubFile | null {
  if (!SCHEME.test(source)) return null
  const [name = '', revision = 'main'] = source.replace(SCHEME, '').split('#')
  const [kind, owner, repository, ...path] = name.split('/')
  const parts = [owner, repository, ...path]
  const wrong =
    parts.some((part) => part === undefined || part === '' || part === '.' || part === '..') || /[\\/]|^\.*$/u.test(revision)
  if (kind !== 'datasets' || path.length === 0 || wrong)
    throw new KvfoldError('eval/bad-data', `${source} does not name a file of a data set; the form is ${FORM}.`)
  return { repository: `${owner ?? ''}/${repository ?? ''}`, path: path.join('/'), revision }
}

const keptAt = ({ repository, path, revision }: HubFile, folder: string): string =>
  join(folder, `datasets--${repository.replace('/', '--')}`, revision, ...path.split('/'))

/** The file appears whole or not at all. */
async function download({ repository, path, revision }: HubFile, to: string, { endpoint, signal }: SourceOptions): Promise<void> {
  const { downloadFile } = await import('@huggingface/hub')
  const hubUrl = endpoint ?? process.env['HF_ENDPOINT']
  const accessToken = process.env['HF_TOKEN']
  const blob = await downloadFile({
    repo: { type: 'dataset', name: repository },
    path,
    revision,
    fetch: (url, init) => fetch(url, { ...init, ...(signal === undefined ? {} : { signal }) }),
    ...(hubUrl === undefined ? {} : { hubUrl: hubUrl.replace(/\/+$/u, '') }),
    ...(accessToken === undefined ? {} : { accessToken }),
  })
  if (blob === null) throw new Error(`the hub has no ${path} in ${repository}`)
  await mkdir(dirname(to), { recursive: true })
  const part = `${to}.${process.pid}.part`
  try {
    await pipeline(Readable.fromWeb(blob.stream()), createWriteStream(part), {
      ...(signal === undefined ? {} : { signal }),
    })
    await rename(part, to)
  } finally {
    await rm(part, { force: true })
  }
}
