/** `kvfold store`: what is damaged in a store of conversations, what can be read of it, a whole store of that, and moving one to another place. */
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { appendFileSync, closeSync, existsSync, mkdirSync, mkdtempSync, openSync, renameSync, rmSync } from 'node:fs'
import type { Command } from 'commander'
import { KvfoldError } from '../../core/errors.js'
import { writeJson } from '../../core/written-json.js'
import { damageLines, type Damage } from '../../store/damage.js'
import { printable } from '../terminal.js'
import { plural } from '../../figures/numbers.js'
import type { FoundThread } from '../../../fleet/postgres/move.js'
import { isDatabase, openPostgres, storeFolder } from '../keeping.js'
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
    .description('look for damage in a store of conversations, which no server uses meanwhile, and save what is whole')
  const add = (name: string, what: string, run: (flags: StoreFlags, shell: Shell) => Promise<void>) =>
    store
      .command(name)
      .description(what)
      .option(
        '--store <where>',
        'folder of the store, or postgres://user:password@host:port/name (default: kvfold in the XDG state folder)',
      )
      .action((flags: StoreFlags) => run(flags, shell))
  add('check', 'read all of a store and name what is damaged or lost; exit code 1 when anything is', check).option(
    '--json',
    'one JSON object',
  )
  add(
    'repair',
    'write a new store of all whole threads and of the whole beginnings of damaged ones; the damaged files stay beside it',
    repair,
  ).option('--json', 'one JSON object')
  add('export', 'all threads that can be read, one JSON object a line, with what is damaged in them', exportAll).option(
    '--out <file>',
    'file to write, readable by you only (default: stdout)',
  )
  store
    .command('move <from> <to>')
    .description(
      'move all threads and responses from a folder to an empty database (postgres://user:password@host:port/name), or back to a folder without a store; what was written is read back, and the source stays as it was',
    )
    .action((from: string, to: string) => move(from, to, shell))
}

async function move(from: string, to: string, { out }: Shell): Promise<void> {
  const { threads, responses, left } = await moveStore(from, to)
  out.print(`${plural(threads, 'thread')} and ${plural(responses, 'response')} moved and read back; the source is as it was`)
  if (left > 0)
    out.print(`${plural(left, 'thread or response', 'threads and responses')} of deleted threads or earlier repairs left out`)
}

async function look(flags: StoreFlags) {
  // Only now: other commands should not wait for SQLite, nor need it.
  const [{ checkThreads, damageOf, repairThreads }, { checkResponses, repairResponses }] = await Promise.all([
    import('../../store/repair.js'),
    import('../../server/responses/sqlite-responses.js'),
  ])
  const folder = storeFolder(flags)
  const [threads, responses] = [checkThreads(folder), checkResponses(folder)]
  if (threads === null) throw new KvfoldError('cli/bad-usage', `There is no store in ${folder}; name its folder with --store.`)
  const damage = [...threads.threads.map(damageOf).filter((each) => each !== null), ...(responses?.damage ?? [])]
  const files = [threads, responses].filter((each) => each !== null)
  const open = damage.filter(({ settled }) => settled !== true)
  const isDamaged = open.length > 0 || files.some(({ file, unreadable }) => file !== null || unreadable > 0)
  return { folder, threads, responses, damage, open, files, isDamaged, damageOf, repairThreads, repairResponses }
}

/** Of a database: its own tables are PostgreSQL's to check. */
async function inDatabase(url: string, each: (thread: FoundThread) => void) {
  const [{ readAll }, { readResponses }] = await Promise.all([
    import('../../../fleet/postgres/move.js'),
    import('../../../fleet/postgres/postgres-responses.js'),
  ])
  const store = await openPostgres(url)
  try {
    return await readAll(store.database, each, readResponses)
  } finally {
    await store.close()
  }
}

