/**
 * Makes build/kvfold-<version>.tgz, the package as published: `dist/` built from scratch, this machine's addon in prebuilds/, and only the
 * listed files. Prints what the addon requires of a machine.
 */
import { spawnSync } from 'node:child_process'
import { copyFileSync, mkdirSync, readFileSync, rmSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { check, Wrong } from './package-content.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const platform = `${process.platform}-${process.arch}`
const prebuilds = join(root, 'prebuilds')

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
