#!/usr/bin/env node
/** Starts the program `kvfold`. package.json names this file as its executable. */
import { setTimeout } from 'node:timers/promises'
import { kvfold } from './kvfold.js'
import { openShell } from '../runtime/cli/shell.js'

const shell = openShell()
// The program that reads our output may stop reading (`kvfold ... | head`), or the disk that takes it is full.
process.stdout.on('error', ({ code, message }: NodeJS.ErrnoException) => {
  if (shell.out.isOptional) return
  if (code !== 'EPIPE') shell.notes.print(`kvfold cannot write its output: ${message}`)
  process.exit(code === 'EPIPE' ? 0 : 1)
})
// Remarks that have no reader are lost. A command never ends for that.
process.stderr.on('error', () => undefined)

const code = await kvfold(shell)
// What a slow reader of a pipe has not taken yet would be lost at the exit. A program that was told to end waits no longer than a second.
const flushed = Promise.all([shell.out.flushed(), shell.notes.flushed()])
await (shell.interrupt.interrupted ? Promise.race([flushed, setTimeout(1000)]) : flushed)
process.exit(code)
