/** The tables of the store. A later version appends a migration step; existing steps never change. */
import type { Migrations } from './store-file.js'

export const migrations: Migrations = {
  first: 4,
  tables: `
  CREATE TABLE threads (
    number INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    model TEXT NOT NULL,
    created INTEGER NOT NULL, -- Unix milliseconds
    used INTEGER NOT NULL,
    parent TEXT, -- id of the thread that it was forked from, which may be gone
    contract TEXT,
    tools TEXT NOT NULL, -- JSON
    held TEXT NOT NULL, -- JSON
    sum INTEGER NOT NULL, -- in all tables: CRC-32 of the table's name, the row's keys and the row
    UNIQUE (tenant, id)
  ) STRICT;
  CREATE INDEX threads_by_use ON threads (used);

  CREATE TABLE messages (
    thread INTEGER NOT NULL REFERENCES threads ON DELETE CASCADE,
    place INTEGER NOT NULL, -- from 0, without gaps
    message TEXT NOT NULL, -- JSON, without the sampled tokens
    tokens BLOB, -- the sampled tokens, 32-bit integers, low byte first
    seen TEXT NOT NULL, -- JSON
    sum INTEGER NOT NULL,
    UNIQUE (thread, place)
  ) STRICT;

  CREATE TABLE edits (
    thread INTEGER PRIMARY KEY REFERENCES threads ON DELETE CASCADE,
    fragments TEXT NOT NULL, -- JSON
    searches TEXT NOT NULL, -- JSON
    ids INTEGER NOT NULL,
    sum INTEGER NOT NULL
  ) STRICT;

  CREATE TABLE entries (
    thread INTEGER NOT NULL REFERENCES threads ON DELETE CASCADE,
    place INTEGER NOT NULL,
    entry TEXT NOT NULL, -- JSON
    sum INTEGER NOT NULL,
    UNIQUE (thread, place)
  ) STRICT;

  CREATE TABLE cards (
    thread INTEGER PRIMARY KEY REFERENCES threads ON DELETE CASCADE,
    chain BLOB, -- 16 bytes for each message that clients know
    card TEXT NOT NULL, -- JSON, without the chain
    sum INTEGER NOT NULL
  ) STRICT; -- a thread without one gets it when the store is opened (ThreadStore.index)

  CREATE TABLE events (
    thread INTEGER NOT NULL REFERENCES threads ON DELETE CASCADE,
    place INTEGER NOT NULL,
    event TEXT NOT NULL, -- JSON
    sum INTEGER NOT NULL,
    UNIQUE (thread, place)
  ) STRICT;

  CREATE TABLE digests (
    thread INTEGER PRIMARY KEY REFERENCES threads ON DELETE CASCADE,
    digest TEXT NOT NULL, -- JSON: rows and checksums of the thread, see rows.ts
    sum INTEGER NOT NULL
  ) STRICT;
  `,
  steps: [],
}
