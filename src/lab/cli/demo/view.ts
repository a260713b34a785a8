/** Defines the demo's views: a plain one with a line for each turn, for pipes and logs, and a live one for terminals. */
import type { AgentEvent, CallReport } from '../../../runtime/agents/tool-loop.js'
import { fit, wrap, type Terminal } from '../../../runtime/cli/terminal.js'
import { count, duration, percent, plural } from '../../../runtime/figures/numbers.js'
import { figuresOf, glyphs, type TokenShare, shares, contextBar, type Tracker } from './context-bar.js'
import { callText, resultText } from '../../../runtime/cli/turn-view.js'
import type { AgentName, DemoTrial } from './trial.js'

export interface DemoPlan {
  readonly model: string
  /** The name of the syntax of the model's tool calls. */
  readonly toolCalls: string
  readonly sizes: readonly number[]
  readonly samples: number
  readonly keys: number
  readonly seed: number
}

export interface DemoView {
  begin(plan: DemoPlan): void
  /** Called when a turn begins. Its events follow, until `ended`. */
  turn(n: number, sample: number, agent: AgentName, tracker: Tracker): void
  event(event: AgentEvent): void
  ended(trial: DemoTrial): void
}

/** Returns lines that say what the demo does. */
export function introduction({ model, toolCalls, sizes, samples, keys, seed }: DemoPlan): string[] {
  return [
    `PI-LLM on ${model}: ${keys} keys get new values again and again, and the question asks for the last ones (proactive interference).`,
    `plain answers from the whole stream; sculptor has six tools to fold, restore, summarise and search its own context (${toolCalls} calls).`,
    `Updates per key n = ${sizes.join(', ')}; ${plural(samples, 'stream')} each, the same for both; temperature 0, seed ${seed}.`,
  ]
}

/** Describes a trial: `45 of 46 right, 3,020 -> 812 tokens in context, 1.4 s`. */
export function trialText({ right, asked, tokensBefore, tokensAfter, seconds, cutOff }: DemoTrial, arrow: string): string {
  const context = tokensBefore === tokensAfter ? count(tokensAfter) : `${count(tokensBefore)} ${arrow} ${count(tokensAfter)}`
  return `${right} of ${asked} right, ${context} tokens in context, ${seconds.toFixed(1)} s${cutOff > 0 ? ', cut off at the token limit' : ''}`
}

/**
 * Returns the calls of one step in few lines. Successive successful calls of one tool share a line, which lists their arguments (ids) and
 * no results. Each failed call has its own line with its error.
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

/** Prints one line for each turn and lines for each step with calls, without colour and without redrawing. */
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

  ended(trial: DemoTrial): void {
    this.#flush()
    this.out.print(this.#name + trialText(trial, '->'))
  }

  #flush(): void {
    for (const { text } of callLines(this.#calls.splice(0), '->')) this.out.print(this.#name + text)
  }
}

// The demo in a terminal: the context as a bar that is redrawn while steps run, the calls when they happen, and the progress.

const INDENT = '  '
/** Width of the agent's name before a bar, in columns. */
const NAME = 'sculptor  '.length

export class LiveView implements DemoView {
  #turns = 0
  #ended = 0
  #begun = 0
  #title = ''
  #agent: AgentName = 'plain'
  #tracker: Tracker | null = null
  #calls: CallReport[] = []
  readonly #glyphs: Readonly<Record<TokenShare, string>>
  readonly #arrow: string

  constructor(private readonly out: Terminal) {
    this.#glyphs = out.unicode ? glyphs.unicode : glyphs.ascii
    this.#arrow = out.unicode ? '→' : '->'
  }

  begin(plan: DemoPlan): void {
    const { out } = this
    this.#turns = plan.sizes.length * plan.samples * 2
    this.#begun = performance.now()
    for (const line of introduction(plan)) out.prose(line)
    out.print()
    // Non-breaking spaces keep the glyphs and words of one share on one line.
    const legend = shares.map(
      ([share, words]) => `${this.#paint(share, this.#glyphs[share].repeat(2))}\u00a0${words.replaceAll(' ', '\u00a0')}`,
    )
    for (const line of wrap(`The context, first token to last: ${legend.join(', ')}`, out.columns - 1))
      out.print(line.replaceAll('\u00a0', ' '))
  }

  turn(n: number, sample: number, agent: AgentName, tracker: Tracker): void {
    const title = `n = ${n}, stream ${sample + 1}`
    if (title !== this.#title) {
      this.out.print()
      this.out.print(this.out.colours.bold(title))
    }
    this.#title = title
    this.#agent = agent
    this.#tracker = tracker
    this.#draw(true)
  }

  event(event: AgentEvent): void {
    if (event.type === 'result') this.#calls.push(event)
    else if (event.type === 'step') this.#flush()
    this.#draw(event.type === 'ledger' || event.type === 'step')
  }

  ended(trial: DemoTrial): void {
    this.#flush()
    this.#ended++
    const { out } = this
    const tracker = this.#tracker
    const text = trialText(trial, this.#arrow)
    const right = trial.right === trial.asked ? out.colours.green(text) : text
    if (tracker !== null) out.print(this.#contextBar(tracker))
    out.print(this.#line(right))
    this.#tracker = null
  }

  #flush(): void {
    const { out } = this
    for (const { text, failed } of callLines(this.#calls.splice(0), this.#arrow)) {
      const line = this.#line(text)
      out.print(failed ? out.colours.yellow(line) : out.colours.dim(line))
    }
  }

  #draw(force: boolean): void {
    const tracker = this.#tracker
    if (tracker === null) return
    const { out } = this
    const { shown, reused, recomputed, new: fresh, folded } = figuresOf(tracker.stretches)
    out.frame(
      [
        this.#contextBar(tracker),
        this.#line(
          `step ${tracker.step}, ${this.#progress(tracker)}: ${count(shown)} shown (${count(reused)} reused, ${count(recomputed)} recomputed, ` +
            `${count(fresh)} new), ${count(folded)} folded`,
        ),
        out.colours.dim(`${INDENT}${this.#ended} of ${this.#turns} turns, ${duration(performance.now() - this.#begun)}`),
      ],
      force,
    )
  }

  #progress({ progress }: Tracker): string {
    switch (progress.kind) {
      case 'idle':
        return 'done'
      case 'reading':
        return `reading ${percent(progress.share, 0)}`
      case 'writing':
        return `writing ${count(progress.tokens)}`
    }
  }

  #contextBar(tracker: Tracker): string {
    const width = this.out.columns - INDENT.length - NAME - 1
    const { stretches, capacity } = tracker
    return (
      INDENT +
      this.#agent.padEnd(NAME) +
      contextBar(stretches, { width, capacity, glyphs: this.#glyphs, paint: (share, text) => this.#paint(share, text) })
    )
  }

  /** Returns a line to print below a bar, cut to the terminal's width. */
  #line(text: string): string {
    return fit(INDENT + ' '.repeat(NAME) + text, this.out.columns - 1)
  }

  #paint(share: TokenShare, text: string): string {
    const { green, yellow, cyan, gray } = this.out.colours
    const paint = { reused: green, recomputed: yellow, new: cyan, folded: gray, waiting: gray }
    return paint[share](text)
  }
}
