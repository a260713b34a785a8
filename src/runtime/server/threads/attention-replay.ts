/**
 * Shows how much attention a thread's last answer paid to earlier text. Replays the prompts of the thread on a second context, because the
 * live one keeps no attention weights.
 */
import { answerMass, type LookingEngine, type ShownPrompt } from '../../attention/answer-mass.js'
import { noted } from '../../context/size-note.js'
import { KvfoldError } from '../../core/errors.js'
import { freshConversation } from '../../core/ids.js'
import { definedFields } from '../../core/json.js'
import { contains } from '../../core/span.js'
import type { Models, ServedEngine } from './models.js'
import type { LookOptions, ThreadAttention } from './thread-api.js'
import type { Thread } from './thread.js'

type ReplayedPrompts = Omit<ThreadAttention['replay'], 'prompts'> & { readonly shown: readonly ShownPrompt[] }

/** Replays answers one at a time: a context without flash attention takes much memory. */
export class AttentionReplay {
  #line: Promise<unknown> = Promise.resolve()

  constructor(private readonly models: Models) {}

  /** Replays the thread's last answer; the thread does not change. @throws KvfoldError as Operations.attention */
  look(thread: Thread, options: LookOptions = {}): Promise<ThreadAttention> {
    const done = this.#line.then(async () => {
      if (options.signal?.aborted === true) throw new KvfoldError('engine/cancelled', 'The look was cancelled before it began.')
      return this.#look(thread, options)
    })
    this.#line = done.catch(() => undefined)
    return done
  }

  async #look(thread: Thread, options: LookOptions): Promise<ThreadAttention> {
    const { conversation, engineTenant: tenant, prompted } = thread
    const message = answerOf(thread)
    if (conversation.edits().some((edit) => edit.message === message && edit.forget === true))
      throw new KvfoldError(
        'attention/unavailable',
        'A part of the last answer is forgotten, so it is not shown to the model again; restore it first.',
      )
    const { shown, ...replay } = replayOf(thread, message)
    const messages = noted(conversation.messages.slice(0, message + 1), prompted.tools)
    const cuts = conversation.fragments
    const attentionModel = this.models.attentionModelOf(this.models.named(thread.model))
    const lease = await this.models.lease(attentionModel, definedFields({ signal: options.signal }))
    try {
      const engine = lookingEngine(lease.engine)
      const asked = {
        engine,
        conversation: freshConversation(),
        tenant,
        messages,
        ...prompted,
        shown,
        cuts,
        ...options,
      }
      return { ...(await answerMass(asked)), message, replay: { ...replay, prompts: shown.length } }
    } finally {
      lease.release()
    }
  }
}

/** Returns the index of the last assistant message that clients know. @throws KvfoldError attention/unavailable when there is none */
function answerOf({ conversation, seen }: Thread): number {
  const at = conversation.messages.findLastIndex(
    ({ role }, index) => role === 'assistant' && (seen[index] ?? 'nothing') !== 'nothing',
  )
  if (at >= 0) return at
  throw new KvfoldError(
    'attention/unavailable',
    'The thread has no answer yet, so that nothing has looked anywhere; ask something first.',
  )
}

const AGAIN =
  'The thread was shown to the model again, on a context of its own without flash attention, as the live one keeps no weights'

function replayOf(thread: Thread, answer: number): ReplayedPrompts {
  const known = thread.shown.upTo(answer)
  const last = known?.at(-1)
  const edits = editsBefore(thread, answer)
  const forgotten = edits.filter(({ forget }) => forget === true)
  const isHidden = (prompt: ShownPrompt) =>
    forgotten.every(
      ({ message, span }) =>
        message >= prompt.messages || prompt.edits.some((edit) => edit.message === message && contains(edit.span, span)),
    )
  if (known !== null && last !== undefined && known.every(isHidden)) {
    const { contract } = last
    if (known.length === 1)
      return { kind: 'prefill', contract, shown: known, text: `${AGAIN}: what the answer was shown, in one prefill.` }
    const text = `${AGAIN}: ${known.length} prompts one after the other, from before the folds to after them (${contract}), so that the trace of hidden text is there.`
    return { kind: 'steps', contract, shown: known, text }
  }
  const { contract, approximate } = thread.ledger.findLast(({ kind }) => kind === 'answer') ?? {
    contract: 'exact',
    approximate: 0,
  }
  const now = { messages: answer, edits, contract }
  const lost =
    last === undefined
      ? 'What exactly the answer was shown is not known any more (the server was started again, or the thread was forked)'
      : 'What exactly the answer was shown is not shown again, because a part of it is forgotten'
  if (approximate === 0 || edits.length === forgotten.length)
    return { kind: 'guess', contract, shown: [now], text: `${AGAIN}. ${lost}: this is one prefill with the folds of now.` }
  const all = forgotten.length === 0 ? 'everything' : 'everything that is not forgotten'
  const text = `${AGAIN}. ${lost}: this is ${all} first, and then the folds of now (${contract}).`
  return { kind: 'guess', contract, shown: [{ ...now, edits: forgotten, contract: 'exact' }, now], text }
}

const editsBefore = ({ conversation }: Thread, answer: number) => conversation.edits().filter(({ message }) => message < answer)

/** Returns the engine as one that can replay an answer. @throws KvfoldError attention/unavailable when it cannot */
function lookingEngine(engine: ServedEngine): LookingEngine {
  if (isLooking(engine)) return engine
  throw new KvfoldError(
    'attention/unavailable',
    `The engine of ${engine.info.model} has no chat format of its own to look through.`,
  )
}

const isLooking = (engine: ServedEngine): engine is ServedEngine & LookingEngine => engine.format !== undefined
