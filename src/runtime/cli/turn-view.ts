/** Shows a running turn: the answer as it streams, one line for each call and result, and the ledger. */
import type { AgentEvent, CallReport } from '../agents/tool-loop.js'
import type { ToolCall } from '../chat/message.js'
import { writeJson, writtenEntries } from '../core/written-json.js'
import { printable, type Terminal } from './terminal.js'
import { count, plural, duration } from '../figures/numbers.js'
import type { LedgerEntry } from '../kv/ledger.js'
import { type Column, number, table, terminal } from '../figures/table.js'

/** Writes a call, for example `fold_fragment(f1a2b3)`. Long values are cut: to 40 characters, or to 20 each if there are several. */
export function callText({ name, arguments: args, malformed }: ToolCall): string {
  const values =
    malformed === undefined
      ? writtenEntries(args).map(({ value, text }) => text ?? (typeof value === 'string' ? value : writeJson(value)))
      : [malformed]
  const longest = values.length > 1 ? 20 : 40
  return printable(`${name}(${values.map((value) => cut(value, longest)).join(', ')})`)
}

/** Returns the first line of a call's result, and how many lines follow. */
export function resultText({ text }: Pick<CallReport, 'text'>): string {
  const [first = '', ...rest] = text.split('\n')
  const more = rest.length === 0 ? '' : ` (+ ${plural(rest.length, 'line')})`
  return printable(cut(first, 200)) + more
}

const cut = (text: string, longest: number): string => {
  const line = text.replace(/\s+/g, ' ')
  return line.length <= longest ? line : `${line.slice(0, longest / 2)} … ${line.slice(-longest / 2)}`
}

export interface TurnViewOptions {
  /** Where the answer is written. On a terminal, control characters become visible symbols; another stream gets the answer unchanged. */
  readonly answer: Terminal
  /** For calls, remarks and progress. */
  readonly remarks: Terminal
  /** Whether to show reasoning too, dimmed. Default false. */
  readonly reasoning?: boolean
}

/** How many milliseconds lie between two lines of progress, on a stream that cannot redraw lines. */
const EVERY = 10_000

/** Pass it all events of a turn, then call `end`. Answer and remarks may go to the same terminal. */
export class TurnView {
  /** Whether the answer's last line still lacks its line break. */
  #open = false
  /** How many tokens the current step has generated so far. */
  #written = 0
  #said = performance.now()

  constructor(private readonly options: TurnViewOptions) {}

  readonly onEvent = (event: AgentEvent): void => {
    if (event.type === 'step') this.#written = 0
    if (event.type === 'call') this.#running(event.call)
    if (event.type === 'result') this.#remark(`· ${callText(event.call)} → ${resultText(event)}`, event.failed)
    if (event.type !== 'engine') return
    const { event: inner } = event
    if (inner.type === 'text') this.#write(inner.text, false)
    else if (inner.type === 'reasoning' && this.options.reasoning === true) this.#write(inner.text, true)
    else if (inner.type === 'prefill') this.#reading(inner.done, inner.total)
    else if (inner.type === 'tokens') this.#writing(inner.tokens.length)
    else if (inner.type === 'bare-call') this.#remark(`· ${inner.name} is called in another form: ${inner.form}`, false)
    else if (inner.type === 'rewrite')
      this.#remark(`· the template shows message ${inner.message + 1} differently now: ${inner.reason}`, false)
  }

  /** Ends the answer's last line, and removes the line of progress. */
  end(): void {
    this.options.remarks.close()
    if (this.#open) this.options.answer.write('\n')
    this.#open = false
  }

  #write(text: string, dim: boolean): void {
    const { answer, remarks } = this.options
    remarks.close()
    const safe = answer.live ? printable(text) : text
    answer.write(dim ? answer.colours.dim(safe) : safe)
    if (text !== '') this.#open = !text.endsWith('\n')
  }

