/**
 * Installs what some tests need beyond a clean clone, so that none of them is skipped: `node scripts/test-parts.mjs [part ...]`, by default
 * all. It installs missing Debian packages and builds llama-server (bench/runtime/peers). If a part is not available, it says so in one
 * sentence and fails.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { fetchSoftwareVulkan, hasSoftwareVulkan } from './software-vulkan.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))

const works = (program, ...args) => spawnSync(program, args, { stdio: 'ignore' }).status === 0
const isBuilt = () =>
  existsSync(join(root, '.cache')) &&
  readdirSync(join(root, '.cache')).some((name) => existsSync(join(root, '.cache', name, 'llama-server')))

/** For each part: its purpose, whether it is installed, and Debian's package. */
const PARTS = {
  chromium: { for: 'the dashboard and reports in a browser', there: () => existsSync('/usr/bin/chromium'), package: 'chromium' },
  vulkan: {
    for: 'the GPU path, on a device of Vulkan that computes in software',
    there: hasSoftwareVulkan,
    package: 'mesa-vulkan-drivers',
  },
  numpy: {
    for: 'the ONNX export',
    there: () => ['python3', '/usr/bin/python3'].some((python) => works(python, '-c', 'import numpy')),
    package: 'python3-numpy',
  },
  postgresql: {
    for: 'the store in PostgreSQL',
    there: () => existsSync('/usr/lib/postgresql') && readdirSync('/usr/lib/postgresql').length > 0,
    package: 'postgresql',
  },
  'llama-server': {
    for: 'the engine over llama-server',
    there: () => isBuilt() || works('cmake', '--version'),
    package: 'cmake',
  },
}

/** Returns the beginning of a command that may install packages, or null if that needs a password. */
function installer() {
  if (!works('apt-get', '--version')) return null
  if (process.getuid?.() === 0) return ['apt-get']
  return works('sudo', '-n', 'true') ? ['sudo', '-n', 'apt-get'] : null
}

function install(packages) {
  const [program, ...first] = installer() ?? []
  if (program === undefined) return false
  console.error(`installing ${packages.join(', ')}`)
  const apt = (...words) => {
    const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }
    return spawnSync(program, [...first, ...words], { stdio: ['ignore', 'ignore', 'inherit'], env }).status === 0
  }
  return apt('update', '-qq') && apt('install', '-y', '-qq', '--no-install-recommends', ...packages)
}

const asked = process.argv.slice(2)
const unknown = asked.filter((name) => !(name in PARTS))
if (unknown.length > 0) {
  console.error(`There is no part ${unknown.join(', ')}; there are ${Object.keys(PARTS).join(', ')}.`)
  process.exit(2)
}
const names = asked.length > 0 ? asked : Object.keys(PARTS)
const absent = () => names.filter((name) => !PARTS[name].there())
if (absent().length > 0) install(absent().map((name) => PARTS[name].package))
if (absent().includes('vulkan')) fetchSoftwareVulkan()
const missing = absent()
if (missing.length > 0) {
  const list = missing.map((name) => `${PARTS[name].package} (${PARTS[name].for})`).join(', ')
  console.error(`Missing, and not to be installed from here: ${list}. Install them and try again.`)
  process.exit(1)
}
if (names.includes('llama-server') && !isBuilt()) {
  const peer = new URL('../bench/runtime/peers/llama-server.ts', import.meta.url).href
  const build = `import(${JSON.stringify(peer)}).then(({ buildLlamaServer }) => buildLlamaServer())`
  const { status } = spawnSync(process.execPath, ['--import', 'tsx', '--eval', build], { cwd: root, stdio: 'inherit' })
  if (status !== 0) process.exit(1)
}
