/** Owns the chat: the thread's text as clients see it, a field to go on with it, and the answer as it comes. */
import { useEffect, useRef, useState } from 'preact/hooks'
import { count, plural } from '../figures/numbers.js'
import { linkTo } from './selection.js'
import { ApiFailure, sentenceOf, threadPath } from './api.js'
import { chatBody, type ChatSettings } from './chat-request.js'
import { ChatOptions } from './chat-options.js'
import { useHouse, useLive, type Loaded } from './hooks.js'
import type { ChatChunk, ChatEvent, Export, Thread } from './wire.js'

/** An ask under way, or one that failed. */
interface Pending {
  readonly question: string
  readonly thread: string | null
  readonly text: string
  readonly reasoning: string
  readonly notes: readonly string[]
  readonly problem: string | null
  readonly running: boolean
}

interface ChatPaneProps {
  readonly chosen: string | null
  readonly loaded: Loaded
  /** The answer belongs to this thread: it may be a new one. */
  readonly onThread: (id: string) => void
}

export function ChatPane({ chosen, loaded, onThread }: ChatPaneProps) {
  const { api } = useHouse()
  const { names } = useLive()
  const [typed, setTyped] = useState('')
  const [model, setModel] = useState<string | null>(null)
  const [settings, setSettings] = useState<ChatSettings>({
    acm: 'off',
    contract: null,
    temperature: 0.7,
    maxTokens: 256,
    system: '',
  })
  const [pending, setPending] = useState<Pending | null>(null)
  const [done, setDone] = useState<{ readonly thread: string | null; readonly text: string } | null>(null)
  const stop = useRef<AbortController | null>(null)
  const end = useRef<HTMLDivElement>(null)
  const thread = loaded.kind === 'thread' && loaded.thread.id === chosen ? loaded.thread : null
  const used = thread?.model ?? model ?? names[0] ?? ''
  const length = pending?.text.length ?? 0
  useEffect(() => {
    const box = end.current
    if (box !== null) box.scrollTop = box.scrollHeight
  }, [length, thread?.count])

  const ask = async (question: string) => {
    const controller = new AbortController()
    stop.current = controller
    let state: Pending = { question, thread: chosen, text: '', reasoning: '', notes: [], problem: null, running: true }
    const show = (changes: Partial<Pending>) => {
      state = { ...state, ...changes }
      setPending(state)
    }
    let cut = false
    show({})
    setTyped('')
    setDone(null)
    try {
      const known = chosen === null ? null : await api.get<Export>(threadPath(chosen, 'export'))
      const body = chatBody({ model: used, thread: chosen, known }, question, settings)
      for await (const { data } of api.events('/v1/chat/completions', { body, signal: controller.signal })) {
        if (data === '[DONE]') continue
        const chunk = JSON.parse(data) as ChatChunk
        if (chunk.error !== undefined) throw new ApiFailure(500, chunk.error.code ?? '', chunk.error.message)
        const event = chunk.kvfold?.event
        if (event?.type === 'started' && event.thread !== state.thread) {
          show({ thread: event.thread })
          onThread(event.thread)
        }
        const choice = chunk.choices?.[0]
        const delta = choice?.delta
        cut ||= choice?.finish_reason === 'length'
        const note = event === undefined ? null : noteOf(event)
        show({
          text: state.text + (delta?.content ?? ''),
          reasoning: state.reasoning + (delta?.reasoning_content ?? ''),
          notes: note === null ? state.notes : [...state.notes.filter((other) => !isProgress(other) || !isProgress(note)), note],
        })
        if (chunk.usage != null) setDone({ thread: state.thread, text: usageOf(chunk) + (cut ? LONGEST : '') })
      }
      setPending(null)
    } catch (error) {
      if (controller.signal.aborted) setPending(null)
      else show({ problem: sentenceOf(error), running: false })
    }
  }
  const running = pending?.running === true
  const mine = pending !== null && pending.thread === chosen
  return (
    <section class="chat" aria-labelledby="chat-title">
      <div class="panel-head">
        <h2 id="chat-title">Chat</h2>
        {chosen === null ? null : <a href={linkTo(null)}>New thread</a>}
      </div>
      <div class="talk" ref={end} tabIndex={0} role="log" aria-label="Conversation">
        {thread === null ? null : <Talk thread={thread} question={mine ? pending.question : null} />}
        {mine ? <Answering pending={pending} /> : null}
        {chosen === null && pending === null ? <p class="dim">Ask something; it begins a new thread.</p> : null}
      </div>
      <p class="dim" role="status">
        {done?.thread === chosen ? done.text : ''}
      </p>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          if (!running && names.length > 0 && typed.trim() !== '') void ask(typed)
        }}
      >
        {thread === null && names.length > 1 ? (
          <label>
            Model{' '}
            <select
              value={used}
              onChange={({ currentTarget }) => {
                setModel(currentTarget.value)
              }}
            >
              {names.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
        ) : (
          <p class="dim">{used}</p>
        )}
        <label>
          <span class="h4">Message</span>
          <textarea
            rows={4}
            value={typed}
            onInput={({ currentTarget }) => {
              setTyped(currentTarget.value)
            }}
            onKeyDown={(event) => {
              if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return
              event.preventDefault()
              event.currentTarget.form?.requestSubmit()
            }}
          />
        </label>
        <ChatOptions settings={settings} fresh={chosen === null} onChange={setSettings} />
        <div class="controls">
          <button type="submit" aria-disabled={running || names.length === 0}>
            Send
          </button>
          {running ? (
            <button
              type="button"
              onClick={() => {
                stop.current?.abort()
              }}
            >
              Stop
            </button>
          ) : null}
        </div>
      </form>
    </section>
  )
}

