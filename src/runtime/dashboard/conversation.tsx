/** The conversation: each message as Markdown, a margin that shows where its tokens came from, and folded fragments as cards. */
import { Fragment, type ComponentChildren } from 'preact'
import { useState } from 'preact/hooks'
import { plural } from '../figures/numbers.js'
import {
  type AnswerFigures,
  argumentsOf,
  excerptOf,
  figuresInWords,
  figuresOf,
  type HiddenPieces,
  isFoldable,
  openFence,
  pays,
  piecesOf,
  wholeOmissionOf,
} from './pieces.js'
import { filesIn, type FilePlace } from './text-files.js'
import { costInWords, Shares } from './context-bar.js'
import { copyText, Markdown } from './markdown.js'
import type { Fragment as ContextFragment, ThreadDetail, ThreadMessage } from './wire.js'

/** What the user can do with a message. */
export interface MessageActions {
  readonly onOpen: (message: ThreadMessage) => void
  readonly onFold: (fragment: string) => void
  readonly onRestore: (fragment: string) => void
  readonly onFoldMessage: (message: ThreadMessage) => void
  /** Folds a span of a message's characters. `what`: the name of the span for people. */
  readonly onFoldStretch: (message: ThreadMessage, stretch: { start: number; end: number }, what: string) => void
  /**
   * Makes a branch with the messages before the given one, and asks `text` in it. `text` null: answers the last question again. Returns
   * false when the request was not sent. Null while it is impossible.
   */
  readonly onBranch: ((message: ThreadMessage, text: string | null) => boolean) | null
  /** Continues the last answer. If that answer was complete, does so in a branch. Null while it is impossible. */
  readonly onContinue: ((message: ThreadMessage) => void) | null
  /** Whether the last answer was cut off at the limit on its length. */
  readonly isTooLong: boolean
}

interface ConversationProps {
  readonly thread: ThreadDetail
  /** How many of the thread's messages to show. */
  readonly until: number
  readonly actions: MessageActions
  readonly hidden: HiddenPieces
  /** Index of a message to mark because a search found it. Null: none. */
  readonly found: number | null
}

export function Conversation({ thread, until, actions, hidden, found }: ConversationProps) {
  const { messages } = thread
  const figures = figuresOf(thread)
  return (
    <>
      {messages.slice(0, until).map((message) => (
        <Row
          key={message.index}
          {...{ message, actions, hidden }}
          figures={figures.get(message.index)}
          isLast={message.index === messages.length - 1}
          isFound={message.index === found}
        />
      ))}
    </>
  )
}

interface ContentProps {
  readonly message: ThreadMessage
  readonly actions: MessageActions
  readonly hidden: HiddenPieces
}

interface RowProps extends ContentProps {
  readonly figures: AnswerFigures | undefined
  readonly isLast: boolean
  readonly isFound: boolean
}

