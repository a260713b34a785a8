/** Owns the list of live threads. */
import { count, percent, plural } from '../figures/numbers.js'
import { linkTo } from './selection.js'
import { useLive } from './hooks.js'
import type { ThreadSummary } from './wire.js'

export function ThreadList({ chosen }: { readonly chosen: string | null }) {
  const { threads, damaged } = useLive()
  return (
    <nav class="threads" aria-labelledby="threads-title">
      <h2 id="threads-title">
        Threads <span class="dim">{count(threads.length)}</span>
      </h2>
      {threads.length === 0 ? (
        <p class="dim">None yet. Ask something in the chat, or point an OpenAI client at this server.</p>
      ) : (
        <ul>
          {threads.map((thread) => (
            <li key={thread.id}>
              <a href={linkTo(thread.id)} aria-current={thread.id === chosen ? 'page' : undefined}>
                <span class="title">
                  {thread.running ? (
                    <span class="pulse" role="img" aria-label="runs now">
                      ●{' '}
                    </span>
                  ) : null}
                  {thread.title === '' ? '(no text)' : thread.title}
                </span>
                <span class="dim">{described(thread)}</span>
              </a>
            </li>
          ))}
        </ul>
      )}
      {damaged.length === 0 ? null : (
        <details class="note">
          <summary>{plural(damaged.length, 'thread')} damaged in the store</summary>
          <ul>
            {damaged.map(({ id, kind, what }) => (
              <li key={id}>
                {id}: {kind}, {what}
              </li>
            ))}
          </ul>
          <p>
            <code>kvfold store export</code> writes what can be read, <code>kvfold store repair</code> keeps what is whole.
          </p>
        </details>
      )}
    </nav>
  )
}

function described({ model, messages, fragments: { folded, summarised }, last }: ThreadSummary): string {
  const hidden = folded + summarised
  return [
    model,
    plural(messages, 'message'),
    ...(hidden === 0 ? [] : [`${count(hidden)} hidden`]),
    ...(last === null || last.shown === 0
      ? []
      : [`${count(last.shown)} tokens`, `${percent(last.reused / last.shown, 0)} reused`]),
  ].join(' · ')
}
