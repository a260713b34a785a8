/** Owns what is known of a model: what can be done to its cache, what cannot and why, which file it is, and the quick no to a text that cannot fit. */
import { createHash } from 'node:crypto'
import { open } from 'node:fs/promises'
import type { ChatMessage } from '../chat/message.js'
import { type Contract, CONTRACTS } from '../core/contract.js'
import { weightOf } from '../core/json.js'
import { fixedKeys } from '../native/context-options.js'
import type { ContextOptions, ModelInfo, NativeModel, VocabType } from '../native/types.js'
import { PromptTooLong } from '../core/errors.js'

// What can be done to the cache of a model, and what to tell the user about what cannot.

export interface Abilities {
  /** What edits can keep to; `exact` always. */
  readonly contracts: readonly Contract[]
  /** Why only `exact` is there, for the ledger; null when all contracts are. */
  readonly refusal: string | null
  /** Whether gaps in the positions may be closed. */
  readonly shift: boolean
  /**
   * `tags`: any token can be taken out of the cache and put back. `checkpoints`: a text can only be extended, or gone back on to where its
   * whole state was saved.
   */
  readonly edits: 'tags' | 'checkpoints'
  /** One sentence each: what is not available, and why. */
  readonly notes: readonly string[]
}

type Facts = Pick<ModelInfo, 'architecture' | 'recurrent' | 'hybrid' | 'slidingWindow' | 'rope' | 'metadata' | 'trainedContext'>

/** Architectures whose sequences llama.cpp v0.5.0 neither cuts nor empties by a span, and where tagging a part ends the process. */
const COMPRESSED: readonly string[] = ['deepseek4']

/** Why kvfold does not run the model at all; null when it does. */
export function refusalOf({ architecture, encoder }: Pick<ModelInfo, 'architecture' | 'encoder'>): string | null {
  if (encoder) return `${architecture} is an encoder model; kvfold generates text with decoder models.`
  if (COMPRESSED.includes(architecture))
    return `${architecture} keeps its text compressed, and llama.cpp cannot take a sequence of it back; kvfold does not run it.`
  return null
}

/** What a context made with these options allows. Pure. */
export function abilitiesOf(info: Facts, { fullSlidingWindow, keyType }: ContextOptions = {}): Abilities {
  const { architecture, recurrent, hybrid, slidingWindow } = info
  if (recurrent || hybrid) {
    const state = recurrent ? 'a recurrent state' : 'a recurrent state beside its cache'
    return checkpoints(
      `${architecture} keeps ${state}, from which nothing can be taken out`,
      `${architecture} keeps ${state}, from which nothing can be taken out: edits are exact, and the text after them is computed again from the last saved state before them; splice and blend are not available.`,
    )
  }
  // Read as the engine does: a window is kept whole unless the caller forbids it.
  if (slidingWindow > 0 && fullSlidingWindow === false)
    return checkpoints(
      `the layers of ${architecture} that see ${slidingWindow} tokens forget the others`,
      `The layers of ${architecture} that see ${slidingWindow} tokens forget the others, as fullSlidingWindow is off: edits are exact, and the text after them is computed again from the last saved state before them; splice and blend are not available.`,
    )
  const fixed = fixedKeys(info, keyType)
  const notes: string[] = []
  if (slidingWindow > 0)
    notes.push(
      `The layers of ${architecture} that see ${slidingWindow} tokens keep all of them, because edits need that: the window saves no memory.`,
    )
  if (fixed !== null) notes.push(fixedNote(fixed, info.trainedContext))
  return { contracts: CONTRACTS, refusal: null, shift: fixed === null, edits: 'tags', notes }
}

/** What it costs that cells stay where they are. */
function fixedNote(fixed: string, trained: number): string {
  const end =
    trained > 0
      ? `, and the whole text behind the first fold when positions would go beyond the ${trained} that the model was trained on`
      : ''
  return `Gaps that splices leave in the positions cannot be closed: ${fixed}. What follows a marker longer than what it hides is computed again${end}.`
}

function checkpoints(refusal: string, note: string): Abilities {
  return { contracts: ['exact'], refusal, shift: false, edits: 'checkpoints', notes: [note] }
}

// Telling one model file from another without reading gigabytes.

