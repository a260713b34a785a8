/** `kvfold model info` and `kvfold model synth`: what a file is, and making one with random weights. */
import { stat } from 'node:fs/promises'
import { resolve } from 'node:path'
import { Option, type Command } from 'commander'
import { KvfoldError } from '../../core/errors.js'
import { synthesizeModel } from '../../native/synthetic.js'
import { bytes } from '../../figures/numbers.js'
import { reportLines, reportOf } from '../model-report.js'
import { integer } from '../options.js'
import { modelPath, nativeLibrary } from '../runtime.js'
import type { Shell } from '../shell.js'
import { printable } from '../terminal.js'

export function addModel(program: Command, shell: Shell): void {
  const model = program.command('model').description('look at model files, make synthetic ones')
  model
    .command('info')
    .description('what a GGUF file is and what kvfold can do with it')
    .argument('<model>', 'GGUF file, hub URI or `builtin`')
    .option('--json', 'one JSON object')
    .action((name: string, flags: { json?: true }) => info(name, flags, shell))
  model
    .command('synth')
    .description(
      'write a GGUF of a given shape with random weights, for tests and benchmarks: as fast as a real one, says nothing sensible',
    )
    .argument('<out>', 'file to write')
    .addOption(new Option('--architecture <name>', 'shape').choices(['llama', 'qwen2']).default('llama'))
    .option('--layers <count>', 'transformer layers', integer(1, 1000), 2)
    .option('--embedding <size>', 'width, a multiple of --heads', integer(32, 65_536), 64)
    .option('--heads <count>', 'attention heads', integer(1, 1024), 4)
    .option('--kv-heads <count>', 'key/value heads, a divisor of --heads (default: --heads)', integer(1, 1024))
    .option('--feed-forward <size>', 'width of the feed-forward layers (default: 4 x embedding)', integer(32, 1 << 20))
    .option('--vocabulary <count>', 'tokens', integer(300, 1 << 20), 512)
    .option('--context <tokens>', 'trained context', integer(16, 1 << 24), 4096)
    .option('--rope-base <value>', 'rotary base frequency', integer(1, 1e9), 10_000)
    .addOption(new Option('--type <type>', 'number format of the weights').choices(['f16', 'f32']).default('f16'))
    .option('--seed <number>', 'the same seed writes the same file', integer(0, 0xffffffff), 1)
    .action((out: string, flags: SynthFlags) => synth(out, flags, shell))
}

async function info(name: string, { json }: { json?: true }, { out, notes, interrupt }: Shell): Promise<void> {
  const path = await modelPath(name, notes, interrupt.signal)
  const native = await nativeLibrary('cpu')
  const model = await native.loadModel(path, { gpuLayers: 0 })
  try {
    const report = reportOf(model)
    if (json === true) out.print(JSON.stringify(report))
    else for (const line of reportLines(report)) out.print(printable(line))
  } finally {
    await model.dispose()
  }
}

interface SynthFlags {
  readonly architecture: 'llama' | 'qwen2'
  readonly layers: number
  readonly embedding: number
  readonly heads: number
  readonly kvHeads?: number
  readonly feedForward?: number
  readonly vocabulary: number
  readonly context: number
  readonly ropeBase: number
  readonly type: 'f16' | 'f32'
  readonly seed: number
}

async function synth(
  out: string,
  { heads, kvHeads = heads, embedding, feedForward = 4 * embedding, ...rest }: SynthFlags,
  shell: Shell,
): Promise<void> {
  const path = resolve(out)
  try {
    await synthesizeModel(path, { ...rest, heads, kvHeads, embedding, feedForward })
  } catch (error) {
    if (error instanceof Error && 'code' in error && typeof error.code === 'string' && /^E[A-Z]+$/.test(error.code))
      throw new KvfoldError('cli/bad-usage', `${path} cannot be written (${error.code}).`, { cause: error })
    throw error
  }
  shell.out.print(`${path}: ${bytes((await stat(path)).size)}`)
}
