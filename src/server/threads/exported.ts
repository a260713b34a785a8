/** Owns how a thread is written out for others: plain JSON, with a version. */
import type { ChatMessage } from '../../chat/message.js'
import type { StoredMessage, ThreadRecord } from '../../store/port.js'

/** A message whose sampled tokens are a list of numbers. */
export type ExportedMessage = Omit<ChatMessage, 'sampled'> & {
  readonly sampled?: { readonly text: string; readonly tokens: readonly number[] }
}

export interface ExportedThread extends Omit<ThreadRecord, 'messages' | 'tenant'> {
  readonly format: 'kvfold-thread/1'
  readonly messages: readonly { readonly message: ExportedMessage; readonly seen: StoredMessage['seen'] }[]
}

export function exported({ tenant: _, messages, ...rest }: ThreadRecord): ExportedThread {
  return {
    format: 'kvfold-thread/1',
    ...rest,
    messages: messages.map(({ message: { sampled, ...message }, seen }) => ({
      message: sampled === undefined ? message : { ...message, sampled: { text: sampled.text, tokens: [...sampled.tokens] } },
      seen,
    })),
  }
}
