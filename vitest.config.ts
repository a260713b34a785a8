import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    // The native library holds process-wide state and the machine is small: one file at a time, each in a process of its own.
    pool: 'forks',
    fileParallelism: false,
  },
})
