/** Owns errors that one field of a request caused: what every dialect calls `param`. */
import { KvfoldError, type ErrorCode } from '../core/errors.js'

export class FieldError extends KvfoldError {
  /** @param param the field as a client would write it, e.g. `messages[2].content` */
  constructor(
    readonly param: string,
    message: string,
    code: Extract<
      ErrorCode,
      'server/bad-request' | 'server/unsupported' | 'server/not-found' | 'model/not-found'
    > = 'server/bad-request',
  ) {
    super(code, message)
  }
}

/** A field that asks for what this server does not do. */
export const unsupported = (param: string, message: string): FieldError => new FieldError(param, message, 'server/unsupported')