async function checkDatabase(url: string, { json }: StoreFlags, { out }: Shell): Promise<void> {
  const threads: Damage[] = []
  let count = 0
  const responses = await inDatabase(url, ({ damage }) => {
    if (damage === null) count++
    else threads.push(damage)
  })
  const all = [...threads, ...responses.damage]
  if (json === true)
    out.print(
      JSON.stringify({
        damaged: all.length > 0,
        threads: { whole: count, damaged: damagesOf(all, 'thread') },
        responses: { whole: responses.whole.length, damaged: damagesOf(all, 'response') },
        ...{ leftOutBefore: 0, files: [] },
      }),
    )
  else {
    for (const line of damageLines(all, all.length)) out.print(printable(line))
    out.print(`${plural(count, 'thread')} and ${plural(responses.whole.length, 'response')} are what was written`)
  }
  if (all.length > 0)
    throw new KvfoldError('store/damaged', 'The store is damaged; put back a copy of the database, or delete these threads.')
}

async function check(flags: StoreFlags, shell: Shell): Promise<void> {
  if (isDatabase(flags.store)) return checkDatabase(flags.store, flags, shell)
  const { out } = shell
  const { threads, responses, damage, open, files, isDamaged, damageOf } = await look(flags)
  const whole = threads.threads.filter((thread) => damageOf(thread) === null).length
  const settled = damage.length - open.length
  const problems = files.flatMap(({ path, file, unreadable }) => [
    ...(file === null ? [] : [`${path}: ${file}`]),
    ...(unreadable === 0 ? [] : [`${plural(unreadable, 'damaged line')} in the manifest of ${path}`]),
  ])
  if (flags.json === true)
    out.print(
      JSON.stringify({
        damaged: isDamaged,
        threads: { whole, damaged: damagesOf(open, 'thread') },
        responses: { whole: responses?.whole.length ?? 0, damaged: damagesOf(open, 'response') },
        leftOutBefore: settled,
        files: problems,
      }),
    )
  else {
    for (const line of [...problems, ...damageLines(open, open.length)]) out.print(printable(line))
    out.print(`${plural(whole, 'thread')} and ${plural(responses?.whole.length ?? 0, 'response')} are what was written`)
    if (settled > 0) out.print(`${plural(settled, 'thread or response', 'threads and responses')} left out by an earlier repair`)
  }
  threads.close()
  if (isDamaged)
    throw new KvfoldError(
      'store/damaged',
      'The store is damaged; kvfold store export writes what can be read, kvfold store repair makes a whole one of it.',
    )
}

async function repair(flags: StoreFlags, { out }: Shell): Promise<void> {
  if (isDatabase(flags.store))
    throw new KvfoldError(
      'cli/bad-usage',
      'A database is repaired by its own means: put back a copy of it; kvfold store check names the threads that are damaged, which can be deleted.',
    )
  const { folder, threads, responses, open, files, isDamaged, repairThreads, repairResponses } = await look(flags)
  const broken = new Set(files.filter(({ file, unreadable }) => file !== null || unreadable > 0))
  if (!isDamaged) {
    threads.close()
    out.print(flags.json === true ? JSON.stringify({ repaired: false }) : 'Nothing is damaged; nothing was changed.')
    return
  }
  const both = open.some((each) => each.of === 'thread') || broken.has(threads)
  const repaired = both ? await repairThreads(folder, threads) : null
  threads.close()
  const isBroken = responses !== null && (broken.has(responses) || open.some((each) => each.of === 'response'))
  const backup = isBroken ? await repairResponses(folder, responses) : null
  const lost = open.filter((each) => each.of === 'response')
  if (flags.json === true) {
    out.print(
      JSON.stringify({ repaired: true, threads: repaired, responses: backup === null ? null : { backup, dropped: lost } }),
    )
    return
  }
  if (repaired !== null) {
    for (const { damage, rows } of repaired.cut)
      out.print(
        printable(
          `thread ${damage.id} of ${damage.tenant}: the first ${rows.messages.found}${rows.messages.of === null ? '' : ` of ${rows.messages.of}`} messages were kept (${damage.what})`,
        ),
      )
    for (const line of damageLines(repaired.dropped, repaired.dropped.length)) out.print(printable(`left out: ${line}`))
    out.print(`${plural(repaired.whole, 'thread')} kept as written; the damaged store is ${repaired.backup}`)
  }
  if (backup !== null) {
    for (const line of damageLines(lost, lost.length)) out.print(printable(`left out: ${line}`))
    out.print(`${plural(responses?.whole.length ?? 0, 'response')} kept as written; the damaged file is ${backup}`)
  }
}

