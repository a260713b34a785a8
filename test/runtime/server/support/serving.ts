/** Starts a real server over the built-in model on a free port, for tests that act as clients. */
import { builtinModel } from '../../../../src/runtime/cli/builtin.js'
import { Embedder } from '../../../../src/runtime/engine/embedder.js'
import type { Engine } from '../../../../src/runtime/engine/engine.js'
import { LlamaEngine } from '../../../../src/runtime/engine/llama.js'
import { SpokenEngine, type Teacher } from '../../../../src/lab/taught-engine.js'
import { openNative } from '../../../../src/runtime/native/binding.js'
import { Server, type ServerOptions } from '../../../../src/runtime/server/app.js'
import { ThreadService, type ServiceOptions } from '../../../../src/runtime/server/service.js'
import { TEST_GPU } from '../../../support/device.js'

export interface Serving {
  readonly url: string
  readonly server: Server
  readonly service: ThreadService
  /** The log, one line per entry. */
  readonly log: readonly string[]
  close(): Promise<void>
}

export type ServingOptions = Partial<Omit<ServerOptions, 'service' | 'version'>> & {
  readonly service?: Partial<ServiceOptions>
  /** Returns the engine. Default: the built-in model, which requests call `builtin`. */
  readonly engine?: () => Engine | Promise<Engine>
  /** Gives the answers of the built-in model, which its engine then computes. Default: the model answers itself. */
  readonly teacher?: Teacher
  readonly slots?: number
  /** Whether the built-in model makes embeddings, too. Default: false. */
  readonly embeds?: boolean
}

/** Fields of a request whose answer ends with `max_tokens` and not before. */
export const endless = { kvfold: { grammar: 'root ::= [a-z ] root' } } as const

export async function serving(given: ServingOptions = {}): Promise<Serving> {
  const { service: parts = {}, engine, teacher, slots = 2, embeds = false, ...options } = given
  const log: string[] = []
  const load =
    engine ??
    (async () => {
      const options = { threads: 1, batchThreads: 1, slots }
      const own = await LlamaEngine.load(await openNative({ gpu: TEST_GPU }), builtinModel(), options)
      return teacher === undefined ? own : new SpokenEngine(own, teacher)
    })
  const service = await ThreadService.open({
    models: [
      {
        name: 'builtin',
        slots,
        load: () => Promise.resolve(load()),
        ...(embeds ? { embedder: ({ model }) => Embedder.on(model!, { threads: 1, batchThreads: 1 }) } : {}),
      },
    ],
    ...parts,
  })
  const server = await Server.create({
    service,
    version: 'test',
    sampling: { temperature: 0 },
    log: (line) => log.push(line),
    ...options,
  })
  const url = await server.listen({ host: '127.0.0.1', port: 0 })
  return { url, server, service, log, close: () => server.close() }
}
