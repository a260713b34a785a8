/** The rooms of src/, what each may import and what of it others may: the rules of the house, checked (docs/architecture.md). */

const runtime = [
  'core',
  'native',
  'chat',
  'kv',
  'figures',
  'engine',
  'models',
  'attention',
  'context',
  'fidelity',
  'store',
  'tools',
  'mcp',
  'agents',
  'server',
].map((room) => `runtime/${room}`)
const fleet = ['fleet/engines', 'fleet/cells', 'fleet/events', 'fleet/postgres']
/** `lab` is all of src/lab that is in no room of its own. */
const lab = ['lab/figures', 'lab/attention', 'lab']

const inRuntime = (...rooms) => rooms.map((room) => `runtime/${room}`)
/** Downwards is: the runtime without its commands, the fleet, the runtime's commands, the laboratory, the program. The runtime knows nothing of the laboratory. */
const below = {
  'runtime/core': [],
  'runtime/native': inRuntime('core'),
  'runtime/chat': inRuntime('core'),
  'runtime/kv': inRuntime('core'),
  'runtime/figures': inRuntime('core'),
  'runtime/engine': inRuntime('core', 'native', 'chat', 'kv'),
  'runtime/models': inRuntime('core', 'native', 'engine'),
  'runtime/context': inRuntime('core', 'native', 'chat', 'kv', 'engine'),
  'runtime/fidelity': inRuntime('core', 'chat', 'kv', 'engine', 'context'),
  'runtime/attention': inRuntime('core', 'native', 'chat', 'kv', 'engine'),
  'runtime/store': inRuntime('core', 'chat', 'kv', 'context'),
  'runtime/tools': inRuntime('core', 'chat', 'context'),
  'runtime/mcp': inRuntime('core', 'chat', 'context', 'tools'),
  'runtime/agents': inRuntime('core', 'native', 'chat', 'kv', 'engine', 'context', 'tools'),
  'runtime/server': inRuntime(
    'core',
    'native',
    'chat',
    'kv',
    'engine',
    'models',
    'figures',
    'context',
    'attention',
    'store',
    'tools',
    'agents',
  ),
  // It runs in a browser: of the rooms it takes types, and how figures are written.
  'runtime/dashboard': inRuntime('core', 'chat', 'kv', 'figures', 'context', 'store', 'server'),
  'fleet/engines': inRuntime('core', 'chat', 'kv', 'engine'),
  'fleet/cells': inRuntime('core', 'native', 'kv', 'engine'),
  'fleet/events': inRuntime('core', 'kv', 'engine'),
  'fleet/postgres': inRuntime('core', 'chat', 'kv', 'context', 'store', 'server'),
  'runtime/cli': [...runtime, ...fleet],
  'lab/figures': inRuntime('core', 'figures'),
  'lab/attention': [...inRuntime('core', 'native', 'chat', 'kv', 'engine', 'figures', 'attention'), 'lab/figures'],
  lab: [
    ...inRuntime(
      'core',
      'native',
      'chat',
      'kv',
      'engine',
      'figures',
      'context',
      'attention',
      'fidelity',
      'tools',
      'agents',
      'server',
    ),
    ...['fleet/engines', 'lab/figures', 'lab/attention'],
  ],
  'lab/cli': [...runtime, 'runtime/cli', 'fleet/engines', ...lab],
  // The program: it puts the commands together.
  cli: ['runtime/cli', 'lab/cli'],
}

/**
 * What of a room the rooms above it may import, where that is not all of it. A file that is in no list is the room's own. What only one room above
 * may touch (the addon's binding, the cache itself) says so in its first lines.
 */
