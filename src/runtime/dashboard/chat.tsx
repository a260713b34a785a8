/** One request to the model: its question, its thread, and the answer as it streams. */
import { useEffect, useRef, useState } from 'preact/hooks'
import { readJson, writeJson } from '../core/written-json.js'
import { count, duration, plural } from '../figures/numbers.js'
import { ApiFailure, sentenceOf, threadPath } from './api.js'
import { chatBody, type Pending, USUAL, type ChatSettings } from './chat-request.js'
import { useHouse } from './hooks.js'
import { PacedDrawing } from './paced-drawing.js'
import { WithFiles } from './conversation.js'
import { Markdown } from './markdown.js'
import type { TextFile } from './text-files.js'
import type { ChatChunk, ChatEvent, Export, ThreadDetail } from './wire.js'

/** A request to send. */
export interface ChatWanted {
  readonly thread: string | null
  readonly model: string
  /** How many messages of the thread come before the question. Default: all. */
  readonly before?: number
  /** The question. Null: the last question is answered again, or a cut-off answer is continued. */
  readonly text: string | null
  /** The title for a new thread. Default: the beginning of its first message. */
  readonly title?: string
  /** The text of the cut-off last answer that the new answer continues. `text` is null then. */
  readonly begun?: string
}

export interface Chat {
  /** The current request, in whatever thread. */
  readonly pending: Pending | null
  /** The last answer: its thread, its cost as text, and whether it was cut off at the limit on its length. */
  readonly done: { readonly thread: string | null; readonly text: string; readonly cut: boolean } | null
  readonly running: boolean
  /** Typed text that is not sent yet. A ref, so that typing does not render the page again. */
  readonly draft: { current: string }
  /** Files to send with the next message, in whatever thread. */
  readonly files: readonly TextFile[]
  readonly setFiles: (files: readonly TextFile[]) => void
  /** Settings of the next request, in whatever thread. */
  readonly settings: ChatSettings
  readonly setSettings: (settings: ChatSettings) => void
  /** Sends a request. Returns false and does nothing while another one is running. */
  readonly ask: (wanted: ChatWanted) => boolean
  readonly stop: () => void
}

/**
 * The hook for the page's chat.
 * @param shown the thread that the page shows
 * @param onThread called when a question ends up in another thread than `from`, where it was asked; `from` null: it began a new thread
 */
export function useChat(shown: ThreadDetail | null, onThread: (id: string, from: string | null) => void): Chat {
  const { api } = useHouse()
  const [pending, setPending] = useState<Pending | null>(null)
  const [done, setDone] = useState<Chat['done']>(null)
  const draft = useRef('')
  const [files, setFiles] = useState<readonly TextFile[]>([])
  const [settings, setSettings] = useState(USUAL)
  const control = useRef<AbortController | null>(null)
  const told = useRef(onThread)
  told.current = onThread
  useEffect(() => () => control.current?.abort(), [])
  // The loaded thread contains the answer, so the request need not be shown any more.
  const isOver = pending?.state === 'answered' || pending?.state === 'stopped'
  const isThere = isOver && shown?.id === pending.thread && !shown.running && shown.count >= leastCount(pending)
  useEffect(() => {
    if (isThere) setPending(null)
  }, [isThere])

  const run = async ({ thread, model, before, text: question, begun, title }: ChatWanted, signal: AbortSignal) => {
    const nothing = { completion: null, isBegun: false, reasoning: '', notes: [], problem: null }
    // Show the request at once. Later the export tells how many messages the thread has in fact.
    const inThread = shown?.id === thread ? shown.count : 0
    const above = before ?? (begun === undefined ? inThread : inThread - 1)
    let state: Pending = { question, thread, before: above, text: begun ?? '', ...nothing, state: 'running' }
    const drawing = new PacedDrawing(() => {
      setPending(state)
    }, painted)
    const show = (changes: Partial<Pending>) => {
      state = { ...state, ...changes }
      drawing.now()
    }
    let cut = false
    setDone(null)
    drawing.now()
    try {
      const known = thread === null ? null : await api.get<Export>(threadPath(thread, 'export'), signal)
      const length = known?.messages.length ?? 0
      show({ before: before ?? (begun === undefined ? length : length - 1) })
      const body = chatBody(model, { known, text: question, ...(before === undefined ? {} : { before }) }, settings)
      for await (const { data } of api.events('/v1/chat/completions', { body, signal })) {
        if (data === '[DONE]') continue
        const chunk = readJson(data) as ChatChunk
        if (chunk.error !== undefined) throw new ApiFailure(500, chunk.error.code ?? '', chunk.error.message)
        const event = chunk.kvfold?.event
        if (event?.type === 'started') state = { ...state, isBegun: true }
        if (event?.type === 'started' && event.thread !== state.thread) {
          show({ thread: event.thread, ...(state.thread === null ? {} : { before: null }) })
          told.current(event.thread, thread)
          // The server sets the title after the answer has ended. If that fails, the thread keeps its default title.
          if (title !== undefined) void api.send('PUT', threadPath(event.thread, 'title'), { title }).catch(() => undefined)
        }
        const choice = chunk.choices?.[0]
        const delta = choice?.delta
        cut ||= choice?.finish_reason === 'length'
        const note = event === undefined ? null : noteOf(event)
        state = {
          ...state,
          completion: chunk.id ?? state.completion,
          text: state.text + (delta?.content ?? ''),
          reasoning: state.reasoning + (delta?.reasoning_content ?? ''),
          notes: note === null ? state.notes : [...state.notes.filter((other) => !isProgress(other) || !isProgress(note)), note],
        }
        drawing.soon()
        if (chunk.usage != null) setDone({ thread: state.thread, text: usageOf(chunk) + (cut ? LONGEST : ''), cut })
      }
      show({ state: 'answered' })
    } catch (error) {
      // A question that is in no thread stays on the page.
      if (signal.aborted && state.isBegun) {
        show({ state: 'stopped' })
        if (state.text + state.reasoning === '') setPending(null)
      } else show({ problem: signal.aborted ? 'Stopped before it began.' : sentenceOf(error), state: 'failed' })
      if (signal.aborted) setDone({ thread: state.thread, text: 'Stopped.', cut: false })
    }
  }
  const running = pending?.state === 'running'
  return {
    ...{ pending, done, running, draft, files, setFiles, settings, setSettings },
    ask: (wanted) => {
      if (control.current !== null) return false
      const controller = new AbortController()
      control.current = controller
      void run(wanted, controller.signal).finally(() => {
        control.current = null
      })
      return true
    },
    stop: () => control.current?.abort(),
  }
}

