/** Owns vectors of texts by a GGUF: an embedding model, or, in place of one, the model under evaluation itself. */
import { Embedder, type EmbedderOptions } from '../../engine/embedder.js'
import type { LlamaEngine } from '../../engine/llama.js'
import type { TextEmbedder } from '../agent.js'
import { embedWhole } from './whole-text.js'

/** An embedder that has something to give back. */
export interface OwnedTextEmbedder extends TextEmbedder {
  /** Idempotent. */
  dispose(): Promise<void>
}

/** Vectors by `embedder`, which becomes this one's own. Texts too long for it are embedded in parts. `name`: what the log calls it. */
export function ggufEmbedder(embedder: Embedder, name: string): OwnedTextEmbedder {
  const tokens = (text: string) => embedder.model.tokenize(text, { addSpecial: true }).length
  return {
    name,
    embed: (texts, signal) =>
      embedWhole(texts, {
        length: tokens,
        most: embedder.tokens,
        embed: async (parts) => (await embedder.embed(parts, signal === undefined ? {} : { signal })).vectors,
      }),
    dispose: () => embedder.dispose(),
  }
}

/**
 * Where there is no embedding model: means of the hidden states of the engine's own model, in a context of their own. It was not trained for
 * that, and the name says so. Dispose of it before the engine.
 * @throws as Embedder.on
 */
export async function fallbackEmbedder(engine: LlamaEngine, options: EmbedderOptions = {}): Promise<OwnedTextEmbedder> {
  const embedder = await Embedder.on(engine.model, { pooling: 'mean', ...options })
  return ggufEmbedder(embedder, `fallback: ${embedder.pooling} of ${engine.info.model}'s own hidden states`)
}
