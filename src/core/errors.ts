/** The one error class and the one table of everything that can go wrong for a user: code -> HTTP status. */

/** Every code, with the HTTP status a server would answer. */
export const errorTable = {
  /** No compiler, git, CMake-free build tools or headers at install time. */
  'native/build-failed': 500,
  /** The addon is not built, or the library it runs on is not the pinned release. */
  'native/library-mismatch': 500,
  /** Windows, LoRA, multimodal input, speculative decoding. */
  'native/unsupported': 501,
  /** The addon or llama.cpp failed in a way no other code names. */
  'native/failed': 500,
  /** The object was disposed. */
  'native/disposed': 409,
  /** A decode is running on this context. */
  'native/busy': 409,
  /** An argument of a native call is out of range. */
  'native/bad-argument': 400,
  'model/not-found': 404,
  /** Not a GGUF, truncated, or with tensors missing. */
  'model/bad-file': 422,
  'model/no-chat-template': 422,
  /** The architecture cannot do what was asked (e.g. edits on a recurrent model). */
  'model/unsupported': 501,
  /** The estimate says it would not fit; nothing was allocated. */
  'memory/insufficient': 507,
  /** The prompt needs more cells than the context has. */
  'context/full': 413,
  'chat/template-failed': 422,
  'chat/bad-message': 400,
  'engine/bad-request': 400,
  'engine/cancelled': 499,
  'engine/disposed': 409,
  'engine/bad-grammar': 400,
  'tool/bad-arguments': 400,
  'tool/unknown-id': 404,
  'tool/refused': 409,
  /** The agent made more calls than a turn allows. */
  'agent/too-many-calls': 422,
  /** A data file that cannot be read, or has too little for the size asked for. */
  'eval/bad-data': 422,
  'cli/bad-usage': 400,
  /** A broken invariant of ours: always a bug. */
  'internal/invariant': 500,
} as const

export type ErrorCode = keyof typeof errorTable

/**
 * Every error a caller is meant to see: a code to switch on and one sentence that says what, where and what to do.
 * Expected outcomes (no room, cannot shift) are returned as unions instead.
 */
export class KvfoldError extends Error {
  override readonly name = 'KvfoldError'

  constructor(
    readonly code: ErrorCode,
    message: string,
    options?: ErrorOptions,
  ) {
    super(message, options)
  }

  get status(): number {
    return errorTable[this.code]
  }
}

/** Throws `internal/invariant` unless `condition` holds. */
export function invariant(condition: unknown, message: string): asserts condition {
  if (!condition) throw new KvfoldError('internal/invariant', message)
}
