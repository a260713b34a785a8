/** Owns how a running turn appears: the answer as it streams, calls and their results as one line each. */
import type { AgentEvent, CallReport } from '../agents/events.js'
import type { ToolCall } from '../chat/message.js'
import { printable } from './ansi.js'
import { count, plural } from './figures.js'
import type { Terminal } from './terminal.js'

/** `fold_fragment(f1a2b3)`: values of the arguments, long ones cut, the more so the more there are. */
export function callText({ name, arguments: args, malformed }: ToolCall): string {
  const values =
    malformed === undefined
      ? Object.values(args).map((value) => (typeof value === 'string' ? value : JSON.stringify(value)))
      : [malformed]
  const longest = values.length > 1 ? 20 : 40
  return printable(`${name}(${values.map((value) => cut(value, longest)).join(', ')})`)
}

/** First line of what a call answered, and how much more there was. */
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
  /** Where the answer goes. On a terminal its control characters are made visible; elsewhere it stays as it is. */
  readonly answer: Terminal
  /** Where calls, remarks and progress go. */
  readonly remarks: Terminal
  /** Shows reasoning too, dimmed. Default false. */
  readonly reasoning?: boolean
}

/** Feed it a turn's events; call `end` when the turn is over. Answer and remarks may be the same terminal. */
export class TurnView {
  /** Whether the answer's last line has not been ended yet. */
  #open = false

  constructor(private readonly options: TurnViewOptions) {}

  readonly onEvent = (event: AgentEvent): void => {
    if (event.type === 'result') this.#remark(`· ${callText(event.call)} → ${resultText(event)}`, event.failed)
    if (event.type !== 'engine') return
    const { event: inner } = event
    if (inner.type === 'text') this.#write(inner.text, false)
    else if (inner.type === 'reasoning' && this.options.reasoning === true) this.#write(inner.text, true)
    else if (inner.type === 'prefill') this.#progress(inner.done, inner.total)
    else if (inner.type === 'rewrite')
      this.#remark(`· the template shows message ${inner.message + 1} differently now: ${inner.reason}`, false)
  }

  /** Closes the answer's line and takes progress away. */
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

  /** Only worth a line when there is more than a moment's work. */
  #progress(done: number, total: number): void {
    if (this.#open || total < 2048) return
    const { remarks } = this.options
    if (done < total) remarks.frame([remarks.colours.dim(`reading ${count(done)} of ${plural(total, 'token')} ...`)])
    else remarks.close()
  }
}
