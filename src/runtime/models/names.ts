/** Reads the names of models: `hf:owner/repository[:quant]` on the hub, or with the path of a file; and addresses of files. */
import { createHash } from 'node:crypto'
import { KvfoldError } from '../core/errors.js'

/** The name of a model on the hub: a repository, and which of its files. */
export interface HubName {
  readonly repository: string
  /** The path of a GGUF file in the repository; null: the file with the quantisation `quant`. */
  readonly file: string | null
  /** The quantisation, such as `Q4_K_M`, in any case; null: the usual one. */
  readonly quant: string | null
  /** The branch, tag or commit of the repository. */
  readonly revision: string
}

const PREFIX = /^(?:hf:|huggingface:|(?:https?:\/\/)?(?:hf\.co|huggingface\.co)\/)(?:\/\/)?/i
/** The beginning of an address on the hub. Its path is percent-encoded, and a query may follow. */
const ADDRESS = /^(?:https?:\/\/)?(?:hf|huggingface)\.co\//i
/** The query behind the name of a file, such as `?download=true`. */
const QUERY = /(?<=\.gguf)\?.*$/i
const PART = /^[\w][\w.-]{0,95}$/

/** Whether the beginning of the name says that the model is on the hub. */
export const isHubName = (name: string): boolean => PREFIX.test(name)

/** Whether the name is the address of a file outside the hub. */
export const isFileUrl = (name: string): boolean => /^https?:\/\//i.test(name) && !isHubName(name)

/** Whether the name is that of a model to download, and not a path. */
export const isModelUri = (name: string): boolean => isHubName(name) || isFileUrl(name)

/** Reads the name of a model on the hub; returns null for other names. `bare`: names without a beginning such as `hf:` are read, too. */
export function hubNameOf(name: string, bare = false): HubName | null {
  if (!bare && !isHubName(name)) return null
  const isAddress = ADDRESS.test(name)
  const [given = '', fragment = 'main'] = name.replace(PREFIX, '').split('#')
  const [, path = '', quant = null] = /^([^:]*)(?::(.+))?$/.exec(isAddress ? given.replace(QUERY, '') : given) ?? []
  const [owner = '', repository = '', ...rest] = path.split('/').map((part) => (isAddress ? decoded(part) : part))
  // In addresses of the hub's web pages, `blob`, `resolve` or `raw` and the revision come before the file.
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

/** Decodes a percent-encoded text. Other texts stay as they are. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

/**
 * Returns the folder of a repository's files within the folder of models. Files of another revision than `main` have a folder of their own:
 * `owner/repository#revision`.
 */
export const folderOf = ({ repository, revision }: Pick<HubName, 'repository' | 'revision'>): string =>
  repository + (revision === 'main' ? '' : `#${encodeURIComponent(revision)}`)

/** Fields of a signed address that change each time it is signed. */
const SIGNATURE = /^(?:x-(?:amz|goog)-.*|signature|sig|token|expires|key-pair-id|policy|s[eprtv]|spr)$/i

/**
 * Returns the path of the file at an address, within the folder of models. Each folder on a server gets a folder of its own here, because
 * different addresses can end in the same name. @throws KvfoldError cli/bad-usage
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
