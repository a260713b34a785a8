/** Entry of `npm run bench -- <name> [--json]`: performance against peers, as ratios measured side by side in one run. */
import { attention } from './attention.js'
import { builtin } from './builtin.js'
import { books } from './books.js'
import { clientEdits } from './client-edits.js'
import { contracts } from './contracts.js'
import { editPrice } from './edit-price.js'
import { eightFoldsBench } from './eight-folds.js'
import { engineTable } from './engine-table.js'
import { engines } from './engines.js'
import { finding } from './finding.js'
import { fleet } from './fleet.js'
import { fold } from './fold.js'
import { gpu } from './gpu.js'
import { gspo } from './gspo.js'
import { interference } from './interference.js'
import { kvfold } from './kvfold.js'
import { lazyGrammar } from './lazy-grammar.js'
import { leak } from './leak.js'
import { memtool } from './memtool.js'
import { plain } from './plain.js'
import { prunes } from './prunes.js'
import { real } from './real.js'
import { refresh } from './refresh.js'
import { restores } from './restores.js'
import { retrieval } from './retrieval.js'
import { toolCalls } from './tool-calls.js'
import { toolFidelity } from './tool-fidelity.js'
import { toolSearch } from './tool-search.js'
import { tau2 } from './tau2.js'
import { travel } from './travel.js'
import { visitors } from './visitors.js'

const benches: Record<string, (json: boolean) => Promise<void>> = {
  attention,
  'between-decodes': async () => {
    await import('./serve/between-decodes.js')
  },
  books,
  builtin: () => builtin(process.argv.slice(3)),
  'client-edits': clientEdits,
  contracts: () => contracts(process.argv.slice(3)),
  'edit-price': () => editPrice(process.argv.slice(3)),
  'eight-folds': () => eightFoldsBench(process.argv.slice(3)),
  'engine-table': () => engineTable(process.argv.slice(3)),
  engines: () => engines(process.argv.slice(3)),
  finding,
  fleet: () => fleet(process.argv.slice(3)),
  fold: () => fold(process.argv.slice(3)),
  gpu: () => gpu(process.argv.slice(3)),
  gspo: () => gspo(process.argv.slice(3)),
  interference: () => interference(process.argv.slice(3)),
  kvfold: () => kvfold(process.argv.slice(3)),
  'lazy-grammar': () => lazyGrammar(process.argv.slice(3)),
  leak: () => leak(process.argv.slice(3)),
  memtool: () => memtool(process.argv.slice(3)),
  plain: () => plain(process.argv.slice(3)),
  prunes: () => prunes(process.argv.slice(3)),
  real: () => real(process.argv.slice(3)),
  refresh: () => {
    refresh(process.argv.slice(3))
    return Promise.resolve()
  },
  restores: () => restores(process.argv.slice(3)),
  retrieval: () => retrieval(process.argv.slice(3)),
  serve: async () => {
    await import('./serve/load.js')
  },
  'tool-calls': () => toolCalls(process.argv.slice(3)),
  'tool-fidelity': () => toolFidelity(process.argv.slice(3)),
  'tool-search': toolSearch,
  tau2: () => tau2(process.argv.slice(3)),
  travel: () => travel(process.argv.slice(3)),
  visitors: () => visitors(process.argv.slice(3)),
}

const [name = '', ...flags] = process.argv.slice(2)
const bench = benches[name]
if (bench === undefined) {
  console.error(`bench: no bench named '${name}'; there are: ${Object.keys(benches).join(', ')}`)
  process.exit(2)
}
await bench(flags.includes('--json'))
process.exit(0)
