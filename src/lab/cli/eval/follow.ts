/** The option `--follow`: prints samples while they run, with each message, call and fold, and the cost of every step. */
import type { ChatMessage, Edit } from '../../../runtime/chat/message.js'
import type { Terminal } from '../../../runtime/cli/terminal.js'
import { callText, resultText } from '../../../runtime/cli/turn-view.js'
import { count, duration } from '../../../runtime/figures/numbers.js'
import type { DoneStep } from '../../recorder.js'

/** The option's help text, for all commands that have it. */
export const FOLLOW = 'print each message, call and fold with its cost as it happens'

export class Follower {
  /** The last step of each conversation that may still go on, least recently used first. */
  readonly #last = new Map<string, DoneStep>()
  #name = ''

  constructor(private readonly out: Terminal) {}

  of(name: string): (step: DoneStep) => void {
    return (step) => {
      this.say(name, step)
    }
  }

  /** Prints one step. @param name the sample's name; printed if the previous step belonged to another sample */
  say(name: string, step: DoneStep): void {
    const { out } = this
    const { bold, dim } = out.colours
    if (name !== this.#name) out.print(bold(name))
    this.#name = name
    const { request, reply } = step
    const before = this.#last.get(request.conversation)
    for (const message of request.messages.slice(shownBefore(before))) out.print(`  ${messageText(message)}`)
    for (const line of editTexts(before?.request.edits ?? [], request.edits)) out.print(`  ${line}`)
    out.print(`  ${messageText(reply.message)}`)
    out.print(dim(`  ${costText(step)}`))
    // The steps do not tell which samples are finished, so the conversation with the oldest last step is dropped.
    this.#last.delete(request.conversation)
    this.#last.set(request.conversation, step)
    const [oldest] = this.#last.keys()
    if (this.#last.size > MOST && oldest !== undefined) this.#last.delete(oldest)
  }
}

/** The most conversations whose last step is remembered. */
const MOST = 64

/** Returns how many messages of the next request are printed already: those of the previous request, and its reply. */
const shownBefore = (before: DoneStep | undefined): number => (before === undefined ? 0 : before.request.messages.length + 1)

function messageText({ role, content, toolCalls = [], name }: ChatMessage): string {
  const text = content.trim() === '' ? [] : [resultText({ text: content.trim() })]
  return `${name ?? role}: ${[...text, ...toolCalls.map(callText)].join('; ') || '(nothing)'}`
}

/** Returns one line per new edit, and one per edit that was undone. */
function editTexts(before: readonly Edit[], now: readonly Edit[]): string[] {
  const key = ({ message, span, replacement }: Edit) => JSON.stringify([message, span.start, span.end, replacement])
  const [old, current] = [new Set(before.map(key)), new Set(now.map(key))]
  const place = ({ message, span: { start, end } }: Edit) => `message ${message + 1}, ${count(end - start)} characters`
  return [
    ...now
      .filter((edit) => !old.has(key(edit)))
      .map((edit) => `folded: ${place(edit)}, as ${resultText({ text: edit.replacement })}`),
    ...before.filter((edit) => !current.has(key(edit))).map((edit) => `shown again: ${place(edit)}`),
  ]
}

function costText({ place, reply: { ledger, timing } }: DoneStep): string {
  const { kind, shown, reused, recomputed, fresh, approximate } = ledger
  return [
    `${kind === 'answer' ? 'step' : kind} ${place + 1}: ${count(shown)} tokens shown`,
    `${count(reused)} reused, ${count(recomputed)} recomputed, ${count(fresh)} new`,
    ...(approximate > 0 ? [`${count(approximate)} approximate`] : []),
    `${count(timing.generatedTokens)} generated`,
    duration(timing.total),
  ].join('; ')
}