async function exportAll(flags: StoreFlags, { out, notes }: Shell): Promise<void> {
  const { exported } = await import('../../server/threads/thread-api.js')
  const found = isDatabase(flags.store) ? null : await look(flags)
  const file = flags.out === undefined ? null : openSync(flags.out, 'wx', 0o600)
  const write = ({ tenant, id, record, damage }: FoundThread) => {
    const told = damage === null ? null : { kind: damage.kind, what: damage.what }
    const body = record === null ? { format: 'kvfold-thread/1', id } : exported(record)
    const line = writeJson({ ...body, tenant, damage: told })
    if (file === null) out.print(line)
    else appendFileSync(file, `${line}\n`)
  }
  const open: Damage[] = []
  try {
    if (found === null) {
      const { damage } = await inDatabase(flags.store!, (thread) => {
        if (thread.damage !== null) open.push(thread.damage)
        write(thread)
      })
      open.push(...damage)
    } else {
      open.push(...found.open)
      for (const thread of found.threads.threads)
        write({ ...thread, record: thread.record?.() ?? null, damage: found.damageOf(thread) })
    }
  } finally {
    found?.threads.close()
    if (file !== null) closeSync(file)
  }
  for (const line of damageLines(open)) notes.print(printable(line))
}

const damagesOf = (damage: readonly Damage[], of: Damage['of']) =>
  damage.filter((each) => each.of === of).map(({ tenant, id, kind, what }) => ({ tenant, id, kind, what }))

// The moving of a whole store from a folder to a database and back: all of it is there and reads back the same, or nothing was moved.

interface Moved {
  readonly threads: number
  readonly responses: number
  /** Responses of threads that were deleted, and what an earlier repair left out. */
  readonly left: number
}

/** The source stays as it is. @throws KvfoldError store/not-empty, store/damaged, store/locked, store/failed; nothing was moved then */
export async function moveStore(from: string, to: string): Promise<Moved> {
  if (isDatabase(from) === isDatabase(to))
    throw new KvfoldError(
      'cli/bad-usage',
      'A store moves between a folder and postgres://user:password@host:port/name. A folder is copied as a folder, a database by pg_dump.',
    )
  return isDatabase(to) ? toDatabase(from, to) : toFolder(from, to)
}

