/** Makes the heat map of one value, which shows the attention weight on every token, and its section of the report. */
import type { Measurement } from '../../runtime/attention/measurement.js'
import type { Span } from '../../runtime/core/span.js'
import { escaped } from '../figures/page.js'
import type { From } from './pairs.js'
import type { HeatMapRecord, HeatMapToken } from './records.js'

/**
 * Returns the tokens up to the last query token, each with the attention weight that the query tokens give it. The queries are the tokens
 * of the value of key `name` in the answer, or the token before them (`from`). Weights are means over the captured layers, their heads and
 * the queries. Returns an empty list if the measurement has no rows, or if the answer does not give the value.
 */
export function heatMapOf(
  { pattern, prompt, said, sets }: Measurement,
  name: string,
  from: From,
  text: (token: number) => string,
): HeatMapToken[] {
  const one = said.get(name)
  const places = one === undefined ? [] : from === 'value' ? one.value : [one.reading]
  const rows = pattern?.rows
  if (pattern === null || rows === null || rows === undefined || places.length === 0) return []
  const wide = rows.shape.at(-1)!
  const { layers, heads, queries } = pattern
  const weights = new Float64Array(wide)
  const looking = places.map((at) => queries.indexOf(at)).filter((row) => row >= 0)
  const maps = layers.length * heads.length
  for (let map = 0; map < maps; map++)
    for (const row of looking)
      for (let at = 0; at < wide; at++) weights[at]! += rows.data[(map * queries.length + row) * wide + at]!
  const end = Math.max(...places) + 1
  const answer = prompt.messages.findLast(({ content }) => content !== null)?.span.start ?? prompt.tokens.length
  const within = (spans: readonly Span[], at: number): boolean => spans.some((span) => span.start <= at && at < span.end)
  const current = sets.get(`current ${name}`)?.tokens ?? []
  const older = sets.get(`older ${name}`)?.tokens ?? []
  return Array.from(prompt.tokens.slice(0, end), (token, at): HeatMapToken => ({
    text: text(token),
    weight: Number((weights[at]! / (maps * looking.length)).toPrecision(6)),
    kind: within(current, at)
      ? 'current'
      : within(older, at)
        ? 'older'
        : within(prompt.markers, at)
          ? 'marker'
          : at >= answer
            ? 'answer'
            : 'other',
  }))
}

// Below: the HTML of the heat map. The more weight a token has, the darker it is. Its weight appears when the pointer is on it.

/** Tokens below this share of the largest weight get the same colour. Adjacent ones of the same kind become one HTML element. */
const FAINT = 0.004

/** Returns the HTML of the heat maps of all prompts (complete and folded), on the same colour scale. */
export function heatMapPart({ key, value, n, seed, sides, layers }: HeatMapRecord): { readonly html: string } {
  const most = Math.max(...sides.flatMap(({ tokens }) => tokens.map(({ weight }) => weight)), Number.MIN_VALUE)
  const html = `<section><h2>One value, token by token</h2>
<p>The map shows where the right answer looks when it says <b>${escaped(value)}</b> (key <b>${escaped(key)}</b>, n = ${n}, seed ${seed}). Weights are means over ${layers.length} layers, their heads and the looking tokens. Of all pairs of the prompt, this one has the median change. A solid frame marks the current value, a dashed one earlier values of the key, and a dotted one markers of folded text. The answer so far is underlined. Darkest: ${(100 * most).toPrecision(3)} %.</p>
${sides.map(({ name, tokens }) => `<h3>${escaped(name)}, ${tokens.length} tokens</h3>\n<p class="kf-heat-map">${stretches(tokens, most)}</p>`).join('\n')}
<p id="kf-said" class="faint" aria-live="polite">Point at a token to see its weight.</p></section>`
  return { html }
}

function stretches(tokens: readonly HeatMapToken[], most: number): string {
  const parts: string[] = []
  for (let at = 0; at < tokens.length;) {
    const { weight, kind } = tokens[at]!
    let end = at + 1
    const faint = (token: HeatMapToken): boolean =>
      token.kind === kind && token.weight < FAINT * most && (kind === 'other' || kind === 'answer')
    if (faint(tokens[at]!)) while (end < tokens.length && faint(tokens[end]!)) end++
    const group = tokens.slice(at, end)
    const sum = group.reduce((total, token) => total + token.weight, 0)
    const place = end - at === 1 ? `token ${at}` : `tokens ${at} to ${end - 1}, together`
    const strength = end - at === 1 ? Math.sqrt(weight / most) : 0
    parts.push(
      `<span class="kf-${kind}" style="--w:${strength.toFixed(3)}" data-w="${place}: ${(100 * sum).toPrecision(3)} %">${escaped(group.map(({ text }) => text).join(''))}</span>`,
    )
    at = end
  }
  return parts.join('')
}

const STYLE = `
h3 { font-size: 14px; margin: 14px 0 4px }
.kf-heat-map { font: 12px/1.7 ui-monospace, 'DejaVu Sans Mono', monospace; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 320px; overflow-y: auto; border: 1px solid var(--rule); border-radius: 6px; padding: 10px; margin: 4px 0 }
.kf-heat-map span { background: rgb(13 148 136 / calc(var(--w) * 0.85)); border-radius: 3px; -webkit-print-color-adjust: exact; print-color-adjust: exact }
.kf-heat-map span:hover { outline: 2px solid #3b82f6 }
.kf-current { box-shadow: inset 0 0 0 1.5px var(--ink) } .kf-older { box-shadow: none; border: 1px dashed var(--faint) } .kf-marker { border: 1px dotted var(--faint) } .kf-answer { text-decoration: underline; text-decoration-color: var(--rule) }
#kf-said { position: sticky; bottom: 0; background: var(--paper); padding: 6px 0; margin: 0 }
@media print { .kf-heat-map { max-height: none } #kf-said { display: none } }
`

const SCRIPT = `
for (const heatMap of document.querySelectorAll('.kf-heat-map')) {
  const current = heatMap.querySelector('.kf-current')
  if (current) heatMap.scrollTop = current.offsetTop - heatMap.offsetTop - heatMap.clientHeight / 2
}
document.addEventListener('pointerover', (event) => {
  const span = event.target instanceof Element ? event.target.closest('[data-w]') : null
  const said = document.getElementById('kf-said')
  if (span && said) said.textContent = span.dataset.w + '  ' + JSON.stringify(span.textContent.slice(0, 80))
})
`

/** The style and the script that a page with heat maps needs. */
export const HEAT_MAP = { style: STYLE, script: SCRIPT } as const
