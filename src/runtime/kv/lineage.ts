/** Remembers every version of a conversation's messages. Turns messages that a client has edited into a prompt with edits. */
import { align, type Gap, gapsOf, type Match, withWhatFollows } from '../core/alignment.js'
import type { Contract } from '../core/contract.js'
import type { ConversationId } from '../core/ids.js'
import { lowerBound, span, type Span } from '../core/span.js'
import { joined } from '../core/vectors.js'
import { commonPrefix, commonSuffix, type EditMap, type ReplacedSpan } from './prompt.js'
import { stricter } from './plan/parts.js'

/**
 * A prompt as the client sent it, without kvfold's own edits. `starts`: the index of each message's first token, then the prompt's length.
 */
export interface Wording {
  readonly tokens: Int32Array
  readonly starts: readonly number[]
}

/** A wording, and the place of each of its tokens: its index in the lineage's text, or NOWHERE for text that replaced other text. */
export interface PlacedWording {
  readonly lineage: Lineage
  readonly places: Int32Array
}

/** The place of a token that replaced other text, and so has no index in the lineage's text. */
export const NOWHERE = -1
/** A key that no message has, so a version with this key matches none. */
const GONE = ''
const NONE = new Int32Array()
/** Bytes of memory that a version takes besides its tokens, approximately. */
const OVERHEAD = 256
/** The most wordings that a lineage remembers. */
const WORDINGS = 64

/** One version of a message: the tokens that it had when a step showed it. */
interface MessageVersion {
  /** The tokens as a string: versions have equal keys exactly if they have equal tokens. */
  readonly key: string
  readonly tokens: Int32Array
  /** The place of each token; ascending, apart from NOWHERE. */
  readonly places: Int32Array
  /** Whether the last step showed it. */
  readonly shown: boolean
}

/**
 * All texts that the messages of a conversation ever had, in order. Text that a client took out or replaced stays in the lineage. A lineage
 * only grows at its end, so an index in its text (a *place*) always means the same token, and source ids name tokens by place. Lineages are
 * immutable.
 */
export class Lineage {
  private constructor(
    readonly text: Int32Array,
    /** All versions of all messages, in the order of their places. */
    private readonly versions: readonly MessageVersion[],
    /** For each prompt that was placed, its message versions; latest prompt first. A prompt is dropped when a later one continues it. */
    private readonly wordings: readonly (readonly MessageVersion[])[],
  ) {}

  static of({ tokens, starts }: Wording): Lineage {
    const places = tokens.map((_, at) => at)
    const versions = spansOf(starts).map((each) => versionOf(tokens, places, each))
    return new Lineage(tokens, versions, [versions])
  }

  /** Bytes of memory that the lineage takes, approximately. */
  get bytes(): number {
    const pointers = this.wordings.reduce((sum, { length }) => sum + 8 * length, 0)
    // Each version counts three arrays: tokens, places, and the key (one byte per character). The wordings only point to versions.
    return this.versions.reduce((sum, { tokens }) => sum + 3 * tokens.byteLength + OVERHEAD, this.text.byteLength + pointers)
  }

  /**
   * Adds the tokens that a step generated. If `text` begins with this lineage's text, returns a lineage of all of `text`. Otherwise returns
   * this lineage.
   */
  grown(text: Int32Array): Lineage {
    const { length } = this.text
    const at = this.#generated
    const last = this.versions[at]
    if (last === undefined || text.length <= length || commonPrefix(text, this.text) < length) return this
    const more = text.subarray(length)
    const tokens = joined([last.tokens, more])
    const places = joined([last.places, more.map((_, at) => length + at)])
    const version = { ...last, key: keyOf(tokens), tokens, places }
    const [latest, ...earlier] = this.wordings
    return new Lineage(text, this.versions.with(at, version), [latest!.with(-1, version), ...earlier])
  }

