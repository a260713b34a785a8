/** Owns what a view of the demo is, and the plain one: a line a turn, for pipes and logs. */
import type { AgentEvent, CallReport } from '../../agents/events.js'
import { count, plural } from '../figures.js'
import type { Terminal } from '../terminal.js'
import { callText, resultText } from '../turn-view.js'
import type { Tracker } from './tracker.js'
import type { AgentName, Trial } from './trial.js'

export interface DemoPlan {
  readonly model: string
  /** The syntax of its tool calls. */
  readonly toolCalls: string
  readonly sizes: readonly number[]
  readonly samples: number
  readonly keys: number
  readonly seed: number
}

export interface DemoView {
  begin(plan: DemoPlan): void
  /** A turn begins; its events follow, until `ended`. */
  turn(n: number, sample: number, agent: AgentName, tracker: Tracker): void
  event(event: AgentEvent): void
  ended(trial: Trial): void
}

/** What the demo does, in words. */
export function introduction({ model, toolCalls, sizes, samples, keys, seed }: DemoPlan): string[] {
  return [
    `PI-LLM on ${model}: ${keys} keys get new values again and again, and the last ones are asked for (proactive interference).`,
    `plain answers from the whole stream; sculptor has six tools to fold, restore, summarise and search its own context (${toolCalls} calls).`,
    `Updates per key n = ${sizes.join(', ')}; ${plural(samples, 'stream')} each, the same for both; temperature 0, seed ${seed}.`,
  ]
}

/** `45 of 46 right, 3,020 -> 812 tokens in context, 1.4 s`. */
export function trialText({ right, asked, tokensBefore, tokensAfter, seconds, cutOff }: Trial, arrow: string): string {
  const context = tokensBefore === tokensAfter ? count(tokensAfter) : `${count(tokensBefore)} ${arrow} ${count(tokensAfter)}`
  return `${right} of ${asked} right, ${context} tokens in context, ${seconds.toFixed(1)} s${cutOff > 0 ? ', cut off at the token limit' : ''}`
}

/**
 * The calls of one step, compactly: one line for each run of successful calls of one tool, ids only when there are several; failed calls
 * each with their error.
 */
export function callLines(calls: readonly CallReport[], arrow: string): { readonly text: string; readonly failed: boolean }[] {
  const lines: { text: string; failed: boolean }[] = []
  for (let start = 0; start < calls.length;) {
    const first = calls[start]!
    let end = start + 1
    while (!first.failed && calls[end]?.failed === false && calls[end]?.call.name === first.call.name) end++
    const run = calls.slice(start, end)
    lines.push({
      failed: first.failed,
      text:
        run.length === 1
          ? `${callText(first.call)} ${arrow} ${resultText(first)}`
          : `${first.call.name} x ${run.length}: ${run.map(({ call }) => callText(call).slice(call.name.length + 1, -1)).join(', ')}`,
    })
    start = end
  }
  return lines
}

/** One line a turn and one a step with calls; no colour, no redrawing. */
export class PlainView implements DemoView {
  #name = ''
  #calls: CallReport[] = []

  constructor(private readonly out: Terminal) {}

  begin(plan: DemoPlan): void {
    for (const line of introduction(plan)) this.out.print(line)
    this.out.print()
  }

  turn(n: number, sample: number, agent: AgentName): void {
    this.#name = `n = ${n}, stream ${sample + 1}, ${agent}: `
  }

  event(event: AgentEvent): void {
    if (event.type === 'result') this.#calls.push(event)
    else if (event.type === 'step') this.#flush()
  }

  ended(trial: Trial): void {
    this.#flush()
    this.out.print(this.#name + trialText(trial, '->'))
  }

  #flush(): void {
    for (const { text } of callLines(this.#calls.splice(0), '->')) this.out.print(this.#name + text)
  }
}
