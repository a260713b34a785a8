/**
 * Starts the servers that are compared under load (kvfold and llama-server, with the same model, slots and threads), and reads the CPU time
 * of their processes.
 */
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { openNative } from '../../../src/runtime/native/binding.js'
import { buildLlamaServer } from '../peers/llama-server.js'
import { withoutSettings } from '../peers/llama-server-peer.js'
import { endsOfGeneration } from '../../random-tokens.js'
import { startServer, type ServerProcess } from '../../server-process.js'

export interface Serving {
  /** Path of the GGUF, which is served under the name `bench`. */
  readonly model: string
  readonly slots: number
  readonly threads: number
  /** Cells of the whole context. */
  readonly cells: number
}

export const HERE = fileURLToPath(new URL('../../..', import.meta.url))

/** Starts kvfold from the built package in the folder `root`. */
export const startKvfold = (
  name: string,
  root: string,
  { model, slots, threads, cells }: Serving,
  more: readonly string[] = [],
): Promise<ServerProcess> =>
  startServer(name, process.execPath, (port) => [
    ...[join(root, 'dist/cli/main.js'), 'serve', '--model', `bench=${model}`, '--port', String(port)],
    ...['--slots', String(slots), '--threads', String(threads), '--context', String(cells), '--store', 'none'],
    ...['--flash-attention', 'on', '--log-level', 'error', ...more],
  ])

/** Starts a kvfold that computes nothing itself, and forwards to these engines. */
export const startFront = (engines: readonly string[], slots: number, more: readonly string[] = []): Promise<ServerProcess> =>
  startServer('the front', process.execPath, (port) => [
    ...[join(HERE, 'dist/cli/main.js'), 'serve', '--port', String(port), '--slots', String(slots), '--store', 'none'],
    ...['--log-level', 'error', ...more, ...engines.flatMap((url) => ['--engine', url])],
  ])

/** Starts llama-server. Builds it first if it is not there. */
export async function startLlamaServer(
  { model, slots, threads, cells }: Serving,
  more: readonly string[],
): Promise<ServerProcess> {
  const args = (port: number) => [
    ...['--model', model, '--host', '127.0.0.1', '--port', String(port), '--parallel', String(slots)],
    ...['--threads', String(threads), '--threads-batch', String(threads), '--ctx-size', String(cells)],
    ...['--flash-attn', 'on', '--offline', '--no-ui', ...more],
  ]
  return startServer('llama-server', await buildLlamaServer(), args, { env: withoutSettings(process.env) })
}

/** Returns the ids of the tokens that end an answer of the model. */
export async function endsOf(path: string): Promise<number[]> {
  const vocabulary = await (await openNative({ gpu: 'cpu' })).loadModel(path, { vocabOnly: true })
  const ends = endsOfGeneration(vocabulary)
  await vocabulary.dispose()
  return ends
}

/** Returns the CPU milliseconds of the server's process since `before` (a value of ServerProcess.cpu); null if they cannot be read. */
export function cpuSince(before: number | null, server: Pick<ServerProcess, 'cpu'>): number | null {
  const after = server.cpu()
  return before === null || after === null ? null : after - before
}
