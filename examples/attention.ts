/**
 * An attention study: to which text does the model attend when it answers, before and after the old part of its prompt is folded?
 * Run it with `node --import tsx examples/attention.ts`.
 */
import { builtinModel, LlamaEngine, openNative } from 'kvfold'
import { findingOf, ownWords, studyValues, type PromptRecord } from 'kvfold/lab'

// `attention: true` loads the model without flash attention, so that the weights can be read.
const engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), {
  cells: 8192,
  threads: 1,
  attention: true,
})

// Four prompts with 12 keys and 8 updates per key. Each key's older values are folded, and both answers are compared.
const records = await studyValues({
  engine,
  words: ownWords(),
  n: 8,
  keys: 12,
  seeds: [0, 1, 2, 3],
  contracts: ['exact', 'splice'],
  // The model is given the right answer, so that the complete and the folded prompt have the same answer.
  mode: 'given',
  onProgress: (done, total, next) => {
    console.error(`${done} of ${total}: ${next}`)
  },
})

const prompts = records.filter((record): record is PromptRecord => record.part === 'prompt')
const percent = (value: number | undefined) => (value === undefined ? '-' : `${(100 * value).toFixed(2)} %`)
console.log('share of the attention that an answer pays, from the tokens that read the value')
console.log('contract  pairs  on the current value       on older values')
for (const contract of ['exact', 'splice'] as const) {
  const { pairs, complete, folded } = findingOf(prompts, contract, 'reading')
  const change = (of: 'current' | 'older') => `${percent(complete?.[of])} -> ${percent(folded?.[of])}`.padEnd(26)
  console.log(`${contract.padEnd(9)} ${String(pairs).padEnd(6)} ${change('current')} ${change('older')}`)
}
await engine.dispose()
