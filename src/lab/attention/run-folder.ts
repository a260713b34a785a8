/** Reads and writes the folder of a study's run, and says what its records hold. */
import { appendFileSync, existsSync, mkdirSync, readFileSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { KvfoldError } from '../../runtime/core/errors.js'
import type { PairComparison } from './pairs.js'

// The folder of a run holds its options, its records (one line each) and the result files. An interrupted run continues from its records.

const OPTIONS = 'options.json'
const RECORDS = 'records.jsonl'

/** The options that decide a run's records, as plain data. */
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
   * Opens the folder. Creates no file before the first record is added. Cuts off a last line that was not written to its end.
   * @throws KvfoldError attention/other-run when the folder holds a run with other options, or files that are not a run's
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

  /** Appends a finished record to the file; writes the options first when they are missing. */
  add(record: StudyRecord): void {
    mkdirSync(this.path, { recursive: true })
    if (!existsSync(join(this.path, OPTIONS))) this.write(OPTIONS, `${JSON.stringify(this.options, null, 2)}\n`)
    appendFileSync(join(this.path, RECORDS), `${JSON.stringify(record)}\n`)
    this.#records.push(record)
    this.#names.add(recordName(record))
  }

  /** Writes a result file and returns its path. */
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

// The records of a study as plain data, one line each in the run folder.

/** One prompt, complete and folded under every contract of the study. */
export interface PromptRecord {
  readonly part: 'prompt'
  /** Number of updates of every key. */
  readonly n: number
  readonly seed: number
  /** Number of tokens of the complete prompt, a given answer included. */
  readonly shown: number
  readonly comparisons: readonly PairComparison[]
  /** The same folds over as many tokens of made-up words, which mention no key; null when this was not measured. */
  readonly placebo: readonly PairComparison[] | null
  /** The same folds over as many tokens of updates of keys that the question does not ask for; null when this was not measured. */
  readonly unasked: readonly PairComparison[] | null
  readonly seconds: number
}

/** One token of a heat map: its text, and the weight that the value's tokens give it, averaged over layers and heads. */
export interface HeatMapToken {
  readonly text: string
  readonly weight: number
  readonly kind: 'current' | 'older' | 'marker' | 'answer' | 'other'
}

/** The heat map of one value: all tokens that the value's tokens in the answer can look at. */
export interface HeatMapRecord {
  readonly part: 'heat-map'
  readonly n: number
  readonly seed: number
  readonly key: string
  readonly value: string
  /** The captured layers; weights are averaged over them. */
  readonly layers: readonly number[]
  readonly sides: readonly { readonly name: string; readonly tokens: readonly HeatMapToken[] }[]
}

/** One message's share of one step's attention. */
export interface EpisodeShare {
  readonly message: number
  readonly role: string
  readonly tokens: number
  /** Attention mass, averaged over layers, heads and the step's generated tokens. */
  readonly mass: number
  /** The part of `mass` that is on markers of hidden text. */
  readonly markers: number
}

/** One step of an agent's turn: its calls and text, and the attention of its generated tokens. */
export interface EpisodeStep {
  readonly step: number
  readonly calls: readonly string[]
  readonly text: string
  /** Number of generated tokens whose attention was measured. */
  readonly queries: number
  readonly shown: number
  readonly shares: readonly EpisodeShare[]
  /** Mass on the step's own generated tokens; `sink`: mass on the prompt's first token, which belongs to message 0. */
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

/** Returns the name of a record, unique within its run. */
export const recordName = (record: Pick<StudyRecord, 'part' | 'n' | 'seed'>): string =>
  `${record.part} n=${record.n} seed=${record.seed}`
