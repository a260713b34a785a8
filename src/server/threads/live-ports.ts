/** Owns the wiring of threads to engines that come and go. */
import type { ConversationPorts } from '../../context/conversation.js'
import { portsOf } from '../../context/ports.js'
import type { CostlyFolds } from '../../context/price.js'
import type { Summarize } from '../../context/summary.js'
import { invariant } from '../../core/errors.js'
import { conversationId } from '../../core/ids.js'
import type { Models, ServedEngine } from './models.js'
import type { Thread } from './thread.js'
import { Voice } from './voice.js'

/** Ports that ask whatever engine the thread's model has at the time; whoever uses them holds a lease on it. */
export function livePorts(models: Models, costlyFolds: CostlyFolds): (thread: Thread) => ConversationPorts {
  return (thread) => {
    const id = conversationId(thread.id)
    let known: { readonly engine: ServedEngine; readonly voice: Voice; readonly summarize: Summarize | undefined } | null = null
    const live = () => {
      const { engine } = models.pick(thread.model)
      invariant(engine !== null, `model ${thread.model} was used while it was not loaded`)
      if (known?.engine === engine) return known
      const voice = new Voice(engine, { tenant: thread.tenant, isExternal: () => false, single: false })
      // Kept, because it counts the summaries to tell them apart.
      return (known = { engine, voice, summarize: portsOf(voice, id).summarize })
    }
    return {
      snap: (messages, message, chars) => portsOf(live().voice, id, thread.definitions).snap!(messages, message, chars),
      count: (...asked) => portsOf(live().voice, id, thread.definitions).count!(...asked),
      costlyFolds,
      summarize: (text, focus, signal) => live().summarize!(text, focus, signal),
    }
  }
}
