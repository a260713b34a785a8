import { defineConfig } from 'vitest/config'

/** Files that load no native library and start no process: they share processes and what these have imported. */
const PURE = [
  'test/{agents,context,core,kv}/**/*.test.ts',
  'test/chat/!(unicode-spans|vocabularies).test.ts',
  'test/eval/**/!(builtin|builtin-skills|study|recorder|pool).test.ts',
]

const ON_GPU = process.env['KVFOLD_TEST_GPU'] !== undefined
/** On the CPU the general suites show the same, and more. */
const ONLY_ON_GPU = ON_GPU ? [] : ['test/device/**']
/** A software device compiles a kernel for seconds to half a minute when a test first needs it. */
const LIMIT = ON_GPU ? 900_000 : 60_000

export default defineConfig({
  test: {
    testTimeout: LIMIT,
    hookTimeout: LIMIT,
    pool: 'forks',
    setupFiles: ['test/setup.ts'],
    projects: [
      {
        extends: true,
        test: { name: 'pure', include: PURE, isolate: false, maxWorkers: 2 },
      },
      {
        extends: true,
        // The native library holds process-wide state: each file in a process of its own; on a device, which has one memory, one at a time.
        test: {
          name: 'whole',
          include: ['test/**/*.test.ts'],
          exclude: [...PURE, ...ONLY_ON_GPU],
          maxWorkers: ON_GPU ? 1 : 2,
        },
      },
    ],
  },
})
