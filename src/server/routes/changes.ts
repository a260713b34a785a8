/** Owns the route `/kvfold/events`: a stream of what changes in the threads of a key. */
import type { OutgoingHttpHeaders } from 'node:http'
import { ANSWER, ERRORS } from '../dialects/documented.js'
import { EventWriter } from '../event-writer.js'
import type { App, Ports } from '../ports.js'
import type { Running } from '../request-lifecycle.js'

/** Milliseconds between comments that keep the connection. */
const PING = 15_000
/** Changes that may wait for a client that does not read; one that is further behind had better ask anew. */
const MOST_UNREAD = 10_000

export function addChanges(app: App, { service }: Ports, running: Running): void {
  app.get(
    '/kvfold/events',
    {
      schema: {
        summary: 'What changes in the threads of this key, as server-sent events',
        tags: ['threads'],
        response: { 200: ANSWER, ...ERRORS },
      },
    },
    (request, reply) => {
      reply.hijack()
      const { raw } = reply
      const writer = new EventWriter(raw, () => reply.getHeaders() as OutgoingHttpHeaders)
      writer.begin()
      let unread = 0
      const stop = service.threads.watch(request.tenant, ({ thread, kind }) => {
        if (++unread > MOST_UNREAD) raw.destroy()
        else void writer.write([{ event: kind, data: { thread, kind } }]).then(() => unread--)
      })
      const timer = setInterval(() => void writer.ping(), PING)
      const release = running.watch(() => void writer.end())
      raw.once('close', () => {
        clearInterval(timer)
        release()
        stop()
      })
    },
  )
}
