/** llama-server's route that ends the reasoning of a running chat, if the chat was started with `reasoning_control`. */
import Type from 'typebox'
import type { Tenant } from '../../ask.js'
import { type App, described, type Ports } from '../../routes/route.js'

const ControlBody = Type.Object({
  id: Type.String({ minLength: 1, maxLength: 200, description: 'the id of the running completion' }),
  action: Type.Enum(['reasoning_end']),
  model: Type.Optional(Type.String({ maxLength: 1024, description: 'has no effect; the id is enough' })),
})

interface RunningChat {
  readonly tenant: Tenant
  /** Returns the name of the answering model. It is known only after the start, because a chat need not name a model. */
  readonly model: () => string
}

/** Running streamed chats whose reasoning their clients may end, by completion id. A chat of another tenant counts as unknown. */
export class ReasoningControl {
  readonly #running = new Map<string, RunningChat & { readonly end: AbortController }>()

  /** Registers a chat. `signal` is aborted when its client ends the reasoning. Call `leave` when the chat has ended. */
  enter(id: string, chat: RunningChat): { readonly signal: AbortSignal; readonly leave: () => void } {
    const end = new AbortController()
    this.#running.set(id, { ...chat, end })
    return { signal: end.signal, leave: () => this.#running.delete(id) }
  }

  addRoute(app: App, { service }: Ports): void {
    app.post(
      '/v1/chat/completions/control',
      { schema: { ...described('Ends the reasoning of a running chat', 'llama-server'), body: ControlBody } },
      ({ body: { id }, tenant }) => {
        const running = this.#running.get(id)
        if (running?.tenant !== tenant)
          return { success: false, message: 'No running completion has this id and is streamed with reasoning_control: true.' }
        const name = running.model()
        // A chat that still waits in the queue has no model yet.
        if (name !== '' && service.model(name).loaded?.boundsReasoning === false)
          return { success: false, message: `${name} has no tag with which this server could end its reasoning.` }
        running.end.abort()
        return { success: true }
      },
    )
  }
}
