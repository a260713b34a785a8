/** Owns the frame of a panel: its title, its way out by button and by key, and the focus that it takes when it appears. */
import type { ComponentChildren } from 'preact'
import { useLayoutEffect, useRef } from 'preact/hooks'

interface PanelProps {
  /** Of the title's element; one panel of a name at a time. */
  readonly name: string
  readonly title: ComponentChildren
  readonly onClose: () => void
  readonly children: ComponentChildren
}

/** Give it a key: another thing's panel is another panel, which takes the focus anew. */
export function Panel({ name, title, onClose, children }: PanelProps) {
  const frame = useRef<HTMLElement>(null)
  // Before anything else can be typed: a focus that comes later would be taken from what was chosen meanwhile.
  useLayoutEffect(() => {
    frame.current?.focus()
  }, [])
  return (
    <section
      class="panel"
      aria-labelledby={`${name}-title`}
      tabIndex={-1}
      ref={frame}
      onKeyDown={({ key }) => {
        if (key === 'Escape') onClose()
      }}
    >
      <div class="panel-head">
        <h3 id={`${name}-title`}>{title}</h3>
        <button type="button" onClick={onClose}>
          Close
        </button>
      </div>
      {children}
    </section>
  )
}
