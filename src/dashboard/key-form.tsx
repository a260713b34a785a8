/** Owns the field for the API key: shown when the server wants one, or when one is in use. */
import { useState } from 'preact/hooks'
import { useHouse, useLive } from './hooks.js'

export function KeyForm() {
  const { api, live } = useHouse()
  const { connection } = useLive()
  const [typed, setTyped] = useState('')
  if (connection !== 'locked') {
    if (api.key === null) return null
    return (
      <button
        type="button"
        onClick={() => {
          api.setKey(null)
          live.start()
        }}
      >
        Forget the key
      </button>
    )
  }
  return (
    <form
      class="key"
      onSubmit={(event) => {
        event.preventDefault()
        api.setKey(typed.trim())
        setTyped('')
        live.start()
      }}
    >
      <label>
        API key{' '}
        <input
          type="password"
          autocomplete="off"
          required
          value={typed}
          aria-invalid={api.key !== null}
          onInput={({ currentTarget }) => {
            setTyped(currentTarget.value)
          }}
        />
      </label>
      <button type="submit">Use it</button>
      {api.key === null ? null : <span role="alert">The server does not know this key.</span>}
    </form>
  )
}
