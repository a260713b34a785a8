/** Owns what is shown and done for one message: its text, what the model sees of it, and cutting it into fragments. */
import { useRef, useState } from 'preact/hooks'
import { threadPath } from './api.js'
import type { Choice } from './selection.js'
import { useAction, useHouse } from './hooks.js'
import { markersOf, pays } from './pieces.js'
import { Panel } from './panel.js'
import { costInWords } from './strip.js'
import type { Fragment, Thread, ThreadMessage } from './wire.js'

interface MessagePanelProps {
  readonly thread: Thread
  readonly message: ThreadMessage
  readonly onChoose: (choice: Choice) => void
  readonly onTold: (text: string) => void
  readonly onClose: () => void
}

export function MessagePanel({ thread, message, onChoose, onTold, onClose }: MessagePanelProps) {
  const { index, message: original, shown, fragments, cost, visible } = message
  const { role, content, reasoning, toolCalls = [], name } = original
  return (
    <Panel name="message" title={`Message ${index + 1}, ${role}${name === undefined ? '' : ` ${name}`}`} onClose={onClose}>
      <p class="dim">
        {cost === null ? 'No step has shown it yet.' : `In the last step ${costInWords(cost)}.`}
        {visible ? null : ' Clients do not see it.'}
      </p>
      {reasoning === undefined ? null : (
        <details>
          <summary>Reasoning</summary>
          <pre class="original">{reasoning}</pre>
        </details>
      )}
      <CutForm key={content} thread={thread} message={message} onTold={onTold} />
      {toolCalls.length === 0 ? null : (
        <>
          <h4>Calls</h4>
          <ul>
            {toolCalls.map((call) => (
              <li key={call.id}>
                <code>
                  {call.name}({call.malformed ?? JSON.stringify(call.arguments)})
                </code>
              </li>
            ))}
          </ul>
        </>
      )}
      {fragments.length === 0 ? null : (
        <>
          <h4>Fragments</h4>
          <ul class="fragments">
            {fragments.map((fragment) => (
              <li key={fragment.id}>
                <button
                  type="button"
                  onClick={() => {
                    onChoose({ kind: 'fragment', id: fragment.id })
                  }}
                >
                  {fragment.id} <span class={`badge ${fragment.state.kind}`}>{fragment.state.kind}</span>
                </button>{' '}
                {pays(fragment).map((words) => (
                  <span class="dim">{words} </span>
                ))}
                <span class="dim">{beginning(content, fragment)}</span>
              </li>
            ))}
          </ul>
        </>
      )}
      {shown === content ? null : (
        <details>
          <summary>What the model sees</summary>
          <pre class="original">{shown}</pre>
        </details>
      )}
    </Panel>
  )
}

const beginning = (content: string, { span: { start, end } }: Fragment): string => {
  const text = content.slice(start, Math.min(end, start + 60))
  return end - start > 60 ? `${text}…` : text
}

/** The text in a field in which a stretch can be chosen by mouse or keys; nothing can be written. */
function CutForm({ thread, message: { index, message } }: Pick<MessagePanelProps, 'thread' | 'message' | 'onTold'>) {
  const { api } = useHouse()
  const { busy, problem, act } = useAction()
  const [pieces, setPieces] = useState(4)
  const field = useRef<HTMLTextAreaElement>(null)
  const { content, role } = message
  const cut = async () => {
    const { selectionStart = 0, selectionEnd = 0 } = field.current ?? {}
    const [start, end] = selectionStart < selectionEnd ? [selectionStart, selectionEnd] : [0, content.length]
    const markers = markersOf(thread.messages, index, start, end)
    if (markers === null) throw new Error('This text is too short, or stands in an earlier message too; choose another stretch.')
    await api.send('POST', threadPath(thread.id, 'fragments'), { ...markers, numFragments: pieces })
  }
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault()
        act(cut)
      }}
    >
      <label>
        <span class="h4">Original</span>
        <textarea class="original" readOnly rows={8} value={content} ref={field} />
      </label>
      {role === 'system' || content === '' ? null : (
        <div class="controls">
          <label>
            Fragments{' '}
            <input
              type="number"
              min={1}
              max={1000}
              required
              value={pieces}
              onInput={({ currentTarget }) => {
                setPieces(Math.max(1, Math.round(currentTarget.valueAsNumber) || 1))
              }}
            />
          </label>
          <button type="submit" aria-disabled={busy}>
            Cut the chosen stretch, or all
          </button>
        </div>
      )}
      {problem === null ? null : <p role="alert">{problem}</p>}
    </form>
  )
}
