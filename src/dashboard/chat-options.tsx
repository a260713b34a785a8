/** Owns the chat's settings. */
import type { ChatSettings } from './chat-request.js'
import { CONTRACTS } from './thread-controls.js'

const MODES = {
  off: 'nobody',
  tools: 'the model, by its tools',
  'auto-policy': "the server's policy",
  memtool: 'nobody; the model searches the tools of MCP servers',
} as const
const modes = Object.keys(MODES) as (keyof typeof MODES)[]

interface ChatOptionsProps {
  readonly settings: ChatSettings
  /** Whether the next question begins a thread. */
  readonly fresh: boolean
  readonly onChange: (settings: ChatSettings) => void
}

export function ChatOptions({ settings, fresh, onChange }: ChatOptionsProps) {
  const { acm, contract, temperature, maxTokens, system } = settings
  return (
    <details>
      <summary>Settings</summary>
      <div class="settings">
        {fresh ? (
          <label>
            System message{' '}
            <textarea
              rows={3}
              value={system}
              onInput={({ currentTarget: { value } }) => {
                onChange({ ...settings, system: value })
              }}
            />
          </label>
        ) : null}
        <label>
          Who folds{' '}
          <select
            value={acm}
            onChange={({ currentTarget: { value } }) => {
              onChange({ ...settings, acm: modes.find((mode) => mode === value) ?? 'off' })
            }}
          >
            {modes.map((mode) => (
              <option key={mode} value={mode}>
                {MODES[mode]}
              </option>
            ))}
          </select>
        </label>
        <label>
          Contract{' '}
          <select
            value={contract ?? ''}
            onChange={({ currentTarget: { value } }) => {
              onChange({ ...settings, contract: CONTRACTS.find((one) => one === value) ?? null })
            }}
          >
            <option value="">the thread's</option>
            {CONTRACTS.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
        <label>
          Temperature{' '}
          <input
            type="number"
            min={0}
            max={2}
            step={0.1}
            value={temperature}
            onChange={({ currentTarget: { valueAsNumber } }) => {
              if (valueAsNumber >= 0 && valueAsNumber <= 2) onChange({ ...settings, temperature: valueAsNumber })
            }}
          />
        </label>
        <label>
          Longest answer, tokens{' '}
          <input
            type="number"
            min={1}
            value={maxTokens}
            onChange={({ currentTarget: { valueAsNumber } }) => {
              if (valueAsNumber >= 1) onChange({ ...settings, maxTokens: Math.round(valueAsNumber) })
            }}
          />
        </label>
      </div>
    </details>
  )
}