const surface = {
  'runtime/native': ['binding', 'context-options', 'compiled-library', 'gguf-reader', 'head-adapter', 'synthetic', 'types'],
  'runtime/chat': [
    'conversation',
    'format',
    'grammar',
    'made-grammars',
    'message',
    'parser',
    'tokens/aligned',
    'tokens/encoder',
    'tracked',
  ],
  'runtime/kv': [
    ...[
      'block-events',
      'cache',
      'cell-hash',
      'checkpoint-cache',
      'cost-model',
      'dry-run',
      'forecast',
      'ledger',
      'lineage',
      'offload',
      'plan/blend',
      'plan/parts',
    ],
    ...['plan/plan', 'ports', 'prompt', 'residency', 'sequence', 'step', 'step-cache', 'tenant-salts', 'tier-policy'],
  ],
  'runtime/engine': [
    ...[
      'adapters',
      'attention',
      'background-recompute',
      'block-watch',
      'cache-secret',
      'calibrate',
      'calibration',
      'disk-tier-file',
      'elsewhere',
      'embedder',
    ],
    ...['engine', 'llama', 'model-facts', 'onnx', 'onnx-model', 'reranker', 'sampling-defaults', 'saved-cells'],
    ...['speculate-terms', 'tried-models'],
  ],
  'runtime/store': ['check', 'damage', 'fetched-threads', 'manifest', 'port', 'row-kind', 'rows', 'sqlite-store', 'store-file'],
  'runtime/mcp': ['config', 'context-server', 'host'],
  'runtime/server': [
    ...[
      'app',
      'ask',
      'http',
      'keys',
      'request-log',
      'responses/responses',
      'responses/sqlite-responses',
      'service',
      'side-model',
    ],
    ...['threads/models', 'threads/policies', 'threads/status', 'threads/thread', 'threads/thread-api'],
  ],
  'fleet/engines': ['endpoint', 'engine-pool', 'remote', 'wire'],
  'fleet/postgres': ['database', 'move', 'postgres-responses', 'postgres-store'],
}

/** Files of a room; `lab` is what is in none of its rooms. */
const pathOf = (room) => (room === 'lab' ? '^src/lab/(?!figures/|attention/|cli/)' : `^src/${room}/`)

module.exports = {
  forbidden: [
    { name: 'no-cycles', severity: 'error', from: {}, to: { circular: true } },
    ...Object.entries(below).map(([room, allowed]) => ({
      name: `${room}-imports-only-downwards`,
      severity: 'error',
      from: { path: pathOf(room) },
      to: { path: '^src/', pathNot: [room, ...allowed].map(pathOf) },
    })),
    // src/index.ts and src/lab/index.ts list what is public of all rooms.
    ...Object.entries(surface).map(([room, files]) => ({
      name: `of-${room}-only-what-is-public`,
      comment: `Only what surface['${room}'] in .dependency-cruiser.cjs names; move what you need there, or add it.`,
      severity: 'error',
      from: { path: '^src/', pathNot: [pathOf(room), '^src/(lab/)?index[.]ts$'] },
      to: { path: pathOf(room), pathNot: files.map((file) => `^src/${room}/${file}[.]ts$`) },
    })),
    { name: 'runtime-knows-no-lab', severity: 'error', from: { path: '^src/runtime/' }, to: { path: '^src/lab/' } },
    { name: 'fleet-knows-no-lab', severity: 'error', from: { path: '^src/fleet/' }, to: { path: '^src/lab/' } },
    {
      // They take long to load, and the runtime has no use for them.
      name: 'only-the-lab-draws',
      severity: 'error',
      from: { path: '^src/', pathNot: '^src/lab/' },
      to: { path: 'node_modules/(@observablehq/plot|linkedom|hyparquet|csv-parse)' },
    },
    {
      name: 'dashboard-takes-only-types',
      severity: 'error',
      from: { path: '^src/runtime/dashboard/' },
      to: {
        path: '^src/',
        pathNot: '^src/runtime/(dashboard/|figures/numbers[.]ts$|core/written-json[.]ts$)',
        dependencyTypesNot: ['type-only'],
      },
    },
    {
      name: 'only-binding-loads-the-addon',
      severity: 'error',
      from: { path: '^src/', pathNot: '^src/runtime/native/' },
      to: { path: 'node-llama-cpp' },
    },
    { name: 'src-knows-no-tests', severity: 'error', from: { path: '^src/' }, to: { path: '^(test|bench)/' } },
    // What the clients there import is installed where they run.
    {
      name: 'no-unresolved',
      severity: 'error',
      from: { pathNot: '^test/runtime/server/clients/' },
      to: { couldNotResolve: true },
    },
  ],
  options: {
    doNotFollow: { path: 'node_modules' },
    tsPreCompilationDeps: true,
    tsConfig: { fileName: 'tsconfig.json' },
    enhancedResolveOptions: { exportsFields: ['exports'], conditionNames: ['import', 'node', 'default', 'types'] },
  },
}
