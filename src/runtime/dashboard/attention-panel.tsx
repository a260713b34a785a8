/** Shows which messages the last answer attended to. The user must switch it on, because the server then computes the thread again. */
import { Fragment, type ComponentChildren } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { count, percent, plural } from '../figures/numbers.js'
import { sentenceOf, threadPath } from './api.js'
import type { Selection } from './places.js'
import { useHouse } from './hooks.js'
import type { Attention, ThreadDetail } from './wire.js'

interface AttentionPanelProps {
  readonly thread: ThreadDetail
  readonly onChoose: (choice: Selection) => void
}

type Seen =
  | { readonly kind: 'loading' }
  | { readonly kind: 'failed'; readonly reason: string }
  | { readonly kind: 'seen'; readonly attention: Attention }

export function AttentionPanel({ thread, onChoose }: AttentionPanelProps) {
  const [isOn, setOn] = useState(false)
  const { id, messages, running } = thread
  const answer = messages.findLastIndex(({ message, visible }) => message.role === 'assistant' && visible)
  return (
    <div class="looking">
      <p>
        This shows how much of its attention the last answer gave to each message. The server runs the thread through the model
        once more for it, and the thread stays as it is.
      </p>
      <button
        type="button"
        role="switch"
        aria-checked={isOn}
        onClick={() => {
          setOn(!isOn)
        }}
      >
        Where the last answer looked
      </button>
      {isOn ? <Looked key={`${id} ${answer}`} thread={id} isRunning={running} onChoose={onChoose} /> : null}
    </div>
  )
}

/** Fetches and shows the attention of the last answer. */
function Looked(props: { readonly thread: string; readonly isRunning: boolean; readonly onChoose: (choice: Selection) => void }) {
  const { thread, isRunning, onChoose } = props
  const { api } = useHouse()
  const [seen, setSeen] = useState<Seen>({ kind: 'loading' })
  useEffect(() => {
    // While an answer is running, the server would measure the previous one.
    if (isRunning) return undefined
    const ended = new AbortController()
    setSeen({ kind: 'loading' })
    api
      .get<Attention>(threadPath(thread, 'attention'), ended.signal)
      .then((attention) => {
        setSeen({ kind: 'seen', attention })
      })
      .catch((error: unknown) => {
        if (!ended.signal.aborted) setSeen({ kind: 'failed', reason: sentenceOf(error) })
      })
    return () => {
      ended.abort()
    }
  }, [api, thread, isRunning])
  switch (seen.kind) {
    case 'loading':
      return (
        <p role="status" aria-busy="true">
          {isRunning ? 'Waiting for the answer…' : 'Showing the thread to the model again, without flash attention…'}
        </p>
      )
    case 'failed':
      return <p role="alert">{seen.reason}</p>
    case 'seen':
      return <Shares attention={seen.attention} onChoose={onChoose} />
  }
}

function Shares({ attention, onChoose }: { readonly attention: Attention; readonly onChoose: (choice: Selection) => void }) {
  const { messages, own, rest, sink, queries, layers, heads, replay, fallback } = attention
  const most = Math.max(own, ...messages.map(({ mass }) => mass))
  return (
    <>
      <p class="note">
        A replay. {replay.text}
        {fallback === null ? null : ` Not under ${replay.contract}: ${fallback}`}
      </p>
      <div class="scroll shares">
        <table aria-label="Where the last answer looked">
          <thead>
            <tr>
              <th scope="col">Message</th>
              <th scope="col" class="figure">
                Tokens
              </th>
              <th scope="col" class="figure">
                Share
              </th>
              <th scope="col" />
            </tr>
          </thead>
          <tbody>
            {messages.map(({ index, role, tokens, mass, cuts }) => (
              <Fragment key={index}>
                <Row tokens={tokens} mass={mass} most={most}>
                  <button
                    type="button"
                    class="link"
                    onClick={() => {
                      onChoose({ kind: 'message', index })
                    }}
                  >
                    {index + 1}, {role}
                  </button>
                </Row>
                {cuts.map((cut) => (
                  <Row key={cut.id} tokens={cut.tokens} mass={cut.mass} most={most} part={cut.shows}>
                    <button
                      type="button"
                      class="link"
                      onClick={() => {
                        onChoose({ kind: 'fragment', id: cut.id })
                      }}
                    >
                      {cut.id}, {cut.shows === 'marker' ? 'marker' : 'open'}
                    </button>
                  </Row>
                ))}
              </Fragment>
            ))}
            <Row tokens={queries} mass={own} most={most}>
              the answer itself
            </Row>
          </tbody>
        </table>
      </div>
      <p class="dim">
        Weights after the softmax from the {plural(queries, 'token')} of the answer, the mean over{' '}
        {plural(layers.length, 'layer')} and {plural(heads, 'head')} each; parts of a message count in it, too. {percent(sink)}{' '}
        lies on the very first token, where heads look when they look for nothing.
        {Math.abs(rest) < 0.0005 ? null : ` ${percent(rest)} lies outside the text.`}
      </p>
    </>
  )
}

interface RowProps {
  readonly tokens: number
  readonly mass: number
  /** The mass that fills a whole bar. */
  readonly most: number
  readonly part?: 'text' | 'marker'
  readonly children: ComponentChildren
}

function Row({ tokens, mass, most, part, children }: RowProps) {
  return (
    <tr class={part === undefined ? undefined : 'part'}>
      <th scope="row">{children}</th>
      <td class="figure">{count(tokens)}</td>
      <td class="figure">{percent(mass)}</td>
      <td class="bar">
        <span class={part ?? 'whole'} style={{ width: `${most > 0 ? (100 * mass) / most : 0}%` }} />
      </td>
    </tr>
  )
}
