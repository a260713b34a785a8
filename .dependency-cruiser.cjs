/** The rooms of src/, what each may import and what of it others may: the rules of the house, checked (docs/architecture.md). */
const below = {
  core: [],
  native: ['core'],
  chat: ['core'],
  kv: ['core'],
  figures: ['core'],
  engine: ['core', 'native', 'chat', 'kv'],
  context: ['core', 'native', 'chat', 'kv', 'engine'],
  attention: ['core', 'native', 'chat', 'kv', 'engine', 'figures'],
  store: ['core', 'chat', 'kv', 'context'],
  tools: ['core', 'chat', 'context'],
  mcp: ['core', 'chat', 'context', 'tools'],
  agents: ['core', 'native', 'chat', 'kv', 'engine', 'context', 'tools'],
  eval: ['core', 'native', 'chat', 'kv', 'engine', 'figures', 'context', 'attention', 'tools', 'agents'],
  server: ['core', 'native', 'chat', 'kv', 'engine', 'figures', 'context', 'attention', 'store', 'tools', 'agents', 'eval'],
  cli: [
    ...['core', 'native', 'chat', 'kv', 'engine', 'figures', 'context', 'attention', 'store', 'tools', 'agents', 'eval'],
    ...['mcp', 'server'],
  ],
  // It runs in a browser: of the rooms it takes types, and how figures are written.
  dashboard: ['core', 'chat', 'kv', 'figures', 'context', 'store', 'server'],
}

/**
 * The public surface of a room: files that every room above it may import, and those for one of them alone. What is in no list is the room's own.
 * `core`, `figures` and `context` are public as a whole: each file of them is one notion that others speak in.
 */
const surface = {
  native: {
    all: ['types'],
    engine: ['binding', 'context-options'],
    cli: ['binding', 'cpu-library', 'synthetic'],
  },
  chat: {
    all: ['message', 'format'],
    engine: ['grammar', 'parser', 'tokens/encoder', 'tracked'],
    attention: ['tokens/aligned'],
    tools: ['conversation'],
    server: ['grammar'],
  },
  kv: {
    all: ['cost-model', 'ledger', 'plan/parts', 'prompt', 'residency'],
    // The engine is what drives the cache.
    engine: [
      ...[
        'cache',
        'cell-hash',
        'checkpoint-cache',
        'lineage',
        'offload',
        'plan/plan',
        'ports',
        'sequence',
        'step',
        'tenant-salts',
        'tier-policy',
      ],
    ],
    eval: ['dry-run', 'forecast'],
    cli: ['dry-run', 'forecast'],
  },
  engine: {
    all: ['attention', 'embedder', 'engine', 'llama', 'model-facts', 'reranker'],
    agents: ['remote/wire'],
    eval: ['calibrate', 'calibration', 'taught-engine'],
    server: ['background-recompute', 'remote/engine-pool', 'remote/failure', 'remote/remote'],
    cli: [
      'cache-secret',
      'calibrate',
      'calibration',
      'disk-tier-file',
      'remote/endpoint',
      'remote/engine-pool',
      'remote/remote',
      'tried-models',
    ],
  },
  attention: {
    all: ['measurement', 'run-folder', 'statistics'],
    eval: ['pairs', 'places', 'report'],
    server: ['answer-mass'],
    cli: ['findings', 'report', 'spans', 'tables'],
  },
  store: {
    all: ['damage'],
    dashboard: ['port'],
    server: [
      ...[
        'manifest',
        'page-reader',
        'port',
        'postgres/database',
        'postgres/schema',
        'postgres/thread-rows',
        'repair',
        'row-kind',
        'store-file',
      ],
    ],
    cli: ['port', 'postgres/database', 'postgres/move', 'postgres/postgres-store', 'repair', 'sqlite-store', 'store-file'],
  },
  tools: { all: ['catalogue', 'late-definitions', 'management', 'tool-memory'] },
  mcp: { all: [], cli: ['config', 'context-server', 'host'] },
  agents: {
    all: ['memtool', 'memtool-asides', 'sculptor', 'session', 'tool-loop'],
    eval: ['rounds', 'snapshots', 'toolbox', 'u-fold/helpers', 'u-fold/view', 'u-fold/paper', 'u-fold/session', 'u-fold/u-fold'],
    server: ['toolbox', 'u-fold/u-fold'],
  },
  eval: {
    all: [],
    cli: [
      ...['accuracy', 'agent', 'agents/embedders', 'agents/open', 'log', 'task', 'tasks/open'],
      ...['attention-study', 'pi-llm', 'collect/collect', 'collect/formats'],
      ...['collect/sources', 'collect/trajectory'],
      ...['run/plan', 'run/log-file', 'run/pool', 'run/runner', 'run/trial'],
      ...['cost/figure', 'cost/report', 'cost/schedule', 'cost/stopwatch', 'cost/study'],
      ...['episode/episode', 'memtool/companies', 'memtool/report', 'memtool/retrieval', 'memtool/session'],
      ...['report/estimates', 'report/publish', 'report/summary', 'report/tables/labels'],
      ...['service/frameworks', 'service/run', 'service/replay', 'service/report', 'service/dialogue'],
    ],
  },
  server: {
    all: ['ask', 'threads/thread-api'],
    cli: [
      'app',
      'side-model',
      'http',
      'keys',
      'request-log',
      'responses/postgres-responses',
      'responses/responses',
      'responses/sqlite-responses',
      'service',
      'threads/models',
      'threads/status',
      'threads/thread',
    ],
    dashboard: ['threads/status'],
  },
  cli: { all: [] },
  dashboard: { all: [] },
}

