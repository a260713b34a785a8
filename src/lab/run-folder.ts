/** The folder of an attention study's run: its options, records and result files. A stopped run resumes from its records. */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type RecordedOptions, recordName, type StudyRecord } from './attention/records.js'
import type { Keeper } from './attention-study.js'
import { KvfoldError } from '../runtime/core/errors.js'
import { JsonLines } from './run/json-lines.js'
import { refuseOther } from './run/log-file.js'

const OPTIONS = 'options.json'
const RECORDS = 'records.jsonl'

export class RunFolder implements Keeper {
  readonly #names: Set<string>

  private constructor(
    readonly path: string,
    private readonly options: RecordedOptions,
    /** The records of the run so far, oldest first. */
    readonly records: StudyRecord[],
    private lines: JsonLines | null,
  ) {
    this.#names = new Set(records.map(recordName))
  }

  /**
   * Opens the folder. Creates no file before the first record is added. Cuts off an incomplete last line of the records.
   * @throws KvfoldError eval/other-run when the folder holds a run with other options; eval/bad-log when its files are not from a run;
   * eval/log-busy
   */
  static async open(path: string, options: RecordedOptions): Promise<RunFolder> {
    const asked = join(path, OPTIONS)
    if (existsSync(asked)) refuseOther(path, optionsIn(path, asked), options, '--out folder')
    else if (existsSync(join(path, RECORDS))) throw foreign(path, `the folder has ${RECORDS} but no ${OPTIONS}`)
    const records: StudyRecord[] = []
    const lines = existsSync(join(path, RECORDS)) ? await recordsOf(path, records) : null
    return new RunFolder(path, options, records, lines)
  }

  has(record: Pick<StudyRecord, 'part' | 'n' | 'seed'>): boolean {
    return this.#names.has(recordName(record))
  }

  /** Appends a finished record to the file. Writes the options first if they are missing. */
  async add(record: StudyRecord): Promise<void> {
    mkdirSync(this.path, { recursive: true })
    const asked = join(this.path, OPTIONS)
    if (!existsSync(asked)) writeFileSync(asked, `${JSON.stringify(this.options, null, 2)}\n`)
    this.lines ??= await recordsOf(this.path, [])
    await this.lines.add(record)
    this.records.push(record)
    this.#names.add(recordName(record))
  }

  async close(): Promise<void> {
    await this.lines?.close()
  }
}

const recordsOf = (path: string, records: StudyRecord[]): Promise<JsonLines> =>
  JsonLines.open(join(path, RECORDS), async (lines) => {
    let kept = 0
    for await (const { value, end } of lines) {
      records.push(value as StudyRecord)
      kept = end
    }
    return kept
  })

function optionsIn(path: string, asked: string): object {
  try {
    return JSON.parse(readFileSync(asked, 'utf8')) as object
  } catch {
    throw foreign(path, `its ${OPTIONS} is not JSON`)
  }
}

const foreign = (path: string, why: string): KvfoldError =>
  new KvfoldError('eval/bad-log', `${path} is not the folder of a run: ${why}; use another --out folder.`)
