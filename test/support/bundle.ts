/**
 * Extracts files from the source bundle of the installed node-llama-cpp (real chat templates, real vocabularies) into the ignored .cache.
 */
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('../..', import.meta.url))
const packageFolder = join(root, 'node_modules', 'node-llama-cpp')

function bundleFolder(): string {
  const { version } = JSON.parse(readFileSync(join(packageFolder, 'package.json'), 'utf8')) as { version: string }
  return join(root, '.cache', `bundle-${version}`)
}

/** Returns the local path of a file or folder in the bundle's newest commit. */
export function fromBundle(path: string): string {
  const folder = bundleFolder()
  return made(folder, path, (temporary) => {
    const tree = join(temporary, 'tree')
    mkdirSync(tree)
    const env = { ...process.env, GIT_INDEX_FILE: join(temporary, 'index') }
    execFileSync('git', ['--git-dir', repositoryIn(folder), '--work-tree', tree, 'checkout', '--quiet', 'HEAD', '--', path], {
      env,
    })
    return join(tree, path)
  })
}

/** Returns the paths in a folder of the bundle's newest commit. */
function inBundle(folder: string): string[] {
  const repository = repositoryIn(bundleFolder())
  return execFileSync('git', ['--git-dir', repository, 'ls-tree', '--name-only', 'HEAD', `${folder}/`], {
    encoding: 'utf8',
  }).split('\n')
}

/** Clones the bundle. That takes seconds, so it is done once for all files. */
const repositoryIn = (folder: string): string =>
  made(folder, 'repository', (temporary) => {
    const clone = join(temporary, 'clone')
    execFileSync('git', ['clone', '--quiet', '--bare', join(packageFolder, 'llama', 'gitRelease.bundle'), clone])
    return clone
  })

/** Returns the file or folder `name` of `folder`. If it is missing, `make` makes it in an empty folder and returns its path. */
function made(folder: string, name: string, make: (temporary: string) => string): string {
  const wanted = join(folder, name)
  if (existsSync(wanted)) return wanted
  mkdirSync(dirname(wanted), { recursive: true })
  const temporary = mkdtempSync(join(folder, 'extract-'))
  try {
    const whole = make(temporary)
    try {
      renameSync(whole, wanted)
    } catch (error) {
      // Another process may have made it in the meantime.
      if (!existsSync(wanted)) throw error
    }
  } finally {
    rmSync(temporary, { recursive: true, force: true })
  }
  return wanted
}

export interface RealTemplate {
  readonly name: string
  readonly source: string
}

/** Returns all real templates of the bundle, by name. */
export function realTemplates(): RealTemplate[] {
  const folder = fromBundle('models/templates')
  return readdirSync(folder)
    .filter((file) => file.endsWith('.jinja'))
    .sort()
    .map((file) => ({ name: file.replace(/\.jinja$/, ''), source: readFileSync(join(folder, file), 'utf8') }))
}

export function realTemplate(name: string): string {
  // The whole folder is extracted at once, so that a part of it never counts as complete.
  return readFileSync(join(fromBundle('models/templates'), `${name}.jinja`), 'utf8')
}

/** Returns the path of a real vocabulary, e.g. `llama-bpe`. */
export const realVocabulary = (name: string): string => fromBundle(`models/ggml-vocab-${name}.gguf`)

/** Returns the names of all real vocabularies of the bundle. */
export function realVocabularies(): string[] {
  return inBundle('models')
    .flatMap((file) => /^models\/ggml-vocab-(.*)\.gguf$/.exec(file)?.[1] ?? [])
    .sort()
}
