/**
 * Builds the addon: headers from the source bundle of the installed node-llama-cpp package, one compiler call for each file, the result in
 * build/kvfold.node. Beside it, build/kvfold.json has the release and the hash of the inputs. It skips steps that are up to date, and
 * copies the package's addon (prebuilds/, see release.mjs) if that was made of the same inputs and loads here. It runs when the package is
 * installed, so it names any missing program in one sentence.
 */
import { execFile, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { createRequire } from 'node:module'
import { availableParallelism } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { promisify } from 'node:util'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const output = join(root, 'build')
const sourceFolder = join(root, 'src', 'runtime', 'native')
const require = createRequire(import.meta.url)
const DISK_FULL = 'the disk is full; free some space and run npm ci again'

/** Its message is the sentence that the user sees. */
class Missing extends Error {}

/** The environment without git's own variables, which npm sets when it runs within a git hook. */
const environment = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('GIT_')))

/** Runs a program and returns its output. If it fails, its last lines become the error. */
function run(program, args) {
  const { status, signal, stdout, stderr, error } = spawnSync(program, args, {
    env: environment,
    encoding: 'utf8',
    maxBuffer: 1 << 28,
  })
  if (error?.code === 'ENOENT') throw new Missing(`${program} was not found; install it and run npm ci again`)
  if (error) throw error
  if (status === 0) return stdout
  throw failed(program, signal ?? `exit code ${status}`, stderr)
}

function failed(program, how, stderr) {
  if (/no space left on device|disk quota exceeded/i.test(stderr)) return new Missing(DISK_FULL)
  return new Missing(`${basename(program)} failed (${how}): ${stderr.trim().split('\n').slice(-8).join('\n')}`)
}

/** Runs a program once for each list of arguments, as many at once as there are cores. */
async function runAll(program, lists) {
  const waiting = [...lists]
  const one = async () => {
    for (let args = waiting.shift(); args !== undefined; args = waiting.shift())
      try {
        await promisify(execFile)(program, args, { env: environment, maxBuffer: 1 << 28 })
      } catch (error) {
        waiting.length = 0
        throw typeof error.code === 'string' ? error : failed(program, error.signal ?? `exit code ${error.code}`, error.stderr)
      }
  }
  await Promise.all(Array.from({ length: availableParallelism() }, one))
}

function works(program) {
  const { error, status } = spawnSync(program, ['--version'], { stdio: 'ignore' })
  return !error && status === 0
}

/**
 * Returns the folder of an installed package, hoisted or not. Some packages hide their package.json from require.resolve, so the folders
 * are tried in order.
 */
function packageFolder(name) {
  const folders = (require.resolve.paths(name) ?? []).map((folder) => join(folder, name))
  const found = folders.find((folder) => existsSync(join(folder, 'package.json')))
  if (found === undefined) throw new Missing(`the package ${name} is not installed; run npm ci in the project's folder`)
  return found
}

const readJson = (file) => JSON.parse(readFileSync(file, 'utf8'))

/** Writes a file that is complete as soon as it has its name. */
function writeWhole(file, text) {
  writeFileSync(`${file}.${process.pid}`, text)
  renameSync(`${file}.${process.pid}`, file)
}

/** Extracts llama.h and ggml's headers of node-llama-cpp's release to build/llama.cpp/<release>. */
function extractHeaders(bundle, release) {
  const folder = join(output, 'llama.cpp', release)
  if (existsSync(join(folder, 'complete'))) return folder
  const temporary = mkdtempSync(join(output, 'headers-'))
  try {
    const repository = join(temporary, 'repository')
    run('git', ['clone', '--quiet', '--bare', bundle, repository])
    const git = (...args) => run('git', ['--git-dir', repository, ...args])
    const headers = git('ls-tree', '-r', '--name-only', 'HEAD', 'include', 'ggml/include')
      .split('\n')
      .filter((name) => name.endsWith('.h'))
    const target = join(temporary, 'headers')
    mkdirSync(target)
    for (const header of headers) writeFileSync(join(target, basename(header)), git('show', `HEAD:${header}`))
    writeFileSync(join(target, 'complete'), release)
    rmSync(folder, { recursive: true, force: true })
    mkdirSync(dirname(folder), { recursive: true })
    renameSync(target, folder)
    return folder
  } finally {
    rmSync(temporary, { recursive: true, force: true })
  }
}

/** Returns a hash of everything that affects the addon. */
function hashOf(release, sources, packages) {
  const hash = createHash('sha256').update(`${release} ${process.platform} ${process.arch}`)
  for (const folder of packages) hash.update(readJson(join(folder, 'package.json')).version)
  for (const file of [fileURLToPath(import.meta.url), ...sources]) hash.update(basename(file)).update(readFileSync(file))
  return hash.digest('hex')
}

/** Whether a build with this hash exists. */
function isBuilt(addon, stampFile, hash) {
  try {
    return existsSync(addon) && readJson(stampFile).hash === hash
  } catch {
    return false
  }
}

/**
 * Returns why the addon in build/ does not load here (an older C or C++ library, another CPU), or null when it does. Tries it in a separate
 * process.
 */
