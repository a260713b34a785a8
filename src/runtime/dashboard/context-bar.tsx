/**
 * A map of a thread's context: a bar for each message, as long as its tokens, with its fragments beside it. A button folds what is
 * selected.
 */
import { useRef, useState } from 'preact/hooks'
import { count, plural } from '../figures/numbers.js'
import { keyOf, type Selection } from './places.js'
import { fragmentsOf, type HiddenPieces, isFoldable, pays, piecesOf, whereIs, wholeOmissionOf, widthOf } from './pieces.js'
import type { Fragment, MessageCost, ThreadDetail, ThreadMessage } from './wire.js'

interface ContextBarProps {
  readonly thread: ThreadDetail
  readonly chosen: Selection | null
  readonly hidden: HiddenPieces
  readonly onChoose: (choice: Selection) => void
  /** `onFold`, `onRestore` and `onFoldMessage` are called by the button and by the keys F and R. */
  readonly onFold: (id: string) => void
  readonly onRestore: (id: string) => void
  readonly onFoldMessage: (message: ThreadMessage) => void
}

/** From this many messages on, the gaps between bars are smaller, so that the widths stay comparable. */
const MANY = 20

/** The map. The Tab key stops at it once; arrow keys, Home and End move within it. */
export function ContextBar({ thread, chosen, hidden, onChoose, onFold, onRestore, onFoldMessage }: ContextBarProps) {
  const { messages } = thread
  const bar = useRef<HTMLDivElement>(null)
  const [at, setAt] = useState('message-0')
  /** The text of the caption. It describes what is under the pointer or has the focus. */
  const [caption, setCaption] = useState('')
  const stops = messages.flatMap(({ index, fragments }): Selection[] => [
    { kind: 'message', index },
    ...fragments.map(({ id }): Selection => ({ kind: 'fragment', id })),
  ])
  const keys = stops.map(keyOf)
  const current = keys.includes(at) ? at : keys[0]

  const goTo = (index: number) => {
    const key = keys[Math.max(0, Math.min(keys.length - 1, index))]
    if (key === undefined) return
    setAt(key)
    bar.current?.querySelector<HTMLElement>(`[data-stop="${key}"]`)?.focus()
  }
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return
    const here = keys.indexOf(current ?? '')
    const stop = stops[here]
    const message = stop?.kind === 'message' ? messages[stop.index] : undefined
    const omission = message === undefined ? undefined : wholeOmissionOf(message)
    if (event.key === 'ArrowRight' || event.key === 'ArrowDown') goTo(here + 1)
    else if (event.key === 'ArrowLeft' || event.key === 'ArrowUp') goTo(here - 1)
    else if (event.key === 'Home') goTo(0)
    else if (event.key === 'End') goTo(keys.length - 1)
    else if (event.key.toLowerCase() === 'f' && stop?.kind === 'fragment') onFold(stop.id)
    else if (event.key.toLowerCase() === 'f' && message !== undefined && isFoldable(message)) onFoldMessage(message)
    else if (event.key.toLowerCase() === 'r' && stop?.kind === 'fragment') onRestore(stop.id)
    else if (event.key.toLowerCase() === 'r' && omission !== undefined) onRestore(omission.id)
    else return
    event.preventDefault()
  }
  const stopProps = (choice: Selection, words: string, short = words) => {
    const key = keyOf(choice)
    return {
      'aria-label': words,
      title: words,
      onPointerEnter: () => {
        setCaption(short)
      },
      type: 'button' as const,
      'data-stop': key,
      tabIndex: key === current ? 0 : -1,
      'aria-pressed': chosen !== null && keyOf(chosen) === key,
      onFocus: () => {
        setAt(key)
        setCaption(short)
      },
      onClick: () => {
        setAt(key)
        onChoose(choice)
      },
    }
  }
  return (
    <div class="map">
      <FoldButton
        {...{ thread, onFold, onRestore, onFoldMessage }}
        at={stops.find((choice) => keyOf(choice) === current) ?? null}
      />
      <div
        class={messages.length > MANY ? 'context-bar many' : 'context-bar'}
        role="toolbar"
        aria-label="Map of the context: messages and fragments"
        ref={bar}
        onKeyDown={onKeyDown}
      >
        {messages.map((message) => (
          <div key={message.index} class={`message ${message.message.role}`} style={{ flexGrow: widthOf(message) }}>
            <button {...stopProps({ kind: 'message', index: message.index }, spoken(message))} class="block">
              <Shares cost={message.cost} />
            </button>
            {message.fragments.length === 0 ? null : (
              <div class="pieces">
                {piecesOf(message).map((piece) =>
                  piece.kind === 'text' ? (
                    <span key={piece.start} class="rest" style={{ flexGrow: piece.end - piece.start }} />
                  ) : (
                    <button
                      key={piece.fragment.id}
                      {...stopProps(
                        { kind: 'fragment', id: piece.fragment.id },
                        ...spokenFragment(piece.fragment, message, hidden),
                      )}
                      class={`fragment ${piece.fragment.state.kind}`}
                      style={{ flexGrow: shownLength(piece.fragment) }}
                    />
                  ),
                )}
              </div>
            )}
          </div>
        ))}
      </div>
      <p class="caption dim" aria-hidden="true">
        {caption}
      </p>
    </div>
  )
}

