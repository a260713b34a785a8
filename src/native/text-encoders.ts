/** Owns which models read a text as a whole: llama.cpp gives them no cache, and nothing comes out of them but embeddings. */
import type { ModelInfo } from './types.js'

/** Architectures of llama.cpp v0.5.0 without a cache (llama_model::create_memory) that are neither diffusion nor speech. */
const TEXT_ENCODERS: readonly string[] = [
  ...['bert', 'modern-bert', 'nomic-bert', 'nomic-bert-moe', 'neo-bert', 'jina-bert-v2', 'jina-bert-v3', 'eurobert'],
  'gemma-embedding',
]
/** Without a cache, too; llama.cpp does not count it among those that only encode. */
const SPEECH = 'wavtokenizer-dec'

export const isTextEncoder = (architecture: string): boolean => TEXT_ENCODERS.includes(architecture)

/** True where llama.cpp has no cache, although it says that the model decodes. */
export const isCacheless = (architecture: string): boolean => isTextEncoder(architecture) || architecture === SPEECH

/** Whether a token sees only those before it. Others need their whole text in one ubatch: llama.cpp ends the process otherwise. */
export const isCausal = ({ architecture, metadata }: Pick<ModelInfo, 'architecture' | 'metadata'>): boolean =>
  !isTextEncoder(architecture) && metadata[`${architecture}.attention.causal`] !== 'false'
