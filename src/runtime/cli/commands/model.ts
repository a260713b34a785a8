/** `kvfold model info` describes a model file; `kvfold model synth` makes one with random weights. */
import { stat } from 'node:fs/promises'
import { resolve } from 'node:path'
import { type Command, Option } from 'commander'
import { ChatFormat } from '../../chat/format.js'
import { KvfoldError } from '../../core/errors.js'
import { abilitiesOf, refusalOf } from '../../engine/model-facts.js'
import { bytes, count, magnitude } from '../../figures/numbers.js'
import { headWidths } from '../../native/context-options.js'
import { synthesizeModel } from '../../native/synthetic.js'
import type { ModelInfo, NativeModel } from '../../native/types.js'
import { integer } from '../options.js'
import { nativeLibrary, provenModel } from '../runtime.js'
import { placeOf } from '../out-option.js'
import type { Shell } from '../shell.js'
import { printable } from '../terminal.js'

export function addModel(program: Command, shell: Shell): void {
  const model = program.command('model').description('inspect model files, make synthetic ones')
  model
    .command('info')
    .description('describe a GGUF file and the features that kvfold has for it')
    .argument('<model>', 'GGUF file, hub URI or `builtin`')
    .option('--json', 'one JSON object')
    .action((name: string, flags: { json?: true }) => info(name, flags, shell))
  model
    .command('synth')
    .description(
      'write a GGUF of a given shape with random weights, for tests and benchmarks: as fast as a real one, but its output is meaningless',
    )
    .argument('[out]', 'file to write; or give it by --out')
    .option('-o, --out <file>', 'file to write')
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
    .action((file: string | undefined, flags: SynthFlags) => synth(placeOf(file, flags.out, 'file'), flags, shell))
}

async function info(name: string, { json }: { json?: true }, { out, notes, interrupt }: Shell): Promise<void> {
  const path = await provenModel({ model: name, gpu: 'cpu' }, { loads: 'only', model: { gpuLayers: 0 } }, notes, interrupt.signal)
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
  readonly out?: string
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
  file: string,
  { out: _, heads, kvHeads = heads, embedding, feedForward = 4 * embedding, ...rest }: SynthFlags,
  shell: Shell,
): Promise<void> {
  const path = resolve(file)
  try {
    await synthesizeModel(path, { ...rest, heads, kvHeads, embedding, feedForward })
  } catch (error) {
    if (error instanceof Error && 'code' in error && typeof error.code === 'string' && /^E[A-Z]+$/.test(error.code))
      throw new KvfoldError('cli/bad-usage', `${path} cannot be written (${error.code}).`, { cause: error })
    throw error
  }
  shell.out.print(`${path}: ${bytes((await stat(path)).size)}`)
}

// The report about a model file.

/** Whether kvfold can use the chat template of the model. */
export type TemplateReport =
  | { readonly kind: 'none' }
  | { readonly kind: 'usable'; readonly toolCalls: string }
  | { readonly kind: 'broken'; readonly reason: string }

/** The figures that the report takes over from `ModelInfo` unchanged. */
type PlainFigure =
  | ('path' | 'description' | 'architecture' | 'parameters' | 'size' | 'layers' | 'embedding' | 'heads')
  | ('kvHeads' | 'trainedContext' | 'slidingWindow' | 'rope' | 'vocabulary' | 'vocabType')

export interface ModelReport extends Pick<ModelInfo, PlainFigure> {
  readonly name: string | null
  readonly license: string | null
  readonly template: TemplateReport
  /** Whether folds can be exact with this model, and why. */
  readonly edits: { readonly exact: boolean; readonly why: string }
  /** What does not work with this model under default options, and why. One sentence each. */
  readonly notes: readonly string[]
  /** Bytes of cache per token, estimated for 16-bit keys and values. Null when the metadata is not enough for an estimate. */
  readonly cacheBytesPerToken: number | null
}

