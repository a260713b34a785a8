/**
 * `kvfold store`: checks a store of conversations, exports what can be read, copies what is undamaged, and moves a store to or from a
 * database.
 */
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { appendFileSync, closeSync, existsSync, mkdirSync, mkdtempSync, openSync, renameSync, rmSync } from 'node:fs'
import type { Command } from 'commander'
import { KvfoldError } from '../../core/errors.js'
import { keyOf } from '../../core/ids.js'
import { writeWhole } from '../../core/whole-file.js'
import { writeJson } from '../../core/written-json.js'
import { damageLines, type Damage, UNNAMED } from '../../store/damage.js'
import { printable } from '../terminal.js'
import { plural } from '../../figures/numbers.js'
import type { FoundThread, ThreadsCheck } from '../../store/check.js'
import type { ResponsesCheck } from '../../server/responses/sqlite-responses.js'
import { isDatabase, openDatabase, storeFolder } from '../store-options.js'
import type { Shell } from '../shell.js'
import type { KeptResponse } from '../../server/responses/responses.js'
import type { ThreadRecord } from '../../store/port.js'

interface StoreFlags {
  readonly store?: string
  readonly json?: true
  readonly out?: string
}

export function addStore(program: Command, shell: Shell): void {
  const store = program
    .command('store')
    .description('check a store of conversations for damage, and save its undamaged threads; stop the server that uses it first')
  const add = (name: string, what: string, run: (flags: StoreFlags, shell: Shell) => Promise<void>) =>
    store
      .command(name)
      .description(what)
      .option(
        '--store <where>',
        'folder of the store, or postgres://user:password@host:port/name (default: kvfold in the XDG state folder)',
      )
      .action((flags: StoreFlags) => run(flags, shell))
  add('check', 'read a whole store and list damaged and lost items; exit code 1 if there are any', check).option(
    '--json',
    'one JSON object',
  )
  add('export', 'write all threads that can be read, one JSON object a line, with their damage', exportAll).option(
    '--out <file>',
    'file to write, readable by you only (default: stdout)',
  )
  store
    .command('copy <from> <to>')
    .description(
      'write all undamaged threads and responses of a folder to a new store in another folder. The new store still lists the damaged ones. The source does not change',
    )
    .action((from: string, to: string) => copy(from, to, shell))
  store
    .command('move <from> <to>')
    .description(
      'move all threads and responses from a folder to an empty database (postgres://user:password@host:port/name), or back to a folder without a store. kvfold reads everything back and compares it. The source does not change',
    )
    .action((from: string, to: string) => move(from, to, shell))
}

async function move(from: string, to: string, { out }: Shell): Promise<void> {
  const { threads, responses, left } = await moveStore(from, to)
  out.print(
    `moved ${plural(threads, 'thread')} and ${plural(responses, 'response')}, and read them back; the source is unchanged`,
  )
  if (left > 0)
    out.print(`left out ${plural(left, 'thread or response', 'threads and responses')} of deleted threads or earlier copies`)
}

interface Looked {
  readonly threads: ThreadsCheck
  readonly responses: ResponsesCheck | null
  /** What is wrong with the store's files, in words for people. */
  readonly problems: readonly string[]
}

/** Runs `work` on the store in a folder. The store is locked meanwhile, so no server can use it. */
async function looking<T>(folder: string, work: (looked: Looked) => Promise<T> | T): Promise<T> {
  // Loaded late, so that other commands need not load SQLite.
  const [{ checkThreads }, { checkResponses }] = await Promise.all([
    import('../../store/check.js'),
    import('../../server/responses/sqlite-responses.js'),
  ])
  const responses = checkResponses(folder)
  const threads = checkThreads(folder)
  if (threads === null) throw new KvfoldError('cli/bad-usage', `There is no store in ${folder}; name its folder with --store.`)
  const problems = [threads, responses].flatMap((each) => [
    ...(each?.file == null ? [] : [`${each.path}: ${each.file}`]),
    ...(each === null || each.unreadable === 0
      ? []
      : [`${plural(each.unreadable, 'damaged line')} in the manifest of ${each.path}`]),
  ])
  try {
    return await work({ threads, responses, problems })
  } finally {
    threads.close()
  }
}

