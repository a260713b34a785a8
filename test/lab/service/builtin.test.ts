import { mkdtemp } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { builtinModel } from '../../../src/runtime/cli/builtin.js'
import { LlamaEngine } from '../../../src/runtime/engine/llama.js'
import { rowsOf, runService } from '../../../src/lab/service/run.js'
import { deskScenarios } from '../../../src/lab/service/dialogue.js'
import { TEST_GPU } from '../../support/device.js'
import { openNative } from '../../../src/runtime/native/binding.js'
import { LONG } from '../../support/long.js'

it('on a real cache, helpers on forks compute only their suffix: u-fold costs below 1.8 times ReAct, the printed order over 3', async () => {
  const native = await openNative({ gpu: TEST_GPU })
  const engine = await LlamaEngine.load(native, builtinModel(), { threads: 1, batchThreads: 1 })
  try {
    const dialogues = await runService({
      ...{
        engine,
        weights: [null],
        frameworks: LONG ? ['react', 'u-fold', 'u-fold-printed'] : ['react', 'u-fold'],
        scenarios: deskScenarios({ agent: 'taught', turns: [LONG ? 12 : 5], fields: [0], samples: 1, seed: 1 }),
      },
      ...{
        window: engine.info.context,
        contract: 'splice',
        temperature: 0,
        maxTokens: 512,
        fold: { foldFrom: LONG ? 4096 : 2000 },
        command: 'test',
      },
      log: await mkdtemp(join(tmpdir(), 'service-')),
      signal: new AbortController().signal,
    })
    const [react, fold, printed] = rowsOf(dialogues)
    expect([react, fold].map((row) => row?.reward)).toEqual([1, 1])
    expect(fold!.folds).toBeGreaterThan(0)
    expect(fold!.tokensComputed).toBeLessThan(1.8 * react!.tokensComputed)
    if (LONG) expect(printed!.tokensComputed).toBeGreaterThan(3 * react!.tokensComputed)
    // The helpers' prompts show the whole log, but the helpers compute only their instructions and replies.
    const shown = dialogues[1]!.turns.reduce((sum, { details }) => sum + (details['helperShown'] ?? 0), 0)
    expect(fold!.tokensHelpers).toBeLessThan(shown / 5)
  } finally {
    await engine.dispose()
  }
}, 600_000)