function refusal() {
  const loader = pathToFileURL(join(root, 'dist', 'runtime', 'native', 'addon.js')).href
  const load = `import(${JSON.stringify(loader)}).then(({ loadAddon }) => loadAddon('cpu')).then(() => process.exit(0))`
  const { status, signal, stderr } = spawnSync(process.execPath, ['-e', load], { encoding: 'utf8' })
  if (status === 0) return null
  return /^\w*Error: (.*)/m.exec(stderr)?.[1] ?? `it ended with ${signal ?? `exit code ${status}`}`
}

/** Copies the package's addon to build/ if it fits. */
function usePrebuilt(addon, stampFile, hash) {
  const folder = join(root, 'prebuilds', `${process.platform}-${process.arch}`)
  const stamp = join(folder, 'kvfold.json')
  if (!isBuilt(join(folder, 'kvfold.node'), stamp, hash)) return false
  mkdirSync(output, { recursive: true })
  const temporary = `${addon}.${process.pid}`
  copyFileSync(join(folder, 'kvfold.node'), temporary)
  renameSync(temporary, addon)
  writeWhole(stampFile, readFileSync(stamp, 'utf8'))
  const reason = refusal()
  if (reason === null) {
    console.log(`kvfold: uses the native addon of the package, made for llama.cpp ${readJson(stamp).release}`)
    return true
  }
  rmSync(stampFile)
  rmSync(addon)
  console.log(`kvfold: the addon of the package does not load here (${reason}), so it is built`)
  return false
}

function findCompiler() {
  const compiler = [process.env.CXX, 'g++', 'clang++', 'c++'].filter(Boolean).find(works)
  if (compiler !== undefined) return compiler
  throw new Missing(
    'no C++ compiler was found; install g++ or clang++ (Debian: apt install g++; macOS: xcode-select --install), or name one in CXX, and run npm ci again',
  )
}

async function build() {
  if (process.platform === 'win32') throw new Missing('Windows is not supported yet; use Linux, macOS or WSL')
  const bundled = join(packageFolder('node-llama-cpp'), 'llama')
  const { release } = readJson(join(bundled, 'binariesGithubRelease.json'))
  const packages = [packageFolder('node-addon-api'), packageFolder('node-api-headers')]
  const sources = readdirSync(sourceFolder)
    .filter((name) => /\.(cc|h)$/.test(name))
    .sort()
    .map((name) => join(sourceFolder, name))
  const addon = join(output, 'kvfold.node')
  const stampFile = join(output, 'kvfold.json')
  const hash = hashOf(release, sources, packages)
  if (isBuilt(addon, stampFile, hash) || usePrebuilt(addon, stampFile, hash)) return

  if (!works('git'))
    throw new Missing("git was not found, and llama.cpp's headers come out of a git bundle; install git and run npm ci again")
  const compiler = findCompiler()
  mkdirSync(output, { recursive: true })
  const headers = extractHeaders(join(bundled, 'gitRelease.bundle'), release)
  const temporary = `${addon}.${process.pid}`
  const objects = mkdtempSync(join(output, 'objects-'))
  try {
    // JavaScript may end while a task runs, for instance in a worker thread. Then an error of the task reaches nothing, and is dropped.
    const defines = ['-DNAPI_CPP_EXCEPTIONS', '-DNODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS']
    const options = ['-std=c++17', '-O2', '-fPIC', '-pthread', '-fexceptions', '-fvisibility=hidden', ...defines]
    const folders = [headers, packages[0], join(packages[1], 'include')].map((folder) => `-I${folder}`)
    const units = sources
      .filter((name) => name.endsWith('.cc'))
      .map((source) => ({ source, object: join(objects, `${basename(source)}.o`) }))
    // The largest files first, so that no core waits for one at the end.
    units.sort((a, b) => statSync(b.source).size - statSync(a.source).size)
    await runAll(
      compiler,
      units.map(({ source, object }) => [...options, ...folders, '-c', source, '-o', object]),
    )
    run(compiler, [
      ...['-shared', '-pthread'],
      // llama.cpp's functions are found at load time, in the variant of the library that node-llama-cpp chose.
      ...(process.platform === 'darwin' ? ['-undefined', 'dynamic_lookup'] : []),
      ...units.map(({ object }) => object),
      ...['-o', temporary],
    ])
    renameSync(temporary, addon)
  } finally {
    rmSync(temporary, { force: true })
    rmSync(objects, { recursive: true, force: true })
  }
  writeWhole(stampFile, `${JSON.stringify({ release, hash })}\n`)
  console.log(`kvfold: built the native addon for llama.cpp ${release} with ${basename(compiler)}`)
}

try {
  await build()
} catch (error) {
  const full = error?.code === 'ENOSPC' || error?.code === 'EDQUOT'
  const system = typeof error?.code === 'string' && error?.syscall !== undefined
  if (!full && !system && !(error instanceof Missing)) throw error
  console.error(`kvfold: the native addon cannot be built: ${full ? DISK_FULL : error.message}.`)
  process.exit(1)
}