export function modelReport(info: ModelInfo, template: TemplateReport): ModelReport {
  const { path, description, architecture, parameters, size, layers, embedding, heads, kvHeads, metadata } = info
  const { trainedContext, slidingWindow, rope, vocabulary, vocabType } = info
  return {
    path,
    name: metadata['general.name'] ?? null,
    license: metadata['general.license'] ?? null,
    ...{ description, architecture, parameters, size, layers, embedding, heads, kvHeads },
    ...{ trainedContext, slidingWindow, rope, vocabulary, vocabType },
    template,
    edits: edits(info),
    notes: refusalOf(info) === null ? abilitiesOf(info).notes : [],
    cacheBytesPerToken: cacheBytesPerToken(info),
  }
}

export const reportOf = (model: NativeModel): ModelReport => modelReport(model.info, templateReport(model))

function templateReport(model: NativeModel): TemplateReport {
  const { chatTemplate: template } = model.info
  if (template === null) return { kind: 'none' }
  const { bos, eos } = model.special
  const text = (token: number | null): string => (token === null ? '' : model.detokenize([token], true))
  try {
    const format = ChatFormat.create({ template, tokenizer: model, bosText: text(bos), eosText: text(eos) })
    return { kind: 'usable', toolCalls: format.syntax.name }
  } catch (error) {
    if (error instanceof KvfoldError) return { kind: 'broken', reason: error.message }
    throw error
  }
}

function edits(info: ModelInfo): ModelReport['edits'] {
  const refusal = refusalOf(info)
  if (refusal !== null) return { exact: false, why: refusal.replace(/\.$/, '') }
  if (abilitiesOf(info).edits === 'checkpoints')
    return { exact: true, why: 'the text after an edit is computed again, from the last saved state before it' }
  return { exact: true, why: 'every layer attends through the KV cache, so tokens can be taken out and put back' }
}

/**
 * Estimates the bytes of cache per token: keys and values of all layers, 2 bytes per number. Head sizes come from the metadata (GGUF
 * `<architecture>.attention.*`).
 */
function cacheBytesPerToken(info: ModelInfo): number | null {
  const { architecture, metadata, layers, heads, kvHeads, recurrent, hybrid, encoder } = info
  if (recurrent || hybrid || encoder || heads === 0) return null
  // Compressed attention (MLA) caches latent vectors. Their size does not follow from these figures.
  if (metadata[`${architecture}.attention.kv_lora_rank`] !== undefined) return null
  const [key, value] = headWidths(info)
  const perToken = layers * kvHeads * (key + value) * 2
  return perToken > 0 ? perToken : null
}

/** Returns the report as lines of text. */
function reportLines(report: ModelReport): string[] {
  const { template, edits, cacheBytesPerToken: perToken, trainedContext } = report
  const attention =
    report.kvHeads === report.heads ? `${report.heads} heads` : `${report.heads} heads over ${report.kvHeads} key/value heads`
  const lines: readonly (readonly [string, string])[] = [
    ['file', report.path],
    ['name', report.name ?? '(not given)'],
    ['license', report.license ?? '(not given)'],
    ['architecture', `${report.architecture}, ${report.layers} layers of ${report.embedding}, ${attention}, rope ${report.rope}`],
    ['parameters', `${magnitude(report.parameters)} (${report.description}), ${bytes(report.size)}`],
    [
      'context',
      `${count(trainedContext)} tokens in training${report.slidingWindow > 0 ? `, sliding window ${report.slidingWindow}` : ''}`,
    ],
    ['vocabulary', `${count(report.vocabulary)} tokens (${report.vocabType})`],
    ['chat template', templateText(template)],
    ['tool calls', template.kind === 'usable' ? template.toolCalls : 'none'],
    ['edits exact', `${edits.exact ? 'yes' : 'no'}: ${edits.why}`],
    ...report.notes.map((note) => ['note', note] as const),
    [
      'KV cache',
      perToken === null
        ? 'no estimate for this architecture'
        : `about ${bytes(perToken)} a token (16 bit), ${bytes(perToken * trainedContext)} for the whole trained context`,
    ],
  ]
  const width = Math.max(...lines.map(([label]) => label.length))
  return lines.map(([label, text]) => `${label.padEnd(width)}  ${text}`)
}

function templateText(template: TemplateReport): string {
  switch (template.kind) {
    case 'none':
      return 'none: `kvfold run --raw` completes text; --chat-template <file> gives it one'
    case 'usable':
      return 'yes'
    case 'broken':
      return `yes, but unusable: ${template.reason}`
  }
}
