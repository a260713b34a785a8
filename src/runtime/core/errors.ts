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
  /** The prompt needs more cells than the context has. The status is the one that clients take for it. */
  'context/full': 400,
  'chat/template-failed': 422,
  'chat/bad-message': 400,
  'engine/bad-request': 400,
  'engine/cancelled': 499,
  'engine/disposed': 409,
  'engine/bad-grammar': 400,
  'tool/bad-arguments': 400,
  'tool/unknown-id': 404,
  'tool/refused': 409,
  /** Hiding a fragment would take at least as many tokens as showing it; nothing was changed. */
  'tool/costs-more': 409,
  /** The agent made more calls than a turn allows. */
  'agent/too-many-calls': 422,
  /** A data file that cannot be read, or has too little for the size asked for. */
  'eval/bad-data': 422,
  /** The log of a run that cannot be read or written, or a line of it that is none. */
  'eval/bad-log': 422,
  /** The log holds a run of other tasks, models or options. */
  'eval/other-run': 409,
  /** Another process writes to this log. */
  'eval/log-busy': 409,
  /** One sample after another failed; the message names the last error. */
  'eval/too-many-errors': 500,
  /** An agent that is not there, options it does not take, or no embedder where it looks texts up by their meaning. */
  'eval/bad-agent': 400,
  'cli/bad-usage': 400,
  /** More requests wait than the server lets wait; try again later. */
  'server/overloaded': 503,
  /** The answer was not done within the request's time. */
  'server/timeout': 504,
  /** No such thread, or another key's. */
  'server/no-thread': 404,
  /** A request that is not what its route expects: the message names the field. */
  'server/bad-request': 400,
  /** A field asks for something this server does not do, and leaving it out would change the answer. */
  'server/unsupported': 400,
  /** No API key, or an unknown one. */
  'server/unauthorized': 401,
  /** A known key, or a known place, that may not do this. */
  'server/forbidden': 403,
  /** No such path, model, thread or response. */
  'server/not-found': 404,
  'server/method-not-allowed': 405,
  /** The body is longer than --body-limit. */
  'server/too-large': 413,
  'server/bad-media-type': 415,
  /** The key asked as often, or for as much, as it may a minute; the message says when again. */
  'server/rate-limited': 429,
  /** The server is going down and takes no new requests. */
  'server/closing': 503,
  /** `--engine`: the address, the key or the model's name cannot be used as given. */
  'remote/bad-endpoint': 400,
  /** Nobody answers at the endpoint: refused, no such host, no TLS. */
  'remote/unreachable': 502,
  /** Of several engines none takes requests: they are down or drain. Their health is looked at; try again later. */
  'remote/no-engine': 503,
  /** The endpoint did not accept our key; the client's own key is another matter. */
  'remote/unauthorized': 502,
  /** The endpoint says that the request is wrong, or its content filter stopped the answer. */
  'remote/refused': 400,
  /** The endpoint lets us ask only so often; the message says when again, if it does. */
  'remote/rate-limited': 429,
  'remote/overloaded': 503,
  /** The endpoint failed (5xx). */
  'remote/failed': 502,
  /** Nothing came for longer than the limit. */
  'remote/timeout': 504,
  /** The answer broke off. */
  'remote/broken-stream': 502,
  /** The answer is not what an OpenAI-compatible endpoint answers. */
  'remote/bad-answer': 502,
  /** Asked for something that this endpoint cannot be asked for. */
  'remote/unsupported': 400,
  /** Layers, heads, tokens or key sets that are not there, or more rows than wanted. */
  'attention/bad-request': 400,
  /** The engine or the model computes no attention that could be captured. */
  'attention/unavailable': 409,
  /** The folder of a study holds a run with other options, or no run at all. */
  'attention/other-run': 409,
  /** The store's folder or file cannot be used: rights, a folder in its place, another program's database. */
  'store/unusable': 500,
  /** Another process uses this store. */
  'store/locked': 409,
  /** What is to be moved would come into a store that has conversations of its own. */
  'store/not-empty': 409,
  /** A later kvfold wrote this store. */
  'store/newer': 409,
  /** The store is not what was written to it; it was left as it is. */
  'store/damaged': 500,
  /** Some of a thread or response is not what was written: it is not shown, whatever of it could be read. */
  'store/damaged-thread': 500,
  'store/damaged-response': 500,
  /** It was acknowledged, was not deleted, and is not in the store any more. */
  'store/lost-thread': 410,
  'store/lost-response': 410,
  /** No room for what a request changed: it is not kept. */
  'store/full': 507,
  /** The store is not at its path any more, so that nothing would last: a request's changes are not kept. */
  'store/gone': 507,
  /** The store could not be read or written for another reason. */
  'store/failed': 500,
  /** Nobody answers at the database that the store is in; nothing was kept that was not acknowledged. Try again later. */
  'store/unreachable': 503,
  /** Another server changed the thread while this one did; this one's change was not kept. Ask again. */
  'store/overtaken': 409,
  /** An MCP server that cannot be started or reached. */
  'mcp/unreachable': 502,
  /** A tool of an MCP server gave no answer in time. */
  'mcp/timeout': 504,
  /** A tool of an MCP server said that it failed, or its server did. */
  'mcp/failed': 502,
  /** `kvfold bundle`: this installation, its Node or its machine cannot be made to run elsewhere. */
  'bundle/unsuitable': 422,
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

/** What a prompt that has no room takes, and what there would be room for. */
export interface PromptSize {
  /** Tokens that it takes, one of an answer not among them. */
  readonly tokens: number
  /** Whether it may be more, because nobody counted to the end. */
  readonly atLeast: boolean
  /** Tokens that the context holds, an answer's among them. */
  readonly context: number
}

/** A prompt that fits no empty context either: `context/full`, with its size. */
export class PromptTooLong extends KvfoldError {
  constructor(
    readonly size: PromptSize,
    message: string,
  ) {
    super('context/full', message)
  }
}

/** Whether it says that a prompt has no room in the context. */
export const isContextFull = (error: unknown): error is KvfoldError =>
  error instanceof KvfoldError && error.code === 'context/full'

/** Throws `internal/invariant` unless `condition` holds. */
export function invariant(condition: unknown, message: string): asserts condition {
  if (!condition) throw new KvfoldError('internal/invariant', message)
}
