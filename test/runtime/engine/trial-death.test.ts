/** What is said of a process that died while it tried a model: the model is to blame, or the library that cannot compute on the device. */
import { expect, test } from 'vitest'
import { obituary } from '../../../src/runtime/engine/tried-models.js'

/** The end of the stderr of a process on an H200 under a driver of CUDA 13.0, and of one with a library for other devices. */
const PTX =
  'CUDA error: the provided PTX was compiled with an unsupported toolchain.\n  current device: 0, in function ggml_cuda_op_rms_norm_fused'
const IMAGE = 'ggml_cuda_compute_forward: RMS_NORM failed\nCUDA error: no kernel image is available for execution on the device'

test.each([PTX, IMAGE])('a CUDA library that cannot compute is named in one sentence, and not the model', (words) => {
  const { code, message } = obituary({ path: 'model.gguf', gpu: 'cuda' }, 'SIGABRT', words)
  expect(code).toBe('native/library-mismatch')
  expect(message).toMatch(/^The CUDA library lists a device but cannot compute on it \(.*\)\. .*--gpu vulkan or --gpu cpu\.$/)
  expect(message).not.toContain('model.gguf')
})

test.each([
  ['cuda', 'CUDA error: out of memory'],
  ['cpu', PTX],
] as const)('any other death on %s is the model’s', (gpu, words) => {
  const { code, message } = obituary({ path: 'model.gguf', gpu }, 'SIGABRT', words)
  expect(code).toBe('model/bad-file')
  expect(message).toContain('model.gguf ended the process that tried it (SIGABRT)')
})
