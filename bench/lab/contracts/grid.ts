/** Owns the grid of contracts: folds by length of the prompt, place and size of what is folded, each under every contract, against `exact`. */
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import type { ConversationId } from '../../../src/runtime/core/ids.js'
import type { Span } from '../../../src/runtime/core/span.js'
import type { Prompt } from '../../../src/runtime/kv/prompt.js'
import type { Native } from '../../../src/runtime/native/types.js'
import { synthesizeModel } from '../../../src/runtime/native/synthetic.js'
import { divergence, edited } from '../../driver.js'
import { median } from '../../random-tokens.js'
import { SHAPE } from '../../shape.js'
import { holeAt, piMaterial, PLACES, randomMaterial, type Material, type Place } from './material.js'
import type { Watch } from './watch.js'
import { Stage, type Reading, type Shot } from './stage.js'
import { EXACT, FOLDS, SPLICE, VARIANTS, type Variant } from './variants.js'

/** What came of one fold. */
export interface Fold {
  readonly model: string
  /** Asked for, in tokens; a real prompt comes close. */
  readonly context: number
  readonly place: Place
  /** Share of the prompt that is folded. */
  readonly share: number
  readonly seed: number
  readonly variant: Variant
  readonly milliseconds: number
  readonly computed: number
  /** Kullback-Leibler divergence from `exact` of the next token, in nats. */
  readonly divergence: number
  /** Share of the greedy answer that equals the one under `exact`, up to the first difference. */
  readonly agreement: number
}

/** Medians of the folds that differ in their seed alone. */
export type Cell = Omit<Fold, 'seed'> & { readonly seeds: number }

/** A prompt that was never in the cache against one that came to be by an exact fold: what the kernels alone make different. */
export interface Noise extends Pick<Fold, 'model' | 'context' | 'seed' | 'divergence' | 'agreement'> {
  readonly share: number
}

export interface Grid {
  readonly folds: readonly Fold[]
  readonly noise: readonly Noise[]
}

export interface GridOptions {
  readonly contexts: readonly number[]
  /** Of the prompt, folded. */
  readonly shares: readonly number[]
  readonly seeds: number
  /** Greedy tokens that are compared. */
  readonly answer: number
}

/** Where the noise is measured. */
const NOISE = { place: 'middle', share: 0.5 } as const
/** Whole prompt, its folded twin and what is computed again side by side, and answers. */
const ROOM = { prompts: 4, tokens: 2048 }
const SYNTHETIC = { ...SHAPE, vocabulary: 2048, context: 32_768, type: 'f16', seed: 1 } as const
export const SYNTHETIC_NAME = `random ${SYNTHETIC.layers} x ${SYNTHETIC.embedding}`

/** All folds, on the model and on one with random weights; what there is so far when it is interrupted. */
export async function measureGrid(native: Native, modelPath: string, options: GridOptions, watch: Watch): Promise<Grid> {
  const path = join(tmpdir(), 'kvfold-bench-contracts.gguf')
  await synthesizeModel(path, SYNTHETIC)
  const models = [
    { name: basename(modelPath, '.gguf'), path: modelPath, material: piMaterialOf },
    { name: SYNTHETIC_NAME, path, material: randomMaterialOf },
  ]
  const folds: Fold[] = []
  const noise: Noise[] = []
  for (const { name, path, material } of models)
    for (const context of options.contexts) {
      const stage = await Stage.open(native, path, ROOM.prompts * context + ROOM.tokens)
      for (let seed = 0; seed < options.seeds && !watch.over(); seed++) {
        const given = { stage, material: material(stage, context, seed), answer: options.answer }
        for (const [place, share] of places(options.shares)) {
          if (watch.over()) break
          watch.say(`grid: ${name}, ${context} tokens, seed ${seed + 1} of ${options.seeds}, ${place}, ${share * 100} %`)
          const hole = holeAt(given.material, place, share)
          if (hole === null) continue
          const all = await foldEveryWay(given, hole)
          folds.push(...all.map((one) => ({ model: name, context, place, share, seed, ...one })))
          if (place === NOISE.place && share === NOISE.share)
            noise.push({ model: name, context, share, seed, ...(await noiseOf(given, hole)) })
        }
      }
      await stage.engine.dispose()
    }
  return { folds, noise }
}

const piMaterialOf = ({ engine }: Stage, context: number, seed: number) => piMaterial(engine.format, context, seed)
const randomMaterialOf = (_: Stage, context: number, seed: number) => randomMaterial(context, seed, SYNTHETIC.vocabulary)
const places = (shares: readonly number[]) => PLACES.flatMap((place) => shares.map((share) => [place, share] as const))

interface Given {
  readonly stage: Stage
  readonly material: Material
  readonly answer: number
}

type Outcome = Pick<Fold, 'variant' | 'milliseconds' | 'computed' | 'divergence' | 'agreement'>

interface Seen extends Shot, Reading {}

