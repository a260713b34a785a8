/** Owns which models read a text as a whole, and how their vectors of tokens become one of a text. */
import type { ModelInfo, Pooling } from './types.js'

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

// How a model's vectors of tokens become one of a text: llama.cpp's numbers for it, and what a model's file says.

/** In the order of llama_pooling_type. */
const POOLINGS: readonly Pooling[] = ['none', 'mean', 'cls', 'last', 'rank']

export const isPooling = (name: unknown): name is Pooling => POOLINGS.some((pooling) => pooling === name)

/** llama_pooling_type */
export const poolingNumber = (pooling: Pooling): number => POOLINGS.indexOf(pooling)

/** What the model was trained with; null: its file does not say, as those of models that generate text. */
export function poolingOf({ architecture, metadata }: Pick<ModelInfo, 'architecture' | 'metadata'>): Pooling | null {
  const text = metadata[`${architecture}.pooling_type`]
  return text === undefined ? null : (POOLINGS[Number(text)] ?? null)
}
