/** Owns what every command gets from the process it runs in. */
import { Interrupt } from './interrupt.js'
import { Terminal } from './terminal.js'

export interface Shell {
  /** Results: stdout. */
  readonly out: Terminal
  /** Progress and remarks: stderr, so that results stay clean in a pipe. */
  readonly notes: Terminal
  readonly interrupt: Interrupt
}

export const openShell = (): Shell => ({
  out: new Terminal(process.stdout),
  notes: new Terminal(process.stderr),
  interrupt: new Interrupt(),
})
