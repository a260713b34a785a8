/** Owns how a model's vectors of tokens become one of a text: llama.cpp's numbers for it, and what a model's file says. */
import type { ModelInfo, Pooling } from './types.js'

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
