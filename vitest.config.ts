import { defineConfig } from 'vitest/config'

/** Files that load no native library and start no process: they share processes and what these have imported. */
const PURE = [
  'test/{agents,context,core,kv}/**/*.test.ts',
  'test/chat/!(unicode-spans|vocabularies).test.ts',
  'test/eval/**/!(agents-builtin|builtin-skills|cost-study|recorder|report-command|run-pool).test.ts',
]

export default defineConfig({
  test: {
    testTimeout: 60_000,
    hookTimeout: 60_000,
    pool: 'forks',
    projects: [
      {
        extends: true,
        test: { name: 'pure', include: PURE, isolate: false, maxWorkers: 2 },
      },
      {
        extends: true,
        // The native library holds process-wide state and the machine is small: one file at a time, each in a process of its own.
        test: { name: 'whole', include: ['test/**/*.test.ts'], exclude: PURE, fileParallelism: false },
      },
    ],
  },
})
