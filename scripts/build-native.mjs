/**
 * Builds the addon: headers out of the installed node-llama-cpp package's source bundle, one compiler call, the result at build/kvfold.node.
 * Skips what is up to date. Whatever is missing is named in one sentence.
 */
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const require = createRequire(import.meta.url)

class Missing extends Error {}

/** Runs a program and returns what it printed; its own last words become the error. */
function run(program, args) {
  const { status, stdout, stderr, error } = spawnSync(program, args, { encoding: 'utf8', maxBuffer: 1 << 28 })
  if (error?.code === 'ENOENT') throw new Missing(`${program} was not found`)
  if (error) throw error
  if (status === 0) return stdout
  if (/No space left on device/i.test(stderr)) throw new Missing('the disk is full: free some space and run npm ci again')
  throw new Missing(`${program} failed: ${stderr.trim().split('\n').slice(-8).join('\n')}`)
}

function has(program) {
  return !spawnSync(program, ['--version'], { stdio: 'ignore' }).error
}

/** Where a package is installed; `exports` of some hide their package.json from require.resolve, so the folders are asked in its order. */
function packageFolder(name) {
  const found = require.resolve.paths(name).map((folder) => join(folder, name)).find((folder) => existsSync(join(folder, 'package.json')))
  if (found === undefined) throw new Missing(`the package ${name} is not installed: run npm ci in the project's folder`)
  return found
}

/** llama.h and ggml's headers of the release that node-llama-cpp ships, in build/llama.cpp/<release>. */
function extractHeaders(bundleFolder, release) {
  const folder = join(root, 'build', 'llama.cpp', release)
  if (existsSync(join(folder, 'complete'))) return folder
  const temporary = mkdtempSync(join(root, 'build', 'headers-'))
  try {
    const repository = join(temporary, 'repository')
    run('git', ['clone', '--quiet', '--bare', join(bundleFolder, 'gitRelease.bundle'), repository])
    const git = (...args) => run('git', ['--git-dir', repository, ...args])
    const headers = git('ls-tree', '-r', '--name-only', 'HEAD', 'include', 'ggml/include').split('\n')
    const target = join(temporary, 'headers')
    mkdirSync(target)
    for (const header of headers.filter((name) => name.endsWith('.h'))) writeFileSync(join(target, header.split('/').at(-1)), git('show', `HEAD:${header}`))
    writeFileSync(join(target, 'complete'), release)
    rmSync(folder, { recursive: true, force: true })
    mkdirSync(dirname(folder), { recursive: true })
    renameSync(target, folder)
    return folder
  } finally {
    rmSync(temporary, { recursive: true, force: true })
  }
}

function build() {
  if (process.platform === 'win32') throw new Missing('Windows is not supported yet; use Linux, macOS or WSL')
  if (!has('git')) throw new Missing("git was not found, and the addon's headers come out of a git bundle: install git and run npm ci again")
  const compiler = [process.env.CXX, 'g++', 'clang++', 'c++'].filter(Boolean).find(has)
  if (compiler === undefined) throw new Missing('no C++ compiler was found: install g++ or clang++ (Debian: apt install g++; macOS: xcode-select --install) and run npm ci again')

  const nodeLlamaCpp = packageFolder('node-llama-cpp')
  const bundleFolder = join(nodeLlamaCpp, 'llama')
  const { release } = JSON.parse(readFileSync(join(bundleFolder, 'binariesGithubRelease.json'), 'utf8'))
  mkdirSync(join(root, 'build'), { recursive: true })

  const sourceFolder = join(root, 'src', 'native')
  const sources = readdirSync(sourceFolder).filter((name) => /\.(cc|h)$/.test(name)).sort()
  const hash = createHash('sha256').update(release).update(compiler)
  for (const source of sources) hash.update(source).update(readFileSync(join(sourceFolder, source)))
  const stamp = { release, hash: hash.digest('hex') }
  const stampFile = join(root, 'build', 'kvfold.json')
  const addon = join(root, 'build', 'kvfold.node')
  if (existsSync(addon) && existsSync(stampFile) && JSON.parse(readFileSync(stampFile, 'utf8')).hash === stamp.hash) return

  const headers = extractHeaders(bundleFolder, release)
  const temporary = `${addon}.${process.pid}`
  run(compiler, [
    ...['-std=c++17', '-O2', '-fPIC', '-shared', '-fexceptions', '-fvisibility=hidden', '-DNAPI_CPP_EXCEPTIONS'],
    // llama.cpp's functions are found at load time in whichever variant of the library node-llama-cpp chose.
    ...(process.platform === 'darwin' ? ['-undefined', 'dynamic_lookup'] : []),
    ...[headers, packageFolder('node-addon-api'), join(packageFolder('node-api-headers'), 'include')].map((folder) => `-I${folder}`),
    ...sources.filter((name) => name.endsWith('.cc')).map((name) => join(sourceFolder, name)),
    ...['-o', temporary],
  ])
  renameSync(temporary, addon)
  writeFileSync(stampFile, JSON.stringify(stamp))
  console.log(`kvfold: built the native addon for llama.cpp ${release} with ${compiler}`)
}

try {
  build()
} catch (error) {
  const full = error?.code === 'ENOSPC'
  if (!full && !(error instanceof Missing)) throw error
  console.error(`kvfold: cannot build the native addon: ${full ? 'the disk is full: free some space and run npm ci again' : error.message}.`)
  process.exit(1)
}
