/** Worker threads: pools that run a file's default export, and results that keep an error's code between threads. */
import type { Piscina } from 'piscina'
import { type ErrorCode, KvfoldError } from './errors.js'
import { forSources } from './processes.js'

/** Returns a pool's options to run the default export of this file. A TypeScript file also needs tsx. */
export const poolOptions = (file: string): { readonly filename: string; readonly execArgv?: string[] } => ({
  filename: file,
  ...(file.endsWith('.ts') ? { execArgv: forSources() } : {}),
})

/** Makes a pool of threads that run the default export of this file. The pool does not keep the process alive. */
export async function openThreads<Order, Answer>(
  file: string,
  options: { readonly minThreads: number; readonly maxThreads: number; readonly idleTimeout?: number },
): Promise<Piscina<Order, Answer>> {
  const { Piscina: Threads } = await import('piscina')
  return new Threads<Order, Answer>({ ...poolOptions(file), ...options })
}

/** A thread's result as a message. Errors lose their class and code between threads, so code and message are sent as data. */
export type Delivery = { readonly made: unknown } | { readonly code: ErrorCode; readonly message: string }

/**
 * Called within a worker thread: runs `work`, and packs its result or error into a message for the main thread.
 * @param otherwise the code for errors other than KvfoldError; without it they are thrown
 */
export async function delivered(work: () => unknown, otherwise?: ErrorCode): Promise<Delivery> {
  try {
    return { made: await work() }
  } catch (error) {
    const code = error instanceof KvfoldError ? error.code : otherwise
    if (code === undefined) throw error
    return { code, message: error instanceof Error ? error.message : String(error) }
  }
}

/** Returns the result in a thread's message. @throws KvfoldError with the code and message of the thread's error */
export function received(message: Delivery): unknown {
  if ('code' in message) throw new KvfoldError(message.code, message.message)
  return message.made
}
