/**
 * Makes the prompts of the leak bench: a stream of updates with a secret in the text that will be folded, and its twin with another secret.
 */
import type { ChatFormat } from '../../../src/runtime/chat/format.js'
import type { ChatMessage, Edit } from '../../../src/runtime/chat/message.js'
import { Conversation } from '../../../src/runtime/context/conversation.js'
import { conversationId } from '../../../src/runtime/core/ids.js'
import { Random } from '../../../src/runtime/core/random.js'
import { span } from '../../../src/runtime/core/span.js'
import { PI_STREAM_START, piText, type PiUpdate, type PiWords } from '../../../src/lab/pi-llm.js'
import { commonPrefix, type Prompt } from '../../../src/runtime/kv/prompt.js'
import type { Said } from '../../lab/contracts/stage.js'

/** Where the secret stands, and what follows it. */
export interface Setting {
  readonly name: string
  /** The number of updates after the fold that are computed while the secret is visible and that stay. */
  readonly kept: number
  /** The number of updates that are computed after the fold. */
  readonly later: number
  /** Whether the model read the question before the fold, as when it stands in the folded message itself, or reads it afterwards. */
  readonly asked: 'before' | 'after'
  /** Where the key gets another value, so that the secret becomes outdated: nowhere, in the middle of `kept`, or first after the fold. */
  readonly again: 'never' | 'kept' | 'erratum'
}

/** One prompt: unfolded up to the moment of the fold, and folded with everything that follows. */
export interface LeakPrompt {
  readonly read: Prompt
  /** Tokens of `read` after the fold. */
  readonly behind: number
  readonly whole: Prompt
  readonly folded: Prompt
}

export interface Twins {
  /** The same prompt with one secret and with another, equally long in tokens. */
  readonly prompts: readonly [LeakPrompt, LeakPrompt]
  readonly secrets: readonly [Said, Said]
  /** A value of another key that stands in the shown text; null when nothing is kept. */
  readonly shown: Said | null
  /** The key's own later value; null when it has none. */
  readonly current: Said | null
}

/** Updates before the fold, and inside it; the secret stands in the middle. */
const HEAD = 16
const FOLDED = 32

/** Returns the prompts of a setting, always the same for the same seed. */
export function twinsOf(format: ChatFormat, words: PiWords, setting: Setting, seed: number): Twins {
  const random = new Random(seed, 0x1eac)
  const keys = random.shuffled(words.keys)
  const target = keys[0]!
  const total = HEAD + FOLDED + setting.kept + setting.later + 1
  const drawn = words.draw(random, keys, Math.ceil(total / (keys.length - 1)) + 2)
  const others = keys.slice(1)
  const used = new Map<string, number>()
  const next = (key: string): PiUpdate => {
    const at = used.get(key) ?? 0
    used.set(key, at + 1)
    return { key, value: drawn.get(key)![at]! }
  }
  const filler: PiUpdate[] = []
  for (let left = total; left > 0; left -= others.length)
    filler.push(...random.shuffled(others).slice(0, Math.min(left, others.length)).map(next))
  // A value that no update uses is free to be the other secret.
  const spare = others.flatMap((key) => drawn.get(key)!.slice(used.get(key) ?? 0))
  const [secret, current, ...alternatives] = [...drawn.get(target)!, ...spare]
  const make = (value: string, marker?: string) =>
    promptOf(format, keys, streamOf(setting, target, filler, value, current!), setting, marker)
  const one = make(secret!)
  const tell = (key: string, value: string) => telling(format, one.message, key, value)
  const first = tell(target, secret!)
  const behind = filler.slice(HEAD + FOLDED)
  const shown = behind.slice(0, setting.kept).at(-1)
  const isLast = shown !== undefined && !behind.slice(setting.kept).some(({ key }) => key === shown.key)
  for (const value of alternatives) {
    const second = tell(target, value)
    if (second.value.length !== first.value.length || second.value[0] === first.value[0]) continue
    const other = make(value, one.marker)
    if (other.whole.tokens.length !== one.whole.tokens.length) continue
    return {
      prompts: [one, other],
      secrets: [first, second],
      shown: isLast ? tell(shown.key, shown.value) : null,
      current: setting.again === 'never' ? null : tell(target, current!),
    }
  }
  throw new Error(`no word has as many tokens as ${secret!}`)
}

