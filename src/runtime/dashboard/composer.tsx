/** The form below a conversation: next message, Send and Stop, files, settings. */
import type { ComponentChildren } from 'preact'
import { useLayoutEffect, useRef, useState } from 'preact/hooks'
import type { Chat } from './chat.js'
import { USUAL, type ChatSettings } from './chat-request.js'
import { useAction, useLive } from './hooks.js'
import { plural } from '../figures/numbers.js'
import { textFile, type TextFile, withFiles } from './text-files.js'
import type { Acm, ContractChoice } from './wire.js'

export const CONTRACTS: readonly ContractChoice[] = ['exact', 'splice', 'blend', 'auto']

const FOLDERS: Readonly<Record<Acm, string>> = {
  off: 'only you',
  tools: 'the model, by its tools',
  'auto-policy': 'the server, when the context fills up',
  'u-fold': 'the model, by notes and chosen lines',
  resum: 'the model, by notes',
  memtool: 'none; the model searches the tools of MCP servers',
}
const folders = Object.keys(FOLDERS) as Acm[]

interface ComposerProps {
  readonly chat: Chat
  /** The thread to ask in. Null: the next question begins a new one. */
  readonly thread: string | null
  /** The thread's model. Null: the user chooses. */
  readonly model: string | null
}

export function Composer({ chat, thread, model }: ComposerProps) {
  const { names } = useLive()
  const [chosen, setChosen] = useState<string | null>(null)
  const field = useRef<HTMLTextAreaElement>(null)
  // Focuses the field, except on touch devices, whose keyboard would cover half the page. A layout effect runs before the user can focus
  // anything else.
  useLayoutEffect(() => {
    if (matchMedia('(pointer: fine)').matches) field.current?.focus()
  }, [])
  const used = model ?? chosen ?? names[0] ?? ''
  const { running, done, draft, files, setFiles, settings, setSettings } = chat
  const { problem, act } = useAction()
  const attach = (chosen: FileList | null | undefined) => {
    const all = [...(chosen ?? [])]
    if (all.length === 0) return false
    act(async () => {
      const read = await Promise.all(all.map(async (file) => textFile(file.name, await file.arrayBuffer())))
      setFiles([...files, ...read])
    })
    return true
  }
  const [typed, setTyped] = useState(draft.current)
  draft.current = typed
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault()
        if (running || used === '' || (typed.trim() === '' && files.length === 0)) return
        // Use the question as title. The default title, the message's beginning, would be that of a file.
        const title = thread === null && files.length > 0 && typed.trim() !== '' ? { title: typed.trim().slice(0, 80) } : {}
        if (!chat.ask({ thread, model: used, text: withFiles(typed, files), ...title })) return
        setTyped('')
        setFiles([])
      }}
      onDragOver={(event) => {
        event.preventDefault()
      }}
      onDrop={(event) => {
        event.preventDefault()
        attach(event.dataTransfer?.files)
      }}
    >
      <p class="dim" role="status">
        {done?.thread === thread ? done.text : ''}
      </p>
      {problem === null ? null : <p role="alert">{problem}</p>}
      <Attached files={files} onChange={setFiles} />
      <div class="say">
        <textarea
          ref={field}
          aria-label="Message"
          placeholder="Ask something. Enter sends, Shift+Enter begins a new line."
          rows={Math.min(8, Math.max(2, typed.split('\n').length))}
          value={typed}
          onInput={({ currentTarget }) => {
            setTyped(currentTarget.value)
          }}
          onPaste={(event) => {
            if (attach(event.clipboardData?.files)) event.preventDefault()
          }}
          onKeyDown={(event) => {
            if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return
            event.preventDefault()
            event.currentTarget.form?.requestSubmit()
          }}
        />
        <div class="send">
          <AttachButton onChoose={attach} />
          {running ? (
            <button type="button" class="danger" onClick={chat.stop}>
              Stop
            </button>
          ) : (
            <button type="submit" aria-disabled={used === ''}>
              Send
            </button>
          )}
        </div>
      </div>
      <details class="settings">
        <summary>
          Settings <span class="dim">{used}</span>
        </summary>
        <Settings settings={settings} fresh={thread === null} onChange={setSettings}>
          {model === null && names.length > 1 ? (
            <Choose label="Model" value={used} options={names.map((name) => [name, name])} onChange={setChosen} />
          ) : null}
        </Settings>
      </details>
    </form>
  )
}