/** Waits until the browser has painted the page. While the page is hidden, that takes until it is shown. */
const painted = (): Promise<void> =>
  new Promise((resolve) => {
    requestAnimationFrame(() => {
      setTimeout(resolve)
    })
  })

/**
 * Returns how many messages the thread has at least, once it contains question and answer. A request that was stopped between two steps may
 * have no answer.
 */
const leastCount = ({ before, question, state }: Pending): number =>
  (before ?? 0) + (question === null ? 0 : 1) + (state === 'stopped' ? 0 : 1)

/** Shows a request: its question, and its answer so far. */
export function Answering({ pending }: { readonly pending: Pending }) {
  const { question, completion, text, reasoning, notes, problem, state } = pending
  const isRunning = state === 'running'
  return (
    <>
      {question === null ? null : (
        <article class="row user">
          <span class="margin share-unseen" />
          <div class="body">
            <h3 class="row-head">You</h3>
            <WithFiles text={question} />
          </div>
        </article>
      )}
      <article class="row assistant" aria-busy={isRunning}>
        <span class="margin share-unseen" />
        <div class="body">
          <h3 class="row-head">Model</h3>
          {notes
            .filter((note) => text === '' || !isProgress(note))
            .map((note, at) => (
              <p key={at} class="dim">
                {note}
              </p>
            ))}
          {reasoning === '' ? null : (
            <details open={text === ''}>
              <summary>Thinking</summary>
              <div class="plain dim">{reasoning}</div>
            </details>
          )}
          {isRunning && completion !== null && reasoning !== '' && text === '' ? <EndThinking completion={completion} /> : null}
          {text === '' ? null : <Markdown text={text} />}
          {isRunning ? <span class="caret" aria-hidden="true" /> : null}
          {problem === null ? null : <p role="alert">{problem}</p>}
        </div>
      </article>
    </>
  )
}

/** The button that ends the model's reasoning. If the server cannot do that, the reason is shown in place of the button. */
function EndThinking({ completion }: { readonly completion: string }) {
  const { api } = useHouse()
  const [said, setSaid] = useState<string | null>(null)
  const end = async () => {
    setSaid('The model answers now.')
    try {
      const body = { id: completion, action: 'reasoning_end' }
      const { message } = await api.send<{ readonly message?: string }>('POST', '/v1/chat/completions/control', body)
      if (message !== undefined) setSaid(message)
    } catch (error) {
      setSaid(sentenceOf(error))
    }
  }
  if (said !== null) return <p class="dim">{said}</p>
  return (
    <p class="doing">
      <button type="button" class="quiet" onClick={() => void end()}>
        Answer now
      </button>
    </p>
  )
}

const LONGEST = '; cut off at the longest answer (see the settings)'

const PROGRESS = 'Reading: '
const isProgress = (note: string): boolean => note.startsWith(PROGRESS)

function noteOf(event: ChatEvent): string | null {
  switch (event.type) {
    case 'started':
    case 'search':
      return null
    case 'queued':
      return `Waiting; ${plural(event.position, 'request')} before this one.`
    case 'plan':
      return `${plural(event.shown, 'token')} in context: ${count(event.reused)} reused, ${count(event.compute)} to compute.`
    case 'progress':
      return `${PROGRESS}${count(event.done)} of ${count(event.total)} tokens.`
    case 'acm':
      return `${event.call.name} ${writeJson(event.call.arguments)}${event.failed ? ' (refused)' : ''}`
    case 'bare-call':
      return `${event.name} is called in another form than the template has: ${event.form}`
    case 'policy':
      return `The server folded ${event.folded.join(', ')}. That frees ${plural(event.saves, 'token')} of context.`
    case 'rewrite':
      return `Message ${event.message + 1} is shown differently than before: ${event.reason}`
  }
}

function usageOf({ usage, kvfold }: ChatChunk): string {
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0
  const time = kvfold?.total_ms === undefined ? '' : `, ${duration(kvfold.total_ms)}`
  return `${plural(usage?.prompt_tokens ?? 0, 'prompt token')}, ${count(cached)} of them cached; ${count(usage?.completion_tokens ?? 0)} generated${time}`
}
