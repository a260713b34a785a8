/** A process that answers one prompt for one tenant with a disk cache, and prints the tokens it computed and its notes. */
import { conversationId } from '../../../../src/runtime/core/ids.js'
import { LlamaEngine } from '../../../../src/runtime/engine/llama.js'
import { openNative } from '../../../../src/runtime/native/binding.js'

const [model = '', folder = '', tenant = ''] = process.argv.slice(2)
const engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), model, {
  ...{ cells: 4096, sequences: 8, threads: 1, batchThreads: 1, hostBytes: 1e8 },
  disk: { folder, bytes: 1e9 },
})
const { refused } = engine.cacheTotals.tiers
const { ledger } = await engine.respond({
  conversation: conversationId(`of ${process.pid}`),
  messages: [{ role: 'user', content: 'Begin here. '.repeat(60) }],
  maxTokens: 1,
  tenant,
}).reply
await engine.dispose()
console.log(JSON.stringify({ submitted: ledger.submitted, disk: ledger.tiers.disk, refused, notes: engine.notes }))
