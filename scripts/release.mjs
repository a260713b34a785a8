/**
 * Makes build/kvfold-<version>.tgz, the package as published: `dist/` built from scratch, this machine's addon in prebuilds/, and only the
 * listed files. Prints what the addon requires of a machine.
 */
import { spawnSync } from 'node:child_process'
import { copyFileSync, existsSync, mkdirSync, readFileSync, rmSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const platform = `${process.platform}-${process.arch}`
const prebuilds = join(root, 'prebuilds')

/** The files allowed in the package, and whether each is required. */
const CONTENT = [
  { name: /^package\.json$|^README\.md$|^LICENSE$|^scripts\/build-native\.mjs$|^src\/lab\/words\.json$/, least: 5 },
  { name: /^dist\/(?!dashboard\/).*\.(js|js\.map|d\.ts)$/, least: 600 },
  { name: /^dist\/dashboard\/(index\.html|assets\/[\w-]+\.(js|css|svg|txt))$/, least: 3 },
  { name: /^src\/runtime\/native\/[\w-]+\.(cc|h)$/, least: 12 },
  { name: /^native-models\/builtin\/(kvfold-tiny\.gguf|manifest\.json|golden\.json)$/, least: 3 },
  { name: new RegExp(`^prebuilds/${platform}/kvfold\\.(node|json)$`), least: 2 },
]
/** The largest allowed package in bytes; a larger one is a mistake. */
const LARGEST = 12_000_000

class Wrong extends Error {}

function run(program, ...args) {
  const { status, stdout, error } = spawnSync(program, args, {
    cwd: root,
    encoding: 'utf8',
    maxBuffer: 1 << 28,
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  if (error) throw error
  if (status !== 0) throw new Wrong(`${program} ${args.join(' ')} failed with exit code ${status}`)
  return stdout
}

const readJson = (file) => JSON.parse(readFileSync(join(root, file), 'utf8'))

/** Returns the sentence that README and docs rely on: what the addon requires of a machine. */
async function requirementOf(addon) {
  const { highest, readElf } = await import('../dist/runtime/cli/bundle/requirements.js')
  const elf = readElf(addon)
  if (elf === null) return 'what it needs of a machine cannot be read: it is no ELF file'
  const [glibc, cpp] = ['GLIBC_', 'GLIBCXX_'].map((prefix) => highest(elf.needsVersions, prefix))
  return `needs glibc ${glibc} and a C++ library with GLIBCXX_${cpp}`
}

/**
 * Checks the package's files.
 * @throws Wrong with every file that is not allowed and every required file that is missing
 */
function check({ files, size, version }) {
  const names = files.map(({ path }) => path)
  const strange = names.filter((path) => !CONTENT.some(({ name }) => name.test(path)))
  // Files compiled from sources that no longer exist.
  const orphans = names.filter((path) => {
    const source = /^dist\/(?!dashboard\/)(.*?)(\.js|\.js\.map|\.d\.ts)$/.exec(path)?.[1]
    return source !== undefined && !existsSync(join(root, 'src', `${source}.ts`))
  })
  const missing = CONTENT.filter(({ name, least }) => names.filter((path) => name.test(path)).length < least)
  const wrong = [
    ...[...strange, ...orphans].map((path) => `${path} has no place in the package`),
    ...missing.map(({ name, least }) => `there are fewer than ${least} files like ${name.source}`),
    ...(size > LARGEST ? [`it has ${size} bytes, more than ${LARGEST}`] : []),
    ...(readFileSync(join(root, 'CHANGELOG.md'), 'utf8').match(/^## (\S+)/m)?.[1] === version
      ? []
      : [`the newest heading of CHANGELOG.md is not ${version}`]),
  ]
  if (wrong.length > 0) throw new Wrong(`the package is not as it should be:\n${wrong.join('\n')}`)
}

try {
  rmSync(join(root, 'dist'), { recursive: true, force: true })
  run('npm', 'run', '--silent', 'build')
  rmSync(prebuilds, { recursive: true, force: true })
  mkdirSync(join(prebuilds, platform), { recursive: true })
  for (const name of ['kvfold.node', 'kvfold.json']) copyFileSync(join(root, 'build', name), join(prebuilds, platform, name))
  const options = ['--json', '--ignore-scripts', '--pack-destination', join(root, 'build')]
  const [packed] = JSON.parse(run('npm', 'pack', ...options))
  try {
    check(packed)
  } catch (error) {
    rmSync(join(root, 'build', packed.filename), { force: true })
    throw error
  }
  const { release } = readJson('build/kvfold.json')
  console.log(`build/${packed.filename}: ${packed.files.length} files, ${packed.size} bytes`)
  console.log(
    `the addon for ${platform}, made for llama.cpp ${release}, ${await requirementOf(join(prebuilds, platform, 'kvfold.node'))}`,
  )
} catch (error) {
  if (!(error instanceof Wrong)) throw error
  console.error(`kvfold: ${error.message}`)
  process.exitCode = 1
} finally {
  // Otherwise the next install in this folder would use the copied addon instead of building from the sources.
  rmSync(prebuilds, { recursive: true, force: true })
}
