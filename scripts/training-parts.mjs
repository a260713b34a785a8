/**
 * Installs trainers in a virtual environment outside the repository: `node scripts/training-parts.mjs` installs TRL, transformers, datasets
 * and verl in exact versions (several GB: PyTorch's wheel includes CUDA). `loaders` collects 1,000 trajectories of the built-in model in
 * both forms, and checks that TRL's and verl's own loaders read them token for token. KVFOLD_TRAINING names the folder (default
 * ~/.cache/kvfold/training); KVFOLD_TORCH may name a site-packages folder with PyTorch.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'
import process from 'node:process'
import { fileURLToPath } from 'node:url'

const PINNED = [
  'trl==1.16.0',
  'transformers==5.10.4',
  'datasets==5.2.0',
  'gguf==0.19.0',
  'verl==0.9.1',
  'peft==0.21.2',
  'tensordict==0.10.0',
]
const TORCH = 'torch==2.15.0'
/** Packages that verl's SFT trainer imports without requiring them. */
const FORGOTTEN = ['uvicorn==0.54.0', 'fastapi==0.165.0', 'cachetools==8.0.2']

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const folder = process.env['KVFOLD_TRAINING'] ?? join(homedir(), '.cache', 'kvfold', 'training')
const python = join(folder, 'venv', 'bin', 'python')

function run(command, args) {
  const { status, error } = spawnSync(command, args, { stdio: 'inherit', cwd: root })
  if (error !== undefined || status !== 0)
    throw new Error(`${command} failed${error === undefined ? ` with ${status}` : `: ${error.message}`}; see above.`)
}

function install() {
  mkdirSync(folder, { recursive: true })
  if (!existsSync(python)) run('python3', ['-m', 'venv', join(folder, 'venv')])
  const own = process.env['KVFOLD_TORCH']
  if (own !== undefined) {
    const { stdout } = spawnSync(python, ['-c', 'import site; print(site.getsitepackages()[0])'], { encoding: 'utf8' })
    writeFileSync(join(stdout.trim(), 'torch.pth'), `${own}\n`)
  }
  const torch = own === undefined ? [TORCH] : []
  run(python, ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', ...torch, ...PINNED, ...FORGOTTEN])
  console.log(python)
}

function loaders() {
  if (!existsSync(python)) install()
  const file = (name) => join(folder, name)
  const files = { verl: file('shown.parquet'), 'prompt-completion': file('shown.jsonl') }
  for (const [form, path] of Object.entries(files))
    if (!existsSync(path)) {
      const asked = [
        'collect',
        'pi-llm',
        '--keys',
        '8',
        '--n',
        '4,16',
        '--samples',
        '500',
        '--threads',
        '1',
        '--format',
        form,
        '--out',
        path,
      ]
      run(process.execPath, ['--import', 'tsx', join(root, 'src', 'cli', 'main.ts'), ...asked])
    }
  const tokenizer = join(root, 'native-models', 'builtin', 'onnx')
  run(python, [join(root, 'scripts', 'training', 'loaders.py'), files.verl, files['prompt-completion'], tokenizer])
}

if (process.argv[2] === 'loaders') loaders()
else install()
