/** Parses names of models: hub names such as `hf:owner/repository[:quant]` or `hf:owner/repository/file.gguf`, and addresses of files. */
import { createHash } from 'node:crypto'
import { KvfoldError } from '../core/errors.js'

/** A model on the hub: its repository, and which of the repository's files. */
export interface HubName {
  readonly repository: string
  /** Path of a GGUF file in the repository; null: `quant` chooses the file. */
  readonly file: string | null
  /** Quantisation, such as `Q4_K_M`, in any letter case; null: a usual one (`USUAL` in hub.ts). */
  readonly quant: string | null
  /** Branch, tag or commit of the repository. */
  readonly revision: string
}

const PREFIX = /^(?:hf:|huggingface:|(?:https?:\/\/)?(?:hf\.co|huggingface\.co)\/)(?:\/\/)?/i
/** Matches the beginning of a hub address. The path after it is percent-encoded and may have a query. */
const ADDRESS = /^(?:https?:\/\/)?(?:hf|huggingface)\.co\//i
/** Matches the query after a file name, such as `?download=true`. */
const QUERY = /(?<=\.gguf)\?.*$/i
const PART = /^[\w][\w.-]{0,95}$/

/** Whether the name begins as one on the hub does, such as `hf:`. */
export const isHubName = (name: string): boolean => PREFIX.test(name)

/** Whether the name is the address of a file outside the hub. */
export const isFileUrl = (name: string): boolean => /^https?:\/\//i.test(name) && !isHubName(name)

/** Whether the name is a model to download and not a path. */
export const isModelUri = (name: string): boolean => isHubName(name) || isFileUrl(name)

/** Parses a hub name; returns null for other names. @param bare also accepts names without a prefix such as `hf:` */
export function hubNameOf(name: string, bare = false): HubName | null {
  if (!bare && !isHubName(name)) return null
  const isAddress = ADDRESS.test(name)
  const [given = '', fragment = 'main'] = name.replace(PREFIX, '').split('#')
  const [, path = '', quant = null] = /^([^:]*)(?::(.+))?$/.exec(isAddress ? given.replace(QUERY, '') : given) ?? []
  const [owner = '', repository = '', ...rest] = path.split('/').map((part) => (isAddress ? decoded(part) : part))
  // Addresses of the hub's web pages have `blob`, `resolve` or `raw` and the revision before the file.
  const isPage = /^(?:blob|resolve|raw)$/.test(rest[0] ?? '')
  const file = (isPage ? rest.slice(2) : rest).join('/')
  const revision = (isPage ? rest[1] : undefined) ?? fragment
  const isWrong =
    ![owner, repository].every((part) => PART.test(part)) ||
    file.split('/').some((part) => part === '.' || part === '..') ||
    (file !== '' && !/\.gguf$/i.test(file)) ||
    (quant !== null && !/^[\w.-]{1,60}$/.test(quant)) ||
    !/^[\w][\w./-]{0,200}$/.test(revision) ||
    revision.includes('..')
  if (isWrong)
    throw new KvfoldError(
      'cli/bad-usage',
      `${JSON.stringify(name.slice(0, 120))} names no model of the hub; the form is hf:owner/repository:quant, or hf:owner/repository/file.gguf.`,
    )
  return {
    repository: `${owner}/${repository}`,
    file: file === '' ? null : file,
    quant,
    revision,
  }
}

/** Decodes percent-encoding. Invalid encoding is returned unchanged. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

/** Returns a repository's folder inside the folder of models. Revisions other than `main` have their own: `owner/repository#revision`. */
export const folderOf = ({ repository, revision }: Pick<HubName, 'repository' | 'revision'>): string =>
  repository + (revision === 'main' ? '' : `#${encodeURIComponent(revision)}`)

/** Query fields of a signed address that change with each signature. */
const SIGNATURE = /^(?:x-(?:amz|goog)-.*|signature|sig|token|expires|key-pair-id|policy|s[eprtv]|spr)$/i

/**
 * Returns the path for a file from an address, inside the folder of models: `<host>-<hash>/<file name>`. The hash covers the rest of the
 * address, because different addresses may end in the same file name.
 * @throws KvfoldError cli/bad-usage
 */
export function pathOfUrl(url: string): string {
  const { host, pathname, searchParams } = new URL(url)
  const name = decoded(pathname.split('/').at(-1) ?? '')
  if (!/^[\w][\w .+-]*\.gguf$/i.test(name))
    throw new KvfoldError('cli/bad-usage', `${url} does not end in the name of a .gguf file; give the address of one.`)
  const query = new URLSearchParams([...searchParams].filter(([key]) => !SIGNATURE.test(key)))
  const place = `${new URL('.', url).href}?${query.toString()}`.replace(/\?$/, '')
  return `${host}-${createHash('sha256').update(place).digest('hex').slice(0, 8)}/${name}`
}
