/** Draws what the demo measured: `npm start --silent -- --samples 6 --json | node scripts/draw-demo.mjs > docs/demo.svg`. */
import { readFileSync } from 'node:fs'

const { rows, model } = JSON.parse(readFileSync(0, 'utf8').trim().split('\n').at(-1))
const sizes = [...new Set(rows.map(({ n }) => n))].sort((a, b) => a - b)
const AGENTS = [
  { name: 'plain', label: 'plain', colour: '#c2410c' },
  { name: 'sculptor', label: 'with tools', colour: '#0f766e' },
]
const WIDTH = 860
const HEIGHT = 330
const TOP = 56
const BOTTOM = HEIGHT - 48

/** Sizes double from one to the next, so they stand at equal distances. */
const across = (left, right) => (n) => left + ((right - left) * sizes.indexOf(n)) / Math.max(1, sizes.length - 1)
const text = (x, y, content, extra = '') => `<text x="${x}" y="${y}" ${extra}>${content}</text>`
const line = (x1, y1, x2, y2, stroke = '#d4d4d8') => `<line x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}" stroke="${stroke}"/>`

function panel({ left, right, title, ticks, up, value, interval }) {
  const x = across(left + 20, right - 20)
  const parts = [text(left, TOP - 22, title, 'font-weight="600"')]
  for (const { at, label } of ticks)
    parts.push(line(left, up(at), right, up(at)), text(left - 6, up(at) + 4, label, 'text-anchor="end" fill="#71717a"'))
  for (const n of sizes) parts.push(text(x(n), BOTTOM + 20, n, 'text-anchor="middle" fill="#71717a"'))
  parts.push(text((left + right) / 2, BOTTOM + 38, 'updates per key (n)', 'text-anchor="middle" fill="#71717a"'))
  for (const { name, label, colour } of AGENTS) {
    const own = rows.filter(({ agent }) => agent === name).sort((a, b) => a.n - b.n)
    parts.push(
      `<polyline fill="none" stroke="${colour}" stroke-width="2.5" points="${own.map((row) => `${x(row.n)},${up(value(row))}`).join(' ')}"/>`,
    )
    for (const row of own) {
      const bounds = interval?.(row)
      if (bounds) parts.push(line(x(row.n), up(bounds[0]), x(row.n), up(bounds[1]), colour))
      parts.push(`<circle cx="${x(row.n)}" cy="${up(value(row))}" r="4" fill="${colour}"/>`)
    }
    const last = own.at(-1)
    const above = value(last) >= value(rows.find((row) => row.n === last.n && row.agent !== name))
    parts.push(
      text(x(last.n) + (above ? 6 : -8), up(value(last)) + (above ? -10 : 20), label, `text-anchor="end" fill="${colour}"`),
    )
  }
  return parts.join('\n')
}

const scale = (low, high) => (value) => BOTTOM - ((value - low) / (high - low)) * (BOTTOM - TOP)
const most = Math.max(...rows.map(({ tokensAfter }) => tokensAfter))
const step = 10 ** Math.floor(Math.log10(most)) * (most / 10 ** Math.floor(Math.log10(most)) > 4 ? 2 : 1)
const roof = Math.ceil(most / step) * step
const tokenTicks = Array.from({ length: roof / step + 1 }, (_, index) => ({
  at: index * step,
  label: (index * step).toLocaleString('en-US'),
}))

/** Of the accuracies, in percent: from 80 on where all of them lie there, which the title says. */
const floor = Math.min(...rows.map(({ interval }) => interval[0])) > 0.8 ? 80 : 0
const accuracyTicks = Array.from({ length: 5 }, (_, index) => {
  const percent = floor + (index * (100 - floor)) / 4
  return { at: percent / 100, label: percent }
})

console.log(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="system-ui, sans-serif" font-size="13">
<title>PI-LLM on ${model}: accuracy and size of the answering step, plain and with context tools</title>
<rect width="${WIDTH}" height="${HEIGHT}" fill="white"/>
${panel({
  left: 54,
  right: 410,
  title: `Last values right, %${floor ? ` (from ${floor} on)` : ''}, with 95 % intervals`,
  ticks: accuracyTicks,
  up: scale(floor / 100, 1),
  value: ({ accuracy }) => accuracy,
  interval: ({ interval }) => interval,
})}
${panel({
  left: 500,
  right: 840,
  title: 'Tokens in the context of the answering step',
  ticks: tokenTicks,
  up: scale(0, roof),
  value: ({ tokensAfter }) => tokensAfter,
})}
</svg>`)
