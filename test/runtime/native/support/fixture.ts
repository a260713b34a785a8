/** Shared helpers of the native tests: batches, refusals, and separate processes. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { expect } from 'vitest'
import { KvfoldError, type ErrorCode } from '../../../../src/runtime/core/errors.js'
import { seqId, type SeqId } from '../../../../src/runtime/core/ids.js'
import type { Batch, NativeContext } from '../../../../src/runtime/native/types.js'
import { LOADER, moduleOf } from '../../../support/program.js'

export const seq = (value: number): SeqId => seqId(value)

/** Makes a batch of one sequence from position `start` on. It requests the last token's logits unless `outputs` says `all` or `none`. */
export function batchOf(tokens: ArrayLike<number>, start = 0, sequence = 0, outputs: 'last' | 'all' | 'none' = 'last'): Batch {
  const wanted = new Uint8Array(tokens.length).fill(outputs === 'all' ? 1 : 0)
  if (outputs === 'last') wanted[tokens.length - 1] = 1
  return {
    tokens: Int32Array.from(tokens),
    positions: Int32Array.from(tokens, (_, index) => start + index),
    sequences: new Int32Array(tokens.length).fill(sequence),
    outputs: wanted,
  }
}

/** Returns `count` ordinary tokens, the same for the same salt. */
export const someTokens = (count: number, salt = 0): Int32Array =>
  Int32Array.from({ length: count }, (_, index) => (index * 7 + salt * 13) % 256)

/** Decodes the tokens, and expects the result `done`. */
export async function feed(context: NativeContext, tokens: ArrayLike<number>, start = 0, sequence = 0): Promise<void> {
  expect(await context.decode(batchOf(tokens, start, sequence))).toBe('done')
}

/** Returns the names of a value's class and of the classes it extends. */
function classesOf(value: unknown): string[] {
  if (value === null || typeof value !== 'object') return []
  const prototype = Object.getPrototypeOf(value) as object | null
  return prototype === null ? [] : [prototype.constructor.name, ...classesOf(prototype)]
}

/** Expects a refusal with this code, thrown or rejected; returns the error. */
export async function refused(code: ErrorCode, call: () => unknown): Promise<KvfoldError> {
  let thrown: unknown
  try {
    await call()
  } catch (error) {
    thrown = error
  }
  // Compiled code throws errors of its own copy of the class.
  expect(classesOf(thrown)).toContain(KvfoldError.name)
  const error = thrown as KvfoldError
  expect(error.code).toBe(code)
  expect(error.message).toMatch(/[.!]$/)
  return error
}

export interface Ended {
  readonly code: number | null
  readonly signal: string | null
  readonly stdout: string
  readonly stderr: string
}

/** Lines of such a script: decode 64 tokens of the model, and put the logits of the last one into `logits`. `openNative` gave `loadModel`. */
export const decoding = (gguf: string): string => `
    const model = await loadModel(${JSON.stringify(gguf)})
    const context = await model.createContext({ cells: 256, sequences: 1, batch: 256, threads: 1 })
    const tokens = Int32Array.from({ length: 64 }, (_, at) => 3 + at)
    await context.decode({
      tokens,
      positions: tokens.map((_, at) => at),
      sequences: new Int32Array(64),
      outputs: new Uint8Array(64).fill(1, 63),
    })
    const logits = [...context.logits(63)]`

/** Runs JavaScript in a separate process. `source` may import modules of the project at `root` as 'kvfold/native/binding' and the like. */
export async function runScript(source: string, root = fileURLToPath(new URL('../../../..', import.meta.url))): Promise<Ended> {
  const folder = mkdtempSync(join(tmpdir(), 'kvfold-script-'))
  // The script is a file because node-llama-cpp tries its library in a child process that inherits --eval.
  const file = join(folder, 'script.mjs')
  const at = pathToFileURL(root).href.replace(/\/?$/, '/')
  writeFileSync(
    file,
    source.replaceAll(/'kvfold\/([\w/-]+)'/g, (_, name: string) => `'${at}${moduleOf(`runtime/${name}`)}'`),
  )
  const child = spawn(process.execPath, [...LOADER, file], { cwd: root })
  let stdout = ''
  let stderr = ''
  child.stdout.on('data', (data: Buffer) => (stdout += data.toString()))
  child.stderr.on('data', (data: Buffer) => (stderr += data.toString()))
  try {
    const [code, signal] = (await once(child, 'close')) as [number | null, string | null]
    return { code, signal, stdout, stderr }
  } finally {
    rmSync(folder, { recursive: true })
  }
}
