/** Scores of attention heads: their kinds, the file that studies share, and the choice of heads by them or at random. */
import Type from 'typebox'
import { KvfoldError } from '../../runtime/core/errors.js'
import { mean } from '../../runtime/core/mean.js'
import { Random } from '../../runtime/core/random.js'
import { checked } from '../../runtime/core/schema.js'
import type { AttentionHead } from '../../runtime/native/types.js'

/**
 * The kinds of scores. The first three are mean weights.
 * `sink`: on the first token. `previous`: on the token before the one that looks. `induction`: in a text said twice, on the token that came
 * next the first time (prefix matching, Olsson et al. 2022, "In-context learning and induction heads").
 * `retrieval`: the share of copied tokens that had the most weight of all tokens when they were copied (Wu et al. 2024, "Retrieval head
 * mechanistically explains long-context factuality").
 */
export const HEAD_SCORES = ['sink', 'previous', 'induction', 'retrieval'] as const
export type HeadScoreName = (typeof HEAD_SCORES)[number]

/** The scores of one head. Each kind of score has one number between 0 and 1 for every prompt. */
export type HeadScores = AttentionHead & Readonly<Record<HeadScoreName, readonly number[]>>

/** Returns the name of a head: its layer, a hyphen, and its number in the layer. */
export const headName = ({ layer, head }: AttentionHead): string => `${layer}-${head}`

/** Returns the heads with the highest mean score, the highest first. */
export function topHeads(scores: readonly HeadScores[], by: HeadScoreName, count: number): readonly HeadScores[] {
  return [...scores].sort((a, b) => mean(b[by]) - mean(a[by])).slice(0, count)
}

// The file that studies of retrieval heads share: `{"layer-head": [score, ...]}`, one score for every prompt.

/** Returns the text of a file of scores, with the scores of one kind. */
export const headScoreFile = (scores: readonly HeadScores[], by: HeadScoreName): string =>
  `${JSON.stringify(Object.fromEntries(scores.map((one) => [headName(one), one[by].map((value) => Number(value.toFixed(6)))])))}\n`

const ScoreFile = Type.Record(Type.String(), Type.Array(Type.Number(), { minItems: 1 }))
const NAME = /^\d+-\d+$/

/** Reads the text of a file of scores. The head with the highest mean score comes first. @throws KvfoldError attention/bad-request */
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

/** Draws `count` of the scored heads at random, without the heads in `others`. The same seed draws the same heads. */
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
