/** The page about the server: models with their slots, the queue, and figures over time. */
import type { ComponentChildren } from 'preact'
import { bytes, count, duration, plural } from '../figures/numbers.js'
import { LineChart } from './charts.js'
import { useLive } from './hooks.js'
import { type ModelStatus, rates, type ToolServerStatus } from './wire.js'

export function Overview() {
  const { status, samples, noFigures, names } = useLive()
  if (noFigures !== null)
    return (
      <section>
        <h2>Server</h2>
        <p>Models: {names.join(', ')}</p>
        <p class="note">{noFigures}</p>
      </section>
    )
  if (status === null) return <p class="dim">Asking the server…</p>
  const { asks, queue, models, toolServers } = status
  const level = (pick: (sample: (typeof samples)[number]) => number) => samples.map(pick)
  const rate = (name: string, pick: Parameters<typeof rates>[1]) => ({ name, values: rates(samples, pick) })
  return (
    <>
      <section aria-labelledby="models-title">
        <h2 id="models-title">Models and slots</h2>
        <div class="cards">
          {models.map((model) => (
            <ModelCard key={model.name} model={model} />
          ))}
        </div>
        <p>
          Queue: {count(queue.waiting)} of {count(queue.limit)} waiting. Requests since the start: {count(asks.done)} answered,{' '}
          {count(asks.cancelled)} cancelled, {count(asks.failed)} failed, {count(asks.refused)} refused because the queue was
          full.
        </p>
        <p>
          Today {count(status.savedToday)} tokens not computed, which a plain prefix cache would have computed since midnight at
          the server.
        </p>
      </section>
      <ToolServers servers={toolServers} />
      <section aria-labelledby="figures-title">
        <h2 id="figures-title">The last minutes</h2>
        <div class="charts">
          <LineChart
            title="Throughput"
            unit="tokens/s"
            lines={[rate('submitted to decode', ({ submitted }) => submitted), rate('generated', ({ generated }) => generated)]}
          />
          <LineChart
            title="Prompts"
            unit="tokens/s"
            lines={[rate('all', ({ prompt }) => prompt), rate('not computed again', ({ cached }) => cached)]}
          />
          <LineChart
            title="Requests"
            unit="requests"
            lines={[
              { name: 'running', values: level(({ running }) => running) },
              { name: 'waiting', values: level(({ waiting }) => waiting) },
            ]}
          />
          <LineChart
            title="Cache"
            unit="cells"
            ceiling={samples.at(-1)?.cells ?? 0}
            lines={[
              { name: 'used', values: level(({ used }) => used) },
              { name: 'of them parked', values: level(({ parked }) => parked) },
            ]}
          />
          <LineChart
            title="Memory"
            unit="bytes"
            written={bytes}
            lines={[
              { name: 'process', values: level(({ resident }) => resident ?? 0) },
              { name: 'host tier', values: level(({ host }) => host) },
              { name: 'disk tier', values: level(({ disk }) => disk) },
            ]}
          />
        </div>
      </section>
    </>
  )
}

/** Shows the MCP servers and their tools; nothing when there are none. */
function ToolServers({ servers }: { readonly servers: readonly ToolServerStatus[] }) {
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

function ModelCard({ model: { name, state, loaded, running, idleMs } }: { readonly model: ModelStatus }) {
  return (
    <article class="card">
      <h3>{name}</h3>
      {loaded === null ? (
        <p>{state === 'loading' ? 'Loading…' : 'Not loaded; the next request loads it.'}</p>
      ) : (
        <>
          <p class="slots" role="img" aria-label={`${running} of ${loaded.slots} slots in use`}>
            {Array.from({ length: loaded.slots }, (_, slot) => (
              <span key={slot} class={slot < running ? 'slot busy' : 'slot'} />
            ))}
          </p>
          <dl>
            <Fact name="Slots in use">{`${running} of ${loaded.slots}${running === 0 ? `, idle for ${duration(idleMs)}` : ''}`}</Fact>
            <Fact name="Context">{`${count(loaded.context)} tokens`}</Fact>
            {loaded.cache === null ? null : (
              <>
                <Fact name="Cells">{`${count(loaded.cache.used)} of ${count(loaded.cache.cells)} used`}</Fact>
                <Fact name="Parked">{`${count(loaded.cache.parked)} cells, ${count(loaded.cache.versions)} versions`}</Fact>
                <Fact name="Sequences">{`${count(loaded.cache.sequences.used)} of ${count(loaded.cache.sequences.total)}`}</Fact>
                <Fact name="Host tier">{tier(loaded.cache.tiers.host)}</Fact>
                <Fact name="Disk tier">{tier(loaded.cache.tiers.disk)}</Fact>
              </>
            )}
            <Fact name="Engine">{`${loaded.engine} ${loaded.release}`}</Fact>
          </dl>
          {(loaded.abilities?.notes ?? []).map((note) => (
            <p key={note} class="note">
              {note}
            </p>
          ))}
        </>
      )}
    </article>
  )
}

export function Fact({ name, children }: { readonly name: string; readonly children: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  )
}

const tier = ({ sequences, tokens, bytes: size }: { sequences: number; tokens: number; bytes: number }): string =>
  sequences === 0 ? 'empty' : `${count(sequences)} sequences, ${count(tokens)} tokens, ${bytes(size)}`
