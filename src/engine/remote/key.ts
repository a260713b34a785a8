/** Owns where the key of an endpoint comes from; it is never part of a message, a log or a listing. */
import { readFileSync } from 'node:fs'
import { KvfoldError } from '../../core/errors.js'

/** Looked at when nothing else is named. */
export const KEY_VARIABLE = 'KVFOLD_ENGINE_KEY'

export interface KeySource {
  /** Name of an environment variable. Default: KVFOLD_ENGINE_KEY. */
  readonly variable?: string
  /** A file whose first line is the key; goes before the variable. */
  readonly file?: string
}

/** The key, null when there is none and none was named. @throws KvfoldError remote/bad-endpoint when what was named has none */
export function readKey({ variable, file }: KeySource, environment: NodeJS.ProcessEnv = process.env): string | null {
  const bad = (message: string, cause?: unknown) => new KvfoldError('remote/bad-endpoint', message, { cause })
  if (file !== undefined) {
    let text: string
    try {
      text = readFileSync(file, 'utf8')
    } catch (error) {
      throw bad(`The key file ${file} cannot be read.`, error)
    }
    const key = text.split('\n', 1)[0]?.trim() ?? ''
    if (!isKey(key)) throw bad(`The first line of the key file ${file} is no key.`)
    return key
  }
  const key = environment[variable ?? KEY_VARIABLE]?.trim()
  if (key === undefined || key === '') {
    if (variable === undefined) return null
    throw bad(`The environment variable ${variable} is not set, so there is no key for the engine.`)
  }
  if (!isKey(key)) throw bad(`What the environment variable ${variable ?? KEY_VARIABLE} holds is no key.`)
  return key
}

/** What may stand in a header. */
const isKey = (text: string): boolean => /^[\x21-\x7e]+$/.test(text)