  /**
   * Gives every token of the client's messages its place, and returns the lineage extended by the new text.
   *
   * - A message that was shown before gets the places that it had then.
   * - A message that replaced another one gets places for the beginning and the end that both have in common.
   * - Messages behind the last known one are added to the end of the lineage. Only a beginning that they share with the text that stood
   *   there gets that text's places.
   * - If the messages begin like an earlier wording, they get the places that they had in it, unless fewer tokens would have a place then.
   *
   * @param count number of messages that may match known ones. Messages behind them match only if they continue the last match without a
   * gap. Default: all
   */
  place({ tokens, starts }: Wording, count = Infinity): PlacedWording {
    const spans = spansOf(starts)
    // Let equal keys be the same string object, which makes comparing them cheap.
    const keys = new Map(this.versions.map(({ key }) => [key, key]))
    const given = spans.map(({ start, end }) => keyOf(tokens.subarray(start, end))).map((key) => keys.get(key) ?? key)
    const versions = this.#current(tokens, spans, given)
    const places = new Int32Array(tokens.length).fill(NOWHERE)
    const all = matched(versions, given)
    const matches = withWhatFollows(
      all,
      lowerBound(all.length, (at) => all[at]!.b < count),
    )
    const gaps = gapsOf(matches, versions.length, given.length)
    for (const { a, b } of matches) places.set(versions[a]!.places, spans[b]!.start)
    for (const gap of gaps)
      for (const [old, now] of replacedIn(gap, versions, spans)) {
        const [own, to] = [tokens.subarray(now.start, now.end), places.subarray(now.start, now.end)]
        if (gap.bEnd === given.length) placeHead(old, own, to)
        else placeEnds(old, own, to)
      }
    keepAscending(places)
    this.#placeAsBefore(tokens, spans.slice(0, count + 1), given, places)
    const text = this.#grownBy(tokens, places)
    const known = finderIn(versions)
    const made = spans.map(({ start, end }, at): MessageVersion => {
      const version = { key: given[at]!, tokens: tokens.slice(start, end), places: places.slice(start, end), shown: true }
      const same = known(version)
      return same !== undefined && isBeginning(version.places, same.places) ? { ...same, shown: true } : version
    })
    const now = finderIn(made)
    const others = this.wordings.filter((wording) => !goesOnFrom(made, wording))
    const hidden = versions.filter((version) => version.key !== GONE && now(version) === undefined)
    return { lineage: new Lineage(text, inOrder(hidden, made), [made, ...others].slice(0, WORDINGS)), places }
  }

  /** Whether a remembered wording begins with exactly these messages. */
  showed({ tokens, starts }: Wording): boolean {
    const spans = spansOf(starts)
    const given = spans.map(({ start, end }) => keyOf(tokens.subarray(start, end)))
    return this.wordings.some((wording) => commonBeginning(wording, tokens, spans, given) === tokens.length)
  }

  /**
   * Replaces `places` by those of the wording with the longest common beginning with these messages; of equal ones, the latest. Changes
   * nothing if `found` would count fewer tokens then.
   */
  #placeAsBefore(tokens: Int32Array, spans: readonly Span[], given: readonly string[], places: Int32Array): void {
    const common = this.wordings.map((wording) => commonBeginning(wording, tokens, spans, given))
    const most = common.reduce((best, length) => Math.max(best, length), 0)
    const wording = common.indexOf(most)
    if (wording === 0) return
    const shown = joined(this.wordings[wording]!.map((version) => version.places)).subarray(0, most)
    const other = joined([shown, places.subarray(most)])
    keepAscending(other)
    /** Counts tokens that were shown before: those with a place, and all of the common beginning, even where it replaced other text. */
    const found = (of: Int32Array, length: number) =>
      of.reduce((count, place, at) => count + (place !== NOWHERE || at < length ? 1 : 0), 0)
    if (found(other, most) >= found(places, common[0]!)) places.set(other)
  }

  /**
   * Returns the versions with one change: the version that the model generated gets the key of the client's message that continues it, so
   * that the two match.
   */
  #current(tokens: Int32Array, spans: readonly Span[], given: readonly string[]): readonly MessageVersion[] {
    const place = this.#generated
    const last = this.versions[place]
    if (last === undefined) return this.versions
    const before = this.versions.findLast(({ shown }, at) => shown && at < place)
    const goesOn = ({ start, end }: Span) => commonPrefix(tokens.subarray(start, end), last.tokens) === last.tokens.length
    const follow = (at: number) => given[at - 1] === before?.key && goesOn(spans[at]!)
    const usual = this.versions.filter(({ shown }) => shown).length - 1
    const follows = usual < spans.length && follow(usual) ? usual : spans.findLastIndex((_, at) => follow(at))
    const at = follows >= 0 ? follows : spans.findLastIndex(goesOn)
    if (at < 0) return this.versions
    // The client's last message is the beginning of the next answer. It continues the generated version only if both follow the same
    // message.
    const key = at === given.length - 1 && follows < 0 ? GONE : given[at]!
    return this.versions.with(place, { ...last, key })
  }

  /** Index of the version that the last step generated: the last one that it showed. Hidden versions may follow it. */
  get #generated(): number {
    return this.versions.findLastIndex(({ shown }) => shown)
  }

  /** Gives a place to every token behind the last one that has a place. Returns the text with those tokens. */
  #grownBy(tokens: Int32Array, places: Int32Array): Int32Array {
    const from = places.findLastIndex((place) => place !== NOWHERE) + 1
    const { length } = this.text
    for (let at = from; at < tokens.length; at++) places[at] = length + at - from
    return from === tokens.length ? this.text : joined([this.text, tokens.subarray(from)])
  }
}