/** Messages that clients see. The last question is left out while it is shown as the one that is being answered. */
function Talk({ thread: { messages }, question }: { readonly thread: Thread; readonly question: string | null }) {
  const seen = messages.filter(({ visible, message: { role } }) => visible && role !== 'tool')
  const last = seen.at(-1)?.message
  const told = last?.role === 'user' && last.content === question ? seen.slice(0, -1) : seen
  return (
    <>
      {told.map(({ index, message: { role, content } }) => (
        <p key={index} class={`said ${role}`}>
          <span class="who">{role}</span>
          {content}
        </p>
      ))}
    </>
  )
}

function Answering({ pending: { question, text, reasoning, notes, problem, running } }: { readonly pending: Pending }) {
  return (
    <>
      <p class="said user">
        <span class="who">user</span>
        {question}
      </p>
      {notes.map((note, at) => (
        <p key={at} class="dim">
          {note}
        </p>
      ))}
      {reasoning === '' ? null : (
        <details>
          <summary>Reasoning</summary>
          <p class="said">{reasoning}</p>
        </details>
      )}
      {text === '' && !running ? null : (
        <p class="said assistant" aria-busy={running}>
          <span class="who">assistant</span>
          {text}
          {running ? <span class="caret" aria-hidden="true" /> : null}
        </p>
      )}
      {problem === null ? null : <p role="alert">{problem}</p>}
    </>
  )
}

const LONGEST = '; cut off at the longest answer, which is among the settings'

const PROGRESS = 'Reading: '
const isProgress = (note: string): boolean => note.startsWith(PROGRESS)

function noteOf(event: ChatEvent): string | null {
  switch (event.type) {
    case 'started':
      return null
    case 'queued':
      return `Waiting; ${plural(event.position, 'request')} before this one.`
    case 'plan':
      return `${plural(event.shown, 'token')} in context: ${count(event.reused)} reused, ${count(event.compute)} to compute.`
    case 'progress':
      return `${PROGRESS}${count(event.done)} of ${count(event.total)} tokens.`
    case 'acm':
      return `${event.call.name} ${JSON.stringify(event.call.arguments)}${event.failed ? ' (refused)' : ''}`
    case 'policy':
      return `The policy folded ${event.folded.join(', ')} and saves ${plural(event.saves, 'token')}.`
    case 'rewrite':
      return `Message ${event.message + 1} is shown differently than before: ${event.reason}`
  }
}

function usageOf({ usage, kvfold }: ChatChunk): string {
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0
  const time = kvfold?.total_ms === undefined ? '' : `, ${count(kvfold.total_ms)} ms`
  return `${plural(usage?.prompt_tokens ?? 0, 'prompt token')}, ${count(cached)} of them cached; ${count(usage?.completion_tokens ?? 0)} generated${time}`
}