/** Folds or restores what is selected on the map, for users who do not know the keys. */
function FoldButton({
  thread: { messages },
  at,
  onFold,
  onRestore,
  onFoldMessage,
}: Pick<ContextBarProps, 'thread' | 'onFold' | 'onRestore' | 'onFoldMessage'> & { readonly at: Selection | null }) {
  const fragment = at?.kind === 'fragment' ? fragmentsOf({ messages }).find(({ id }) => id === at.id) : undefined
  const message = at?.kind === 'message' ? messages[at.index] : undefined
  const omission = message === undefined ? undefined : wholeOmissionOf(message)
  const isHidden = omission !== undefined || (fragment !== undefined && fragment.state.kind !== 'open')
  const canFold = fragment !== undefined || omission !== undefined || (message !== undefined && isFoldable(message))
  return (
    <button
      type="button"
      class="fold-it"
      aria-disabled={!canFold}
      onClick={() => {
        if (omission !== undefined) onRestore(omission.id)
        else if (fragment !== undefined) (isHidden ? onRestore : onFold)(fragment.id)
        else if (message !== undefined && canFold) onFoldMessage(message)
      }}
    >
      {isHidden ? 'Restore' : 'Fold'} {fragment?.id ?? (message === undefined ? '' : `no. ${message.index + 1}`)}
    </button>
  )
}

/**
 * Shows how the last step treated a message's tokens: reused, recomputed or fresh. A message that no step has shown gets the fill
 * `share-unseen`.
 */
export function Shares({ cost }: { readonly cost: MessageCost | null }) {
  if (cost === null) return <span class="fill share-unseen" />
  const { reused, recomputed, fresh, approximate, shown } = cost
  return (
    <span class="fill">
      {reused > 0 ? <span class="share-reused" style={{ flexGrow: reused }} /> : null}
      {recomputed > 0 ? <span class="share-recomputed" style={{ flexGrow: recomputed }} /> : null}
      {fresh > 0 ? <span class="share-fresh" style={{ flexGrow: fresh }} /> : null}
      {approximate > 0 ? (
        <span class="share-approximate" style={{ '--part': `${(100 * approximate) / Math.max(1, shown)}%` }} />
      ) : null}
    </span>
  )
}

/** About how many characters a marker has. */
const MARKER = 60
const shownLength = ({ span: { start, end }, state }: Fragment): number => {
  if (state.kind === 'open') return end - start
  return MARKER + (state.kind === 'summarised' ? state.summary.length : 0)
}

function spoken(message: ThreadMessage): string {
  const { index, fragments, visible } = message
  const hidden = fragments.filter(({ state }) => state.kind !== 'open').length
  return [
    `Message ${index + 1}, ${message.message.role}`,
    costInWords(message),
    ...(fragments.length === 0 ? [] : [`${plural(fragments.length, 'fragment')}, ${hidden} hidden`]),
    ...(visible ? [] : ['not seen by clients']),
  ].join('; ')
}

/** Says how the last step treated a message. A stopped step has no counts for its messages. */
export function costInWords(of: ThreadMessage): string {
  const {
    cost,
    message: { cut },
  } = of
  if (wholeOmissionOf(of) !== undefined) return 'hidden as a whole'
  if (cost === null) return cut === true ? 'stopped before its end' : 'not in a step yet'
  const { shown, reused, recomputed, fresh, approximate } = cost
  const parts = [
    [reused, 'reused'],
    [recomputed, 'computed again'],
    [fresh, 'new'],
    [approximate, 'approximate'],
  ] as const
  const told = parts
    .filter(([tokens]) => tokens > 0)
    .map(([tokens, words]) => `${tokens === shown ? 'all' : count(tokens)} ${words}`)
  return `${plural(shown, 'token')}: ${told.join(', ')}`
}

/**
 * Describes a fragment: in full for screen readers (`words`), in short for the caption. Both say which message it is in, what hid it, and
 * how many tokens that frees.
 */
function spokenFragment(
  fragment: Fragment,
  { index, message: { role } }: ThreadMessage,
  { by, waiting }: HiddenPieces,
): [words: string, caption: string] {
  const { id, state, span } = fragment
  const reason = by.get(id)
  const of = `of message ${index + 1}, ${role}`
  const fate = [
    reason === undefined ? state.kind : `${state.kind} ${reason}`,
    ...(waiting.has(id) ? ['waits for the end of the answer'] : []),
  ]
  const size = plural(span.end - span.start, 'character')
  return [
    [`Fragment ${id} ${of}`, ...fate, size, ...pays(fragment), ...whereIs(fragment)].join('; '),
    [`Part ${of}`, ...fate, ...pays(fragment)].join('; '),
  ]
}

/** Explains the colours of margins and map. */
export function Legend() {
  return (
    <ul class="legend" aria-label="What the margins say of the last step">
      {LEGEND.map(([look, words]) => (
        <li key={look}>
          <span class={`key ${look}`} /> {words}
        </li>
      ))}
    </ul>
  )
}

const LEGEND = [
  ['share-reused', 'reused from the cache'],
  ['share-recomputed', 'computed again'],
  ['share-fresh', 'new'],
  ['share-unseen', 'not in a step yet'],
  ['share-approximate', 'approximate'],
  ['fragment folded', 'folded'],
] as const
