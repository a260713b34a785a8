/**
 * Finds and installs Vulkan's software device (Mesa's llvmpipe), and sets the environment in which a process uses it. Releases before 25
 * write to freed memory and end the process, even in plain decodes. Debian 12 has 22.3, so the driver of its backports is unpacked beside
 * it in .cache/mesa; the system stays unchanged.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const OLDEST = 25
const LIBRARY = 'libvulkan_lvp.so'
const cache = join(dirname(dirname(fileURLToPath(import.meta.url))), '.cache', 'mesa')
const manifest = join(cache, 'lvp_icd.json')

const folders = () => ['/usr/lib', '/usr/lib64', ...['x86_64', 'aarch64'].map((machine) => `/usr/lib/${machine}-linux-gnu`)]

/** Returns the release of the system's driver, e.g. 22, or null if there is none. */
function installedRelease() {
  const path = folders()
    .map((folder) => join(folder, LIBRARY))
    .find(existsSync)
  if (path === undefined) return null
  const release = /Mesa (\d+)\.\d+\.\d+/.exec(readFileSync(path).toString('latin1'))?.[1]
  return release === undefined ? null : Number(release)
}

export const hasSoftwareVulkan = () => existsSync(manifest) || (installedRelease() ?? 0) >= OLDEST

/**
 * Returns the environment for a process that uses it. ggml uses a software device only by its index. Compiled kernels are cached for later
 * processes, because each takes seconds to half a minute. LLVM's optimisation is off, which does not slow these small models noticeably.
 */
export function softwareVulkan() {
  return {
    GGML_VK_VISIBLE_DEVICES: '0',
    GALLIVM_PERF: 'nopt',
    MESA_SHADER_CACHE_DIR: join(cache, 'kernels'),
    ...(existsSync(manifest) ? { VK_DRIVER_FILES: manifest } : {}),
  }
}

const say = (program, ...words) => {
  const { status, stdout } = spawnSync(program, words, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] })
  return status === 0 ? stdout : ''
}

/** Fetches the newer driver of Debian's backports if the installed one is too old. Its libraries are the installed ones. */
export function fetchSoftwareVulkan() {
  const codename = /^VERSION_CODENAME=(\w+)$/m.exec(readFileSync('/etc/os-release', 'utf8'))?.[1]
  const format = ['--format', '$(REPO_URI) $(RELEASE) $(COMPONENT) $(CREATED_BY)']
  const line = say('apt-get', 'indextargets', ...format)
    .split('\n')
    .find((target) => target.includes(` ${codename} main Packages`))
  if (line === undefined) return false
  const [site] = line.split(' ')
  const keys = '/usr/share/keyrings/debian-archive-keyring.gpg'
  const signed = existsSync(keys) ? `[signed-by=${keys}] ` : ''
  rmSync(cache, { recursive: true, force: true })
  for (const folder of ['lists/partial', 'archives/partial']) mkdirSync(join(cache, 'apt', folder), { recursive: true })
  const sources = join(cache, 'apt', 'sources.list')
  writeFileSync(sources, `deb ${signed}${site} ${codename}-backports main\n`)
  // apt gets separate lists and packages, so it needs no rights and leaves the system's sources as they are.
  const own = {
    'Dir::Etc::sourcelist': sources,
    'Dir::Etc::sourceparts': '-',
    'Dir::State::lists': join(cache, 'apt', 'lists'),
    'Dir::Cache': join(cache, 'apt'),
  }
  const apt = (...words) =>
    spawnSync('apt-get', [...Object.entries(own).flatMap(([name, value]) => ['-o', `${name}=${value}`]), '-q', ...words], {
      cwd: cache,
      stdio: 'ignore',
    }).status === 0
  if (!apt('update') || !apt('download', 'mesa-vulkan-drivers')) return false
  const archive = readdirSync(cache).find((name) => name.endsWith('.deb'))
  if (archive === undefined || spawnSync('dpkg', ['-x', join(cache, archive), join(cache, 'files')]).status !== 0) return false
  rmSync(join(cache, archive))
  rmSync(join(cache, 'apt'), { recursive: true })
  const library = folders()
    .map((folder) => join(cache, 'files', folder, LIBRARY))
    .find(existsSync)
  if (library === undefined) return false
  const shipped = readdirSync(join(cache, 'files', 'usr', 'share', 'vulkan', 'icd.d')).find((name) => name.startsWith('lvp_icd'))
  const { ICD: driver, ...rest } = JSON.parse(
    readFileSync(join(cache, 'files', 'usr', 'share', 'vulkan', 'icd.d', shipped), 'utf8'),
  )
  writeFileSync(manifest, JSON.stringify({ ...rest, ICD: { ...driver, library_path: realpathSync(library) } }))
  return true
}
