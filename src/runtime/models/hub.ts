/** Finds the files of a model on the Hugging Face hub, with their sizes and hashes. */
import { KvfoldError } from '../core/errors.js'
import { reasonOf, type RemoteFile } from './download.js'
import { folderOf, type HubName } from './names.js'

export interface HubOptions {
  /** Address of the hub. Default: HF_ENDPOINT, else https://huggingface.co. */
  readonly endpoint?: string
  /** Token for requests to the hub. Default: HF_TOKEN, else none. */
  readonly token?: string
  readonly signal?: AbortSignal
}

/** For names without a quantisation: the first of these that the repository has. */
const USUAL = ['Q4_K_M', 'Q4_K_S', 'Q5_K_M', 'Q8_0', 'Q4_0', 'F16', 'BF16']

/** Matches the suffix of a split model's files: part number and part count. */
const SPLIT = /-(\d{5})-of-(\d{5})(?=\.gguf$)/i
/** Matches GGUF files that are no language models: multimodal projectors and importance matrices. */
const ASIDE = /(?:^|[-_.])(?:mmproj|imatrix)(?=[-_.])/i

interface ListedFile {
  readonly path: string
  readonly size: number
  readonly sha256: string | null
}

/**
 * Returns the files of a model: one, or all parts of a split model in order.
 * @throws KvfoldError model/not-found when the hub has no such repository, file or quantisation, or does not show it; model/download-failed
 * when it cannot be reached; engine/cancelled on `signal`
 */
export async function filesOnHub(name: HubName, options: HubOptions = {}): Promise<readonly RemoteFile[]> {
  const { endpoint = process.env['HF_ENDPOINT'] ?? 'https://huggingface.co', token = process.env['HF_TOKEN'] } = options
  const base = endpoint.replace(/\/+$/, '')
  const headers = token === undefined || token === '' ? {} : { authorization: `Bearer ${token}` }
  const listed = await listedFiles(name, { ...options, endpoint: base, ...(token === undefined ? {} : { token }) })
  return chosen(name, listed).map(({ path, size, sha256 }) => ({
    url: `${base}/${name.repository}/resolve/${encodeURIComponent(name.revision)}/${path.split('/').map(encodeURIComponent).join('/')}`,
    isOnHub: true,
    headers,
    path: `${folderOf(name)}/${path}`,
    size,
    sha256,
  }))
}

async function listedFiles(
  { repository, revision }: HubName,
  { endpoint, token, signal }: HubOptions,
): Promise<readonly ListedFile[]> {
  const { HubApiError, listFiles } = await import('@huggingface/hub')
  const files: ListedFile[] = []
  try {
    for await (const { type, path, size, lfs } of listFiles({
      ...{ repo: repository, recursive: true, revision },
      ...(endpoint === undefined ? {} : { hubUrl: endpoint }),
      ...(token === undefined || token === '' ? {} : { accessToken: token }),
      fetch: (url, init) => fetch(url, { ...init, ...(signal === undefined ? {} : { signal }) }),
    }))
      if (type === 'file' && /\.gguf$/i.test(path)) files.push({ path, size: lfs?.size ?? size, sha256: lfs?.oid ?? null })
    return files
  } catch (cause) {
    if (signal?.aborted === true)
      throw new KvfoldError('engine/cancelled', `The search for ${repository} was cancelled.`, { cause })
    if (cause instanceof HubApiError && [401, 403, 404].includes(cause.statusCode))
      throw new KvfoldError(
        'model/not-found',
        `The hub shows no repository ${repository} (${cause.statusCode}). Check the name; for a private or gated one set HF_TOKEN to a token that may read it.`,
        { cause },
      )
    const reason = cause instanceof HubApiError ? `it answers ${cause.statusCode}` : reasonOf(cause)
    throw new KvfoldError(
      'model/download-failed',
      `The hub at ${endpoint} cannot be asked for ${repository} (${reason}); check the network, or HF_ENDPOINT.`,
      { cause },
    )
  }
}

/**
 * Chooses the model's files among those of its repository.
 * @throws KvfoldError model/not-found, whose message lists the available files or quantisations
 */
function chosen({ repository, file, quant }: HubName, listed: readonly ListedFile[]): readonly ListedFile[] {
  const models = listed.filter(({ path }) => !ASIDE.test(path))
  const firsts = models.filter(({ path }) => (SPLIT.exec(path)?.[1] ?? '00001') === '00001')
  if (firsts.length === 0)
    throw new KvfoldError('model/not-found', `${repository} has no GGUF file; look for a repository whose name ends in -GGUF.`)
  const withQuant = (wanted: string) => firsts.filter(({ path }) => quantOf(path)?.toLowerCase() === wanted.toLowerCase())
  const first =
    file !== null
      ? listed.find(({ path }) => path === file)
      : quant !== null
        ? withQuant(quant)[0]
        : (USUAL.flatMap(withQuant)[0] ?? firsts[0])
  if (first === undefined) {
    const there = [...new Set(firsts.map(({ path }) => (file === null ? (quantOf(path) ?? path) : path)))].slice(0, 40)
    throw new KvfoldError('model/not-found', `${repository} has no ${file ?? quant}; it has ${there.join(', ')}.`)
  }
  const [split, , count] = SPLIT.exec(first.path) ?? []
  if (split === undefined) return [first]
  return Array.from({ length: Number(count) }, (_, index) => {
    const path = first.path.replace(SPLIT, `-${String(index + 1).padStart(5, '0')}-of-${count}`)
    const part = listed.find((each) => each.path === path)
    if (part !== undefined) return part
    throw new KvfoldError('model/not-found', `${repository} lacks ${path}, a part of the split model; choose another file.`)
  })
}

/** Returns the quantisation in a file name, such as `Q4_K_M`; null when there is none. */
export const quantOf = (path: string): string | null =>
  /[-._/]((?:UD-)?(?:I?Q\d[\w]*|TQ\d_0|MXFP4[\w]*|BF16|F16|F32))(?:-\d{5}-of-\d{5})?\.gguf$/i.exec(`/${path}`)?.[1] ?? null
