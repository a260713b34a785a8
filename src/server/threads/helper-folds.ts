/** Owns folding by helpers in a thread (`u-fold`, `resum`): when they look, what of a thread was theirs, and what their notes are. */
import { UFold, type UFoldOptions, type UFoldSetting, type UFoldState } from '../../agents/u-fold/u-fold.js'
import type { LedgerEntry } from '../../kv/ledger.js'
import type { Folded } from './policies.js'
import type { Thread } from './thread.js'

export type HelperAcm = 'u-fold' | 'resum'

/** Notes and choices since the server was started; what is hidden is in the thread itself. */
const states = new WeakMap<Thread, UFoldState>()

/** Of ReSum's code: the share of the window at which it summarises. */
const FULL = 0.9

export interface HelperFold {
  readonly folded: Folded | null
  readonly ledger: readonly LedgerEntry[]
  /** For people: what happened, and the notes with the to-do list. */
  readonly reason: string
}

/**
 * Looks at a thread whose last messages wait for an answer: `u-fold` where the user has just spoken, `resum` at any step, when the window is nearly full.
 * Null when there was nothing to look at. @throws KvfoldError what the engine throws
 */
export async function foldByHelpers(
  acm: HelperAcm,
  thread: Thread,
  setting: Pick<UFoldSetting, 'engine' | 'tools' | 'generation' | 'pinned'>,
  signal: AbortSignal,
): Promise<HelperFold | null> {
  const { conversation } = thread
  const { messages } = conversation
  const user = messages.findLastIndex(({ role }) => role === 'user')
  const upTo = messages.at(-1)?.role === 'user' ? user : messages.findLastIndex(({ role }) => role === 'assistant')
  if (user === -1 || upTo < 1 || (acm === 'u-fold' && upTo !== user)) return null
  const folding = new UFold({
    ...setting,
    conversation,
    options: { numbered: false, ...optionsOf(acm, setting) },
    state: states.get(thread) ?? { memory: null, blocks: [], upTo: 0, folds: 0, refused: 0, own: ownOf(thread) },
  })
  const { kind, why, before, after, ledger, refused } = await folding.fold(messages[user]!.content, signal, upTo)
  states.set(thread, folding.state)
  if (kind === 'small' || kind === 'same') return { folded: null, ledger, reason: '' }
  const ours = new Set(folding.state.own)
  const fragments = kind === 'folded' ? conversation.fragments.filter(({ id }) => ours.has(id)) : []
  const lines = folding.selected.map(({ first, last }) => `${first}-${last}`).join(', ')
  const wrong = refused.length === 0 ? '' : ` Ranges that are no lines: ${refused.join(', ')}.`
  const reason =
    kind === 'kept'
      ? `${acm}: the last view stays. ${why ?? ''}`
      : `${acm}: ${folding.notes ?? ''}\nLines in sight: ${lines || 'none'}.`
  return { folded: { fragments, saves: before - after }, ledger, reason: reason + wrong }
}

const optionsOf = (acm: HelperAcm, { engine }: Pick<UFoldSetting, 'engine'>): UFoldOptions =>
  acm === 'u-fold' ? {} : { foldFrom: FULL * engine.info.context, when: 'every-turn', results: 'none', rebuildEvery: 1 }

/** Fragments that helpers of an earlier process made: their events say so. */
const ownOf = ({ events, conversation }: Thread): UFoldState['own'] => {
  const made = new Set(events.filter(({ reason }) => /^(u-fold|resum): /.test(reason)).flatMap(({ folded }) => folded))
  return conversation.fragments.filter(({ id }) => made.has(id)).map(({ id }) => id)
}
