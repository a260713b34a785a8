/** Owns the folder of a run and the records in it. */
import { appendFileSync, existsSync, mkdirSync, readFileSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { KvfoldError } from '../../runtime/core/errors.js'
import type { PairComparison } from './pairs.js'

// The folder of a run: what was asked, the records so far, one line each, and the files made of them. A run that was cut off goes on there.

const OPTIONS = 'options.json'
const RECORDS = 'records.jsonl'

/** Everything that records depend on, as plain data. */
export type RecordedOptions = Readonly<Record<string, unknown>>

export class RunFolder {
  readonly #records: StudyRecord[]
  readonly #names: Set<string>

  private constructor(
    readonly path: string,
    private readonly options: RecordedOptions,
    records: readonly StudyRecord[],
  ) {
    this.#records = [...records]
    this.#names = new Set(records.map(recordName))
  }

  /**
   * Opens the folder; nothing is written before the first record is. A last line that was not written to its end is taken off.
   * @throws KvfoldError attention/other-run when the folder holds records of other options, or something else
   */
  static open(path: string, options: RecordedOptions): RunFolder {
    const asked = join(path, OPTIONS)
    if (existsSync(asked)) refuseOthers(path, readFileSync(asked, 'utf8'), options)
    else if (existsSync(join(path, RECORDS))) throw foreign(path, `it has ${RECORDS} but no ${OPTIONS}`)
    return new RunFolder(path, options, recordsIn(join(path, RECORDS)))
  }

  /** Oldest first. */
  get records(): readonly StudyRecord[] {
    return this.#records
  }

  has(record: Pick<StudyRecord, 'part' | 'n' | 'seed'>): boolean {
    return this.#names.has(recordName(record))
  }

  /** Keeps a finished record. */
  add(record: StudyRecord): void {
    mkdirSync(this.path, { recursive: true })
    if (!existsSync(join(this.path, OPTIONS))) this.write(OPTIONS, `${JSON.stringify(this.options, null, 2)}\n`)
    appendFileSync(join(this.path, RECORDS), `${JSON.stringify(record)}\n`)
    this.#records.push(record)
    this.#names.add(recordName(record))
  }

  /** Writes a file of results; returns its path. */
  write(name: string, content: string | Uint8Array): string {
    const path = join(this.path, name)
    writeFileSync(path, content)
    return path
  }
}

function recordsIn(path: string): StudyRecord[] {
  if (!existsSync(path)) return []
  const text = readFileSync(path, 'utf8')
  const whole = text.slice(0, text.lastIndexOf('\n') + 1)
  if (whole.length < text.length) truncateSync(path, Buffer.byteLength(whole))
  return whole
    .split('\n')
    .filter((line) => line !== '')
    .map((line, index) => {
      try {
        return JSON.parse(line) as StudyRecord
      } catch (cause) {
        throw new KvfoldError('attention/other-run', `Line ${index + 1} of ${path} is not a record; use another folder.`, {
          cause,
        })
      }
    })
}

function refuseOthers(path: string, text: string, options: RecordedOptions): void {
  let there: RecordedOptions
  try {
    there = JSON.parse(text) as RecordedOptions
  } catch {
    throw foreign(path, `its ${OPTIONS} is not JSON`)
  }
  const asked = JSON.parse(JSON.stringify(options)) as RecordedOptions
  const different = [...new Set([...Object.keys(there), ...Object.keys(asked)])].filter(
    (name) => JSON.stringify(there[name]) !== JSON.stringify(asked[name]),
  )
  const [first] = different
  if (first === undefined) return
  const say = (value: unknown): string => (value === undefined ? 'nothing' : JSON.stringify(value))
  throw new KvfoldError(
    'attention/other-run',
    `${path} holds a run with other options (${first}: ${say(there[first])} there, ${say(asked[first])} now); use another --out folder, or delete this one.`,
  )
}

const foreign = (path: string, why: string): KvfoldError =>
  new KvfoldError('attention/other-run', `${path} is no folder of a run: ${why}; use another --out folder.`)

// The records of a study: what is kept of each prompt, as plain data, one line each in the run folder.

/** One prompt, complete and folded under every contract of the study. */
export interface PromptRecord {
  readonly part: 'prompt'
  /** Updates of every key. */
  readonly n: number
  readonly seed: number
  /** Tokens of the complete prompt, a given answer included. */
  readonly shown: number
  readonly comparisons: readonly PairComparison[]
  /** The same folds of as many tokens that say nothing of any key; null where that was not looked at. */
  readonly placebo: readonly PairComparison[] | null
  /** The same folds of as many tokens of updates of keys that nobody asks for; null as `placebo`. */
  readonly unasked: readonly PairComparison[] | null
  readonly seconds: number
}

/** One token of a heat map: its text and how much the value's tokens look at it, averaged over layers and heads. */
export interface HeatMapToken {
  readonly text: string
  readonly weight: number
  readonly kind: 'current' | 'older' | 'marker' | 'answer' | 'other'
}

/** All tokens that one value's tokens in the answer look at. */
export interface HeatMapRecord {
  readonly part: 'heat-map'
  readonly n: number
  readonly seed: number
  readonly key: string
  readonly value: string
  /** Layers averaged over: all that were captured. */
  readonly layers: readonly number[]
  readonly sides: readonly { readonly name: string; readonly tokens: readonly HeatMapToken[] }[]
}

/** One message's share of one step's attention. */
export interface EpisodeShare {
  readonly message: number
  readonly role: string
  readonly tokens: number
  /** Averaged over layers, heads and the step's generated tokens. */
  readonly mass: number
  /** The part of `mass` that markers of hidden text have. */
  readonly markers: number
}

/** One step of an agent's turn: what it did, and where its generated tokens looked. */
export interface EpisodeStep {
  readonly step: number
  readonly calls: readonly string[]
  readonly text: string
  /** Generated tokens that were measured. */
  readonly queries: number
  readonly shown: number
  readonly shares: readonly EpisodeShare[]
  /** Mass on the step's own generated tokens, and on the first token of all (the sink), which belongs to message 0. */
  readonly own: number
  readonly sink: number
}

export interface EpisodeRecord {
  readonly part: 'episode'
  readonly n: number
  readonly seed: number
  readonly steps: readonly EpisodeStep[]
  readonly right: number
  readonly asked: number
}

export type StudyRecord = PromptRecord | HeatMapRecord | EpisodeRecord

/** What tells a record from all others of its run. */
export const recordName = (record: Pick<StudyRecord, 'part' | 'n' | 'seed'>): string =>
  `${record.part} n=${record.n} seed=${record.seed}`
