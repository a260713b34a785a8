/** The entry of `npm run bench -- <name> [--json]`: performance against peers, as ratios of measurements made side by side in one run. */
import { acm } from './runtime/acm.js'
import { agentx } from './runtime/agentx.js'
import { answers } from './lab/answers.js'
import { attention } from './lab/attention.js'
import { builtin } from './lab/builtin.js'
import { books } from './runtime/books.js'
import { clientEdits } from './runtime/client-edits.js'
import { editPrice } from './runtime/edit-price.js'
import { eightFoldsBench } from './runtime/eight-folds.js'
import { engineTable } from './fleet/engine-table.js'
import { engines } from './fleet/engines.js'
import { fidelity } from './runtime/fidelity.js'
import { finding } from './lab/finding.js'
import { fold } from './runtime/fold.js'
import { gpu } from './runtime/gpu.js'
import { gspo } from './lab/gspo.js'
import { interference } from './lab/interference.js'
import { kvfold } from './runtime/kvfold.js'
import { lazyGrammar } from './runtime/lazy-grammar.js'
import { memtool } from './lab/memtool.js'
import { plain } from './runtime/plain.js'
import { real } from './runtime/real.js'
import { refresh } from './runtime/refresh.js'
import { restores } from './runtime/restores.js'
import { retrieval } from './lab/retrieval.js'
import { speculation } from './runtime/speculation.js'
import { toolCalls } from './lab/tool-calls.js'
import { toolSearch } from './runtime/tool-search.js'
import { tau2 } from './lab/tau2.js'
import { traces } from './runtime/traces.js'
import { travel } from './fleet/travel.js'
import { visitors } from './lab/visitors.js'
import { wordings } from './lab/wordings.js'

const benches: Record<string, (json: boolean) => Promise<void>> = {
  acm: () => acm(process.argv.slice(3)),
  agentx: () => agentx(process.argv.slice(3)),
  answers: () => answers(process.argv.slice(3)),
  attention,
  'between-decodes': async () => {
    await import('./runtime/serve/between-decodes.js')
  },
  books,
  builtin: () => builtin(process.argv.slice(3)),
  'client-edits': clientEdits,
  'edit-price': () => editPrice(process.argv.slice(3)),
  'eight-folds': () => eightFoldsBench(process.argv.slice(3)),
  'engine-table': () => engineTable(process.argv.slice(3)),
  engines: () => engines(process.argv.slice(3)),
  fidelity: () => fidelity(process.argv.slice(3)),
  finding,
  fold: () => fold(process.argv.slice(3)),
  gpu: () => gpu(process.argv.slice(3)),
  gspo: () => gspo(process.argv.slice(3)),
  interference: () => interference(process.argv.slice(3)),
  kvfold: () => kvfold(process.argv.slice(3)),
  'lazy-grammar': () => lazyGrammar(process.argv.slice(3)),
  memtool: () => memtool(process.argv.slice(3)),
  plain: () => plain(process.argv.slice(3)),
  real: () => real(process.argv.slice(3)),
  refresh: () => {
    refresh(process.argv.slice(3))
    return Promise.resolve()
  },
  restores: () => restores(process.argv.slice(3)),
  retrieval: () => retrieval(process.argv.slice(3)),
  serve: async () => {
    await import('./runtime/serve/load.js')
  },
  speculation: () => speculation(process.argv.slice(3)),
  'tool-calls': () => toolCalls(process.argv.slice(3)),
  'tool-search': toolSearch,
  tau2: () => tau2(process.argv.slice(3)),
  traces: () => traces(process.argv.slice(3)),
  travel: () => travel(process.argv.slice(3)),
  visitors: () => visitors(process.argv.slice(3)),
  wordings: () => wordings(process.argv.slice(3)),
}

const [name = '', ...flags] = process.argv.slice(2)
const bench = benches[name]
if (bench === undefined) {
  console.error(`bench: no bench named '${name}'; there are: ${Object.keys(benches).join(', ')}`)
  process.exit(2)
}
await bench(flags.includes('--json'))
process.exit(0)
