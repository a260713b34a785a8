import { afterAll, expect, it } from 'vitest'
import { logprobsOf } from '../../bench/lab/answers.js'
import { builtinModel } from '../../src/runtime/cli/builtin.js'
import { LlamaEngine } from '../../src/runtime/engine/llama.js'
import { openNative } from '../../src/runtime/native/binding.js'

const open: LlamaEngine[] = []
afterAll(async () => {
  for (const engine of open) await engine.dispose()
})

it('how surprising a text is counts its own tokens, whatever the template around it', async () => {
  const native = await openNative({ gpu: 'cpu' })
  const text = 'The ferry leaves the harbour at noon and comes back when the lamps are lit.'
  const measured = async (system: string) => {
    const chatTemplate = `<|system|>${system}<|end|>{% for message in messages %}<|user|>{{ message.content }}<|end|>{% endfor %}`
    const engine = await LlamaEngine.load(native, builtinModel(), { threads: 1, cells: 1024, slots: 1, chatTemplate })
    open.push(engine)
    return logprobsOf(engine, text)
  }
  const [short, long] = [await measured('Hi.'), await measured('You answer every question in one sentence. '.repeat(20))]
  for (const tokens of [short, long]) expect(tokens.map((token) => token.text).join('')).toBe(text)
  expect(long.length).toBe(short.length)
})
