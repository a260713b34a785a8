/** Other threads: a pool of them that runs a file's default export, and results that keep an error's code between threads. */
import type { Piscina } from 'piscina'
import { type ErrorCode, KvfoldError } from './errors.js'
import { forSources } from './processes.js'

/** A pool's options to run the default export of this file. From TypeScript sources, however this process was started, it needs tsx. */
export const poolOptions = (file: string): { readonly filename: string; readonly execArgv?: string[] } => ({
  filename: file,
  ...(file.endsWith('.ts') ? { execArgv: forSources() } : {}),
})

/** Makes a pool of threads that run the default export of this file. They do not keep the process alive. */
export async function openThreads<Order, Answer>(
  file: string,
  options: { readonly minThreads: number; readonly maxThreads: number; readonly idleTimeout?: number },
): Promise<Piscina<Order, Answer>> {
  const { Piscina: Threads } = await import('piscina')
  return new Threads<Order, Answer>({ ...poolOptions(file), ...options })
}

/** The message with a thread's result. Errors lose their class and code between threads, so code and message are data. */
export type Delivery = { readonly made: unknown } | { readonly code: ErrorCode; readonly message: string }

/** Does the work of a thread. @param otherwise the code of an error that is no KvfoldError; without it, the error is thrown */
export async function delivered(work: () => unknown, otherwise?: ErrorCode): Promise<Delivery> {
  try {
    return { made: await work() }
  } catch (error) {
    const code = error instanceof KvfoldError ? error.code : otherwise
    if (code === undefined) throw error
    return { code, message: error instanceof Error ? error.message : String(error) }
  }
}

/** Returns the result in the message. @throws KvfoldError the one in the message */
export function received(message: Delivery): unknown {
  if ('code' in message) throw new KvfoldError(message.code, message.message)
  return message.made
}
