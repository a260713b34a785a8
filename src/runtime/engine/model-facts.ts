/**
 * Facts about models: the edits that their caches allow, fingerprints of their files. Also refuses texts that cannot fit, before
 * tokenizing.
 */
import { createHash, type Hash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { open } from 'node:fs/promises'
import type { ChatMessage } from '../chat/message.js'
import { type Contract, CONTRACTS } from '../core/contract.js'
import { weightOf } from '../core/json.js'
import { fixedKeys } from '../native/context-options.js'
import type { ContextOptions, ModelInfo, NativeModel, VocabType } from '../native/types.js'
import { PromptTooLong } from '../core/errors.js'

// Which edits a model's cache allows, and what the user is told about missing ones.

export interface Abilities {
  /** The contracts that edits can have. Always contains `exact`. */
  readonly contracts: readonly Contract[]
  /** Why only `exact` is available, for the ledger; null if all contracts are available. */
  readonly refusal: string | null
  /** Whether cells can be shifted, which closes gaps in the positions. */
  readonly shift: boolean
  /**
   * `tags`: any token can be removed from the cache and put back. `checkpoints`: a sequence can only be extended, or replaced by an earlier
   * state that was saved as a whole.
   */
  readonly edits: 'tags' | 'checkpoints'
  /** Sentences for the user about missing contracts and limits, with the reasons. */
  readonly notes: readonly string[]
}

type Facts = Pick<
  ModelInfo,
  'architecture' | 'recurrent' | 'hybrid' | 'slidingWindow' | 'layers' | 'rope' | 'metadata' | 'trainedContext'
>

/** Architectures from whose sequences llama.cpp v0.5.0 cannot remove tokens. Tagging a part of such a sequence ends the process. */
const COMPRESSED: readonly string[] = ['deepseek4']

/** Returns why kvfold does not run the model at all; null if it does. */
export function refusalOf({ architecture, encoder }: Pick<ModelInfo, 'architecture' | 'encoder'>): string | null {
  if (encoder) return `${architecture} is an encoder model; kvfold generates text with decoder models.`
  if (COMPRESSED.includes(architecture))
    return `${architecture} compresses its cache, and llama.cpp cannot remove tokens from it; kvfold does not run it.`
  return null
}

/** The end of the note on models whose edits return to a checkpoint. */
const EXACT_ONLY =
  'Edits are exact: the engine computes the text after them again from the last checkpoint before them. Splice and blend are not available.'

/** Returns which edits a context with these options allows. */
export function abilitiesOf(info: Facts, { fullSlidingWindow, keyType }: ContextOptions = {}): Abilities {
  const { architecture, recurrent, hybrid, slidingWindow } = info
  if (recurrent || hybrid) {
    const state = recurrent ? 'a recurrent state' : 'a recurrent state beside its cache'
    return checkpoints(
      `${architecture} keeps ${state}, from which tokens cannot be removed`,
      `${architecture} keeps ${state}, from which tokens cannot be removed. ${EXACT_ONLY}`,
    )
  }
  // The engine keeps all cells of the window unless the option is false. Read the option in the same way.
  if (slidingWindow > 0 && fullSlidingWindow === false)
    return checkpoints(
      `the layers of ${architecture} that see ${slidingWindow} tokens forget the others`,
      `The layers of ${architecture} that see ${slidingWindow} tokens forget the others, because fullSlidingWindow is off. ${EXACT_ONLY}`,
    )
  const fixed = fixedKeys(info, keyType)
  const notes: string[] = []
  if (slidingWindow > 0)
    notes.push(
      `The layers of ${architecture} that see ${slidingWindow} tokens keep all of them, because edits need them. The window saves no memory.`,
    )
  if (fixed !== null) notes.push(fixedNote(fixed, info.trainedContext))
  return { contracts: CONTRACTS, refusal: null, shift: fixed === null, edits: 'tags', notes }
}

/** Returns the note on cells that cannot be shifted. */
function fixedNote(fixed: string, trained: number): string {
  const end =
    trained > 0
      ? ` When positions would pass the ${trained} that the model was trained on, it computes the whole text after the first fold again.`
      : ''
  return `The engine cannot close the gaps that splices leave in the positions: ${fixed}. Where a marker is longer than the text that it hides, the engine computes the text after it again.${end}`
}

function checkpoints(refusal: string, note: string): Abilities {
  return { contracts: ['exact'], refusal, shift: false, edits: 'checkpoints', notes: [note] }
}

// The fingerprint: tells model files apart without reading gigabytes.

/** Bytes of each sample, and (next constant) the number of samples, evenly spaced over the file. */
const SAMPLE = 2 ** 16
const SAMPLES = 256

/**
 * Returns SHA-256 of the sizes of the model's files and of samples from them. Files of up to 16 MiB are read whole. Fine-tuning changes
 * nearly all samples.
 */
export async function modelFingerprint(path: string): Promise<Buffer> {
  const hash = createHash('sha256')
  for (const part of partsOf(path)) await addSamples(hash, part)
  return hash.digest()
}

async function addSamples(hash: Hash, path: string): Promise<void> {
  const file = await open(path)
  try {
    const { size } = await file.stat()
    hash.update(String(size))
    const stride = Math.max(SAMPLE, Math.floor(size / SAMPLES))
    for (let at = 0; at < size; at += stride) {
      const { buffer, bytesRead } = await file.read(Buffer.alloc(SAMPLE), 0, SAMPLE, at)
      hash.update(buffer.subarray(0, bytesRead))
    }
  } finally {
    await file.close()
  }
}

/** Returns the paths of all existing files of a split model, by their naming scheme; for any other model, the path itself. */
export function partsOf(path: string): readonly string[] {
  const [, stem, count] = /^(.*)-00001-of-(\d{5})\.gguf$/.exec(path) ?? []
  if (stem === undefined || count === undefined) return [path]
  const name = (at: number) => `${stem}-${String(at).padStart(5, '0')}-of-${count}.gguf`
  return [path, ...Array.from({ length: Number(count) - 1 }, (_, index) => name(index + 2)).filter((part) => existsSync(part))]
}

// Refuses texts that cannot fit, before all of them are tokenized. Tokenizing megabytes takes minutes.

/** Texts are checked only if they have more than this many characters per cell. Ordinary text has 3 to 5 characters per token. */
const LONG = 8
/** Vocabularies whose tokens spell a text byte for byte. Others leave parts of it out, so its length says nothing about its tokens. */
const SPELLING: readonly VocabType[] = ['bpe', 'spm']

/**
 * Refuses texts that certainly do not fit. A text is refused if even the longest tokens could not spell it in twice as many tokens as there
 * are cells, or if a beginning of it already has that many tokens. The factor is 2, because tokens may differ where texts meet or are cut,
 * but not half of them. For all other texts the engine decides whether they fit.
 * @throws KvfoldError context/full
 */
export async function refuseHopeless(model: NativeModel, cells: number, texts: readonly string[]): Promise<void> {
  const size = texts.reduce((sum, text) => sum + text.length, 0)
  if (size <= LONG * cells) return
  const what = texts.length === 1 ? 'The text has' : 'The texts have'
  const least = leastTokens(model.info, size)
  if (least >= 2 * cells) throw tooLong(least, cells, `${what} ${size} characters, which are at least ${least} tokens`)
  for (let length = LONG * cells; length < size; length *= 2) {
    const tokens = (await model.tokenizeAll(beginningOf(texts, length))).reduce((sum, each) => sum + each.length, 0)
    if (tokens >= 2 * cells)
      throw tooLong(tokens, cells, `${what} ${size} characters, and the first ${length} alone are ${tokens} tokens`)
  }
}

/** Returns the fewest tokens that any text of `size` characters can have; 0 if the vocabulary gives no bound. */
export const leastTokens = ({ vocabType, longestToken }: Pick<ModelInfo, 'vocabType' | 'longestToken'>, size: number): number =>
  SPELLING.includes(vocabType) ? Math.ceil(size / longestToken) : 0

/**
 * Refuses messages that would not fit even if all were folded. There are too many of them for one token each, or their calls have more
 * characters than the longest tokens could spell.
 * @param info null if the vocabulary is on another server
 * @throws KvfoldError context/full
 */
export function refuseUnfoldable(messages: readonly ChatMessage[], cells: number, info: ModelInfo | null): void {
  refuseTooMany(messages.length, cells, 'messages')
  if (info === null) return
  const most = 2 * cells * info.longestToken
  let size = 0
  for (const { toolCalls } of messages) if (toolCalls !== undefined) size += weightOf(toolCalls, most)
  const least = leastTokens(info, size)
  if (least >= 2 * cells) throw tooLong(least, cells, `The tool calls in the messages are at least ${least} tokens`)
}

/** Refuses a request with too many `things` to have one token each. @throws KvfoldError context/full */
export function refuseTooMany(count: number, cells: number, things: string): void {
  if (count > 2 * cells) throw tooLong(count, cells, `The request has ${count} ${things} of at least one token each`)
}

/** Returns the first `length` characters of all texts together. */
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
    `${what}, but the context has ${cells} cells; shorten the text, or load a model with a larger context.`,
  )
