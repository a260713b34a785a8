/**
 * Downloads files. A download continues after a lost connection or a restart. Size and hash are checked before the file gets its name, so
 * it is complete or absent.
 */
import { createWriteStream } from 'node:fs'
import { mkdir, readFile, rename, rm, stat, statfs, truncate, writeFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { setTimeout as wait } from 'node:timers/promises'
import { KvfoldError } from '../core/errors.js'
import { takeLock } from '../core/lock-file.js'
import { digestOf } from './facts.js'
import { pathOfUrl } from './names.js'

export interface RemoteFile {
  readonly url: string
  /** Whether the file is on the Hugging Face hub, where some files need a token. */
  readonly isOnHub: boolean
  /** Headers of the requests. After a redirect to another server they are not sent. */
  readonly headers: Readonly<Record<string, string>>
  /** Path of the finished file, relative to the folder of models. */
  readonly path: string
  /** The file's size in bytes; null when unknown. */
  readonly size: number | null
  /** The SHA-256 of the file in hex; null when unknown. */
  readonly sha256: string | null
}

export interface DownloadOptions {
  readonly signal?: AbortSignal
  /** Called with the bytes so far, those of earlier attempts included. */
  readonly onProgress?: (done: number) => void
  /** Called when all bytes have arrived and hashing begins. */
  readonly onCheck?: () => void
  /** How many requests in a row may fail or bring no byte. Default 5. */
  readonly tries?: number
  /** Milliseconds before the second try; each later wait is twice as long. Default 500. */
  readonly pause?: number
  /** A request fails after this many milliseconds without a byte. Default 60,000. */
  readonly stall?: number
}

const failed = (message: string, cause?: unknown): KvfoldError =>
  new KvfoldError('model/download-failed', message, cause === undefined ? undefined : { cause })

/**
 * Downloads a file to `to`, continuing an earlier download (`<to>.part`).
 * @throws KvfoldError model/not-found when there is no such file or access is refused; model/download-failed when the server or the disk
 * fails, another process downloads the file, or the hash differs (the bytes are then deleted); engine/cancelled on `signal`
 */
export async function download(file: RemoteFile, to: string, options: DownloadOptions = {}): Promise<void> {
  const part = `${to}.part`
  await mkdir(dirname(to), { recursive: true })
  const unlock = await lock(`${part}.lock`, to)
  try {
    await fetchRest(file, part, options)
    await rm(versionFile(part), { force: true })
    const { size } = await stat(part)
    if (file.size !== null && size !== file.size)
      throw failed(`${file.url} is ${size} bytes long instead of ${file.size}; try again later.`)
    if (file.sha256 !== null) {
      options.onCheck?.()
      const found = await digestOf([part])
      if (found !== file.sha256) {
        await rm(part, { force: true })
        throw failed(
          `${file.url} came with other bytes than announced: its SHA-256 is ${found} instead of ${file.sha256}. They were deleted; download it again.`,
        )
      }
    }
    await rename(part, to)
  } finally {
    unlock()
  }
}

/** Appends the missing bytes to the partial file, with retries. */
async function fetchRest(file: RemoteFile, part: string, options: DownloadOptions): Promise<void> {
  const { signal, tries = 5, pause = 500 } = options
  let fails = 0
  for (;;) {
    const before = await sizeOf(part)
    if (file.size !== null && before === file.size) return
    // Longer than the whole file: its bytes are from another version.
    if (file.size !== null && before > file.size) await truncate(part, 0)
    try {
      if (await fetchOnce(file, part, options)) return
      fails = (await sizeOf(part)) > before ? 0 : fails + 1
      if (fails >= tries) throw failed(`${file.url} broke off ${fails} times without a byte; try again later.`)
    } catch (cause) {
      if (signal?.aborted === true)
        throw new KvfoldError(
          'engine/cancelled',
          `The download of ${file.url} was cancelled; the same command goes on with it.`,
          {
            cause,
          },
        )
      if (cause instanceof KvfoldError) throw cause
      fails = (await sizeOf(part)) > before ? 1 : fails + 1
      if (fails >= tries)
        throw failed(`${file.url} could not be downloaded (${reasonOf(cause)}). Try again; it goes on where it ended.`, cause)
    }
    await wait(Math.min(pause * 2 ** (fails - 1), 30_000), undefined, signal === undefined ? {} : { signal }).catch(
      () => undefined,
    )
  }
}

/**
 * Makes one request. Returns whether the file is complete now. @throws KvfoldError when a retry would fail, too; other errors may be
 * retried
 */
async function fetchOnce(
  { url, isOnHub, headers, size, sha256 }: RemoteFile,
  part: string,
  { signal, onProgress, stall = 60_000 }: DownloadOptions,
): Promise<boolean> {
  let at = await sizeOf(part)
  // Without a known hash, only the server's ETag or date shows whether our bytes are from the same version of the file.
  const version = sha256 === null ? await readFile(versionFile(part), 'utf8').catch(() => null) : null
  if (sha256 === null && version === null && at > 0) {
    await truncate(part, 0)
    at = 0
  }
  const silence = new AbortController()
  let clock = setTimeout(() => undefined, 0)
  const heard = () => {
    clearTimeout(clock)
    clock = setTimeout(() => {
      silence.abort(new Error('no data came'))
    }, stall)
  }
  heard()
  try {
    const rest = at > 0 ? { range: `bytes=${at}-`, ...(version === null ? {} : { 'if-range': version }) } : {}
    const answer = await fetch(url, {
      headers: { ...headers, ...rest, 'accept-encoding': 'identity' },
      signal: signal === undefined ? silence.signal : AbortSignal.any([signal, silence.signal]),
    })
    // 416: there are no bytes after ours.
    if (answer.status === 416) {
      await answer.body?.cancel()
      const total = /\/(\d+)$/.exec(answer.headers.get('content-range') ?? '')?.[1]
      if (total !== undefined && Number(total) === at) return true
      await truncate(part, 0)
      return false
    }
    refuseStatus(answer, { url, isOnHub })
    const from = answer.status === 206 ? Number(/^bytes (\d+)-/.exec(answer.headers.get('content-range') ?? '')?.[1] ?? NaN) : 0
    if (from !== at) {
      if (from !== 0) throw failed(`${url} answers with other bytes than were asked for; try again later.`)
      await truncate(part, 0).catch(() => undefined)
      at = 0
    }
    if (at === 0 && sha256 === null) await keepVersion(part, answer.headers)
    const length = answer.headers.get('content-length')
    const end = length === null ? null : at + Number(length)
    await refuseFullDisk(part, (size ?? end ?? at) - at)
    if (answer.body === null) return true
    await pipeline(
      Readable.fromWeb(answer.body),
      async function* (chunks: AsyncIterable<Uint8Array>) {
        for await (const chunk of chunks) {
          heard()
          at += chunk.length
          onProgress?.(at)
          yield chunk
        }
      },
      createWriteStream(part, { flags: 'a' }),
    )
    return (size ?? end ?? at) <= at
  } finally {
    clearTimeout(clock)
  }
}

/** @throws KvfoldError when the server would refuse a retry, too; Error when a retry may succeed */
function refuseStatus({ status, ok }: Response, { url, isOnHub }: Pick<RemoteFile, 'url' | 'isOnHub'>): void {
  if (ok) return
  if ([401, 403].includes(status)) {
    const advice = isOnHub ? 'set HF_TOKEN to a token that may read it' : 'check the address; a signed one may have expired'
    throw new KvfoldError('model/not-found', `${url} is not shown (${status}); ${advice}.`)
  }
  if ([404, 410].includes(status))
    throw new KvfoldError('model/not-found', `There is no file at ${url} (${status}); check the name.`)
  if (status < 500 && status !== 408 && status !== 429) throw failed(`${url} answers ${status}; check the address.`)
  throw new Error(`the server answers ${status}`)
}

/** The file beside the partial file with the version (ETag or date) of its bytes. */
const versionFile = (part: string): string => `${part}.etag`

/** Records the version that the server gives: a strong ETag, else the date of the last change. */
async function keepVersion(part: string, headers: Headers): Promise<void> {
  const etag = headers.get('etag')
  const version = etag?.startsWith('"') === true ? etag : headers.get('last-modified')
  if (version === null) await rm(versionFile(part), { force: true })
  else await writeFile(versionFile(part), version)
}

async function refuseFullDisk(part: string, bytes: number): Promise<void> {
  const { bavail, bsize } = await statfs(dirname(part))
  if (bytes > bavail * bsize)
    throw failed(
      `${dirname(part)} has room for ${bavail * bsize} bytes, and ${bytes} are missing; make room, or set KVFOLD_MODELS.`,
    )
}

const sizeOf = async (path: string): Promise<number> => (await stat(path).catch(() => null))?.size ?? 0

/** Takes the download's lock, also from a process that has ended. @throws KvfoldError model/download-failed when another process has it */
async function lock(path: string, to: string): Promise<() => void> {
  const taken = await takeLock(path).catch((error: unknown) => {
    throw failed(`${to} cannot be written (${reasonOf(error)}); set KVFOLD_MODELS to another folder.`, error)
  })
  if (typeof taken === 'function') return taken
  throw failed(`${taken.name} is downloading ${to} already; wait for it, or end it.${taken.advice}`)
}

/** Statuses of servers that refuse HEAD and may still accept GET: a signed address may allow only one method. */
const REFUSED_HEADS = [400, 403, 405, 501]

/** Asks for the size and hash of a file outside the hub. @throws KvfoldError as `download` */
export async function fileAt(url: string, signal?: AbortSignal): Promise<RemoteFile> {
  const path = pathOfUrl(url)
  const asked = (redirect: 'manual' | 'follow') =>
    fetch(url, {
      method: 'HEAD',
      redirect,
      headers: { 'accept-encoding': 'identity' },
      ...(signal === undefined ? {} : { signal }),
    })
  try {
    const first = await asked('manual')
    const last = first.status >= 300 && first.status < 400 ? await asked('follow') : first
    if (REFUSED_HEADS.includes(last.status)) return { url, isOnHub: false, headers: {}, path, size: null, sha256: null }
    refuseStatus(last, { url, isOnHub: false })
    const said = (key: string) => first.headers.get(key) ?? last.headers.get(key)
    const sha256 = /^(?:W\/)?"?([0-9a-f]{64})"?$/.exec(said('x-linked-etag') ?? said('etag') ?? '')?.[1] ?? null
    const size = said('x-linked-size') ?? last.headers.get('content-length')
    return { url, isOnHub: false, headers: {}, path, size: size === null ? null : Number(size), sha256 }
  } catch (cause) {
    if (cause instanceof KvfoldError) throw cause
    if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', `The download of ${url} was cancelled.`, { cause })
    throw failed(`${url} cannot be reached (${reasonOf(cause)}); check the address and the network.`, cause)
  }
}

/** Returns the innermost cause of a failed request, because the error of `fetch` says nothing specific. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  if (error.cause instanceof Error) return reasonOf(error.cause)
  return 'code' in error && typeof error.code === 'string' ? error.code : (error.message.split('\n', 1)[0] ?? '')
}