/** Bytes of memory that all lineages together may take, approximately. */
const ROOM = 2 ** 26
/** The most lineages that a conversation has. */
const LINEAGES = 4

/**
 * The lineages of all conversations, latest used first. A conversation gets another lineage when its client sends messages that have too
 * little in common with the known lineages. So the client can later return to an earlier list of messages. When memory is short, the
 * conversations unused for longest lose their lineages first.
 */
export class Lineages {
  /** The lineages of each conversation with the bytes that they take, the longest unused first. */
  readonly #all = new Map<ConversationId, { readonly lineages: readonly Lineage[]; readonly bytes: number }>()
  #bytes = 0

  /** @param room bytes, approximately. Default 64 MiB */
  constructor(private readonly room = ROOM) {}

  /** Bytes that all lineages take now, approximately. */
  get bytes(): number {
    return this.#bytes
  }

  /** Returns the conversation's lineages, latest used first. */
  of(conversation: ConversationId): readonly Lineage[] {
    return this.#all.get(conversation)?.lineages ?? []
  }

  /**
   * Stores the conversation's lineages (latest used first), as many as are allowed and fit into the room. The first one is always stored.
   * If room is short, drops the lineages of conversations unused for longest. A lineage larger than the whole room drops all others, and
   * then itself.
   */
  set(conversation: ConversationId, all: readonly Lineage[]): void {
    this.delete(conversation)
    let bytes = 0
    const lineages = all.slice(0, LINEAGES).filter((each, at) => {
      const fits = at === 0 || bytes + each.bytes <= this.room
      if (fits) bytes += each.bytes
      return fits
    })
    this.#all.set(conversation, { lineages, bytes })
    this.#bytes += bytes
    for (const each of this.#all.keys()) {
      if (this.#bytes <= this.room) return
      this.delete(each)
    }
  }

  delete(conversation: ConversationId): void {
    this.#bytes -= this.#all.get(conversation)?.bytes ?? 0
    this.#all.delete(conversation)
  }
}

const spansOf = (starts: readonly number[]): readonly Span[] => starts.slice(1).map((end, at) => span(starts[at]!, end))

function versionOf(tokens: Int32Array, places: Int32Array, { start, end }: Span): MessageVersion {
  const own = tokens.slice(start, end)
  return { key: keyOf(own), tokens: own, places: places.slice(start, end), shown: true }
}

const keyOf = ({ buffer, byteOffset, byteLength }: Int32Array): string =>
  Buffer.from(buffer, byteOffset, byteLength).toString('latin1')

/**
 * Matches versions with the client's messages by key. First it matches the versions that the last step showed; then, in the gaps between
 * them, the hidden ones.
 */
function matched(versions: readonly MessageVersion[], given: readonly string[]): readonly Match[] {
  const keys = versions.map(({ key }) => key)
  const shown = versions.flatMap((version, at) => (version.shown ? [at] : []))
  const known = align(
    shown.map((at) => keys[at]!),
    given,
  ).map(({ a, b }) => ({ a: shown[a]!, b }))
  const found = gapsOf(known, keys.length, given.length).flatMap(({ a, aEnd, b, bEnd }) =>
    align(keys.slice(a, aEnd), given.slice(b, bEnd)).map((match) => ({ a: a + match.a, b: b + match.b })),
  )
  return [...known, ...found].sort((x, y) => x.a - y.a)
}

type VersionText = Pick<MessageVersion, 'tokens' | 'places'>

/**
 * Pairs the shown versions in a gap between two matches with the messages that took their place. In the last gap it pairs only the first
 * version and the first message. Elsewhere it pairs them one by one if there are equally many, and otherwise joins them into one pair.
 */
function replacedIn(
  { a, aEnd, b, bEnd }: Gap,
  versions: readonly MessageVersion[],
  spans: readonly Span[],
): (readonly [VersionText, Span])[] {
  const old = versions.slice(a, aEnd).filter(({ shown, key }) => shown && key !== GONE)
  const now = spans.slice(b, bEnd)
  if (old.length === 0 || now.length === 0) return []
  if (bEnd === spans.length) return [[old[0]!, now[0]!]]
  if (old.length === now.length) return old.map((each, at) => [each, now[at]!] as const)
  const [tokens, places] = [joined(old.map((each) => each.tokens)), joined(old.map((each) => each.places))]
  return [[{ tokens, places }, span(now[0]!.start, now.at(-1)!.end)]]
}

/** Copies the places of `old` to the beginning that `tokens` has in common with it. Returns the length of that beginning. */
function placeHead(old: VersionText, tokens: Int32Array, places: Int32Array): number {
  const head = commonPrefix(old.tokens, tokens)
  places.set(old.places.subarray(0, head))
  return head
}

/** Copies the places of `old` to the beginning and the end that `tokens` has in common with it. */
function placeEnds(old: VersionText, tokens: Int32Array, places: Int32Array): void {
  const tail = commonSuffix(old.tokens, tokens, placeHead(old, tokens, places))
  places.set(old.places.subarray(old.places.length - tail), places.length - tail)
}

/** Sets every place that does not ascend to NOWHERE. Two shown versions of one message may share places; the first version keeps them. */
function keepAscending(places: Int32Array): void {
  let last = NOWHERE
  places.forEach((place, at) => {
    if (place > last) last = place
    else places[at] = NOWHERE
  })
}

/**
 * Merges the hidden and the shown versions in the order of their places. A version without a place stays behind the version before it in
 * its own list.
 */
function inOrder(hidden: readonly MessageVersion[], shown: readonly MessageVersion[]): MessageVersion[] {
  const placed = (list: readonly MessageVersion[]) => {
    let place = NOWHERE
    return list.map((version) => ({ version, place: (place = firstPlace(version) ?? place) }))
  }
  const all = [...placed(hidden.map((version) => ({ ...version, shown: false }))), ...placed(shown)]
  return all.sort((x, y) => x.place - y.place).map(({ version }) => version)
}

const firstPlace = ({ places }: MessageVersion): number | undefined => places.find((place) => place !== NOWHERE)

/** Returns a function that finds the version in `versions` with the same tokens and the same first place as its argument. */
function finderIn(versions: readonly MessageVersion[]): (version: MessageVersion) => MessageVersion | undefined {
  const all = new Map<string, Map<number | undefined, MessageVersion>>()
  for (const each of versions)
    all.set(each.key, (all.get(each.key) ?? new Map<number | undefined, MessageVersion>()).set(firstPlace(each), each))
  return (version) => all.get(version.key)?.get(firstPlace(version))
}

const isBeginning = (a: Int32Array, b: Int32Array): boolean => commonPrefix(a, b) === a.length

/** Whether `wording` continues `earlier`: it shows the same messages at the same places, and perhaps more text at the end. */
const goesOnFrom = (wording: readonly MessageVersion[], earlier: readonly MessageVersion[]): boolean =>
  earlier.every(({ key, tokens, places }, at) => {
    const same = wording[at]
    if (same === undefined || (same.key !== key && at < earlier.length - 1)) return false
    return same.tokens === tokens || (isBeginning(tokens, same.tokens) && isBeginning(places, same.places))
  })

/**
 * Returns the number of tokens that `wording` and the given messages have in common at the beginning. Of the first message that differs,
 * tokens count only if one of its two texts is a beginning of the other.
 */
function commonBeginning(
  wording: readonly MessageVersion[],
  tokens: Int32Array,
  spans: readonly Span[],
  given: readonly string[],
): number {
  const whole = spans.findIndex((_, at) => wording[at]?.key !== given[at])
  const next = spans[whole]
  if (next === undefined) return spans.at(-1)?.end ?? 0
  const old = wording[whole]?.tokens ?? NONE
  const same = commonPrefix(old, tokens.subarray(next.start, next.end))
  return next.start + (same === old.length || next.start + same === next.end ? same : 0)
}

/**
 * Returns the edits that lead from the lineage's text to the shown tokens: kvfold's own edits (`own`) and the client's changes. A client's
 * change gets `contract`. If an own edit without a contract merges with a client's change, it counts with `terms`.
 */
export function editedFrom({ lineage, places }: PlacedWording, own: EditMap, contract: Contract, terms: Contract): EditMap {
  const builder = new HoleBuilder(lineage.text.length, contract, terms)
  let at = 0
  for (const { span: hidden, marker, contract: asked } of own.holes) {
    for (; at < hidden.start; at++) builder.show(places[at]!)
    builder.edit(
      places.subarray(hidden.start, hidden.end).reduce((count, place) => count + (place === NOWHERE ? 0 : 1), 0),
      marker,
      asked,
    )
    at = hidden.end
  }
  for (; at < own.base.length; at++) builder.show(places[at]!)
  return { base: lineage.text, holes: builder.end() }
}

/** A gap between two shown tokens of the lineage's text. `marker` counts the tokens that are shown in the gap instead. */
interface OpenGap {
  marker: number
  /** How many of the `marker` tokens, and (next field) how many of the gap's hidden tokens, come from kvfold's own edits. */
  ownMarker: number
  ownHidden: number
  own: { readonly contract: Contract | undefined }[]
}

/** Builds the holes of an edit map from the shown tokens in order: one hole for each gap between two shown tokens of the lineage's text. */
class HoleBuilder {
  readonly #holes: ReplacedSpan[] = []
  #last = -1
  #open: OpenGap = nothing()