interface Stream {
  readonly updates: readonly PiUpdate[]
  /** Indices of updates: the first folded one, the first one after the fold, and the first one that is computed after the fold. */
  readonly from: number
  readonly to: number
  readonly later: number
}

function streamOf(
  { kept, again }: Setting,
  target: string,
  filler: readonly PiUpdate[],
  secret: string,
  current: string,
): Stream {
  const half = HEAD + FOLDED / 2
  const end = HEAD + FOLDED
  const behind = filler.slice(end, end + kept)
  const after = filler.slice(end + kept, -1)
  const correction: PiUpdate = { key: target, value: current }
  if (again === 'kept') behind.splice(behind.length >> 1, 0, correction)
  const updates = [
    ...filler.slice(0, half),
    { key: target, value: secret },
    ...filler.slice(half + 1, end),
    ...behind,
    ...(again === 'erratum' ? [correction] : []),
    ...after,
  ]
  return { updates, from: HEAD, to: end, later: end + behind.length }
}

function promptOf(
  format: ChatFormat,
  keys: readonly string[],
  { updates, from, to, later }: Stream,
  { asked }: Setting,
  marker?: string,
): LeakPrompt & { readonly message: ChatMessage; readonly marker: string } {
  const content = piText(keys, updates).join('\n\n')
  const starts = [content.indexOf(`${PI_STREAM_START}\n`) + PI_STREAM_START.length + 1]
  for (const { key, value } of updates) starts.push(starts.at(-1)! + `${key}: ${value}; `.length)
  const message: ChatMessage = { role: 'user', content }
  const messages = [message]
  const conversation = new Conversation(conversationId('leak'), {
    snap: (all, index, chars) => format.snap({ messages: all, tools: [], message: index, chars }),
  })
  conversation.add(message)
  const cut = conversation.cut([{ message: 0, span: span(starts[from]!, starts[to]! - 1) }], 1)
  if (!cut.ok) throw new Error(cut.message)
  conversation.fold(cut.fragments[0]!.id)
  const [fold] = conversation.edits()
  // An id comes from the text, so the twins' markers would tell them apart.
  const edit = { ...fold!, replacement: marker ?? fold!.replacement }
  const { tokens, origin } = format.render({ messages, edits: [edit] })
  const unread: Edit = { message: 0, span: span(Math.min(starts[later]!, content.length) - 1, content.length), replacement: '' }
  const before =
    asked === 'before' ? origin.base.length : format.render({ messages, edits: [unread] }).origin.holes[0]!.span.start
  return {
    message,
    marker: edit.replacement,
    read: plainly(origin.base.slice(0, before)),
    behind: before - origin.holes[0]!.span.end,
    whole: plainly(origin.base),
    folded: { ...plainly(tokens), origin },
  }
}

const plainly = (tokens: Int32Array): Prompt => ({
  tokens,
  messages: [{ index: 0, role: 'text', span: { start: 0, end: tokens.length } }],
})

/** The answer's tokens up to the value; and the value's tokens with the full stop, which many vocabularies join to it. */
function telling(format: ChatFormat, user: ChatMessage, key: string, value: string): Said {
  const prompt = format.render({ messages: [user] }).tokens
  const said = (content: string) => {
    const { tokens, messages } = format.render({ messages: [user, { role: 'assistant', content }], generationPrompt: false })
    return tokens.slice(0, messages[1]?.content?.tokens.end)
  }
  const whole = said(`The current value of ${key} is ${value}.`)
  const start = commonPrefix(whole, said(`The current value of ${key} is`))
  if (commonPrefix(whole, prompt) < prompt.length)
    throw new Error('the template shows a prompt differently once an answer follows')
  return { opening: whole.slice(prompt.length, start), value: whole.slice(start) }
}
