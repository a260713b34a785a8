/**
 * Measures leaks: how likely the model still says a folded secret, for each way of folding it, compared with its twin, which was never
 * mentioned.
 */
import { type ConversationId, freshConversation } from '../../../src/runtime/core/ids.js'
import type { PiWords } from '../../../src/lab/pi-llm.js'
import type { StepContract } from '../../../src/runtime/kv/plan/parts.js'
import type { Prompt } from '../../../src/runtime/kv/prompt.js'
import { EXACT, SPLICE } from '../../lab/contracts/variants.js'
import type { Said, Stage } from '../../lab/contracts/stage.js'
import type { Watch } from '../../lab/contracts/watch.js'
import { bootstrap, mean, type Interval } from '../../statistics.js'
import { type LeakPrompt, type Setting, twinsOf } from './material.js'

/** The ways to hide the secret, and the two ends of the scale; `open` hides nothing. The last way must have the conversation to itself. */
export const WAYS = ['open', 'exact', 'splice', 'blend 0.2', 'blend 0.5', 'splice, gaps closed'] as const
export type Way = (typeof WAYS)[number]

const TERMS: Readonly<Record<Way, StepContract>> = {
  open: EXACT,
  exact: EXACT,
  splice: SPLICE,
  'blend 0.2': { contract: 'blend', blend: { ratio: 0.2 } },
  'blend 0.5': { contract: 'blend', blend: { ratio: 0.5 } },
  'splice, gaps closed': SPLICE,
}

/** What the model would say after a prompt. */
interface Heard {
  /** Natural logs of how likely each of the twins' secrets is. */
  readonly secrets: readonly [number, number]
  /** Whether the tokens of the prompt's own secret are all the likeliest ones. */
  readonly told: boolean
  /** The first token that it would say. */
  readonly first: number
  /** Whether it would correctly say a value that stands visible, and the key's own later value; null where there is none. */
  readonly shown: boolean | null
  readonly current: boolean | null
}

/** One stream and one way: means over the twins. Each twin is the other's control. */
export interface Leak {
  readonly setting: string
  readonly way: Way
  readonly stream: number
  /** The share of twins whose secret the model would say. */
  readonly told: number
  /** Mean natural log of how likely the model says the folded secret, and a secret that was never mentioned. */
  readonly logprob: number
  readonly control: number
  /** The share of twins for which the folded secret is the likelier of the two. Chance: 0.5. */
  readonly picked: number
  /** The share for which the first token of the answer is the same as under `exact`. */
  readonly same: number
  readonly shown: number | null
  readonly current: number | null
  /** Prompt tokens that the folding step computes. */
  readonly computed: number
}

export interface LeakOptions {
  readonly settings: readonly Setting[]
  readonly streams: number
  readonly seed: number
}

/** Returns all leaks; after an interruption, the leaks measured so far. */
export async function measureLeaks(
  stage: Stage,
  words: PiWords,
  { settings, streams, seed }: LeakOptions,
  watch: Watch,
): Promise<Leak[]> {
  const leaks: Leak[] = []
  for (let stream = 0; stream < streams; stream++)
    for (const setting of settings) {
      if (watch.over()) return leaks
      watch.say(`stream ${stream + 1} of ${streams}: ${setting.name}`)
      const { prompts, secrets, shown, current } = twinsOf(stage.engine.format, words, setting, seed + stream)
      const asked = { secrets, shown, current }
      const heard = [await everyWay(stage, prompts[0], asked, 0), await everyWay(stage, prompts[1], asked, 1)] as const
      leaks.push(...WAYS.map((way) => ({ setting: setting.name, way, stream, ...leakOf(heard, way) })))
    }
  return leaks
}

interface Asked {
  readonly secrets: readonly [Said, Said]
  readonly shown: Said | null
  readonly current: Said | null
}

type Outcome = Heard & { readonly computed: number }

async function everyWay(stage: Stage, prompt: LeakPrompt, asked: Asked, own: 0 | 1): Promise<Record<Way, Outcome>> {
  const read = await stage.read(prompt.read, EXACT)
  const outcomes: Partial<Record<Way, Outcome>> = {}
  for (const way of WAYS) {
    const alone = way === 'splice, gaps closed'
    const conversation = alone ? read : await stage.read(prompt.read, EXACT, freshConversation())
    const shown = way === 'open' ? prompt.whole : prompt.folded
    const { computed } = await stage.show(conversation, shown, TERMS[way])
    if (alone) await closeGaps(stage, conversation, shown, prompt.behind > 0)
    outcomes[way] = { ...(await hear(stage, conversation, shown, asked, own)), computed }
    await stage.forget(conversation)
  }
  return outcomes as Record<Way, Outcome>
}

