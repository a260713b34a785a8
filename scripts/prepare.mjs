/** Builds `dist/` when a checkout is installed: the program and the dashboard at the same time, which takes two cores half as long. */
import { spawn } from 'node:child_process'
import { copyFileSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build } from 'vite'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const dist = join(root, 'dist')

/** Resolves to the exit code of a program that npm puts into the path. */
const run = (program, ...args) =>
  new Promise((resolve, reject) => {
    const child = spawn(program, args, { cwd: root, stdio: 'inherit' })
    child.once('error', reject)
    child.once('close', (code) => resolve(code ?? 1))
  })

/** The modules of typebox that the program imports, by the names of their files in `dist/typebox`. */
const TYPEBOX = { index: 'typebox', schema: 'typebox/schema', value: 'typebox/value' }

/**
 * Writes typebox into three files. The package has 679 small files, which take more than half of the time in which kvfold starts. The types
 * still come from the package.
 */
async function writeTypebox() {
  const outDir = join(dist, 'typebox')
  await build({
    ...{ root, configFile: false, publicDir: false, logLevel: 'warn', ssr: { noExternal: true } },
    build: {
      ...{ ssr: true, outDir, minify: false, target: 'node20' },
      rollupOptions: { input: TYPEBOX, preserveEntrySignatures: 'strict', output: { entryFileNames: '[name].js' } },
    },
  })
  copyFileSync(join(root, 'node_modules/typebox/license'), join(outDir, 'LICENSE'))
}

/** Makes the compiled program import these files. */
function useTypebox() {
  const files = Object.entries(TYPEBOX)
  for (const name of readdirSync(dist, { recursive: true, encoding: 'utf8' })) {
    if (!name.endsWith('.js') || /^(?:typebox|dashboard)\b/u.test(name)) continue
    const path = join(dist, name)
    const text = readFileSync(path, 'utf8')
    const to = `${relative(dirname(path), join(dist, 'typebox'))}/`
    const own = to.startsWith('.') ? to : `./${to}`
    const changed = files.reduce((all, [file, module]) => all.replaceAll(`from '${module}'`, `from '${own}${file}.js'`), text)
    if (changed !== text) writeFileSync(path, changed)
  }
}

const codes = await Promise.all([
  run('tsc', '-p', 'tsconfig.build.json').then(async (code) => {
    if (code === 0) {
      await writeTypebox()
      useTypebox()
    }
    return code
  }),
  run('vite', 'build', 'src/runtime/dashboard', '--logLevel', 'warn'),
])
process.exitCode = Math.max(...codes)
