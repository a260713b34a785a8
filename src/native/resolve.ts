/** Owns how a model's name becomes a file: a path stays a path, a hub URI is downloaded once through node-llama-cpp. */
import { existsSync } from 'node:fs'
import { resolve } from 'node:path'
import { KvfoldError } from '../core/errors.js'

export interface ResolveOptions {
  /** Stops a download; the unfinished file is removed. */
  readonly signal?: AbortSignal
  /** Bytes so far and in all, several times a second while downloading. */
  readonly onProgress?: (downloaded: number, total: number) => void
}

/** The URI schemes node-llama-cpp's resolveModelFile understands. */
const SCHEME = /^(?:hf|huggingface|https?|modelscope|ms):/i

/** True for what would be downloaded instead of opened. */
export const isModelUri = (uriOrPath: string): boolean => SCHEME.test(uriOrPath)

/**
 * The absolute path of a GGUF file. Downloads go to node-llama-cpp's models folder (`~/.node-llama-cpp/models`) and happen once.
 * @throws KvfoldError model/not-found when there is no such file, or the hub has none or cannot be reached; engine/cancelled on `signal`.
 */
export async function resolveModel(uriOrPath: string, { signal, onProgress }: ResolveOptions = {}): Promise<string> {
  if (!isModelUri(uriOrPath)) {
    const path = resolve(uriOrPath)
    if (!existsSync(path))
      throw new KvfoldError(
        'model/not-found',
        `There is no file ${path}; give the path of a GGUF file or a URI such as hf:user/repository/file.gguf.`,
      )
    return path
  }
  const { resolveModelFile } = await import('node-llama-cpp')
  try {
    return await resolveModelFile(uriOrPath, {
      cli: false,
      ...(signal === undefined ? {} : { signal }),
      ...(onProgress === undefined
        ? {}
        : {
            onProgress: ({ downloadedSize, totalSize }: { downloadedSize: number; totalSize: number }) => {
              onProgress(downloadedSize, totalSize)
            },
          }),
    })
  } catch (error) {
    if (signal?.aborted === true) throw new KvfoldError('engine/cancelled', `The download of ${uriOrPath} was cancelled.`)
    const reason = error instanceof Error ? error.message.split('\n', 1)[0] : String(error)
    throw new KvfoldError(
      'model/not-found',
      `${uriOrPath} could not be downloaded (${reason}); check the URI and the network, or give the path of a GGUF file.`,
      { cause: error },
    )
  }
}