/** Reads the threads in a database. Only kvfold's own checksums are checked: PostgreSQL checks its tables itself. */
async function inDatabase(url: string, each: (thread: FoundThread) => Promise<void> | void) {
  const [{ readAll }, { readResponses }] = await Promise.all([
    import('../../../fleet/postgres/move.js'),
    import('../../../fleet/postgres/postgres-responses.js'),
  ])
  const database = await openDatabase(url)
  try {
    return await readAll(database, each, readResponses)
  } finally {
    await database.close()
  }
}

async function check(flags: StoreFlags, { out }: Shell): Promise<void> {
  const damage: Damage[] = []
  let whole = 0
  const note = (thread: FoundThread) => {
    if (thread.damage === null) whole++
    else damage.push(thread.damage)
  }
  const url = isDatabase(flags.store) ? flags.store : null
  const read =
    url !== null
      ? { problems: [], responses: await inDatabase(url, note) }
      : await looking(storeFolder(flags), ({ threads, responses, problems }) => {
          for (const thread of threads.threads()) note(thread)
          return { problems, responses }
        })
  const all = [...damage, ...(read.responses?.damage ?? [])]
  const open = all.filter(({ settled }) => settled !== true)
  const responses = read.responses?.whole.length ?? 0
  const isDamaged = open.length > 0 || read.problems.length > 0
  const leftOutBefore = all.length - open.length
  if (flags.json === true)
    out.print(
      JSON.stringify({
        damaged: isDamaged,
        threads: { whole, damaged: damagesOf(open, 'thread') },
        responses: { whole: responses, damaged: damagesOf(open, 'response') },
        ...{ leftOutBefore, files: read.problems },
      }),
    )
  else {
    for (const line of [...read.problems, ...damageLines(open, open.length)]) out.print(printable(line))
    out.print(`${plural(whole, 'thread')} and ${plural(responses, 'response')} are undamaged`)
    if (leftOutBefore > 0)
      out.print(`an earlier copy left out ${plural(leftOutBefore, 'thread or response', 'threads and responses')}`)
  }
  if (isDamaged)
    throw new KvfoldError(
      'store/damaged',
      url !== null
        ? 'The store is damaged; restore a backup of the database, or delete these threads.'
        : 'The store is damaged. kvfold store export writes the parts that can be read; kvfold store copy makes a new store of the undamaged threads.',
    )
}

async function exportAll(flags: StoreFlags, { out, notes }: Shell): Promise<void> {
  const { exported } = await import('../../server/threads/thread-api.js')
  const url = isDatabase(flags.store) ? flags.store : null
  const open: Damage[] = []
  const writeAll = async (write: WriteLine) => {
    const each = ({ tenant, id, record, damage }: FoundThread) => {
      if (damage !== null && damage.settled !== true) open.push(damage)
      const told = damage === null ? null : { kind: damage.kind, what: damage.what }
      const body = record === null ? { format: 'kvfold-thread/1', id } : exported(record)
      return write(writeJson({ ...body, tenant, damage: told }))
    }
    const responses =
      url === null
        ? await looking(storeFolder(flags), async (looked) => {
            for (const thread of looked.threads.threads()) await each(thread)
            return looked.responses
          })
        : await inDatabase(url, each)
    open.push(...(responses?.damage ?? []).filter(({ settled }) => settled !== true))
  }
  if (flags.out === undefined)
    await writeAll(async (line) => {
      // A store may be larger than memory. Waiting here keeps lines from piling up before a slow reader.
      if (!out.print(line)) await out.flushed()
    })
  else await intoNewFile(flags.out, writeAll)
  for (const line of damageLines(open)) notes.print(printable(line))
}

type WriteLine = (line: string) => Promise<void> | void

/** Writes lines to a new file, completely or not at all. @throws KvfoldError cli/bad-usage when the file cannot be created */
async function intoNewFile(path: string, writeAll: (write: WriteLine) => Promise<void>): Promise<void> {
  if (existsSync(path)) throw new KvfoldError('cli/bad-usage', `There is a file ${path} already; give --out another name.`)
  await writeWhole(path, async (temporary) => {
    const file = opened(temporary, path)
    try {
      await writeAll((line) => {
        appendFileSync(file, `${line}\n`)
      })
    } finally {
      closeSync(file)
    }
  })
}

