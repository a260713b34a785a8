/** The rooms of src/ and what each may import; the one rule of the house, checked (docs/architecture.md). */
const below = {
  core: [],
  native: ['core'],
  chat: ['core'],
  kv: ['core'],
  figures: ['core'],
  engine: ['core', 'native', 'chat', 'kv'],
  context: ['core', 'native', 'chat', 'kv', 'engine'],
  attention: ['core', 'native', 'chat', 'kv', 'engine', 'figures'],
  store: ['core', 'native', 'chat', 'kv', 'engine', 'context'],
  agents: ['core', 'native', 'chat', 'kv', 'engine', 'context'],
  eval: ['core', 'native', 'chat', 'kv', 'engine', 'figures', 'context', 'attention', 'agents'],
  server: ['core', 'native', 'chat', 'kv', 'engine', 'figures', 'context', 'attention', 'store', 'agents', 'eval'],
  cli: ['core', 'native', 'chat', 'kv', 'engine', 'figures', 'context', 'attention', 'store', 'agents', 'eval', 'server'],
}

module.exports = {
  forbidden: [
    { name: 'no-cycles', severity: 'error', from: {}, to: { circular: true } },
    ...Object.entries(below).map(([room, allowed]) => ({
      name: `${room}-imports-only-downwards`,
      severity: 'error',
      from: { path: `^src/${room}/` },
      to: { path: '^src/', pathNot: [room, ...allowed].map((name) => `^src/${name}/`) },
    })),
    {
      // It runs in a browser: of the rooms it takes types, and how figures are written.
      name: 'dashboard-takes-only-types',
      severity: 'error',
      from: { path: '^src/dashboard/' },
      to: { path: '^src/', pathNot: '^src/(dashboard/|figures/numbers[.]ts$)', dependencyTypesNot: ['type-only'] },
    },
    {
      name: 'nobody-imports-the-dashboard',
      severity: 'error',
      from: { path: '^src/', pathNot: '^src/dashboard/' },
      to: { path: '^src/dashboard/' },
    },
    {
      name: 'only-binding-loads-the-addon',
      severity: 'error',
      from: { path: '^src/', pathNot: '^src/native/' },
      to: { path: 'node-llama-cpp' },
    },
    { name: 'src-knows-no-tests', severity: 'error', from: { path: '^src/' }, to: { path: '^(test|bench)/' } },
    { name: 'no-unresolved', severity: 'error', from: {}, to: { couldNotResolve: true } },
  ],
  options: {
    doNotFollow: { path: 'node_modules' },
    tsPreCompilationDeps: true,
    tsConfig: { fileName: 'tsconfig.json' },
    enhancedResolveOptions: { exportsFields: ['exports'], conditionNames: ['import', 'node', 'default', 'types'] },
  },
}