async function toDatabase(folder: string, url: string): Promise<Moved> {
  const [
    { checkThreads, damageOf },
    { checkResponses },
    { writeResponse, readResponses },
    { fill, notSame, refuseUsed },
    { cardOf },
  ] = await Promise.all([
    import('../../store/repair.js'),
    import('../../server/responses/sqlite-responses.js'),
    import('../../../fleet/postgres/postgres-responses.js'),
    import('../../../fleet/postgres/move.js'),
    import('../../server/threads/thread.js'),
  ])
  const [threads, responses] = [checkThreads(folder), checkResponses(folder)]
  if (threads === null) throw new KvfoldError('cli/bad-usage', `There is no store in ${folder}.`)
  const store = await openPostgres(url).catch((error: unknown) => {
    threads.close()
    throw error
  })
  try {
    const damage = [...threads.threads.map(damageOf).filter((each) => each !== null), ...(responses?.damage ?? [])]
    const files = [threads, responses].filter((each) => each !== null && (each.file !== null || each.unreadable > 0))
    if (files.length > 0 || damage.some(({ settled }) => settled !== true)) throw damaged('kvfold store repair makes it whole')
    const whole = threads.threads.filter((thread) => damageOf(thread) === null)
    const names = new Set(whole.map(({ tenant, id }) => JSON.stringify([tenant, id])))
    const kept = (responses?.whole ?? []).filter(({ tenant, thread }) => names.has(JSON.stringify([tenant, thread])))
    await refuseUsed(store.database)
    await fill(store.database, recordsOf(whole), cardOf, async (run) => {
      for (const response of kept) await writeResponse(run, response)
      const back = new Map((await readResponses(run)).whole.map((each) => [nameOf(each), each]))
      const other = kept.find((each) => !isDeepStrictEqual(back.get(nameOf(each)), each))
      if (other !== undefined) throw notSame('response', other.id, store.database.address)
    })
    const left = damage.length + (responses?.whole.length ?? 0) - kept.length
    return { threads: whole.length, responses: kept.length, left }
  } finally {
    threads.close()
    await store.close()
  }
}

async function toFolder(url: string, folder: string): Promise<Moved> {
  const [sqlite, responsesIn, { readResponses }, { notSame, readAll, refuseUsed }, { cardOf }] = await Promise.all([
    import('../../store/sqlite-store.js'),
    import('../../server/responses/sqlite-responses.js'),
    import('../../../fleet/postgres/postgres-responses.js'),
    import('../../../fleet/postgres/move.js'),
    import('../../server/threads/thread.js'),
  ])
  const files = [
    ...[sqlite.THREADS_FILE, sqlite.THREADS_MANIFEST],
    ...[responsesIn.RESPONSES_FILE, responsesIn.RESPONSES_MANIFEST],
  ]
  if (files.some((name) => existsSync(join(folder, name))))
    throw new KvfoldError('store/not-empty', `There is a store in ${folder} already, so nothing was moved; give another folder.`)
  const source = await openPostgres(url)
  let place: string | null = null
  try {
    await refuseUsed(source.database)
    mkdirSync(folder, { recursive: true, mode: 0o700 })
    place = mkdtempSync(join(folder, 'move-'))
    const threads = sqlite.SqliteStore.open({ folder: place })
    const responses = responsesIn.SqliteResponses.open(place)
    const moved = { threads: 0, responses: 0, left: 0 }
    try {
      const { whole, damage } = await readAll(
        source.database,
        async ({ tenant, id, record }) => {
          if (record === null) throw damaged(`the thread ${id} of ${tenant} is not what was written; delete it`)
          await threads.create(record, cardOf(record))
          if (!isDeepStrictEqual(threads.read(tenant, id), record)) throw notSame('thread', id, folder)
          moved.threads++
        },
        readResponses,
      )
      if (damage.length > 0) throw damaged(`the response ${damage[0]!.id} is not what was written; delete its thread`)
      for (const response of whole) {
        await responses.keep(response)
        if (!isDeepStrictEqual(await responses.read(response.tenant, response.id), response))
          throw notSame('response', response.id, folder)
        moved.responses++
      }
    } finally {
      await threads.close()
      responses.close()
    }
    for (const name of files) renameSync(join(place, name), join(folder, name))
    return moved
  } finally {
    if (place !== null) rmSync(place, { recursive: true, force: true })
    await source.close()
  }
}

/** One at a time in memory. */
function* recordsOf(threads: readonly { readonly record: (() => ThreadRecord) | null }[]): Generator<ThreadRecord> {
  for (const { record } of threads) if (record !== null) yield record()
}

const nameOf = ({ tenant, id }: KeptResponse): string => JSON.stringify([tenant, id])

const damaged = (what: string): KvfoldError =>
  new KvfoldError('store/damaged', `The store is damaged, so nothing was moved: ${what}.`)