function opened(temporary: string, path: string): number {
  try {
    return openSync(temporary, 'wx', 0o600)
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException
    throw new KvfoldError('cli/bad-usage', `${path} cannot be written (${code}); give --out a file in another folder.`, { cause })
  }
}

const damagesOf = (damage: readonly Damage[], of: Damage['of']) =>
  damage.filter((each) => each.of === of).map(({ tenant, id, kind, what }) => ({ tenant, id, kind, what }))

// Moving a store between a folder and a database: either everything arrives and reads back the same, or nothing is moved.

interface Moved {
  readonly threads: number
  readonly responses: number
  /** How many items were left out: responses of deleted threads, and damaged records that an earlier copy left out. */
  readonly left: number
}

/**
 * Moves a store. The old store is not changed. @throws KvfoldError store/not-empty, store/damaged, store/locked, store/failed; nothing was
 * moved then
 */
export async function moveStore(from: string, to: string): Promise<Moved> {
  if (isDatabase(from) === isDatabase(to))
    throw new KvfoldError(
      'cli/bad-usage',
      'A store moves only between a folder and a database (postgres://user:password@host:port/name). Between two folders use kvfold store copy, between two databases pg_dump.',
    )
  return isDatabase(to) ? toDatabase(from, to) : toFolder(from, to)
}

async function toDatabase(folder: string, url: string): Promise<Moved> {
  const [{ writeResponse, readResponses }, { fill, notSame, refuseUsed }, { cardOf }] = await Promise.all([
    import('../../../fleet/postgres/postgres-responses.js'),
    import('../../../fleet/postgres/move.js'),
    import('../../server/threads/thread.js'),
  ])
  return looking(folder, async ({ threads, responses, problems }) => {
    const database = await openDatabase(url)
    try {
      const names = new Set<string>()
      let left = responses?.damage.length ?? 0
      const open = (responses?.damage ?? []).some(({ settled }) => settled !== true)
      if (problems.length > 0 || open) throw damaged('kvfold store check lists the damage')
      for (const { tenant, id, damage } of threads.threads()) {
        if (damage === null) names.add(JSON.stringify([tenant, id]))
        else if (damage.settled === true) left++
        else throw damaged(`the thread ${id} of ${tenant} is damaged`)
      }
      const kept = (responses?.whole ?? []).filter(({ tenant, thread }) => names.has(JSON.stringify([tenant, thread])))
      await refuseUsed(database)
      await fill(database, wholeOf(threads), cardOf, async (run) => {
        for (const response of kept) await writeResponse(run, response)
        const back = new Map((await readResponses(run)).whole.map((each) => [keyOf(each.tenant, each.id), each]))
        const other = kept.find((each) => !isDeepStrictEqual(back.get(keyOf(each.tenant, each.id)), each))
        if (other !== undefined) throw notSame('response', other.id, database.address)
      })
      left += (responses?.whole.length ?? 0) - kept.length
      return { threads: names.size, responses: kept.length, left }
    } finally {
      await database.close()
    }
  })
}

async function toFolder(url: string, folder: string): Promise<Moved> {
  const [{ readResponses }, { readAll, refuseUsed }] = await Promise.all([
    import('../../../fleet/postgres/postgres-responses.js'),
    import('../../../fleet/postgres/move.js'),
  ])
  const source = await openDatabase(url)
  try {
    await refuseUsed(source)
    return await newStore(folder, async (add) => {
      const { whole, damage } = await readAll(
        source,
        async ({ tenant, id, record }) => {
          if (record === null) throw damaged(`the thread ${id} of ${tenant} is damaged; delete it`)
          await add.thread(record)
        },
        readResponses,
      )
      if (damage.length > 0) throw damaged(`the response ${damage[0]!.id} is damaged; delete its thread`)
      for (const response of whole) await add.response(response)
      return []
    })
  } finally {
    await source.close()
  }
}