/** The button that opens the browser's file dialog. */
function AttachButton({ onChoose }: { readonly onChoose: (files: FileList | null) => void }) {
  const input = useRef<HTMLInputElement>(null)
  return (
    <>
      <input
        ref={input}
        type="file"
        multiple
        hidden
        onChange={({ currentTarget }) => {
          onChoose(currentTarget.files)
          // Empty the field, so that a removed file can be chosen again.
          currentTarget.value = ''
        }}
      />
      <button type="button" title="Text files, for the model to read" onClick={() => input.current?.click()}>
        Attach
      </button>
    </>
  )
}

/** Shows the files that will go with the next message. */
function Attached({
  files,
  onChange,
}: {
  readonly files: readonly TextFile[]
  readonly onChange: (files: readonly TextFile[]) => void
}) {
  if (files.length === 0) return null
  return (
    <ul class="names attached" aria-label="Attached files">
      {files.map((file, at) => (
        <li key={at} class="badge">
          {file.name} <span class="dim">{plural(file.text.split('\n').length, 'line')}</span>
          <button
            type="button"
            class="quiet"
            aria-label={`Remove ${file.name}`}
            onClick={() => {
              onChange(files.filter((other) => other !== file))
            }}
          >
            ✕
          </button>
        </li>
      ))}
    </ul>
  )
}

interface SettingsProps {
  readonly settings: ChatSettings
  /** Whether the next question begins a new thread. */
  readonly fresh: boolean
  readonly onChange: (settings: ChatSettings) => void
  readonly children: ComponentChildren
}

function Settings({ settings, fresh, onChange, children }: SettingsProps) {
  const { acm, contract, temperature, maxTokens, system } = settings
  /** Makes a number field. Left empty, it means the server's default. */
  const number = (label: string, name: 'temperature' | 'maxTokens', bounds: { min: number; max?: number; step?: number }) => (
    <label>
      {label}{' '}
      <input
        type="number"
        placeholder="the server's"
        {...bounds}
        value={String(settings[name] ?? '')}
        // Stored at each key, because the page renders every second and would lose input that is not stored. A number that is not complete
        // has no value yet.
        onInput={({ currentTarget: { value, valueAsNumber, validity } }) => {
          if (value !== '' && validity.valid) onChange({ ...settings, [name]: valueAsNumber })
          else if (value === '' && !validity.badInput) onChange({ ...settings, [name]: null })
        }}
      />
    </label>
  )
  return (
    <div class="fields">
      {children}
      <Choose
        label="Who folds"
        value={acm ?? ''}
        options={[['', 'as the server was started'], ...folders.map((each) => [each, FOLDERS[each]] as const)]}
        onChange={(value) => {
          onChange({ ...settings, acm: folders.find((each) => each === value) ?? null })
        }}
      />
      <Choose
        label="Contract"
        value={contract ?? ''}
        options={[['', "the thread's"], ...CONTRACTS.map((each) => [each, each] as const)]}
        onChange={(value) => {
          onChange({ ...settings, contract: CONTRACTS.find((each) => each === value) ?? null })
        }}
      />
      {number('Temperature', 'temperature', { min: 0, max: 2, step: 0.1 })}
      {number('Longest answer, tokens', 'maxTokens', { min: 1 })}
      {fresh ? (
        <label class="wide">
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
      {temperature === null && maxTokens === null && acm === null && contract === null ? null : (
        <button
          type="button"
          class="quiet"
          onClick={() => {
            onChange({ ...USUAL, system })
          }}
        >
          Back to the server's settings
        </button>
      )}
    </div>
  )
}

interface ChooseProps {
  readonly label: string
  readonly value: string
  /** Pairs of value and label. */
  readonly options: readonly (readonly [string, string])[]
  readonly onChange: (value: string) => void
}

export function Choose({ label, value, options, onChange }: ChooseProps) {
  return (
    <label>
      {label}{' '}
      <select
        value={value}
        onChange={({ currentTarget }) => {
          onChange(currentTarget.value)
        }}
      >
        {options.map(([each, words]) => (
          <option key={each} value={each}>
            {words}
          </option>
        ))}
      </select>
    </label>
  )
}
