/** Runs the suite of response stores on each of them. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach } from 'vitest'
import { SqliteResponses } from '../../../../src/runtime/server/responses/sqlite-responses.js'
import { theResponseStore, type ResponsesOnTrial } from './response-store.contract.js'

let folder: string

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'kvfold-responses-'))
})
afterEach(() => {
  rmSync(folder, { recursive: true })
})

const deleteThread: ResponsesOnTrial['deleteThread'] = (store, tenant, thread) => {
  store.drop([{ tenant, thread }])
  return Promise.resolve()
}

theResponseStore('SQLite', { open: () => Promise.resolve(SqliteResponses.open(folder)), deleteThread })