function Row({ message, isLast, isFound, actions, hidden, figures }: RowProps) {
  const [edited, setEdited] = useState<string | null>(null)
  const { index, visible, cost, message: original } = message
  const told = figures === undefined ? [] : figuresInWords(figures)
  const { role, content, reasoning, toolCalls = [], name } = original
  const isHidden = wholeOmissionOf(message) !== undefined
  const isInside = !isHidden && !visible && role !== 'system'
  return (
    <article
      class={`row ${role}${isInside || isHidden ? ' inside' : ''}${isFound ? ' found' : ''}`}
      data-row={index}
      aria-label={`Message ${index + 1}, ${role}`}
    >
      <button
        type="button"
        class="margin"
        title={`Opens the message (${costInWords(message)}).`}
        aria-label={`Message ${index + 1}, ${costInWords(message)}`}
        onClick={() => {
          actions.onOpen(message)
        }}
      >
        <Shares cost={cost} />
      </button>
      <div class="body">
        <h3 class="row-head">
          {WHO[role]}
          {name === undefined ? '' : ` ${name}`} <span class="dim">{costInWords(message)}</span>
          {told.length === 0 ? null : (
            <span class="dim" title="How fast it was generated, and what a plain prefix cache would have computed more">
              {told.map((words) => ` · ${words}`).join('')}
            </span>
          )}
          {isInside ? <span class="dim"> · inside the server, clients do not see it</span> : null}
          {original.cut === true && cost !== null ? <span class="dim"> · stopped before its end</span> : null}
        </h3>
        {reasoning === undefined || reasoning === '' ? null : (
          <details>
            <summary>Thinking</summary>
            <div class="plain dim">{reasoning}</div>
          </details>
        )}
        {edited === null ? (
          <Content {...{ message, actions, hidden }} />
        ) : (
          <EditForm
            text={edited}
            canAsk={actions.onBranch !== null}
            onAsk={(text) => {
              if (actions.onBranch?.(message, text) === true) setEdited(null)
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
        <Doing message={message} isLast={isLast} actions={actions} hidden={hidden} onEdit={setEdited} />
      </div>
    </article>
  )
}

const WHO = { system: 'System message', user: 'You', assistant: 'Model', tool: 'Result of' } as const

/** The buttons of a message, for actions that need only one press. */
function Doing({
  message,
  isLast,
  actions: { onOpen, onRestore, onFoldMessage, onBranch, onContinue, isTooLong },
  hidden: { waiting },
  onEdit,
}: Pick<RowProps, 'message' | 'isLast' | 'actions' | 'hidden'> & {
  readonly onEdit: (text: string) => void
}) {
  const [copied, setCopied] = useState('Copy')
  const { index, visible, message: original } = message
  const { role, content, toolCalls = [] } = original
  const omission = wholeOmissionOf(message)
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
      {(original.cut === true || (isTooLong && role === 'assistant')) && content !== '' && isLast && onContinue !== null
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
      {isFoldable(message)
        ? act('Fold', 'Fold', () => {
            onFoldMessage(message)
          })
        : null}
      {omission === undefined
        ? null
        : act(waiting.has(omission.id) ? 'Waits…' : 'Restore', 'Restore', () => {
            onRestore(omission.id)
          })}
      {act('Details', 'Details of', () => {
        onOpen(message)
      })}
    </p>
  )
}

/** Shows a message's text, divided into its fragments. */
function Content({ message, actions, hidden }: ContentProps) {
  const { message: original, fragments } = message
  const { role, content } = original
  if (content === '') return null
  const pieces = piecesOf(message)
  const isShort = content.length < 400 && fragments.length === 0
  const shown = pieces.map((piece) => {
    const { start, end } = piece.kind === 'text' ? piece : piece.fragment.span
    // A piece that begins within a code block must be shown as code.
    const fence = role === 'assistant' ? openFence(content.slice(0, start)) : null
    const how = { as: role === 'assistant' ? 'markdown' : 'plain', text: content.slice(start, end), fence } as const
    if (piece.kind === 'fragment')
      return <Piece key={piece.fragment.id} {...{ ...how, actions, hidden }} fragment={piece.fragment} />
    const onFold = (file: FilePlace) => {
      actions.onFoldStretch(message, { start: start + file.start, end: start + file.end }, file.name)
    }
    return <Text key={start} {...how} onFold={role === 'user' && wholeOmissionOf(message) === undefined ? onFold : null} />
  })
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

interface TextProps {
  readonly as: 'markdown' | 'plain'
  readonly text: string
  /** The line that opened the code block in which the text begins. Null: it begins outside of code. */
  readonly fence: string | null
  /** Folds a file in the text. Default: no buttons for that. */
  readonly onFold?: ((file: FilePlace) => void) | null
}

/** Shows a piece of text without the empty lines at its ends, which would show as gaps. */
function Text({ as, text, fence, onFold = null }: TextProps) {
  const inner = text.replace(/^\s*\n/, '').trimEnd()
  if (inner === '') return null
  if (as === 'markdown') return <Markdown text={fence === null ? inner : `${fence}\n${inner}`} />
  return <WithFiles text={text} onFold={onFold} />
}

/** Shows text; the files in it as closed cards. */
export function WithFiles({ text, onFold = null }: Pick<TextProps, 'text' | 'onFold'>) {
  const files = filesIn(text)
  const words = (start: number, end?: number) => {
    const between = text
      .slice(start, end)
      .replace(/^\s*\n/, '')
      .trimEnd()
    return between === '' ? null : <div class="plain">{between}</div>
  }
  return (
    <>
      {files.map((file, at) => (
        <Fragment key={file.start}>
          {words(files[at - 1]?.end ?? 0, file.start)}
          <FileCard file={file} onFold={onFold} />
        </Fragment>
      ))}
      {words(files.at(-1)?.end ?? 0)}
    </>
  )
}

function FileCard({ file, onFold }: { readonly file: FilePlace; readonly onFold: ((file: FilePlace) => void) | null }) {
  const { name, text } = file
  return (
    <div class="file">
      <details>
        <summary>
          {name} <span class="dim">{plural(text.split('\n').length, 'line')}</span>
        </summary>
        <pre class="original" tabIndex={0}>
          {text}
        </pre>
      </details>
      {onFold === null ? null : (
        <button
          type="button"
          class="quiet"
          aria-label={`Fold ${name}`}
          onClick={() => {
            onFold(file)
          }}
        >
          Fold
        </button>
      )}
    </div>
  )
}

/**
 * Shows a fragment in its place. An open one has a button to fold it. A hidden one is a closed card, which shows the original and can
 * restore it.
 */
function Piece({
  fragment,
  text,
  as,
  fence,
  actions: { onFold, onRestore },
  hidden: { by, waiting },
}: TextProps & Pick<ContentProps, 'actions' | 'hidden'> & { readonly fragment: ContextFragment }) {
  const { id, state } = fragment
  const isWaiting = waiting.has(id)
  const act = (label: string, work: (id: string) => void) => (
    <button
      type="button"
      class="quiet"
      aria-label={isWaiting ? `${id} waits for the end of the answer` : `${label} ${id}`}
      aria-disabled={isWaiting}
      onClick={() => {
        work(id)
      }}
    >
      {isWaiting ? 'Waits…' : label}
    </button>
  )
  if (state.kind === 'open')
    return (
      <div class="piece" data-piece={id}>
        <Text {...{ as, text, fence }} />
        {act('Fold', onFold)}
      </div>
    )
  const reason = by.get(id)
  return (
    <div class={`piece ${state.kind}`} data-piece={id}>
      <details>
        <summary>
          {state.kind === 'folded' ? 'Folded' : 'Summarised'}{' '}
          <span class="dim">{[...(reason === undefined ? [] : [reason]), id, ...pays(fragment)].join(' · ')}</span>{' '}
          <span class="dim">{excerptOf(text, 80)}</span>
        </summary>
        <Text {...{ as, text, fence }} />
      </details>
      {state.kind === 'summarised' ? <div class="plain">{state.summary}</div> : null}
      {act('Restore', onRestore)}
    </div>
  )
}

/** The form for changing a question and asking it again. The thread stays as it is; a branch gets the answer. */
function EditForm({
  text,
  canAsk,
  onAsk,
  onClose,
}: {
  readonly text: string
  /** False while another request is running. The form keeps its text meanwhile. */
  readonly canAsk: boolean
  readonly onAsk: (text: string) => void
  readonly onClose: () => void
}) {
  const [typed, setTyped] = useState(text)
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault()
        if (canAsk && typed.trim() !== '') onAsk(typed)
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
        <button type="submit" aria-disabled={!canAsk}>
          Ask in a branch
        </button>
        <button type="button" onClick={onClose}>
          Cancel
        </button>
        <span class="dim">This thread stays as it is.</span>
      </div>
    </form>
  )
}