/** Bytes of each sample, and how many are taken, evenly over the file. */
const SAMPLE = 2 ** 16
const SAMPLES = 256

/** SHA-256 of a file's size and of samples from all over it; files of up to 16 MiB are read whole. Fine-tuned weights change nearly all of them. */
export async function modelFingerprint(path: string): Promise<Buffer> {
  const file = await open(path)
  try {
    const { size } = await file.stat()
    const hash = createHash('sha256').update(String(size))
    const stride = Math.max(SAMPLE, Math.floor(size / SAMPLES))
    for (let at = 0; at < size; at += stride) {
      const { buffer, bytesRead } = await file.read(Buffer.alloc(SAMPLE), 0, SAMPLE, at)
      hash.update(buffer.subarray(0, bytesRead))
    }
    return hash.digest()
  } finally {
    await file.close()
  }
}

// The quick answer to texts that cannot fit: said before all of them are tokenized, which takes minutes for megabytes.

/** Characters a cell from which on texts are looked at; ordinary text has 3 to 5 characters a token. */
const LONG = 8
/** Vocabularies whose tokens spell the text, byte for byte: the others leave parts of it out. */
const SPELLING: readonly VocabType[] = ['bpe', 'spm']

/**
 * Refuses texts that are shown whole where they cannot fit: more bytes than the longest tokens could spell; or a
 * beginning that has twice as many tokens as the context has cells. Tokens where texts meet or are cut may differ, half of them cannot. Whether
 * others fit is for the engine to say.
 * @throws KvfoldError context/full
 */
export async function refuseHopeless(model: NativeModel, cells: number, texts: readonly string[]): Promise<void> {
  const size = texts.reduce((sum, text) => sum + text.length, 0)
  if (size <= LONG * cells) return
  const what = texts.length === 1 ? 'The text has' : 'The texts have'
  const least = leastTokens(model.info, size)
  if (least >= 2 * cells) throw tooLong(least, cells, `${what} ${size} characters, which are ${least} tokens at least`)
  for (let length = LONG * cells; length < size; length *= 2) {
    const tokens = (await model.tokenizeAll(beginningOf(texts, length))).reduce((sum, each) => sum + each.length, 0)
    if (tokens >= 2 * cells)
      throw tooLong(tokens, cells, `${what} ${size} characters, of which the first ${length} alone are ${tokens} tokens`)
  }
}

/** Tokens that texts of so many characters have at least, whatever they say. */
export const leastTokens = ({ vocabType, longestToken }: Pick<ModelInfo, 'vocabType' | 'longestToken'>, size: number): number =>
  SPELLING.includes(vocabType) ? Math.ceil(size / longestToken) : 0

/**
 * Refuses what no fold makes fit: more messages than could be shown by a token each, or calls of more characters than the longest tokens could
 * spell. @param info null: another server has the vocabulary @throws KvfoldError context/full
 */
export function refuseUnfoldable(messages: readonly ChatMessage[], cells: number, info: ModelInfo | null): void {
  refuseTooMany(messages.length, cells, 'messages')
  if (info === null) return
  const most = 2 * cells * info.longestToken
  let size = 0
  for (const { toolCalls } of messages) if (toolCalls !== undefined) size += weightOf(toolCalls, most)
  const least = leastTokens(info, size)
  if (least >= 2 * cells) throw tooLong(least, cells, `The calls of tools in the messages are ${least} tokens at least`)
}

/** Refuses more `things` than could be shown by a token each. @throws KvfoldError context/full */
export function refuseTooMany(count: number, cells: number, things: string): void {
  if (count > 2 * cells) throw tooLong(count, cells, `There are ${count} ${things}, of one token at least each`)
}

/** The texts up to so many characters together. */
function beginningOf(texts: readonly string[], length: number): string[] {
  const beginning: string[] = []
  for (const text of texts) {
    if (length <= 0) break
    beginning.push(text.slice(0, length))
    length -= text.length
  }
  return beginning
}

const tooLong = (tokens: number, cells: number, what: string): PromptTooLong =>
  new PromptTooLong(
    { tokens, atLeast: true, context: cells },
    `${what}, and the context has ${cells} cells; shorten the text, or load a model with a larger context.`,
  )