async function copy(from: string, to: string, { out }: Shell): Promise<void> {
  const { threads, responses, open } = await copyStore(from, to)
  for (const line of damageLines(open, open.length)) out.print(printable(`left out: ${line}`))
  out.print(
    `copied ${plural(threads, 'thread')} and ${plural(responses, 'response')}, and read them back; the source is unchanged`,
  )
}

/**
 * Copies what is undamaged in a store. The old store is not changed. @throws KvfoldError store/not-empty, store/locked, store/failed;
 * nothing was written then
 */
export async function copyStore(from: string, to: string): Promise<Moved & { readonly open: readonly Damage[] }> {
  if ([from, to].some(isDatabase))
    throw new KvfoldError('cli/bad-usage', 'This command copies a folder to a folder; copy a database with pg_dump.')
  const left: Damage[] = []
  const made = await looking(from, (found) =>
    newStore(to, async (add) => {
      for (const { damage, record } of found.threads.threads())
        if (damage === null) await add.thread(record!)
        else left.push(damage)
      for (const response of found.responses?.whole ?? []) await add.response(response)
      left.push(...(found.responses?.damage ?? []))
      return left
    }),
  )
  return { ...made, open: left.filter(({ settled }) => settled !== true) }
}

interface Filling {
  thread(record: ThreadRecord): Promise<void>
  response(response: KeptResponse): Promise<void>
}

/**
 * Makes a store completely or not at all. Each record is read back and compared. The new manifest lists the damaged records that `fill`
 * returns.
 */
async function newStore(folder: string, fill: (add: Filling) => Promise<readonly Damage[]>): Promise<Moved> {
  const [sqlite, kept, { Manifest }, { notSame }, { cardOf }] = await Promise.all([
    import('../../store/sqlite-store.js'),
    import('../../server/responses/sqlite-responses.js'),
    import('../../store/manifest.js'),
    import('../../../fleet/postgres/move.js'),
    import('../../server/threads/thread.js'),
  ])
  const manifests = { thread: sqlite.THREADS_MANIFEST, response: kept.RESPONSES_MANIFEST }
  const files = [sqlite.THREADS_FILE, kept.RESPONSES_FILE, ...Object.values(manifests)]
  if (files.some((name) => existsSync(join(folder, name))))
    throw new KvfoldError(
      'store/not-empty',
      `There is a store in ${folder} already, so nothing was written; give another folder.`,
    )
  mkdirSync(folder, { recursive: true, mode: 0o700 })
  const place = mkdtempSync(join(folder, 'new-'))
  try {
    const threads = sqlite.SqliteStore.open({ folder: place })
    const responses = kept.SqliteResponses.open(place)
    const made = { threads: 0, responses: 0, left: 0 }
    let left: readonly Damage[] = []
    try {
      left = await fill({
        thread: async (record) => {
          await threads.create(record, cardOf(record))
          if (!isDeepStrictEqual(threads.read(record.tenant, record.id), record)) throw notSame('thread', record.id, folder)
          made.threads++
        },
        response: async (response) => {
          await responses.keep(response)
          if (!isDeepStrictEqual(await responses.read(response.tenant, response.id), response))
            throw notSame('response', response.id, folder)
          made.responses++
        },
      })
    } finally {
      await threads.close()
      responses.close()
    }
    const why = (what: string) => `left out by the copy of ${new Date().toISOString().slice(0, 10)}, because ${what}`
    for (const [of, name] of Object.entries(manifests)) {
      const manifest = Manifest.read(join(place, name))
      const lost = left.filter((each) => each.of === of && each.tenant !== UNNAMED)
      manifest.begin(
        lost.map(({ tenant, id, what, settled }) => ({
          ...{ tenant, id, revision: 0, sum: 0, used: Date.now() },
          dropped: settled === true ? what : why(what),
        })),
      )
      manifest.close()
    }
    for (const name of files) renameSync(join(place, name), join(folder, name))
    return made
  } finally {
    rmSync(place, { recursive: true, force: true })
  }
}

/** Yields the undamaged threads, one at a time to save memory. */
function* wholeOf(check: ThreadsCheck): Generator<ThreadRecord> {
  for (const { damage, record } of check.threads()) if (damage === null) yield record!
}

const damaged = (what: string): KvfoldError =>
  new KvfoldError('store/damaged', `The store is damaged, so nothing was moved: ${what}.`)
