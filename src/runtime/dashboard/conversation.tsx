/** The conversation as a page: each message as Markdown, a margin that shows where its tokens came from, and folds at their places. */
import DOMPurify from 'dompurify'
import { Marked } from 'marked'
import type { ComponentChildren } from 'preact'
import { useMemo, useState } from 'preact/hooks'
import { plural } from '../figures/numbers.js'
import { argumentsOf, excerptOf, pays, piecesOf } from './pieces.js'
import { costInWords, Shares } from './context-bar.js'
import type { Fragment, ThreadDetail, ThreadMessage } from './wire.js'

/** The actions on a message. */
export interface MessageActions {
  readonly onOpen: (message: ThreadMessage) => void
  readonly onFold: (fragment: string) => void
  readonly onRestore: (fragment: string) => void
  readonly onFoldMessage: (message: ThreadMessage) => void
  /** Makes a branch with the messages before this one. Asks `text` there; null answers the last question again. Null: not possible now. */
  readonly onBranch: ((message: ThreadMessage, text: string | null) => void) | null
  /** Continues the cut answer at the thread's end. Null: not possible now. */
  readonly onContinue: ((message: ThreadMessage) => void) | null
}

interface ConversationProps {
  readonly thread: ThreadDetail
  /** How many messages are shown. */
  readonly until: number
  readonly actions: MessageActions
}

export function Conversation({ thread: { messages }, until, actions }: ConversationProps) {
  return (
    <>
      {messages.slice(0, until).map((message) => (
        <Row key={message.index} message={message} isLast={message.index === messages.length - 1} actions={actions} />
      ))}
    </>
  )
}

interface RowProps {
  readonly message: ThreadMessage
  readonly isLast: boolean
  readonly actions: MessageActions
}

function Row({ message, isLast, actions }: RowProps) {
  const [edited, setEdited] = useState<string | null>(null)
  const { index, visible, cost, message: original } = message
  const { role, content, reasoning, toolCalls = [], name } = original
  const isInside = !visible && role !== 'system'
  return (
    <article class={`row ${role}${isInside ? ' inside' : ''}`} data-row={index} aria-label={`Message ${index + 1}, ${role}`}>
      <button
        type="button"
        class="margin"
        title={`${cost === null ? 'In no step yet' : costInWords(cost)}. Opens the message.`}
        aria-label={`Message ${index + 1}, ${cost === null ? 'not in a step yet' : costInWords(cost)}`}
        onClick={() => {
          actions.onOpen(message)
        }}
      >
        <Shares cost={cost} />
      </button>
      <div class="body">
        <h3 class="row-head">
          {WHO[role]}
          {name === undefined ? '' : ` ${name}`}{' '}
          <span class="dim">{cost === null ? 'not in a step yet' : costInWords(cost)}</span>
          {isInside ? <span class="dim"> · inside the server, clients do not see it</span> : null}
          {original.cut === true ? <span class="dim"> · stopped before its end</span> : null}
        </h3>
        {reasoning === undefined || reasoning === '' ? null : (
          <details>
            <summary>Thinking</summary>
            <div class="plain dim">{reasoning}</div>
          </details>
        )}
        {edited === null ? (
          <Content message={message} actions={actions} />
        ) : (
          <EditForm
            text={edited}
            onAsk={(text) => {
              actions.onBranch?.(message, text)
              setEdited(null)
            }}
            onClose={() => {
              setEdited(null)
            }}
          />
        )}
        {toolCalls.map((call) => (
          <details key={call.id} class="call">
            <summary>
              Calls <b>{call.name}</b> <code>{excerptOf(argumentsOf(call), 60)}</code>
            </summary>
            <pre class="original" tabIndex={0}>
              {argumentsOf(call, 2)}
            </pre>
          </details>
        ))}
        {content === '' && toolCalls.length === 0 ? <p class="dim">(no text)</p> : null}
        <Doing message={message} isLast={isLast} actions={actions} onEdit={setEdited} />
      </div>
    </article>
  )
}

const WHO = { system: 'System message', user: 'You', assistant: 'Model', tool: 'Result of' } as const

