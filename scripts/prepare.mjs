/** Builds `dist/` when a checkout is installed: the program and the dashboard at the same time, which takes two cores half as long. */
import { spawn } from 'node:child_process'
import { dirname } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(fileURLToPath(import.meta.url)))

/** Resolves to the exit code of a program that npm puts into the path. */
const run = (program, ...args) =>
  new Promise((resolve, reject) => {
    const child = spawn(program, args, { cwd: root, stdio: 'inherit' })
    child.once('error', reject)
    child.once('close', (code) => resolve(code ?? 1))
  })

const codes = await Promise.all([
  run('tsc', '-p', 'tsconfig.build.json'),
  run('vite', 'build', 'src/runtime/dashboard', '--logLevel', 'warn'),
])
process.exitCode = Math.max(...codes)