const filesOf = (room, names) => names.map((name) => `^src/${room}/${name}[.]ts$`)
const isolated = Object.entries(surface).flatMap(([room, { all, ...friends }]) => {
  const others = Object.keys(below).filter((each) => each !== room)
  return others.map((from) => ({
    name: `${from}-takes-of-${room}-what-is-public`,
    comment: `Only what surface.${room} in .dependency-cruiser.cjs names; move what you need there, or add it.`,
    severity: 'error',
    from: { path: `^src/${from}/` },
    to: { path: `^src/${room}/`, pathNot: filesOf(room, [...all, ...(friends[from] ?? [])]) },
  }))
})

module.exports = {
  forbidden: [
    { name: 'no-cycles', severity: 'error', from: {}, to: { circular: true } },
    ...Object.entries(below).map(([room, allowed]) => ({
      name: `${room}-imports-only-downwards`,
      severity: 'error',
      from: { path: `^src/${room}/` },
      to: { path: '^src/', pathNot: [room, ...allowed].map((name) => `^src/${name}/`) },
    })),
    // src/index.ts is no room: it is the package's own list of what is public.
    ...isolated,
    {
      name: 'dashboard-takes-only-types',
      severity: 'error',
      from: { path: '^src/dashboard/' },
      to: { path: '^src/', pathNot: '^src/(dashboard/|figures/numbers[.]ts$)', dependencyTypesNot: ['type-only'] },
    },
    {
      name: 'only-binding-loads-the-addon',
      severity: 'error',
      from: { path: '^src/', pathNot: '^src/native/' },
      to: { path: 'node-llama-cpp' },
    },
    { name: 'src-knows-no-tests', severity: 'error', from: { path: '^src/' }, to: { path: '^(test|bench)/' } },
    // What the clients there import is installed where they run.
    { name: 'no-unresolved', severity: 'error', from: { pathNot: '^test/server/clients/' }, to: { couldNotResolve: true } },
  ],
  options: {
    doNotFollow: { path: 'node_modules' },
    tsPreCompilationDeps: true,
    tsConfig: { fileName: 'tsconfig.json' },
    enhancedResolveOptions: { exportsFields: ['exports'], conditionNames: ['import', 'node', 'default', 'types'] },
  },
}