/** The buttons of a message: its actions that need only one press. */
function Doing({
  message,
  isLast,
  actions: { onOpen, onFoldMessage, onBranch, onContinue },
  onEdit,
}: RowProps & {
  readonly onEdit: (text: string) => void
}) {
  const [copied, setCopied] = useState('Copy')
  const { index, visible, fragments, message: original } = message
  const { role, content, toolCalls = [] } = original
  const canFold = role !== 'system' && content !== '' && (fragments.length === 0 || fragments.some(isOpen))
  const act = (label: string, what: string, work: () => void): ComponentChildren => (
    <button type="button" class="quiet" aria-label={`${what} message ${index + 1}`} onClick={work}>
      {label}
    </button>
  )
  return (
    <p class="doing">
      {content === ''
        ? null
        : act(copied, 'Copy', () => {
            void copyText(content).then((isCopied) => {
              setCopied(isCopied ? 'Copied' : 'Not allowed here')
            })
          })}
      {original.cut === true && content !== '' && isLast && onContinue !== null
        ? act('Continue', 'Continue', () => {
            onContinue(message)
          })
        : null}
      {role === 'assistant' && visible && toolCalls.length === 0 && onBranch !== null
        ? act('Regenerate', 'Regenerate', () => {
            onBranch(message, null)
          })
        : null}
      {role === 'user' && onBranch !== null
        ? act('Edit', 'Edit', () => {
            onEdit(content)
          })
        : null}
      {canFold
        ? act('Fold', 'Fold', () => {
            onFoldMessage(message)
          })
        : null}
      {act('Details', 'Details of', () => {
        onOpen(message)
      })}
    </p>
  )
}

const isOpen = ({ state }: Fragment): boolean => state.kind === 'open'

/** Shows the text, whole or in its fragments. */
function Content({ message, actions }: { readonly message: ThreadMessage; readonly actions: MessageActions }) {
  const { message: original, fragments } = message
  const { role, content } = original
  if (content === '') return null
  const pieces = piecesOf(message)
  // A piece that begins or ends within a block of code would be parsed wrongly as Markdown.
  const isCut = pieces.some((piece) => fences(textOf(piece, content)) % 2 === 1)
  const as = role === 'assistant' && !isCut ? 'markdown' : 'plain'
  const isShort = content.length < 400 && fragments.length === 0
  const shown = pieces.map((piece) =>
    piece.kind === 'text' ? (
      <Text key={piece.start} as={as} text={textOf(piece, content)} />
    ) : (
      <Piece key={piece.fragment.id} fragment={piece.fragment} text={textOf(piece, content)} as={as} actions={actions} />
    ),
  )
  if (role !== 'tool' || isShort) return <>{shown}</>
  return (
    <details class="call" open={fragments.length > 0}>
      <summary>
        {plural(content.split('\n').length, 'line')} <code>{excerptOf(content, 60)}</code>
      </summary>
      {shown}
    </details>
  )
}

