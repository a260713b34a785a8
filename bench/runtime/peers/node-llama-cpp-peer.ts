/**
 * The peer node-llama-cpp: makes the same sequence calls as its LlamaChatSession does for each answer, without the text handling around
 * them.
 */
import { readFileSync } from 'node:fs'
import { getLlama, type Token } from 'node-llama-cpp'
import { UBATCH, type Peer, type PeerOptions } from './peer.js'

/** Loads the model in this process. */
export async function nodeLlamaCppPeer({ model: modelPath, contextSize, threads }: PeerOptions): Promise<Peer> {
  const llama = await getLlama({ gpu: false, build: 'never', progressLogs: false, maxThreads: threads })
  const model = await llama.loadModel({ modelPath })
  const context = await model.createContext({ contextSize, sequences: 1, batchSize: UBATCH, threads, flashAttention: true })
  const sequence = context.getSequence()
  return {
    name: `node-llama-cpp ${version()}`,
    async show(tokens) {
      const before = sequence.tokenMeter.getState()
      const begun = performance.now()
      // As LlamaChat.alignCurrentSequenceStateWithCurrentTokens does: the common beginning stays, nothing is shifted, and the last token is
      // always evaluated.
      const prompt = [...tokens] as Token[]
      await sequence.adaptStateToTokens(prompt.slice(0, -1), false)
      const cached = sequence.nextTokenIndex
      const answer = sequence.evaluate(prompt.slice(cached), { temperature: 0, yieldEogToken: true })
      await answer.next()
      const milliseconds = performance.now() - begun
      await answer.return()
      // The meter counts a token whose logits were requested as output. Here that is only the prompt's last token.
      const { usedInputTokens, usedOutputTokens } = sequence.tokenMeter.diff(before)
      return { evaluated: usedInputTokens + usedOutputTokens, cached, milliseconds }
    },
    async close() {
      await context.dispose()
      await model.dispose()
    },
  }
}

function version(): string {
  const manifest = new URL('../package.json', import.meta.resolve('node-llama-cpp'))
  return (JSON.parse(readFileSync(manifest, 'utf8')) as { version: string }).version
}
