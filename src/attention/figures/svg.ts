/** Owns drawing: SVG elements as text, the colours of all figures, scales and ticks. Figures show in light and dark. */
import type { Contract } from '../../core/contract.js'

/** Readable on white and on black, and apart from each other for most kinds of sight. */
export const COLOURS: Readonly<Record<Contract | 'complete', string>> = {
  complete: '#8b8b94',
  exact: '#0d9488',
  splice: '#ea580c',
  blend: '#3b82f6',
}
export const MORE = '#0d9488'
export const LESS = '#ea580c'

const FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
const STYLE = `
.kf-paper { fill: #ffffff } .kf-ink { fill: #27272a } .kf-faint { fill: #71717a } .kf-rule { stroke: #e4e4e7 } .kf-line { stroke: #71717a }
@media (prefers-color-scheme: dark) { .kf-paper { fill: #0d1117 } .kf-ink { fill: #e4e4e7 } .kf-faint { fill: #a1a1aa } .kf-rule { stroke: #30363d } .kf-line { stroke: #a1a1aa } }
@media print { .kf-paper { fill: #ffffff } .kf-ink { fill: #27272a } .kf-faint { fill: #52525b } .kf-rule { stroke: #d4d4d8 } .kf-line { stroke: #71717a } }
`

/** A whole file; `title` is what it says, for readers that do not see it. */
export const drawing = (width: number, height: number, title: string, parts: readonly string[]): string =>
  [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${place(width)} ${place(height)}" font-family="${FONT}" font-size="13" role="img">`,
    `<title>${escaped(title)}</title>`,
    `<style>${STYLE}</style>`,
    `<rect class="kf-paper" width="${place(width)}" height="${place(height)}" rx="6"/>`,
    ...parts,
    '</svg>',
    '',
  ].join('\n')

type Attributes = Readonly<Record<string, string | number>>

export const element = (name: string, attributes: Attributes, inside = ''): string => {
  const written = Object.entries(attributes).map(
    ([key, value]) => ` ${key}="${typeof value === 'number' ? place(value) : escaped(value)}"`,
  )
  return inside === '' ? `<${name}${written.join('')}/>` : `<${name}${written.join('')}>${inside}</${name}>`
}

/** `class`: kf-ink or kf-faint; lines of text are elements of their own. */
export const text = (x: number, y: number, content: string, attributes: Attributes = {}): string =>
  element('text', { x, y, class: 'kf-ink', ...attributes }, escaped(content))

export const line = (x1: number, y1: number, x2: number, y2: number, attributes: Attributes = {}): string =>
  element('line', { x1, y1, x2, y2, class: 'kf-rule', ...attributes })

/** What a pointer that rests on the element is shown. */
export const hint = (content: string): string => `<title>${escaped(content)}</title>`

export const escaped = (content: string): string =>
  content
    // XML has no way to write most control characters.
    // eslint-disable-next-line no-control-regex -- these are what it is about
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/gu, '\ufffd')
    .replace(/[&<>"]/gu, (character) => `&#${character.charCodeAt(0)};`)

const place = (value: number): string => String(Math.round(value * 100) / 100)

/** From a value to a place on the paper, and where to write which values. */
export interface Scale {
  readonly at: (value: number) => number
  readonly ticks: readonly { readonly value: number; readonly label: string }[]
  readonly kind: 'linear' | 'logarithmic'
}

/** Even steps of 1, 2 or 5, about `count` of them, around everything from `least` to `most`. */
export function linear(least: number, most: number, from: number, to: number, count = 5): Scale {
  const wide = most > least ? most - least : Math.abs(most) || 1
  const rough = wide / count
  const power = 10 ** Math.floor(Math.log10(rough))
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) ?? 10 * power
  const low = Math.floor(least / step + 1e-9) * step
  const high = Math.max(low + step, Math.ceil(most / step - 1e-9) * step)
  const ticks = Array.from({ length: Math.round((high - low) / step) + 1 }, (_, index) => low + index * step)
  return {
    kind: 'linear',
    at: (value) => from + ((value - low) / (high - low)) * (to - from),
    ticks: ticks.map((value) => ({ value, label: short(value, step) })),
  }
}

/** Powers of ten around everything from `least` to `most`, both above 0; of many, some. Smaller values are put at the edge. */
export function logarithmic(least: number, most: number, from: number, to: number, count = 6): Scale {
  const low = Math.floor(Math.log10(least) + 1e-9)
  const high = Math.max(low + 1, Math.ceil(Math.log10(most) - 1e-9))
  const step = Math.ceil((high - low) / count)
  const powers = Array.from({ length: Math.floor((high - low) / step) + 1 }, (_, index) => low + index * step)
  return {
    kind: 'logarithmic',
    at: (value) => from + ((Math.max(low, value > 0 ? Math.log10(value) : low) - low) / (high - low)) * (to - from),
    ticks: powers.map((power) => ({
      value: 10 ** power,
      label: power >= -2 && power <= 3 ? String(+(10 ** power).toFixed(2)) : `1e${power}`,
    })),
  }
}

/** Logarithmic where the values span more than three powers of ten. `more` is to fit on, too, as far as it does. */
export function fitting(values: readonly number[], from: number, to: number, more: readonly number[] = []): Scale {
  const least = values.reduce((a, b) => (b > 0 ? Math.min(a, b) : a), Infinity)
  const most = values.reduce((a, b) => Math.max(a, b), 0)
  const top = more.reduce((a, b) => Math.max(a, b), most)
  return most / least > 1000 ? logarithmic(least, top, from, to) : linear(0, top, from, to)
}

/** Digits enough to tell steps apart. */
function short(value: number, step: number): string {
  if (value === 0) return '0'
  if (Math.abs(value) >= 1e5 || step < 1e-3)
    return value.toExponential(Math.max(0, Math.floor(Math.log10(Math.abs(value))) - Math.floor(Math.log10(step))))
  return value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9)))
}

export interface Box {
  readonly left: number
  readonly right: number
  readonly top: number
  readonly bottom: number
}

/** Rules, values and names of both axes. */
export function axes(
  { left, right, top, bottom }: Box,
  x: Scale,
  y: Scale,
  names: { readonly x: string; readonly y: string },
): string[] {
  const middle = (top + bottom) / 2
  return [
    ...y.ticks.flatMap(({ value, label }) => [
      line(left, y.at(value), right, y.at(value)),
      text(left - 7, y.at(value) + 4.5, label, { class: 'kf-faint', 'text-anchor': 'end' }),
    ]),
    ...x.ticks.flatMap(({ value, label }) => [
      line(x.at(value), bottom, x.at(value), bottom + 5, { class: 'kf-line' }),
      text(x.at(value), bottom + 20, label, { class: 'kf-faint', 'text-anchor': 'middle' }),
    ]),
    line(left, bottom, right, bottom, { class: 'kf-line' }),
    text((left + right) / 2, bottom + 40, names.x, { class: 'kf-faint', 'text-anchor': 'middle' }),
    text(0, 0, names.y, {
      class: 'kf-faint',
      'text-anchor': 'middle',
      transform: `translate(${place(left - 50)} ${place(middle)}) rotate(-90)`,
    }),
  ]
}

/** Colours and what they stand for, from left to right. */
export const legend = (x: number, y: number, entries: readonly { readonly label: string; readonly colour: string }[]): string => {
  let at = x
  return entries
    .map(({ label, colour }) => {
      const from = at
      at += 34 + label.length * 7.8
      return element('circle', { cx: from, cy: y - 4.5, r: 5, fill: colour }) + text(from + 10, y, label)
    })
    .join('')
}
