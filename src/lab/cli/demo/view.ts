/** Shows the demo in the terminal: a bar of the whole stream while it is read, a row per fold, and sentences at the end. */
import { count, duration, plural } from '../../../runtime/figures/numbers.js'
import type { Terminal } from '../../../runtime/cli/terminal.js'
import { printable, wrap } from '../../../runtime/cli/terminal.js'
import { contextBar, glyphs, shares, type TokenShare } from './context-bar.js'
import type { Cost, Reading, Standing, Work } from './reader.js'

/** The facts that the demo shows before it begins. */
export interface Opening {
  readonly model: string
  /** Context size in tokens. */
  readonly context: number
  /** `tokens`: tokens of the stream. `keys`: its number of keys. */
  readonly tokens: number
  readonly keys: number
  readonly openTokens: number
  readonly contract: string
}

/** The widths of a row's columns in characters. No title is wider than its column. */
const COLUMNS = [9, 10, 20, 26] as const
const TITLES = ['read', 'in context', 'a fold computes', 'a prefix cache computes'] as const

export class DemoView {
  readonly #begun = performance.now()

  constructor(private readonly out: Terminal) {}

  begin({ model, context, tokens, keys }: Opening): void {
    this.out.prose(
      `${model} has a context of ${plural(context, 'token')}. It is told a stream of ${plural(tokens, 'token')}: ` +
        `${keys} keys get new values again and again, and at the end the last value of each is asked for.`,
    )
  }

  /** Says what happened to the stream sent at once. @param refusal the engine's message; null if the stream fits into the context */
  sentAtOnce(refusal: string | null): void {
    const { out } = this
    out.print()
    out.prose(
      refusal === null
        ? 'This stream fits into the context. Take a longer one with --tokens to see what folds are for.'
        : `Sent at once it is refused: ${refusal}`,
    )
  }

  /** Prints the bar's legend and the column titles, before the stream is read in chunks. */
  reads({ openTokens, contract }: Opening): void {
    const { out } = this
    out.print()
    out.prose(
      `Sent in parts it goes on: whenever more than ${count(openTokens)} tokens would be in context, the oldest open part is folded (${contract}).`,
    )
    out.print()
    if (out.live) {
      const legend = shares.map(([share, words]) => `${this.#paint(share, this.#glyphs[share].repeat(2))}\u00a0${words}`)
      for (const line of wrap(`The stream: ${legend.join(', ')}`, out.columns - 1)) out.print(line.replaceAll('\u00a0', ' '))
      out.print()
    }
    out.print(out.colours.bold(row(TITLES)))
  }

  progress(doing: 'reading' | 'answering', standing: Standing): void {
    const { out } = this
    const { read, all, shown, folds, total } = standing
    const words = `${doing}: ${count(read)} of ${plural(all, 'token')}, ${count(shown)} in context, ${plural(folds, 'fold')}, ${this.#time()}`
    const costs = `computed so far: ${count(total.ours.tokens)}, by a prefix cache ${count(total.prefixCache.tokens)}`
    out.frame([this.#bar(standing), out.colours.dim(words), out.colours.dim(costs)])
  }

  folded({ ours, prefixCache }: Cost, { read, shown }: Standing): void {
    const { out } = this
    out.print(row([count(read), count(shown), work(ours), work(prefixCache, 'about ')]))
  }

  ended(reading: Reading, { context, contract }: Opening): void {
    this.out.close()
    this.out.print()
    for (const sentence of sentences(reading, context, contract)) this.out.prose(sentence)
    this.out.print(this.out.colours.dim(`The demo took ${this.#time()}.`))
  }

  #time(): string {
    return duration(performance.now() - this.#begun)
  }

  get #glyphs(): Readonly<Record<TokenShare, string>> {
    return this.out.unicode ? glyphs.unicode : glyphs.ascii
  }

  #bar({ runs }: Standing): string {
    return contextBar(runs, {
      width: this.out.columns - 1,
      glyphs: this.#glyphs,
      paint: (share, text) => this.#paint(share, text),
    })
  }

  #paint(share: TokenShare, text: string): string {
    const { green, cyan, gray } = this.out.colours
    const paint = { reused: green, new: cyan, folded: gray, waiting: gray }
    return paint[share](text)
  }
}

const row = (cells: readonly string[]): string => cells.map((cell, at) => cell.padStart(COLUMNS[at] ?? 0)).join('  ')

/** Returns a cost in words, such as `4,131 tokens, 2.1 s`. `about`: a word before an estimated time. */
const work = ({ tokens, seconds }: Work, about = ''): string => `${plural(tokens, 'token')}, ${about}${duration(seconds * 1000)}`

/** Returns the sentences that sum up the demo. They hold for every outcome. */
export function sentences(reading: Reading, context: number, contract: string): string[] {
  const { conversationTokens, folds, folding, asked, right, shown, restore, total, answer } = reading
  const times = conversationTokens / context
  const first = printable(/.*\S.*/u.exec(answer)?.[0].trim().slice(0, 100) ?? '(nothing)')
  return [
    `The conversation has ${plural(conversationTokens, 'token')}, ` +
      (times >= 1.05 ? `${times.toFixed(1)} times the context, and it went on.` : 'which the context holds.'),
    `The answer has ${right} of ${asked} last values right, from ${plural(shown, 'token')} in context. It begins: ${first}`,
    ...(folds === 0
      ? []
      : [
          `${plural(folds, 'fold')} computed ${work(folding.ours)}. For the same folds a prefix cache computes ${work(folding.prefixCache, 'about ')}, because it computes everything behind a fold again.`,
        ]),
    ...(restore === null
      ? []
      : [
          `Then the part that was folded last was restored. ${restore.again === 0 ? 'None' : count(restore.again)} of its ${plural(restore.tokens, 'token')} ${restore.again > 1 ? 'were' : 'was'} computed again; they were there after ${duration(restore.ours.seconds * 1000)}. A prefix cache computes ${work(restore.prefixCache, 'about ')}.`,
        ]),
    `In all kvfold computed ${plural(total.ours.tokens, 'token')}. A prefix cache computes ${count(total.prefixCache.tokens)} for the same steps.`,
    ...(contract === 'splice'
      ? [
          'The folds are spliced: the text behind one stays as it was computed. That can change what a real model says; with --contract exact it cannot, and folds cost what they cost a prefix cache.',
        ]
      : []),
  ]
}
