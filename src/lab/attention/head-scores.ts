/** Scores of attention heads, the file format for them, and the choice of heads by score or at random. */
import Type from 'typebox'
import { KvfoldError } from '../../runtime/core/errors.js'
import { mean } from '../../runtime/core/mean.js'
import { Random } from '../../runtime/core/random.js'
import { checked } from '../../runtime/core/schema.js'
import type { AttentionHead } from '../../runtime/native/types.js'

/**
 * The kinds of scores. The first three are mean attention weights.
 * `sink`: on the first token. `previous`: on the token before the query. `induction`: in a text that occurs twice, on the token that
 * followed the query's token the first time (prefix matching, Olsson et al. 2022, "In-context learning and induction heads").
 * `retrieval`: the share of copied tokens to whose original the head gave its largest weight while they were generated (Wu et al. 2024,
 * "Retrieval head mechanistically explains long-context factuality").
 */
export const HEAD_SCORES = ['sink', 'previous', 'induction', 'retrieval'] as const
export type HeadScoreName = (typeof HEAD_SCORES)[number]

/** The scores of one head: for each kind, one number between 0 and 1 per prompt. */
export type HeadScores = AttentionHead & Readonly<Record<HeadScoreName, readonly number[]>>

/** Returns the name of a head: `<layer>-<index in the layer>`. */
export const headName = ({ layer, head }: AttentionHead): string => `${layer}-${head}`

/** Returns the `count` heads with the highest mean score, the highest first. */
export function topHeads(scores: readonly HeadScores[], by: HeadScoreName, count: number): readonly HeadScores[] {
  return [...scores].sort((a, b) => mean(b[by]) - mean(a[by])).slice(0, count)
}

// Below: the file format that studies of retrieval heads use: `{"layer-head": [score, ...]}`, one score per prompt.

/** Returns the text of such a file with the scores of one kind. */
export const headScoreFile = (scores: readonly HeadScores[], by: HeadScoreName): string =>
  `${JSON.stringify(Object.fromEntries(scores.map((one) => [headName(one), one[by].map((value) => Number(value.toFixed(6)))])))}\n`

const ScoreFile = Type.Record(Type.String(), Type.Array(Type.Number(), { minItems: 1 }))
const NAME = /^\d+-\d+$/

/**
 * Reads the text of such a file. The head with the highest mean score comes first. `source`: its name in errors. @throws KvfoldError
 * attention/bad-request
 */
export function readHeadScores(text: string, source: string): readonly (AttentionHead & { readonly score: number })[] {
  let given: unknown
  try {
    given = JSON.parse(text)
  } catch (cause) {
    throw new KvfoldError('attention/bad-request', `${source} is not JSON; give a file {"layer-head": [score, ...]}.`, { cause })
  }
  const read = checked(ScoreFile, given)
  if (!read.ok || Object.keys(read.value).length === 0 || !Object.keys(read.value).every((name) => NAME.test(name)))
    throw new KvfoldError('attention/bad-request', `${source} has no scores; give a file {"layer-head": [score, ...]}.`)
  return Object.entries(read.value)
    .map(([name, values]) => {
      const [layer = 0, head = 0] = name.split('-').map(Number)
      return { layer, head, score: mean(values) }
    })
    .sort((a, b) => b.score - a.score)
}

/** Draws `count` of the scored heads at random, none of `others`. The same seed draws the same heads. */
export function randomHeads(
  scores: readonly AttentionHead[],
  count: number,
  others: readonly AttentionHead[],
  seed: number,
): readonly AttentionHead[] {
  const taken = new Set(others.map(headName))
  const free = scores.filter((one) => !taken.has(headName(one)))
  if (free.length < count)
    throw new KvfoldError(
      'attention/bad-request',
      `Only ${free.length} heads are left to draw ${count} at random from; knock out fewer.`,
    )
  return new Random(seed, count, 3).shuffled(free).slice(0, count)
}
