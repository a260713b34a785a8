/**
 * Runs histories by hand: `node --import tsx test/outside/main.ts <first seed> [<how many>] [library | serve | clients] [<model.gguf>]`. Prints every
 * violation, and at the end how many there were; exits with 1 if there was one. Without a model each architecture has a synthetic one in turn.
 */
import { clientHistoryOf } from './client-history.js'
import { historyOf } from './history.js'
import { Runner } from './run.js'
import { serveHistoryOf } from './serve-history.js'
import { runServed } from './serve-run.js'

const [first = '1', count = '1', over = 'library', model] = process.argv.slice(2)
const histories = { library: historyOf, serve: serveHistoryOf, clients: clientHistoryOf }
const runner = new Runner()
const totals: Record<string, number> = {}
const kinds: Record<string, number> = {}
const failed: number[] = []
for (let seed = Number(first); seed < Number(first) + Number(count); seed++) {
  const history = histories[over as keyof typeof histories](seed, model)
  const run = 'setting' in history ? runner.run(history) : runServed(history, runner.noises)
  const { violations, tally } = await run
  if (violations.length > 0) failed.push(seed)
  for (const [key, value] of Object.entries(tally)) totals[key] = (totals[key] ?? 0) + Number(value)
  for (const { property, at, what } of violations) {
    kinds[property] = (kinds[property] ?? 0) + 1
    const setting = { ...history, ops: history.ops.length }
    console.log(`seed ${seed} op ${at} ${history.ops[at]?.op ?? ''} ${property}: ${what}`)
    console.log(`    ${JSON.stringify(setting)}`)
  }
}
console.log(JSON.stringify({ histories: Number(count), ...totals, violations: kinds }))
for (const [key, { floor, worst }] of runner.noises) console.log(key, floor.toExponential(1), worst.toExponential(1))
await runner.close()
if (failed.length > 0) {
  console.log(`${failed.length} of ${count} histories failed: ${failed.join(', ')}`)
  process.exitCode = 1
}
