/** Chooses where tests on real models compute: on the CPU, or on the backend that `KVFOLD_TEST_GPU` names (`npm run test:gpu` sets it). */
import type { GpuChoice } from '../../src/runtime/native/types.js'

export const TEST_GPU = (process.env['KVFOLD_TEST_GPU'] ?? 'cpu') as GpuChoice
export const ON_GPU = TEST_GPU !== 'cpu'
