/**
 * A tool of your own: the model calls it during its turn, and the program carries it out.
 * Run it with `node --import tsx examples/own-tool.ts`.
 */
import { builtinModel, conversationId, LlamaEngine, openNative, Session, type ClientTool } from 'kvfold'

const STOCK: Readonly<Record<string, number>> = { apples: 12, pears: 0, plums: 7 }

/** The schema limits the arguments: the call is sampled under a grammar made from it. */
const stockTool: ClientTool = {
  definition: {
    name: 'stock_of',
    description: 'How many of a fruit are in stock.',
    parameters: {
      type: 'object',
      properties: { fruit: { type: 'string', enum: Object.keys(STOCK) } },
      required: ['fruit'],
      additionalProperties: false,
    },
  },
  execute: ({ fruit }) => {
    const name = String(fruit)
    return `There are ${STOCK[name] ?? 'no such'} ${name}.`
  },
}

const engine = await LlamaEngine.load(await openNative({ gpu: 'cpu' }), builtinModel(), { cells: 8192, threads: 1 })
const session = new Session({
  engine,
  id: conversationId('own-tool'),
  // This session has only the tool above. `sculptor({ ..., clientTools })` adds the six context tools.
  contextTools: false,
  clientTools: [stockTool],
  // The built-in model was not trained on this tool, so its first step must make a call.
  firstStep: 'required',
  generation: { maxTokens: 64, sampling: { temperature: 0 } },
})

// Your own model would end the turn with an answer. Here the turn ends at the tool's result, which the program uses.
const done = new AbortController()
let stock = ''
const turn = await session.ask('How many plums are there?', {
  signal: done.signal,
  onEvent: (event) => {
    if (event.type === 'call') console.log(`the model calls ${event.call.name}(${JSON.stringify(event.call.arguments)})`)
    if (event.type !== 'result') return
    console.log(`the tool says: ${(stock = event.text)}`)
    done.abort()
  },
})
console.log(`the program has its answer: ${stock}`)
console.log(`${turn.calls} call, ${turn.contextAfter} tokens in context at the end`)
await engine.dispose()
