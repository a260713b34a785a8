/** Owns the look of all figures: colours of contracts and of what has none of its own, in light and dark. */
import type { Contract } from '../core/contract.js'

/** Readable on white and on black, and apart from each other for most kinds of sight. */
export const COLOURS: Readonly<Record<Contract | 'complete', string>> = {
  complete: '#8b8b94',
  exact: '#0d9488',
  splice: '#ea580c',
  blend: '#3b82f6',
}
export const MORE = '#0d9488'
export const LESS = '#ea580c'
/** Numbers that are not ours. */
export const THEIRS = '#8b8b94'
/** For whatever has no colour of its own, such as tools. */
export const PALETTE: readonly string[] = ['#3b82f6', '#0d9488', '#ca8a04', '#a855f7', '#ea580c', '#db2777', '#65a30d', '#71717a']

export const INK = '#27272a'
export const PAPER = '#ffffff'
export const FAINT = '#6f6f78'
export const RULE = '#e4e4e7'

/** Marks are written in the colours for light, which every program shows; where it is dark these few are others. */
export const STYLE = `
.kf text { white-space: pre; font-variant-numeric: tabular-nums }
@media (prefers-color-scheme: dark) { @media not print { .kf { color: #e4e4e7 } .kf [fill="${PAPER}"] { fill: #0d1117 } .kf [fill="${FAINT}"] { fill: #a1a1aa } .kf [stroke="${FAINT}"] { stroke: #a1a1aa } .kf [stroke="${RULE}"] { stroke: #30363d } } }
`
