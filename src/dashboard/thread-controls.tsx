/** Owns what is done to a thread as a whole: contract, refresh, export, delete. */
import { useState } from 'preact/hooks'
import { linkTo } from './selection.js'
import { threadPath } from './api.js'
import { useAction, useHouse } from './hooks.js'
import type { ContractChoice, Thread } from './wire.js'

export const CONTRACTS: readonly ContractChoice[] = ['exact', 'splice', 'blend', 'auto']

interface ThreadControlsProps {
  readonly thread: Thread
  readonly onTold: (text: string) => void
}

export function ThreadControls({ thread, onTold }: ThreadControlsProps) {
  const { api } = useHouse()
  const { busy, problem, act } = useAction()
  const [sure, setSure] = useState(false)
  const { id, model, parent, contract, running, created } = thread
  return (
    <>
      <p class="dim">
        {id} · {model} · since {new Date(created).toLocaleString()}
        {parent === null ? null : (
          <>
            {' '}
            · forked from <a href={linkTo(parent)}>{parent}</a>
          </>
        )}
        {running ? ' · runs now' : null}
      </p>
      <div class="controls">
        <label>
          Contract{' '}
          <select
            value={contract ?? ''}
            onChange={({ currentTarget }) => {
              const chosen = CONTRACTS.find((one) => one === currentTarget.value) ?? null
              act(async () => {
                await api.send('PUT', threadPath(id, 'contract'), { contract: chosen })
                onTold(`Later steps keep to ${chosen ?? "the server's contract"}.`)
              })
            }}
          >
            <option value="">the server's</option>
            {CONTRACTS.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
        <button
          type="button"
          aria-disabled={busy}
          onClick={() => {
            act(async () => {
              const { exact } = await api.send<{ exact: boolean }>('POST', threadPath(id, 'refresh'))
              onTold(exact ? 'The thread is exact.' : 'The refresh was interrupted, or the cache holds nothing of the thread.')
            })
          }}
        >
          Make exact now
        </button>
        <button
          type="button"
          onClick={() => {
            act(async () => {
              save(await api.get<object>(threadPath(id, 'export')), `${id}.json`)
            })
          }}
        >
          Export
        </button>
        {sure ? (
          <span role="group" aria-label="Delete this thread?">
            Delete it in every tier?{' '}
            <button
              type="button"
              class="danger"
              onClick={() => {
                act(async () => {
                  await api.send('DELETE', threadPath(id))
                  location.hash = linkTo(null)
                })
              }}
            >
              Delete
            </button>{' '}
            <button
              type="button"
              onClick={() => {
                setSure(false)
              }}
            >
              Keep
            </button>
          </span>
        ) : (
          <button
            type="button"
            onClick={() => {
              setSure(true)
            }}
          >
            Delete…
          </button>
        )}
      </div>
      {problem === null ? null : <p role="alert">{problem}</p>}
    </>
  )
}

function save(content: object, name: string): void {
  const link = document.createElement('a')
  link.href = URL.createObjectURL(new Blob([JSON.stringify(content, null, 2)], { type: 'application/json' }))
  link.download = name
  link.click()
  URL.revokeObjectURL(link.href)
}
