/** The synthetic model of the benches on folds: random weights, since speed does not depend on them. */
export const SHAPE = {
  architecture: 'llama',
  layers: 4,
  embedding: 256,
  heads: 4,
  kvHeads: 2,
  feedForward: 704,
  vocabulary: 8192,
  context: 16_384,
} as const
