/** Files out of the source bundle of the installed node-llama-cpp (real chat templates, real vocabularies), kept in the ignored .cache. */
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

/** Paths on this machine of a file or folder of the bundle's newest commit. */
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

/** Paths in a folder of the bundle's newest commit. */
function inBundle(folder: string): string[] {
  const repository = repositoryIn(bundleFolder())
  return execFileSync('git', ['--git-dir', repository, 'ls-tree', '--name-only', 'HEAD', `${folder}/`], {
    encoding: 'utf8',
  }).split('\n')
}

/** Takes seconds to make, so it is made once for all that is ever wanted. */
const repositoryIn = (folder: string): string =>
  made(folder, 'repository', (temporary) => {
    const clone = join(temporary, 'clone')
    execFileSync('git', ['clone', '--quiet', '--bare', join(packageFolder, 'llama', 'gitRelease.bundle'), clone])
    return clone
  })

/** The file or folder `name` of `folder`; if it is not there, what `make` makes of an empty folder and returns the path of. */
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
      // Another process may have made it meanwhile.
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

/** All real templates of the bundle, by name. */
export function realTemplates(): RealTemplate[] {
  const folder = fromBundle('models/templates')
  return readdirSync(folder)
    .filter((file) => file.endsWith('.jinja'))
    .sort()
    .map((file) => ({ name: file.replace(/\.jinja$/, ''), source: readFileSync(join(folder, file), 'utf8') }))
}

export function realTemplate(name: string): string {
  // The folder as a whole: a part of it must never pass for all of it.
  return readFileSync(join(fromBundle('models/templates'), `${name}.jinja`), 'utf8')
}

/** Path of a real vocabulary, e.g. `llama-bpe`. */
export const realVocabulary = (name: string): string => fromBundle(`models/ggml-vocab-${name}.gguf`)

/** The names of all real vocabularies of the bundle. */
export function realVocabularies(): string[] {
  return inBundle('models')
    .flatMap((file) => /^models\/ggml-vocab-(.*)\.gguf$/.exec(file)?.[1] ?? [])
    .sort()
}