  constructor(
    private readonly length: number,
    private readonly contract: Contract,
    private readonly terms: Contract,
  ) {}

  show(place: number): void {
    if (place === NOWHERE) this.#open.marker++
    else this.#close(place)
  }

  /** Adds one of kvfold's own edits, which hides `hidden` tokens of the lineage and shows `marker` tokens instead. */
  edit(hidden: number, marker: number, contract: Contract | undefined): void {
    const { own } = this.#open
    this.#open.marker += marker
    this.#open.ownMarker += marker
    this.#open.ownHidden += hidden
    own.push({ contract })
  }

  end(): readonly ReplacedSpan[] {
    this.#close(this.length)
    return this.#holes
  }

  #close(place: number): void {
    const { marker, ownMarker, ownHidden, own } = this.#open
    const hidden = place - this.#last - 1
    if (hidden > 0 || marker > 0) {
      const isOwn = ownMarker === marker && ownHidden === hidden
      const contract = isOwn ? sameOf(own) : own.reduce((all, each) => stricter(all, each.contract ?? this.terms), this.contract)
      const asked = contract === undefined ? {} : { contract }
      if (hidden > 0) this.#holes.push({ span: span(this.#last + 1, place), marker, ...asked })
      // Nothing is hidden here, but a hole must hide a token. So hide the neighbouring token, and show it again as part of the marker.
      else this.#insert(place, marker, asked)
    }
    this.#last = place
    this.#open = nothing()
  }

  #insert(place: number, marker: number, asked: { readonly contract?: Contract }): void {
    const before = this.#holes.at(-1)
    if (before?.span.end === place) this.#holes[this.#holes.length - 1] = { ...before, marker: before.marker + marker, ...asked }
    else this.#holes.push({ span: place > 0 ? span(place - 1, place) : span(0, 1), marker: marker + 1, ...asked })
  }
}

const nothing = (): OpenGap => ({ marker: 0, ownMarker: 0, ownHidden: 0, own: [] })

/** Returns the contract of several own edits that became one hole: their common one, or `exact` if they differ. */
function sameOf([first, ...rest]: readonly { readonly contract: Contract | undefined }[]): Contract | undefined {
  return rest.every(({ contract }) => contract === first?.contract) ? first?.contract : 'exact'
}
