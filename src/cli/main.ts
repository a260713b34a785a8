#!/usr/bin/env node
/** The bin. */
import { kvfold } from './kvfold.js'
import { openShell } from '../runtime/cli/shell.js'

// The reader of our output may stop reading (`kvfold ... | head`).
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') process.exit(0)
  throw error
})

process.exit(await kvfold(openShell()))
