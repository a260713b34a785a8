/** Owns the picture of a thread's context: messages side by side, as wide as their tokens, with their fragments below. */
import { useRef, useState } from 'preact/hooks'
import { count, plural } from '../figures/numbers.js'
import { keyOf, type Choice } from './selection.js'
import { pays, piecesOf, whereIs, widthOf } from './pieces.js'
import type { Fragment, MessageCost, Thread, ThreadMessage } from './wire.js'

interface StripProps {
  readonly thread: Thread
  readonly chosen: Choice | null
  readonly onChoose: (choice: Choice) => void
  /** Fold by the key F, restore by R. */
  readonly onFold: (id: string) => void
  readonly onRestore: (id: string) => void
}

/** Messages from which on they stand closer, so that widths still tell. */
const MANY = 20

/** One stop for Tab; arrows, Home and End go through messages and fragments. */
export function Strip({ thread: { messages }, chosen, onChoose, onFold, onRestore }: StripProps) {
  const strip = useRef<HTMLDivElement>(null)
  const [at, setAt] = useState('message-0')
  const stops = messages.flatMap(({ index, fragments }): Choice[] => [
    { kind: 'message', index },
    ...fragments.map(({ id }): Choice => ({ kind: 'fragment', id })),
  ])
  const keys = stops.map(keyOf)
  const current = keys.includes(at) ? at : keys[0]

  const goTo = (index: number) => {
    const key = keys[Math.max(0, Math.min(keys.length - 1, index))]
    if (key === undefined) return
    setAt(key)
    strip.current?.querySelector<HTMLElement>(`[data-stop="${key}"]`)?.focus()
  }
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return
    const here = keys.indexOf(current ?? '')
    const stop = stops[here]
    if (event.key === 'ArrowRight') goTo(here + 1)
    else if (event.key === 'ArrowLeft') goTo(here - 1)
    else if (event.key === 'Home') goTo(0)
    else if (event.key === 'End') goTo(keys.length - 1)
    else if (event.key.toLowerCase() === 'f' && stop?.kind === 'fragment') onFold(stop.id)
    else if (event.key.toLowerCase() === 'r' && stop?.kind === 'fragment') onRestore(stop.id)
    else return
    event.preventDefault()
  }
  const stopProps = (choice: Choice) => {
    const key = keyOf(choice)
    return {
      type: 'button' as const,
      'data-stop': key,
      tabIndex: key === current ? 0 : -1,
      'aria-pressed': chosen !== null && keyOf(chosen) === key,
      onFocus: () => {
        setAt(key)
      },
      onClick: () => {
        onChoose(choice)
      },
    }
  }
  return (
    <div
      class={messages.length > MANY ? 'strip many' : 'strip'}
      role="toolbar"
      aria-label="Context: messages and fragments"
      ref={strip}
      onKeyDown={onKeyDown}
    >
      {messages.map((message) => (
        <div key={message.index} class={`message ${message.message.role}`} style={{ flexGrow: widthOf(message) }}>
          <button
            {...stopProps({ kind: 'message', index: message.index })}
            class="block"
            aria-label={spoken(message)}
            title={spoken(message)}
          >
            <span class="role" aria-hidden="true">
              {message.message.role}
            </span>
            <Cost cost={message.cost} />
          </button>
          <div class="pieces">
            {piecesOf(message).map((piece) =>
              piece.kind === 'text' ? (
                <span key={piece.start} class="rest" style={{ flexGrow: piece.end - piece.start }} />
              ) : (
                <button
                  key={piece.fragment.id}
                  {...stopProps({ kind: 'fragment', id: piece.fragment.id })}
                  class={`fragment ${piece.fragment.state.kind}`}
                  style={{ flexGrow: shownLength(piece.fragment) }}
                  aria-label={spokenFragment(piece.fragment)}
                  title={spokenFragment(piece.fragment)}
                />
              ),
            )}
          </div>
        </div>
      ))}
    </div>
  )
}

/** The last step's share of the message; nothing of it is known before it was shown. */
function Cost({ cost }: { readonly cost: MessageCost | null }) {
  if (cost === null) return <span class="fill share-unseen" />
  const { reused, recomputed, fresh, approximate, shown } = cost
  return (
    <span class="fill">
      {reused > 0 ? <span class="share-reused" style={{ flexGrow: reused }} /> : null}
      {recomputed > 0 ? <span class="share-recomputed" style={{ flexGrow: recomputed }} /> : null}
      {fresh > 0 ? <span class="share-fresh" style={{ flexGrow: fresh }} /> : null}
      {approximate > 0 ? (
        <span class="share-approximate" style={{ width: `${(100 * approximate) / Math.max(1, shown)}%` }} />
      ) : null}
    </span>
  )
}

/** Characters that stand for it now; a marker is about this long. */
const MARKER = 60
const shownLength = ({ span: { start, end }, state }: Fragment): number => {
  if (state.kind === 'open') return end - start
  return MARKER + (state.kind === 'summarised' ? state.summary.length : 0)
}

function spoken({ index, message: { role }, cost, fragments, visible }: ThreadMessage): string {
  const hidden = fragments.filter(({ state }) => state.kind !== 'open').length
  return [
    `Message ${index + 1}, ${role}`,
    cost === null ? 'not in a step yet' : costInWords(cost),
    ...(fragments.length === 0 ? [] : [`${plural(fragments.length, 'fragment')}, ${hidden} hidden`]),
    ...(visible ? [] : ['not seen by clients']),
  ].join('; ')
}

export const costInWords = ({ shown, reused, recomputed, fresh, approximate }: MessageCost): string =>
  [
    `${plural(shown, 'token')}: ${count(reused)} reused`,
    ...(recomputed > 0 ? [`${count(recomputed)} computed again`] : []),
    `${count(fresh)} new`,
    ...(approximate > 0 ? [`${count(approximate)} approximate`] : []),
  ].join(', ')

const spokenFragment = (fragment: Fragment): string => {
  const { id, state, span } = fragment
  const size = plural(span.end - span.start, 'character')
  return [`Fragment ${id}`, state.kind, size, ...pays(fragment), ...whereIs(fragment)].join(', ')
}

export function StripLegend() {
  return (
    <ul class="legend">
      <li>
        <span class="key share-reused" /> reused from the cache
      </li>
      <li>
        <span class="key share-recomputed" /> computed again
      </li>
      <li>
        <span class="key share-fresh" /> new in the last step
      </li>
      <li>
        <span class="key share-unseen" /> in no step yet
      </li>
      <li>
        <span class="key share-approximate" /> approximate (spliced)
      </li>
      <li>
        <span class="key fragment open" /> fragment
      </li>
      <li>
        <span class="key fragment folded" /> folded
      </li>
      <li>
        <span class="key fragment summarised" /> summarised
      </li>
    </ul>
  )
}