const fences = (text: string): number => text.match(/^\s*(?:```|~~~)/gm)?.length ?? 0

const textOf = (piece: ReturnType<typeof piecesOf>[number], content: string): string => {
  const { start, end } = piece.kind === 'text' ? piece : piece.fragment.span
  return content.slice(start, end)
}

interface TextProps {
  readonly as: 'markdown' | 'plain'
  readonly text: string
}

/** Drops empty lines at the borders of pieces, which would show as gaps. */
function Text({ as, text }: TextProps) {
  const inner = text.replace(/^\s*\n/, '').trimEnd()
  if (inner === '') return null
  return as === 'markdown' ? <Markdown text={inner} /> : <div class="plain">{inner}</div>
}

/** Shows a fragment at its place: open with a button to fold it, or as a closed card that shows the original and restores it. */
function Piece({
  fragment,
  text,
  as,
  actions: { onFold, onRestore },
}: TextProps & { readonly fragment: Fragment; readonly actions: MessageActions }) {
  const { id, state } = fragment
  if (state.kind === 'open')
    return (
      <div class="piece" data-piece={id}>
        <Text as={as} text={text} />
        <button
          type="button"
          class="quiet"
          aria-label={`Fold ${id}`}
          onClick={() => {
            onFold(id)
          }}
        >
          Fold
        </button>
      </div>
    )
  return (
    <div class={`piece ${state.kind}`} data-piece={id}>
      <details>
        <summary>
          {state.kind === 'folded' ? 'Folded' : 'Summarised'} <span class="dim">{[id, ...pays(fragment)].join(' · ')}</span>{' '}
          <span class="dim">{excerptOf(text, 80)}</span>
        </summary>
        <Text as={as} text={text} />
      </details>
      {state.kind === 'summarised' ? <div class="plain">{state.summary}</div> : null}
      <button
        type="button"
        class="quiet"
        aria-label={`Restore ${id}`}
        onClick={() => {
          onRestore(id)
        }}
      >
        Restore
      </button>
    </div>
  )
}

/** Asks the question in other words. The thread stays as it is, and a branch gets the answer. */
function EditForm({
  text,
  onAsk,
  onClose,
}: {
  readonly text: string
  readonly onAsk: (text: string) => void
  readonly onClose: () => void
}) {
  const [typed, setTyped] = useState(text)
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault()
        if (typed.trim() !== '') onAsk(typed)
      }}
    >
      <textarea
        aria-label="Say instead"
        rows={Math.min(12, 1 + typed.split('\n').length)}
        value={typed}
        onInput={({ currentTarget }) => {
          setTyped(currentTarget.value)
        }}
        onKeyDown={({ key }) => {
          if (key === 'Escape') onClose()
        }}
      />
      <div class="controls">
        <button type="submit">Ask in a branch</button>
        <button type="button" onClick={onClose}>
          Cancel
        </button>
        <span class="dim">This thread stays as it is.</span>
      </div>
    </form>
  )
}

// Shows the model's Markdown safely: no HTML of its own, no pictures, no scripts, and safe links that lead away.

const escaped = (text: string): string => text.replace(/[&<>"']/g, (character) => `&#${character.codePointAt(0) ?? 0};`)

/** HTML within Markdown is shown as plain text. */
const marked = new Marked({
  gfm: true,
  renderer: {
    html: ({ text }) => escaped(text),
    image: ({ text, href }) => escaped(`${text} (${href})`),
    code: ({ text, lang = '' }) =>
      `<figure class="code"><figcaption>${escaped(lang.split(/\s/)[0] ?? '')}<button type="button" class="quiet">Copy code</button></figcaption>` +
      `<pre tabindex="0"><code>${escaped(text)}</code></pre></figure>`,
    checkbox: ({ checked }) => (checked ? '☑ ' : '☐ '),
  },
})

const purify = DOMPurify()
purify.addHook('afterSanitizeAttributes', (node) => {
  if (node.tagName !== 'A') return
  node.setAttribute('rel', 'noopener noreferrer')
  node.setAttribute('target', '_blank')
})

const ALLOWED = {
  ALLOWED_TAGS: [
    ...['p', 'br', 'hr', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'ul', 'ol', 'li', 'blockquote', 'a', 'em', 'strong', 'del', 'code'],
    ...['pre', 'figure', 'figcaption', 'button', 'table', 'thead', 'tbody', 'tr', 'th', 'td'],
  ],
  ALLOWED_ATTR: ['href', 'title', 'class', 'type', 'start', 'align', 'tabindex'],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
}

/** The text may be incomplete and end anywhere. */
export function Markdown({ text }: { readonly text: string }) {
  const html = useMemo(() => purify.sanitize(marked.parse(text, { async: false }), ALLOWED), [text])
  return <div class="markdown" onClick={copyCode} dangerouslySetInnerHTML={{ __html: html }} />
}

function copyCode({ target }: MouseEvent): void {
  if (!(target instanceof HTMLButtonElement)) return
  void copyText(target.closest('.code')?.querySelector('code')?.textContent ?? '').then((isCopied) => {
    target.textContent = isCopied ? 'Copied' : 'Not allowed'
  })
}

/** Returns false when the browser does not allow pages to copy, as over plain HTTP from other machines. */
async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    return false
  }
}
