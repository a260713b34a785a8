/** Owns what is shown of tools that come and go: the MCP servers that offer some, and those that a thread's model found. */
import { count, plural } from '../figures/numbers.js'
import type { Thread, ToolServerStatus } from './wire.js'

/** Nothing where there are none. */
export function ToolServers({ servers }: { readonly servers: readonly ToolServerStatus[] }) {
  if (servers.length === 0) return null
  return (
    <section aria-labelledby="tool-servers-title">
      <h2 id="tool-servers-title">MCP servers</h2>
      <div class="cards">
        {servers.map(({ name, state, problem, tools }) => (
          <article key={name} class="card">
            <h3>
              {name} <span class={`badge ${state}`}>{state}</span>
            </h3>
            <p>{plural(tools, 'tool')}</p>
            {problem === null ? null : <p class="note">{problem}</p>}
          </article>
        ))}
      </div>
      <p class="dim">For requests with acm memtool: the model searches their tools, and the server carries the calls out.</p>
    </section>
  )
}

/** Nothing where nothing was found. */
export function FoundTools({ thread: { found } }: { readonly thread: Thread }) {
  if (found.length === 0) return null
  const loaded = found.filter((tool) => tool.loaded)
  const others = found.filter((tool) => !tool.loaded)
  return (
    <section aria-labelledby="tools-title">
      <h2 id="tools-title">
        Tools <span class="dim">{`${count(loaded.length)} loaded of ${count(found.length)} found`}</span>
      </h2>
      <Names title="Loaded: shown to the model, which may call them" tools={loaded} />
      <Names title="Found before and removed: folded away, to be found again" tools={others} />
    </section>
  )
}

function Names({ title, tools }: { readonly title: string; readonly tools: Thread['found'] }) {
  if (tools.length === 0) return null
  return (
    <>
      <h3 class="h4">{title}</h3>
      <ul class="names">
        {tools.map(({ name, loaded }) => (
          <li key={name} class={loaded ? 'badge ready' : 'badge'}>
            {name}
          </li>
        ))}
      </ul>
    </>
  )
}
