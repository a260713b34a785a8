/** The engines that a table compares through kvfold's client: how to start each, and which of its counters give the computed tokens. */
import { join } from 'node:path'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { builtLlamaServer } from '../../runtime/peers/llama-server.js'
import { HERE, startKvfold, startLlamaServer } from '../../runtime/serve/servers.js'
import { type ServerProcess, startServer } from '../../server-process.js'
import { lacks, partsFolder, pythonOf } from './parts.js'

export interface EngineKind {
  readonly name: string
  /** The Python package whose version is reported; null: the engine reports its own version. */
  readonly package: string | null
  /** Why the engine cannot run here; null: it can. */
  readonly missing: string | null
  readonly model: 'built-in' | 'random weights'
  /** The engine's own Prometheus counters; null if it has none. `plus` counts prompt and generated tokens, `minus` cached prompt tokens. */
  readonly counters: { readonly plus: readonly string[]; readonly minus: readonly string[] } | null
  start(): Promise<ServerProcess>
}

/** The name under which all engines serve the model. */
const NAME = 'bench'
/** Tokens of a conversation. */
export const CONTEXT = 8192
/** Milliseconds that an engine with PyTorch has to become ready. */
const SLOW = 300_000

/** The folder of the random model. tiny_model.py makes it, run with the Python of any of these engines that has PyTorch. */
export const randomModel = (): string => join(partsFolder(), 'tiny-model')

const built = { model: builtinModel(), slots: 1, threads: 1, cells: CONTEXT }
const offline = { ...process.env, HF_HUB_OFFLINE: '1', TRANSFORMERS_OFFLINE: '1' }

/** An engine installed by pip. */
const pythonic = (
  venv: string,
  of: Pick<EngineKind, 'name' | 'package' | 'model' | 'counters'> & {
    readonly words: readonly string[]
    readonly path?: string
    /** A program in the virtual environment, for an engine that is not started as a Python module. */
    readonly program?: string
  },
): EngineKind => {
  const { words, path, program, ...rest } = of
  const command = program === undefined ? pythonOf(venv) : join(partsFolder(), venv, 'bin', program)
  return {
    ...rest,
    missing: lacks(command, ...(of.model === 'built-in' ? [] : [randomModel()])),
    start: () =>
      startServer(of.name, command, (port) => [...words, '--host', '127.0.0.1', '--port', String(port)], {
        env: offline,
        limit: SLOW,
        ...(path === undefined ? {} : { path }),
      }),
  }
}

export const ENGINES: readonly EngineKind[] = [
  {
    name: 'kvfold',
    package: null,
    missing: null,
    model: 'built-in',
    counters: { plus: ['kvfold_tokens_submitted'], minus: [] },
    start: () => startKvfold('kvfold', HERE, built),
  },
  {
    name: 'llama-server',
    package: null,
    missing: builtLlamaServer() === null ? 'it is not built; scripts/test-parts.mjs builds it' : null,
    model: 'built-in',
    counters: { plus: ['llamacpp:prompt_tokens_total', 'llamacpp:tokens_predicted_total'], minus: [] },
    start: () => startLlamaServer(built, ['--jinja', '--metrics', '--alias', NAME, '--cache-ram', '0']),
  },
  pythonic('llama-cpp-python', {
    name: 'llama-cpp-python',
    package: 'llama_cpp_python',
    model: 'built-in',
    counters: null,
    words: [
      ...['-m', 'llama_cpp.server', '--model', builtinModel(), '--model_alias', NAME],
      ...['--n_ctx', String(CONTEXT), '--n_threads', '1', '--n_threads_batch', '1'],
    ],
    path: '/v1/models',
  }),
  pythonic('transformers', {
    name: 'transformers serve',
    package: 'transformers',
    model: 'random weights',
    counters: null,
    program: 'transformers',
    words: ['serve', randomModel(), '--device', 'cpu', '--format', 'quiet'],
  }),
  pythonic('vllm', {
    name: 'vLLM',
    package: 'vllm',
    model: 'random weights',
    counters: {
      plus: ['vllm:prompt_tokens_total', 'vllm:generation_tokens_total'],
      minus: ['vllm:prefix_cache_hits_total'],
    },
    words: [
      ...['-m', 'vllm.entrypoints.openai.api_server', '--model', randomModel(), '--served-model-name', NAME],
      ...['--enable-prompt-tokens-details', '--max-model-len', String(CONTEXT), '--gpu-memory-utilization', '0.5'],
    ],
  }),
  pythonic('sglang', {
    name: 'SGLang',
    package: 'sglang',
    model: 'random weights',
    counters: { plus: ['sglang:prompt_tokens_total', 'sglang:generation_tokens_total'], minus: ['sglang:cached_tokens_total'] },
    words: [
      ...['-m', 'sglang.launch_server', '--model-path', randomModel(), '--served-model-name', NAME],
      ...['--enable-cache-report', '--enable-metrics', '--context-length', String(CONTEXT), '--mem-fraction-static', '0.5'],
    ],
  }),
]