/** Every variant begins with the whole prompt in the cache and nothing else. */
async function foldEveryWay(given: Given, hole: Span): Promise<Outcome[]> {
  const { stage, material } = given
  const open = edited(material.base, [])
  const folded = edited(material.base, [{ ...hole, marker: material.marker }])
  const whole = await stage.read(open, EXACT)
  const outcomes: Outcome[] = []
  let exact: Seen | null = null
  for (const variant of Object.keys(FOLDS) as (keyof typeof FOLDS)[]) {
    const conversation = await stage.read(open, EXACT)
    const seen = await see(given, conversation, folded, await stage.show(conversation, folded, FOLDS[variant]))
    exact ??= seen
    outcomes.push({ variant, ...compared(exact, seen) })
  }
  outcomes.push(...(await restoredLater(given, hole)))
  const closed = await see(given, whole, folded, await foldAndClose(stage, whole, folded))
  if (exact !== null) outcomes.push({ variant: 'splice, gaps closed', ...compared(exact, closed) })
  return outcomes
}

/** A fold, a tool result, and then the hole is restored, against a conversation that never folded. The whole prompt is in the cache. */
async function restoredLater(given: Given, hole: Span): Promise<Outcome[]> {
  const { stage, material } = given
  const { base, later, marker } = material
  const restored = edited(later, [])
  const never = await stage.read(edited(base, []), EXACT)
  const exact = await see(given, never, restored, await stage.show(never, restored, EXACT))
  const back = await stage.read(edited(base, []), EXACT)
  await stage.show(back, edited(base, [{ ...hole, marker }]), SPLICE)
  await stage.show(back, edited(later, [{ ...hole, marker }]), SPLICE)
  const splice = await see(given, back, restored, await stage.show(back, restored, SPLICE))
  return [
    { variant: 'splice, restored', ...compared(exact, splice) },
    { variant: 'exact, restored', ...compared(exact, exact) },
  ]
}

/** A splice, its gap closed, and the step that the shift takes effect in: together. The conversation must share no cells. */
async function foldAndClose(stage: Stage, conversation: ConversationId, folded: Prompt): Promise<Shot> {
  const fold = await stage.show(conversation, folded, SPLICE)
  const begun = performance.now()
  if ((await stage.engine.closeGaps(conversation)) === 0) throw new Error('there was no gap to close')
  const closing = performance.now() - begun
  const next = await stage.show(conversation, folded, SPLICE)
  return { milliseconds: fold.milliseconds + closing + next.milliseconds, computed: fold.computed + next.computed }
}

/** The folded prompt computed from nothing, against the same after an exact fold. */
async function noiseOf(given: Given, hole: Span): Promise<Pick<Noise, 'divergence' | 'agreement'>> {
  const { stage, material } = given
  const folded = edited(material.base, [{ ...hole, marker: material.marker }])
  const never = await stage.read(folded, EXACT)
  const fresh = await see(given, never, folded, { milliseconds: 0, computed: 0 })
  const open = await stage.read(edited(material.base, []), EXACT)
  const exact = await see(given, open, folded, await stage.show(open, folded, EXACT))
  const { divergence, agreement } = compared(fresh, exact)
  return { divergence, agreement }
}

/** What the model makes of it; the conversation is over then. */
async function see({ stage, material, answer }: Given, conversation: ConversationId, shown: Prompt, shot: Shot): Promise<Seen> {
  const reading = await stage.ask(conversation, shown, material.opening, answer)
  await stage.forget(conversation)
  return { ...shot, ...reading }
}

function compared(exact: Seen, { milliseconds, computed, next, said }: Seen): Omit<Outcome, 'variant'> {
  // Rounding may take a divergence of nothing below nothing.
  const lost = Math.max(0, divergence(exact.next, next))
  return { milliseconds, computed, divergence: lost, agreement: agreement(exact.said, said) }
}

/** Share of `wanted` that `said` begins with. */
export function agreement(wanted: Int32Array, said: Int32Array): number {
  const differs = wanted.findIndex((token, at) => said[at] !== token)
  return differs < 0 ? 1 : differs / wanted.length
}

/** One cell for every model, context, place, share and variant, in the order of the variants. */
export function cellsOf(folds: readonly Fold[]): Cell[] {
  const groups = new Map<string, Fold[]>()
  for (const fold of folds) {
    const { model, context, place, share, variant } = fold
    const key = [model, context, place, share, variant].join('|')
    groups.set(key, [...(groups.get(key) ?? []), fold])
  }
  return [...groups.values()]
    .map((group) => {
      const { model, context, place, share, variant } = group[0]!
      const middle = (of: 'milliseconds' | 'computed' | 'divergence' | 'agreement') => median(group.map((fold) => fold[of]))
      return {
        ...{ model, context, place, share, variant },
        milliseconds: middle('milliseconds'),
        computed: middle('computed'),
        divergence: middle('divergence'),
        agreement: middle('agreement'),
        seeds: group.length,
      }
    })
    .sort((a, b) => rank(a) - rank(b))
}

/** Sorting is stable, so cells keep the order of measuring but for their variants. */
const rank = ({ variant }: Cell) => VARIANTS.indexOf(variant)
