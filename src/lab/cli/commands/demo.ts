/** The command `kvfold demo`: a conversation several times longer than the context, with the built-in model or another one. */
import type { Command } from 'commander'
import type { Contract } from '../../../runtime/core/contract.js'
import { wordsFrom } from '../../pi-llm.js'
import { CONTEXT, readerPlan, TIMES, TOKENS } from '../demo/plan.js'
import { DemoView, type Opening } from '../demo/view.js'
import { Reader, type Reading } from '../demo/reader.js'
import { BUILTIN } from '../../../runtime/cli/builtin.js'
import { addModelOptions, integer, type ModelFlags } from '../../../runtime/cli/options.js'
import { loadEngine } from '../../../runtime/cli/runtime.js'
import type { Shell } from '../../../runtime/cli/shell.js'

interface DemoFlags extends ModelFlags {
  readonly tokens?: number
  readonly seed: number
  readonly words?: string
  readonly json?: true
}

export function addDemo(program: Command, shell: Shell): void {
  const command = program
    .command('demo')
    .description('show how a conversation several times longer than the context goes on, and what each fold costs')
    .option(
      '--tokens <count>',
      `length of the stream (default: ${TOKENS}, or ${TIMES} contexts of another model)`,
      integer(200, 200_000),
    )
    .option('--seed <number>', 'seed of the stream', integer(0, 0xffffffff), 1)
    .option('--words <file>', "keys and values from a JSON file {category: [value, ...]} instead of the project's own")
    .option('--json', 'print only one line of JSON: what was read, answered and computed')
  addModelOptions(command).action((flags: DemoFlags) => demo(flags, command, shell))
}

async function demo(flags: DemoFlags, command: Command, { out, notes, interrupt }: Shell): Promise<void> {
  const isBuiltin = flags.model === BUILTIN
  const words = wordsFrom(flags.words)
  const begun = performance.now()
  // Without --contract, the demo folds under `splice`; other commands default to `exact`.
  const contract = command.getOptionValueSource('contract') === 'default' ? 'splice' : flags.contract
  const context = flags.context ?? (isBuiltin ? undefined : CONTEXT)
  const engine = await loadEngine({ ...flags, contract, ...(context === undefined ? {} : { context }) }, notes, interrupt.signal)
  try {
    const cells = engine.info.context
    const plan = readerPlan(engine, { ...flags, words, contract: contract as Contract, isBuiltin })
    const { openTokens } = plan
    const keys = plan.keys.length
    const view = flags.json === true ? null : new DemoView(out)
    const reader = new Reader(
      engine,
      plan,
      {
        progress: (doing, standing) => {
          ;(view ?? new DemoView(notes)).progress(doing, standing)
        },
        folded: (cost, standing) => view?.folded(cost, standing),
      },
      interrupt.signal,
    )
    const opening: Opening = { model: engine.info.model, context: cells, tokens: reader.tokens, keys, openTokens, contract }
    view?.begin(opening)
    const refusal = await reader.refusal()
    view?.sentAtOnce(refusal?.message ?? null)
    view?.reads(opening)
    const reading = await reader.run()
    view?.ended(reading, opening)
    if (flags.json === true) out.print(jsonOf(reading, cells, (performance.now() - begun) / 1000))
  } finally {
    out.close()
    notes.close()
    await engine.dispose()
  }
}

/**
 * Returns the line of JSON. `computed` and `prefixCache.computed` cover the same steps: reading, folding, the answer and the restore.
 * `computed` counts the tokens that kvfold computed; `prefixCache.computed` (the ledger's `plain`) those that a prefix cache would compute.
 */
function jsonOf({ conversationTokens, asked, right, total }: Reading, cells: number, seconds: number): string {
  return JSON.stringify({
    conversationTokens,
    cells,
    asked,
    right,
    computed: total.ours.tokens,
    prefixCache: { computed: total.prefixCache.tokens },
    seconds: Math.round(seconds * 10) / 10,
  })
}
