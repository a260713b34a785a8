/**
 * Installs other routers and engines outside the repository: `node scripts/engine-parts.mjs [part ...]`, by default all that need no GPU.
 * pip installs each into its own virtual environment, in the versions below, under KVFOLD_ENGINE_PARTS (default ~/.cache/kvfold/engines).
 * `npm run bench -- engines` and `npm run bench -- engine-table` run the installed ones and name the missing ones. llama-cpp-python is
 * compiled (15 minutes on two cores).
 */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'

const PARTS = {
  routers: { packages: ['sglang-router==0.3.2', 'vllm-router==0.1.17'] },
  transformers: { packages: ['torch', 'transformers[serving]==5.23.0', 'gguf==0.19.0'] },
  'llama-cpp-python': {
    packages: ['llama-cpp-python[server]==0.3.36'],
    env: { CMAKE_ARGS: '-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_OPENSSL=OFF' },
  },
  vllm: { packages: ['vllm'], gpu: true },
  sglang: { packages: ['sglang[all]'], gpu: true },
}

/** The model for engines that do not load GGUF. */
const tinyModel = fileURLToPath(new URL('../bench/fleet/engines/tiny_model.py', import.meta.url))
const folder = process.env['KVFOLD_ENGINE_PARTS'] ?? join(homedir(), '.cache', 'kvfold', 'engines')

function run(command, args, env = {}) {
  const { status, error } = spawnSync(command, args, { stdio: 'inherit', env: { ...process.env, ...env } })
  if (error !== undefined || status !== 0)
    throw new Error(
      `${command} ${args.join(' ')} failed${error === undefined ? ` with ${status}` : `: ${error.message}`}; see above.`,
    )
}

const asked = process.argv.slice(2)
const unknown = asked.filter((name) => !(name in PARTS))
if (unknown.length > 0) {
  console.error(`There is no part ${unknown.join(', ')}; there are ${Object.keys(PARTS).join(', ')}.`)
  process.exit(2)
}
for (const name of asked.length > 0 ? asked : Object.keys(PARTS).filter((each) => PARTS[each].gpu !== true)) {
  const { packages, env } = PARTS[name]
  const venv = join(folder, name)
  const python = join(venv, 'bin', 'python')
  mkdirSync(folder, { recursive: true })
  if (!existsSync(python)) run('python3', ['-m', 'venv', venv])
  run(python, ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', ...packages], env)
  console.log(`${name}: ${venv}`)
  const model = join(folder, 'tiny-model')
  if (name === 'transformers' && !existsSync(model)) run(python, [tinyModel, model])
}
