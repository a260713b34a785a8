import { defineConfig } from 'vitest/config'

/** Files that load no native library and start no process: they share processes and what these have imported. */
const PURE = [
  'test/{index,pages}.test.ts',
  'test/runtime/{agents,context,core,kv}/**/*.test.ts',
  'test/runtime/chat/!(unicode-spans|vocabularies).test.ts',
  'test/runtime/cli/{options,peer-flags,terminal,transcript,turn-view,chat/input}.test.ts',
  'test/runtime/dashboard/{files,parts}.test.ts',
  'test/runtime/engine/{attention-capture,cache-secret,logprobs,prompt-lookup,sampling-defaults,stop-strings,trial-death}.test.ts',
  'test/runtime/fidelity/cases.test.ts',
  'test/runtime/mcp/{config,result}.test.ts',
  'test/lab/cli/demo/*.test.ts',
  'test/lab/!(builtin-skills|recorder).test.ts',
  'test/lab/{agents,collect,cost,data,episode,memtool,report,run,service,tasks}/**/!(builtin|study|pool).test.ts',
]

/** Files that use the native library as a program does, which loads it once: they share processes, too. Those that start or kill servers do not. */
const SHARING = [
  'test/{bench,lab/attention,lab/figures,runtime/tools}/**/*.test.ts',
  'test/runtime/engine/{adapters,attention,builtin,calibrate,contracts,costly-folds,embedder,ends-with,engine,forget,held-calls}.test.ts',
  'test/runtime/engine/{onnx,parking,peer,prefill-budget,quantised,reload-ahead,reranker,respond,scheduler,speculation,tenants}.test.ts',
  'test/runtime/server/!(disk-cache|http-serve|real-agents|real-clients|soak).test.ts',
  'test/runtime/server/{dialects,responses,threads}/**/*.test.ts',
  'test/fleet/engines/!(over-*).test.ts',
]

const ON_GPU = process.env['KVFOLD_TEST_GPU'] !== undefined
/** A device has one memory: one file at a time. */
const SERVED = ON_GPU ? [] : SHARING
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
        test: { name: 'served', include: SERVED, isolate: false, maxWorkers: 2 },
      },
      {
        extends: true,
        // What these files do to the native library and to processes is process-wide: each has a process of its own.
        test: {
          name: 'whole',
          include: ['test/**/*.test.ts'],
          exclude: [...PURE, ...SERVED, ...ONLY_ON_GPU],
          maxWorkers: ON_GPU ? 1 : 2,
        },
      },
    ],
  },
})
