/** Finds the built addon, the release of llama.cpp that it was built for, and the package whose libraries it runs on. */
import { existsSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { KvfoldError } from '../core/errors.js'

export interface BuiltAddon {
  /** kvfold's folder, with package.json: the same for code in src/runtime/native and in dist/runtime/native. */
  readonly root: string
  readonly file: string
  /** The release of llama.cpp, e.g. `v0.5.0`. scripts/build-native.mjs writes it beside the addon. */
  readonly release: string
}

/** Finds the built addon. @throws KvfoldError native/build-failed when the addon is not built */
export function builtAddon(): BuiltAddon {
  const root = fileURLToPath(new URL('../../../', import.meta.url)).replace(/\/$/u, '')
  const file = join(root, 'build', 'kvfold.node')
  try {
    const { release } = JSON.parse(readFileSync(join(root, 'build', 'kvfold.json'), 'utf8')) as { release: string }
    if (existsSync(file)) return { root, file, release }
  } catch (error) {
    if (!(error instanceof SyntaxError) && (error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
  }
  throw new KvfoldError(
    'native/build-failed',
    `The native addon is not built (${file}); install kvfold again, or run npm ci or npm run build in ${root}.`,
  )
}

/** Returns the folder of the installed package node-llama-cpp, in any node_modules above this file; null when it is missing. */
export const nodeLlamaCpp = (): string | null =>
  createRequire(import.meta.url)
    .resolve.paths('node-llama-cpp')
    ?.map((path) => join(path, 'node-llama-cpp'))
    .find((path) => existsSync(path)) ?? null
