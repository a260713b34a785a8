/** The error class, and the table of all error codes with their HTTP status. */

/** All error codes, each with the HTTP status of a server's answer. */
export const errorTable = {
  /** The addon is not built, or something needed to compile llama.cpp is missing: git, cmake, a compiler. Also a compiler's failure. */
  'native/build-failed': 500,
  /** A library of llama.cpp is missing, does not load, or is not the pinned release. */
  'native/library-mismatch': 500,
  /** A feature that kvfold does not support, such as Windows, activated LoRA or multimodal input. */
  'native/unsupported': 501,
  /** The addon or llama.cpp failed, and no other code fits. */
  'native/failed': 500,
  /** The object was disposed. */
  'native/disposed': 409,
  /** A decode is running on this context, or the model is in use. */
  'native/busy': 409,
  /** An argument of a native call is out of range. */
  'native/bad-argument': 400,
  'model/not-found': 404,
  /** The file is not a GGUF, is truncated or damaged, or lacks tensors. */
  'model/bad-file': 422,
  'model/no-chat-template': 422,
  /** The model is answering requests, so it cannot be unloaded. */
  'model/busy': 409,
  /** The hub or another server failed, the disk is full, or the bytes differ from what was announced. */
  'model/download-failed': 502,
  /** The architecture does not support the operation (e.g. removing tokens from a recurrent state). */
  'model/unsupported': 501,
  /** The model or context would not fit, by an estimate made before anything was allocated. Or an allocation failed. */
  'memory/insufficient': 507,
  /** The prompt needs more cells than the context has. It has status 400, because clients recognise the error by it. */
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
  /** A data file cannot be read, or is too small for the requested size. */
  'eval/bad-data': 422,
  /** The log of a run cannot be read or written, or one of its lines is not a log line. */
  'eval/bad-log': 422,
  /** The log, or the folder of a study, belongs to a run with other tasks, models or options. */
  'eval/other-run': 409,
  /** Another process writes to this log. */
  'eval/log-busy': 409,
  /** Several samples in a row failed; the message names the last error. */
  'eval/too-many-errors': 500,
  /** The agent does not exist, does not take the given options, or searches by meaning and has no embedder. */
  'eval/bad-agent': 400,
  'cli/bad-usage': 400,
  /** More requests wait than the server allows; the client may try again later. */
  'server/overloaded': 503,
  /** The answer was not complete within the request's time limit. */
  'server/timeout': 504,
  /** The thread does not exist or belongs to another key. */
  'server/no-thread': 404,
  /** The request does not have the format that its route expects; the message names the field. */
  'server/bad-request': 400,
  /** The server does not support a field, and ignoring it would change the answer. */
  'server/unsupported': 400,
  /** The API key is missing or unknown. */
  'server/unauthorized': 401,
  /** The key is known but lacks this right, or a server without keys does not accept this host name. */
  'server/forbidden': 403,
  /** The path, model, thread or response does not exist. */
  'server/not-found': 404,
  'server/method-not-allowed': 405,
  /** The body is longer than --body-limit. */
  'server/too-large': 413,
  'server/bad-media-type': 415,
  /** The key has used up its requests or tokens for this minute; the message says when to try again. */
  'server/rate-limited': 429,
  /** The server is shutting down and takes no new requests. */
  'server/closing': 503,
  /** `--engine`: the address, key or model name cannot be used. */
  'remote/bad-endpoint': 400,
  /** No server answers at the endpoint: connection refused, unknown host, or TLS failure. */
  'remote/unreachable': 502,
  /** All engines are down or draining. Health checks go on, so a later try may succeed. */
  'remote/no-engine': 503,
  /** The endpoint rejected our key for it (not the client's key for us). */
  'remote/unauthorized': 502,
  /** The endpoint reports that the request is wrong, or its content filter stopped the answer. */
  'remote/refused': 400,
  /** The endpoint limits our rate; the message says when to try again, if the endpoint does. */
  'remote/rate-limited': 429,
  'remote/overloaded': 503,
  /** The endpoint failed (5xx). */
  'remote/failed': 502,
  /** The endpoint sent no data for longer than the limit. */
  'remote/timeout': 504,
  /** The endpoint's answer broke off before its end. */
  'remote/broken-stream': 502,
  /** The endpoint's answer does not have the format of an OpenAI-compatible endpoint. */
  'remote/bad-answer': 502,
  /** The endpoint does not support the requested feature. */
  'remote/unsupported': 400,
  /** The request names layers, heads, tokens or key sets that do not exist, or asks for rows of more bytes than it allows. */
  'attention/bad-request': 400,
  /** The engine or the model computes no attention that can be captured. */
  'attention/unavailable': 409,
  /** The store's folder or file cannot be used: missing rights, or another program's database. */
  'store/unusable': 500,
  /** Another process uses this store. */
  'store/locked': 409,
  /** The destination of a store's move already has conversations. */
  'store/not-empty': 409,
  /** The store was written by a kvfold before 0.2.0. */
  'store/older': 409,
  /** The store was written by a later kvfold. */
  'store/newer': 409,
  /** The store's content differs from what was written to it, e.g. by a failing disk. It was left unchanged. */
  'store/damaged': 500,
  /** Part of a thread or response differs from what was written. Nothing of it is shown, even if some of it can be read. */
  'store/damaged-thread': 500,
  'store/damaged-response': 500,
  /** The thread or response was acknowledged and not deleted, but the store no longer has it. */
  'store/lost-thread': 410,
  'store/lost-response': 410,
  /** The store has no room for the changes of a request; they are lost. */
  'store/full': 507,
  /** The store's file is no longer at its path, so changes of a request cannot be kept. */
  'store/gone': 507,
  /** The store could not be read or written for another reason. */
  'store/failed': 500,
  /** The store's database does not answer. Only acknowledged changes are kept. Try again later. */
  'store/unreachable': 503,
  /** Another server changed the thread at the same time, so this server's change was not kept. Ask again. */
  'store/overtaken': 409,
  /** An MCP server cannot be started or reached. */
  'mcp/unreachable': 502,
  /** A tool of an MCP server did not answer in time. */
  'mcp/timeout': 504,
  /** A tool of an MCP server reported a failure, or its server failed. */
  'mcp/failed': 502,
  /** `kvfold bundle`: this installation, its Node or its machine cannot be packed for use elsewhere. */
  'bundle/unsuitable': 422,
  /** A broken invariant: always a bug in kvfold. */
  'internal/invariant': 500,
} as const

