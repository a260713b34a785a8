/**
 * The secrets that key the hashes of saved cells. A disk cache has its own, in a file of its folder that only this user may read. Engines
 * that share cells also share a secret, which the operator gives them.
 */
import { createHash, randomBytes } from 'node:crypto'
import { constants, readFileSync, statSync } from 'node:fs'
import { link, open, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { KvfoldError } from '../core/errors.js'
import { SECRET_BYTES } from '../kv/tenant-salts.js'

/** The layout of the secret's file: name and version of the format, the secret, SHA-256 of both. */
const FORMAT = 'kvsecrt1'
const BYTES = FORMAT.length + SECRET_BYTES + 32
export const SECRET_FILE = 'kvfold.secret'
/** How often we try again if another process creates or replaces the file at the same time. Then the secret is not saved. */
const ATTEMPTS = 5

export interface CacheSecret {
  readonly secret: Buffer
  /** A sentence for the user about a problem with the secret; null if there is none. */
  readonly note: string | null
}

type Found =
  | { readonly kind: 'secret'; readonly secret: Buffer }
  | { readonly kind: 'none' }
  | { readonly kind: 'unusable'; readonly why: string }

/**
 * Returns the folder's secret. If there is none, writes a new one, completely or not at all; of several processes that do so at once, the
 * first one's secret remains. Replaces a secret that is damaged, belongs to another user, or that other users may read; cells saved under
 * it are then refused. If the file cannot be written, the secret is valid until the program ends.
 * @param temporary a path in the folder that no other process uses
 */
export async function openSecret(folder: string, temporary: string): Promise<CacheSecret> {
  const path = join(folder, SECRET_FILE)
  let note: string | null = null
  let failure = 'other processes kept changing it'
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    const found = await read(path)
    if (found.kind === 'secret') return { secret: found.secret, note }
    if (found.kind === 'unusable')
      note = `The secret of the disk cache, ${path}, ${found.why}. kvfold replaces it and computes cells that were saved under the old one again.`
    try {
      await write(path, temporary, found.kind === 'none')
    } catch (error) {
      if (!(error instanceof Error)) throw error
      failure = error.message
      break
    }
  }
  const secret = randomBytes(SECRET_BYTES)
  return {
    secret,
    note: `kvfold could not write the secret of the disk cache, ${path} (${failure}). Later processes cannot use the cells that this one saves.`,
  }
}

async function read(path: string): Promise<Found> {
  const unusable = (why: string): Found => ({ kind: 'unusable', why })
  let file
  try {
    file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK)
  } catch (error) {
    return codeOf(error) === 'ENOENT' ? { kind: 'none' } : unusable(`cannot be read (${codeOf(error)})`)
  }
  try {
    const about = await file.stat()
    if (!about.isFile()) return unusable('is not a plain file')
    if (about.uid !== process.geteuid?.()) return unusable('belongs to another user')
    const mode = about.mode & 0o777
    if ((mode & 0o077) !== 0) return unusable(`is open to others (mode ${mode.toString(8)})`)
    const content = Buffer.alloc(BYTES + 1)
    const { bytesRead } = await file.read(content, 0, content.length, 0)
    const whole = content.subarray(0, BYTES - 32)
    const sound = bytesRead === BYTES && whole.toString('latin1', 0, FORMAT.length) === FORMAT
    if (!sound || !sumOf(whole).equals(content.subarray(BYTES - 32, BYTES))) return unusable('is damaged')
    return { kind: 'secret', secret: Buffer.from(whole.subarray(FORMAT.length)) }
  } catch (error) {
    return unusable(`cannot be read (${codeOf(error)})`)
  } finally {
    await file.close()
  }
}

/** Writes a new secret. With `fresh`, an existing file stays. */
async function write(path: string, temporary: string, fresh: boolean): Promise<void> {
  const whole = Buffer.concat([Buffer.from(FORMAT, 'latin1'), randomBytes(SECRET_BYTES)])
  try {
    const file = await open(temporary, 'wx', 0o600)
    try {
      await file.writeFile(Buffer.concat([whole, sumOf(whole)]))
      await file.sync()
    } finally {
      await file.close()
    }
    if (fresh && (await isLinked(temporary, path))) return
    await rename(temporary, path)
  } finally {
    await rm(temporary, { force: true }).catch(() => undefined)
  }
}

/** Links `temporary` to the path. Returns whether the path has a file now, ours or another process's. False if links are not supported. */
async function isLinked(temporary: string, path: string): Promise<boolean> {
  try {
    await link(temporary, path)
    return true
  } catch (error) {
    return codeOf(error) === 'EEXIST'
  }
}

const sumOf = (content: Buffer): Buffer => createHash('sha256').update(content).digest()

const codeOf = (error: unknown): string => (error instanceof Error && 'code' in error ? String(error.code) : String(error))

// The secret that engines on several machines share. The operator makes it and gives it to each engine.

const MOST_SHARED = 4096

/**
 * Reads the operator's secret from a file, and returns 32 bytes made of it. The file may contain anything of at least 32 bytes; one newline
 * at the end is ignored. Its group may read it, because clusters mount secrets that way. Other users may not, and only its owner may write.
 * @throws KvfoldError engine/bad-request
 */
export function sharedSecret(path: string): Buffer {
  const refused = (why: string, cause?: unknown) =>
    new KvfoldError(
      'engine/bad-request',
      `The secret of the shared cache, ${path}, ${why}. Make one with (umask 077; openssl rand -hex 32 > FILE), and give the same file to all servers that share the cache.`,
      { cause },
    )
  let content: Buffer
  try {
    const about = statSync(path)
    const mode = about.mode & 0o777
    if (!about.isFile()) throw refused('is not a plain file')
    if ((mode & 0o027) !== 0) throw refused(`is open to others (mode ${mode.toString(8)})`)
    if (about.size > MOST_SHARED) throw refused(`has more than ${MOST_SHARED} bytes`)
    content = readFileSync(path)
  } catch (error) {
    throw error instanceof KvfoldError ? error : refused(`cannot be read (${codeOf(error)})`, error)
  }
  const text = content.at(-1) === 0x0a ? content.subarray(0, -1) : content
  if (text.length < SECRET_BYTES) throw refused(`has ${text.length} bytes, but needs ${SECRET_BYTES}`)
  return sumOf(Buffer.concat([Buffer.from('kvfold shared secret:'), text]))
}