  #remark(line: string, failed: boolean): void {
    this.end()
    const { remarks } = this.options
    remarks.print(failed ? remarks.colours.yellow(line) : remarks.colours.dim(line))
  }

  /** Shows a call until its result comes. */
  #running(call: ToolCall): void {
    this.end()
    const { remarks } = this.options
    remarks.frame([remarks.colours.dim(`· ${callText(call)} ...`)], true)
  }

  /** Shows how much of the prompt is prefilled. Prompts under 2,048 tokens take only a moment and show nothing. */
  #reading(done: number, total: number): void {
    if (this.#open || total < 2048) return
    if (done < total) this.#doing(`reading ${count(done)} of ${plural(total, 'token')}`)
    else this.options.remarks.close()
  }

  /** Counts generated tokens. The count is shown while the text is not, as in calls and reasoning. */
  #writing(tokens: number): void {
    this.#written += tokens
    if (!this.#open) this.#doing(`writing, ${plural(this.#written, 'token')} so far`)
  }

  /** Shows progress: on a terminal in one line that is redrawn, elsewhere in a new line every ten seconds. */
  #doing(what: string): void {
    const { remarks } = this.options
    if (remarks.live) remarks.frame([remarks.colours.dim(`${what} ...`)])
    else if (performance.now() - this.#said > EVERY) {
      this.#said = performance.now()
      remarks.print(`${what} ...`)
    }
  }
}

// The ledger as text: one line for a turn, a table for a conversation.

/** Returns one line about a turn: the context size at its last step, and what the turn cost. Empty without steps. */
export function ledgerLine(entries: readonly LedgerEntry[]): string {
  const last = entries.findLast(({ kind }) => kind === 'answer') ?? entries.at(-1)
  if (last === undefined) return ''
  const sum = (key: 'reused' | 'recomputed' | 'fresh' | 'side'): number => entries.reduce((total, entry) => total + entry[key], 0)
  const milliseconds = entries.reduce(
    (total, { milliseconds: { cache, prefill, decode } }) => total + cache + prefill + decode,
    0,
  )
  const side = sum('side')
  return [
    plural(last.shown, 'token in context', 'tokens in context'),
    `${count(sum('reused'))} reused`,
    `${count(sum('recomputed'))} recomputed`,
    `${count(sum('fresh'))} new`,
    ...(side > 0 ? [`${count(side)} aside`] : []),
    ...(last.approximate > 0 ? [`${count(last.approximate)} approximate (${last.contract})`] : []),
    ...(last.fallback === null ? [] : [`exact instead: ${last.fallback}`]),
    ...(last.recomputeReason == null ? [] : [`computed again: ${last.recomputeReason}`]),
    ...(entries.length > 1 ? [plural(entries.length, 'step')] : []),
    duration(milliseconds),
  ].join(', ')
}

/**
 * Returns the ledger as a table, one row per step. `submitted`: tokens that the addon counted. A star: the step could not keep the
 * requested contract. `foreseen ms`: the time predicted for cache and prompt, if the machine is calibrated.
 */
export function ledgerTable(entries: readonly LedgerEntry[], rule: string): string[] {
  const tokens = (title: string, of: (entry: LedgerEntry) => number | null) =>
    number<LedgerEntry>(title, (entry) => (of(entry) === null ? '-' : count(of(entry)!)))
  const columns: Column<LedgerEntry>[] = [
    number('step', ({ step }) => String(step)),
    { title: 'kind', text: ({ kind }) => kind },
    { title: 'contract', text: ({ contract, fallback }) => (fallback === null ? contract : `${contract} *`) },
    tokens('shown', ({ shown }) => shown),
    tokens('reused', ({ reused }) => reused),
    tokens('recomputed', ({ recomputed }) => recomputed),
    tokens('new', ({ fresh }) => fresh),
    tokens('approx.', ({ approximate }) => approximate),
    tokens('aside', ({ side }) => side),
    tokens('submitted', ({ submitted }) => submitted),
    tokens('parked', ({ parked }) => parked),
    tokens('ms', ({ milliseconds: { cache, prefill, decode } }) => cache + prefill + decode),
    tokens('foreseen ms', ({ predicted }) => predicted),
  ]
  return terminal(table(columns, entries), rule)
}