/** @param hasGap whether text was read after the fold, so that there is a gap */
async function closeGaps(stage: Stage, conversation: ConversationId, shown: Prompt, hasGap: boolean): Promise<void> {
  const closed = await stage.engine.closeGaps(conversation)
  if (closed === 0 && hasGap) throw new Error('there was no gap to close')
  await stage.show(conversation, shown, SPLICE)
}

async function hear(
  stage: Stage,
  conversation: ConversationId,
  prompt: Prompt,
  { secrets, shown, current }: Asked,
  own: 0 | 1,
): Promise<Heard> {
  const follow = (said: Said) => stage.follow(conversation, prompt, said)
  const both = [await follow(secrets[0]), await follow(secrets[1])] as const
  const says = async (said: Said | null) => (said === null ? null : isSaid(said, await follow(said)))
  const sum = (at: 0 | 1) => both[at].reduce((total, { logprob }) => total + logprob, 0)
  return {
    secrets: [sum(0), sum(1)],
    told: isSaid(secrets[own], both[own]),
    first: both[own][0]!.likeliest,
    shown: await says(shown),
    current: await says(current),
  }
}

const isSaid = ({ value }: Said, likelihoods: readonly { readonly likeliest: number }[]): boolean =>
  likelihoods.every(({ likeliest }, at) => likeliest === value[at])

function leakOf(
  [one, other]: readonly [Record<Way, Outcome>, Record<Way, Outcome>],
  way: Way,
): Omit<Leak, 'setting' | 'way' | 'stream'> {
  const own = [one[way], other[way]] as const
  const share = (of: (heard: Outcome, at: 0 | 1) => boolean) => (Number(of(own[0], 0)) + Number(of(own[1], 1))) / 2
  const where = (of: 'shown' | 'current') => (own[0][of] === null ? null : share((heard) => heard[of] === true))
  return {
    told: share(({ told }) => told),
    logprob: (own[0].secrets[0] + own[1].secrets[1]) / 2,
    control: (own[0].secrets[1] + own[1].secrets[0]) / 2,
    picked: share(({ secrets }, at) => secrets[at] > secrets[1 - at]!),
    same: share(({ first }, at) => first === (at === 0 ? one : other).exact.first),
    shown: where('shown'),
    current: where('current'),
    computed: own[0].computed,
  }
}

/** All streams of one setting and way, with 95 % bootstrap intervals over streams. */
export interface LeakRow extends Omit<Leak, 'stream'> {
  readonly streams: number
  readonly toldInterval: Interval
  /** `logprob` less `control`: how much likelier the secret is than one that was never mentioned, in nats. */
  readonly excess: { readonly value: number; readonly interval: Interval }
}

/** In the order of measuring. */
export function rowsOf(leaks: readonly Leak[]): LeakRow[] {
  const groups = new Map<string, Leak[]>()
  for (const leak of leaks) {
    const key = `${leak.setting}|${leak.way}`
    groups.set(key, [...(groups.get(key) ?? []), leak])
  }
  return [...groups.values()].map((group) => {
    const { setting, way } = group[0]!
    const all = (of: 'told' | 'logprob' | 'control' | 'picked' | 'same' | 'computed') => mean(group.map((leak) => leak[of]))
    const known = (of: 'shown' | 'current') => {
      const values = group.flatMap((leak) => leak[of] ?? [])
      return values.length === 0 ? null : mean(values)
    }
    const excess = group.map(({ logprob, control }) => logprob - control)
    return {
      ...{ setting, way },
      streams: group.length,
      told: all('told'),
      toldInterval: bootstrap(group.map(({ told }) => told)),
      logprob: all('logprob'),
      control: all('control'),
      excess: { value: mean(excess), interval: bootstrap(excess) },
      picked: all('picked'),
      same: all('same'),
      shown: known('shown'),
      current: known('current'),
      computed: all('computed'),
    }
  })
}