export type ErrorCode = keyof typeof errorTable

/**
 * An error for callers. Programs read its code; its sentence tells people what failed, where, and what to do. Expected outcomes (no room,
 * cannot shift) are returned as values instead.
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

/** The size of a prompt that does not fit, and that of the context. */
export interface PromptSize {
  /** Tokens of the prompt alone, without an answer. */
  readonly tokens: number
  /** Whether `tokens` is only a lower bound, because counting stopped early. */
  readonly atLeast: boolean
  /** Tokens of the context, room for the answer included. */
  readonly context: number
}

/** `context/full` for a prompt that does not even fit into an empty context. */
export class PromptTooLong extends KvfoldError {
  constructor(
    readonly size: PromptSize,
    message: string,
  ) {
    super('context/full', message)
  }
}

/** `context/full` for a prompt whose cells are held by other running steps. A later try may succeed. */
export class CellsBusy extends KvfoldError {
  constructor(message: string) {
    super('context/full', message)
  }
}

/** Whether an error says that a prompt does not fit into the context. */
export const isContextFull = (error: unknown): error is KvfoldError =>
  error instanceof KvfoldError && error.code === 'context/full'

/** Throws `internal/invariant` unless `condition` holds. */
export function invariant(condition: unknown, message: string): asserts condition {
  if (!condition) throw new KvfoldError('internal/invariant', message)
}
